# SPDX-License-Identifier: Apache-2.0
"""The services start from the files that deployers write, by their
commands, and end when they are told to.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import databases
from tests.integration import children
from tests.integration import cloud as cloud_module
from tests.integration import deployment
from tests.integration import identity
from tests.integration import logs
from tests.integration import resources
from tests.integration import side_environment

FILES = deployment.HERE / "deployers"
STOP_SECONDS = 10


class Site:
    """A database and vhost, and files that name them."""

    def __init__(
        self,
        cloud: cloud_module.Cloud,
        database: str,
        vhost: resources.Vhost,
        folder: Path,
    ) -> None:
        self.cloud = cloud
        self.vhost = vhost
        self.folder = folder
        self.port = resources.free_port()
        self.host = f"node-{self.port}"
        self._values = {
            "auth_url": cloud.keystone.auth_url,
            "broker": vhost.url,
            "database": database,
            "folder": str(folder),
            "host": self.host,
            "nobody": str(resources.free_port()),
            "password": identity.PASSWORD,
            "paste": str(FILES / "api-paste.ini"),
            "port": str(self.port),
            "region": identity.REGION,
        }
        self.children: list[children.Child] = []

    def write(self, name: str, **values: str) -> Path:
        """The deployer's file with this site's addresses; where it is."""
        path = self.folder / name
        text = (FILES / name).read_text()
        path.write_text(text.format(**self._values, **values))
        return path

    def launch(self, name: str, *words: str) -> children.Child:
        child = children.Child(
            [deployment.program(f"cyborg-{name}"), *words],
            self.folder / f"{name}.out",
        )
        self.children.append(child)
        return child

    def output(self, name: str) -> str:
        """All that the service logged and printed."""
        files = {self.folder / f"{name}.out", *self.folder.glob("*.log")}
        return "\n".join(
            file.read_text(errors="replace")
            for file in sorted(files)
            if name in file.name
        )


@pytest.fixture
def site(cloud: cloud_module.Cloud, tmp_path: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        site = Site(
            cloud,
            stack.enter_context(databases.empty("mariadb", tmp_path)),
            stack.enter_context(resources.vhost("cyborg")),
            tmp_path,
        )
        yield site
        for child in site.children:
            child.kill()


def _dbsync(*words: str) -> None:
    done = children.finish(
        [deployment.program("cyborg-dbsync"), *words],
        60,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def _status(
    port: int, path: str, token: str | None = None
) -> tuple[int, dict[str, str]]:
    """A health checker's request: HTTP/1.0 without a Host header."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.putrequest(
            "GET", path, skip_host=True, skip_accept_encoding=True
        )
        if token:
            connection.putheader("X-Auth-Token", token)
        connection.endheaders()
        answer = connection.getresponse()
        answer.read()
        headers = {key.lower(): value for key, value in answer.getheaders()}
        return answer.status, headers


@contextlib.contextmanager
def _http_1_0() -> Iterator[None]:
    connection = http.client.HTTPConnection
    before = connection._http_vsn, connection._http_vsn_str
    connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"
    try:
        yield
    finally:
        connection._http_vsn, connection._http_vsn_str = before


COMMANDS = {
    "kolla.conf": (),
    "helm.conf": ("--log-config-append", "/nonexistent/logging-cyborg.conf"),
}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_all_services_run_from_the_deployers_file_and_end_on_sigterm(
    site: Site, name: str
) -> None:
    file = str(site.write(name))
    words = ("--config-file", file, *COMMANDS[name])
    _dbsync("--config-file", file, "upgrade")
    api = site.launch("api", *words)
    conductor = site.launch("conductor", *words)
    agent = site.launch("agent", *words)
    for child, ready in (
        (api, lambda: resources.answers(site.port)),
        (
            conductor,
            lambda: site.vhost.consumers("cyborg-conductor") > 0,
        ),
        (agent, lambda: _agent_listens(site)),
    ):
        resources.wait_until(
            lambda child=child, ready=ready: not child.running or ready(),
            deployment.READY_SECONDS,
            child.tail(),
        )
        assert child.running, child.tail()

    with _http_1_0():
        for path in ("/", "/v2", "/healthcheck"):
            assert _status(site.port, path)[0] == 200
        status, headers = _status(site.port, "/v2/devices")
        assert status == 401
        assert "www-authenticate" in headers
        token = site.cloud.keystone.token("admin")
        assert _status(site.port, "/v2/devices", token)[0] == 200

    for child in (agent, conductor, api):
        began = time.monotonic()
        assert child.stop() == 0, child.tail()
        assert time.monotonic() - began < STOP_SECONDS
    for service in ("api", "conductor", "agent"):
        assert logs.tracebacks(site.output(service)) == [], service


def _agent_listens(site: Site) -> bool:
    return site.vhost.consumers(f"cyborg-agent.{socket.gethostname()}") > 0


def test_the_operators_agent_and_conductor_run_from_a_directory(
    site: Site,
) -> None:
    keystone = site.cloud.keystone
    credential = keystone.application_credential("cyborg")
    conductor_file = site.write("operator-conductor.conf", **credential)
    agent_file = site.write("operator-agent.conf", **credential)
    dbsync_file = site.write("operator-dbsync.conf")
    site.cloud.placement.make_root(f"{site.host}.example.org")
    folders = {}
    for name, file in (
        ("dbsync", dbsync_file),
        ("conductor", conductor_file),
        ("agent", agent_file),
    ):
        folders[name] = site.folder / f"{name}.conf.d"
        folders[name].mkdir()
        file.rename(folders[name] / "01-config.conf")

    _dbsync("--config-dir", str(folders["dbsync"]), "upgrade")
    _dbsync("--config-dir", str(folders["dbsync"]), "upgrade")
    conductor = site.launch(
        "conductor", "--config-dir", str(folders["conductor"])
    )
    agent = site.launch("agent", "--config-dir", str(folders["agent"]))
    placement = site.cloud.placement

    def reported() -> bool:
        found = placement.request(
            "GET",
            f"/resource_providers?name={site.host}_FakeDevice",
        )
        assert conductor.running, conductor.tail()
        assert agent.running, agent.tail()
        return bool(found["resource_providers"])

    resources.wait_until(reported, 30, "the fake device is a provider")
    for child in (agent, conductor):
        assert child.stop() == 0, child.tail()
    for service in ("conductor", "agent"):
        assert logs.tracebacks(site.output(service)) == [], service


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_validator_finds_nothing_to_say_about_the_deployers_file(
    site: Site, name: str
) -> None:
    file = site.write(name)
    generator = (
        side_environment.SOURCE_TREE
        / "tools"
        / "config"
        / "cyborg-config-generator.conf"
    )
    done = children.finish(
        [
            str(Path(sys.executable).with_name("oslo-config-validator")),
            "--config-file",
            str(generator),
            "--input-file",
            str(file),
        ],
        60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not found" not in done.stderr


MISTAKES = {
    "auth_strategy": ("DEFAULT", "auth_strategy", "kerberos"),
    "port": ("api", "port", "many"),
    "periodic_interval": ("DEFAULT", "periodic_interval", "soon"),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_a_mistake_in_the_file_stops_the_service_naming_the_option(
    site: Site, mistake: str
) -> None:
    group, option, value = MISTAKES[mistake]
    file = site.write("kolla.conf")
    text = file.read_text()
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith(f"{option} =")
    ]
    lines.insert(lines.index(f"[{group}]") + 1, f"{option} = {value}")
    file.write_text("\n".join(lines))
    done = children.finish(
        [deployment.program("cyborg-api"), "--config-file", str(file)],
        30,
    )
    assert done.returncode not in (0, None)
    said = done.stdout + done.stderr
    assert option in said
    assert value in said
    assert "Traceback" not in said

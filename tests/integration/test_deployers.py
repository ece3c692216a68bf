# SPDX-License-Identifier: Apache-2.0
"""Deployers' checks 4, 7 and 9: each deployer's files and commands.

Every service and tool starts from them as they are, does its work, keeps its
connection to the broker, and ends when its main process is told to.
"""

from __future__ import annotations

import collections
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.devstack import sandbox
from tests.integration import children
from tests.integration import cloud as cloud_module
from tests.integration import deployed
from tests.integration import deployment
from tests.integration import identity
from tests.integration import logs
from tests.integration import resources

HELD_SECONDS = 60
"""After so long a connection that nobody holds would be gone."""


@pytest.fixture(scope="module")
def steady(
    cloud: cloud_module.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[deployed.Site]:
    """Kolla's, started first and looked at last."""
    with deployed.site(cloud, tmp_path_factory.mktemp("steady")) as made:
        deployer = deployed.DEPLOYERS["kolla"]
        made.set_up(deployer)
        _dbsync(made, deployer)
        made.start(deployer)
        yield made


@pytest.fixture(scope="module")
def started(steady: deployed.Site) -> float:
    """When all of that one's services were there."""
    return time.monotonic()


@pytest.fixture
def site(
    cloud: cloud_module.Cloud, started: float, tmp_path: Path
) -> Iterator[deployed.Site]:
    with deployed.site(cloud, tmp_path) as made:
        yield made


def _run(
    site: deployed.Site, deployer: deployed.Deployer, words: tuple[str, ...]
) -> tuple[int, str, str]:
    done = children.finish(
        site.command("dbsync", words),
        120,
        _with_ours(site.environment("dbsync", deployer)),
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def _with_ours(more: dict[str, str]) -> dict[str, str]:
    """The variables, and those that we have."""
    return {**os.environ, **more}


def _dbsync(site: deployed.Site, deployer: deployed.Deployer) -> None:
    code, _, said = _run(site, deployer, deployer.dbsync)
    assert code == 0, said


def _serves(site: deployed.Site) -> None:
    """What health checkers and clients get (check 5, over the wire)."""
    for path in ("/", "/v2", "/healthcheck"):
        assert deployed.plain_get(site.port, path)[0] == 200, path
    status, headers = deployed.plain_get(site.port, "/v2/devices")
    assert status == 401
    assert "www-authenticate" in headers
    site.devices()


def _one_line_each(site: deployed.Site, deployer: deployed.Deployer) -> None:
    """An option that does nothing is told once by each process."""
    told = collections.Counter[tuple[str, str]]()
    wanted = set()
    for service, child in site.children.items():
        conf = site.home(service) / deployer.name
        processes = 1 + len(psutil.Process(child.pid).children(recursive=True))
        said = site.output(service)
        for option in deployed.legacy_options(conf.read_text()):
            wanted.add(option)
            lines = said.count('Option "{1}" from group "{0}"'.format(*option))
            assert lines <= (processes if service == "api" else 1), option
            told[option] += lines
    assert set(+told) == wanted


@pytest.mark.parametrize(
    "name", [name for name in deployed.DEPLOYERS if name != "kolla"]
)
def test_all_services_run_as_deployed(name: str, site: deployed.Site) -> None:
    """Checks 4, 7, 8: from dbsync to SIGTERM, by the very commands."""
    deployer = deployed.DEPLOYERS[name]
    site.set_up(deployer)
    _dbsync(site, deployer)
    _dbsync(site, deployer)
    site.start(deployer)
    _serves(site)
    if deployer.device:
        resources.wait_until(
            lambda: site.devices(), 60, "the device is reported"
        )
    _one_line_each(site, deployer)
    for service in ("conductor", "agent"):
        assert deployed.broker_connections(site.children[service].pid)
    assert site.cache.kept, "no token was cached"
    codes = site.stop()
    assert codes["conductor"] == codes["agent"] == 0
    site.judge()


@pytest.mark.parametrize("name", sorted(deployed.DEPLOYERS))
def test_the_tools_run_with_the_deployers_file(
    name: str, site: deployed.Site
) -> None:
    """Check 4: before and after the schema is there."""
    deployer = deployed.DEPLOYERS[name]
    site.set_up(deployer)
    check = ("cyborg-status", "upgrade", "check")
    code, said, _ = _run(site, deployer, check)
    assert code == 1, said
    _dbsync(site, deployer)
    assert _run(site, deployer, check)[0] <= 1
    code, _, errors = _run(site, deployer, ("cyborg-manage", "hardware"))
    assert code == 0, errors


def test_a_missing_logging_file_is_said_once(site: deployed.Site) -> None:
    """Check 7: helm's file that nobody makes."""
    deployer = deployed.DEPLOYERS["helm"]
    site.set_up(deployer)
    child = site.launch(
        "agent",
        site.command("agent", deployer.agent),
        **site.environment("agent"),
    )
    site.wait()
    assert child.stop() == 0
    lines = [
        line
        for line in site.output("agent").splitlines()
        if "log_config_append" in line and "WARNING" in line
    ]
    assert len(lines) == 1


@pytest.mark.parametrize("name", ["kolla", "kolla 2025.1", "helm"])
def test_the_validator_has_nothing_to_say(
    name: str, site: deployed.Site
) -> None:
    """Check 4: kolla-ansible's validate-config, in each container."""
    deployer = deployed.DEPLOYERS[name]
    site.set_up(deployer)
    generator = sandbox.ROOT / "tools/config/cyborg-config-generator.conf"
    for service in deployed.SERVICES:
        done = children.finish(
            [
                str(Path(sys.executable).with_name("oslo-config-validator")),
                "--config-file",
                str(generator),
                "--input-file",
                str(site.home(service) / deployer.name),
            ],
            60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "not found" not in done.stdout + done.stderr
        assert "ERROR" not in done.stderr


def _devstack(site: deployed.Site) -> Iterator[sandbox.Node]:
    sockets = Path(tempfile.mkdtemp(prefix="uwsgi-"))
    node = sandbox.Node(
        site.folder / "node",
        BROKER_URL=site.vhost.url,
        DATABASE_URL=site.values["database"] + "?charset=utf8",
        # Its programs are not in a virtual environment of the node.
        GLOBAL_VENV="False",
        KEYSTONE_SERVICE_URI=site.values["auth_url"],
        MEMCACHE_SERVERS=site.cache.address,
        SERVICE_PASSWORD=identity.PASSWORD,
        SOCKETS=str(sockets),
    )
    node.install(Path(sys.executable).parent)
    yield node
    shutil.rmtree(sockets)


@pytest.fixture
def node(site: deployed.Site) -> Iterator[sandbox.Node]:
    """A node of devstack's with this site's cloud."""
    yield from _devstack(site)


def test_what_devstacks_plugin_wrote_and_started_runs(
    site: deployed.Site, node: sandbox.Node
) -> None:
    """Check 1's end: its own configuration, dbsync and commands.

    `stack extra` has run the real cyborg-dbsync.
    """
    node.stack()
    names = {
        "cyborg-api": "api",
        "cyborg-cond": "conductor",
        "cyborg-agent": "agent",
    }
    socket = Path(node.variables["SOCKETS"], "cyborg-api.socket")
    for unit, command in sandbox.named(node.calls, "started"):
        words = command.split()
        if unit == "cyborg-api":
            words += ["--http-socket", f"127.0.0.1:{site.port}"]
        service = names[unit]
        site.launch(service, words, HOME=str(site.folder))
    site.wait()
    _serves(site)
    for path, link in (
        ("", "http://cloud.example/accelerator/v2"),
        ("/v2", "http://cloud.example/accelerator/v2"),
    ):
        status, _, body = deployed.uwsgi_get(socket, "/accelerator", path)
        assert status == 200
        assert link in body.decode()
    resources.wait_until(
        lambda: len(site.devices()) == 3, 60, "devices as local.conf says"
    )
    codes = site.stop()
    assert codes["conductor"] == codes["agent"] == 0
    for service in site.children:
        assert logs.tracebacks(site.output(service)) == []


def test_tokens_are_cached_encrypted_where_memcached_is(
    steady: deployed.Site,
) -> None:
    """Kolla's memcache_security_strategy."""
    steady.devices()
    hits = steady.cache.hits
    kept = dict(steady.cache.kept)
    assert kept
    token = steady.cloud.keystone.token("admin").encode()
    for key, (_, value) in kept.items():
        assert token not in key + value
        assert b"admin" not in value
    for _ in range(20):
        steady.devices()
    assert steady.cache.hits > hits


def test_requests_work_where_memcached_is_away(site: deployed.Site) -> None:
    """All deployers name one; tokens are then asked for each time."""
    deployer = deployed.DEPLOYERS["kolla 2025.1"]
    site.values["memcached"] = f"127.0.0.1:{site.values['nobody']}"
    site.set_up(deployer)
    conf = site.home("api") / "cyborg.conf"
    conf.write_text(
        conf.read_text().replace("memcache_servers", "memcached_servers")
    )
    _dbsync(site, deployer)
    site.launch(
        "api",
        site.command("api", deployer.api),
        **site.environment("api"),
    )
    site.wait()
    for _ in range(3):
        site.devices()
    site.stop()
    site.judge()


MISTAKES = {
    "auth_strategy": ("DEFAULT", "auth_strategy", "kerberos"),
    "port": ("api", "port", "many"),
    "periodic_interval": ("DEFAULT", "periodic_interval", "soon"),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_a_mistake_in_the_file_stops_the_service_naming_the_option(
    site: deployed.Site, mistake: str
) -> None:
    group, option, value = MISTAKES[mistake]
    file = site.write("api", "kolla.conf", "cyborg.conf")
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


def test_main_processes_hold_a_connection_to_the_broker(
    steady: deployed.Site, started: float
) -> None:
    """Check 9: after a minute, and after all connections were lost."""
    time.sleep(max(0, started + HELD_SECONDS - time.monotonic()))
    watched = {
        name: steady.children[name].pid for name in ("conductor", "agent")
    }
    for name, pid in watched.items():
        assert deployed.broker_connections(pid), name
    before = {
        name: deployed.broker_connections(pid) for name, pid in watched.items()
    }
    steady.vhost.cut()
    for name, pid in watched.items():
        resources.wait_until(
            lambda name=name, pid=pid: (
                deployed.broker_connections(pid)
                and not deployed.broker_connections(pid) & before[name]
            ),
            60,
            f"{name} is connected again",
        )
        process = psutil.Process(pid)
        assert f"cyborg-{name}" in " ".join(process.cmdline())
        assert process.status()[0] in "drst"
    steady.wait()
    _serves(steady)
    _one_line_each(steady, deployed.DEPLOYERS["kolla"])
    codes = steady.stop()
    assert codes["conductor"] == codes["agent"] == 0

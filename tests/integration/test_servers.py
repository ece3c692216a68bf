# SPDX-License-Identifier: Apache-2.0
"""The API in each web server, by the sample that we ship for it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import sqlalchemy as sa

from tests.integration import certificates
from tests.integration import children
from tests.integration import deployment
from tests.integration import resources
from tests.integration import web_servers

STOP_SECONDS = 10
START_SECONDS = 90
ASKED = 40
COUNT = re.compile(
    r'^cyborg_api_request_duration_seconds_count\{method="GET",'
    r'route="/v2",status="2xx"\} (\S+)$',
    re.MULTILINE,
)


class Server:
    """A web server that runs the API."""

    def __init__(
        self,
        url: str,
        process: children.Child,
        authority: Path | None = None,
    ) -> None:
        self.url = url
        self.process = process
        self.streamed = 201
        self.stop_seconds = STOP_SECONDS
        self.verify: bool | str = str(authority) if authority else True

    def get(self, path: str, **headers: str) -> requests.Response:
        """A new connection, which any worker may take."""
        return requests.get(
            self.url + path, headers=headers, verify=self.verify, timeout=60
        )

    def post(self, path: str, body: object, token: str) -> int:
        return requests.post(
            self.url + path,
            json=body,
            headers={"X-Auth-Token": token},
            verify=self.verify,
            timeout=60,
        ).status_code

    def attempt(self, path: str, token: str) -> None:
        """Ask, and have it answered or not."""
        with contextlib.suppress(requests.RequestException):
            self.get(path, **{"X-Auth-Token": token})

    def answers(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return self.get("/").status_code == 200
        return False


@pytest.fixture(scope="module")
def cyborg_with_conductor(
    deploy: deployment.Deploy,
) -> deployment.Deployment:
    made = deploy()
    made.start_conductor()
    return made


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that a server's own user can enter."""
    with tempfile.TemporaryDirectory(prefix="cyborg-test-") as made:
        path = Path(made)
        path.chmod(0o755)
        yield path


def configuration(cyborg: deployment.Deployment, folder: Path) -> Path:
    """The deployment's file, with a state path of this server's."""
    path = folder / "cyborg.conf"
    path.write_text(
        re.sub(
            r"^state_path = .*$",
            f"state_path = {folder}",
            cyborg.configuration.read_text(),
            flags=re.MULTILINE,
        )
    )
    return path


def uwsgi_ini(
    cyborg: deployment.Deployment, folder: Path, changes: dict[str, str]
) -> Path:
    return web_servers.edited(
        "uwsgi/cyborg-api.ini",
        folder,
        {
            "/etc/cyborg/cyborg.conf": str(configuration(cyborg, folder)),
            "processes = 4": "processes = 3",
            "threads = 16": "threads = 4",
            **changes,
        },
    )


def uwsgi(cyborg: deployment.Deployment, folder: Path) -> Server:
    port = resources.free_port()
    socket_line = "socket = /run/cyborg/cyborg-api.socket\nchmod-socket = 660"
    ini = uwsgi_ini(
        cyborg,
        folder,
        {
            socket_line: f"http = 127.0.0.1:{port}\nhttp-raw-body = true\n"
            "http-chunked-input = true",
        },
    )
    return Server(
        f"http://127.0.0.1:{port}",
        children.Child(
            [deployment.program("uwsgi"), "--ini", str(ini)],
            folder / "server.log",
        ),
    )


def gunicorn(cyborg: deployment.Deployment, folder: Path) -> Server:
    port = resources.free_port()
    config = web_servers.edited(
        "gunicorn/cyborg-api.conf.py",
        folder,
        {
            "127.0.0.1:6666": f"127.0.0.1:{port}",
            "/etc/cyborg/cyborg.conf": str(configuration(cyborg, folder)),
            "workers = 4": "workers = 3",
            "threads = 16": "threads = 4",
        },
    )
    return Server(
        f"http://127.0.0.1:{port}",
        children.Child(
            [
                deployment.program("gunicorn"),
                "--config",
                str(config),
                "cyborg.wsgi.api:application",
            ],
            folder / "server.log",
        ),
    )


APACHE = """\
ServerRoot {folder}
ServerName localhost
PidFile {folder}/apache.pid
DefaultRuntimeDir {folder}
Mutex file:{folder}
{modules}
ErrorLog {folder}/server.log
Include {site}
"""
APACHE_MODULES = Path("/usr/lib/apache2/modules")


def apache(
    cyborg: deployment.Deployment,
    folder: Path,
    name: str,
    modules: list[str],
    changes: dict[str, str],
    before: str = "",
) -> Server:
    program = web_servers.apache()
    settings = configuration(cyborg, folder)
    port = resources.free_port()
    authority = certificates.Authority(folder)
    pair = authority.issue("server")
    site = web_servers.edited(
        f"apache2/{name}.conf",
        folder,
        {
            "Define CYBORG_PORT 6666": f"Define CYBORG_PORT {port}",
            "/etc/cyborg/ssl/cert.pem": str(pair.certificate),
            "/etc/cyborg/ssl/key.pem": str(pair.key),
            "CYBORG_LOG /var/log/apache2": f"CYBORG_LOG {folder}",
            **changes,
        },
    )
    (folder / "apache.conf").write_text(
        APACHE.format(
            folder=folder,
            site=site,
            modules="\n".join(
                [
                    *(
                        f"LoadModule {each}_module "
                        f"{APACHE_MODULES}/mod_{each}.so"
                        for each in (
                            *("mpm_event", "authz_core", "env", "mime"),
                            *("setenvif", "socache_shmcb", "ssl", *modules),
                        )
                    ),
                    "TypesConfig /etc/mime.types",
                    before,
                ]
            ),
        )
    )
    return Server(
        f"https://127.0.0.1:{port}",
        children.Child(
            [
                *_as_nobody_special(folder),
                *(program, "-f", str(folder / "apache.conf"), "-DFOREGROUND"),
            ],
            folder / "server.log",
            {
                "LD_LIBRARY_PATH": web_servers.library_path(),
                "OS_CYBORG_CONFIG_FILES": str(settings),
            },
        ),
        authority.file,
    )


def _as_nobody_special(folder: Path) -> list[str]:
    """Apache and mod_wsgi do not work as root; but the tests' Python and
    source tree may be where only root can read."""
    if os.geteuid() != 0:
        return []
    (folder / "server.log").touch()
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, "www-data", "www-data")
    return [
        *("setpriv", "--reuid=www-data", "--regid=www-data"),
        *("--clear-groups", "--inh-caps=+dac_read_search"),
        "--ambient-caps=+dac_read_search",
    ]


def mod_wsgi(cyborg: deployment.Deployment, folder: Path) -> Server:
    module = web_servers.mod_wsgi()
    server = apache(
        cyborg,
        folder,
        "cyborg-api-wsgi",
        [],
        {
            "/usr/lib/python3/dist-packages/cyborg/wsgi/api.py": str(
                web_servers.SAMPLES.parent / "cyborg" / "wsgi" / "api.py"
            ),
            # Whoever runs Apache here runs the API.
            "user=cyborg group=cyborg ": "",
            "processes=4 threads=16": "processes=3 threads=4",
        },
        f"LoadModule wsgi_module {module}\n"
        f"WSGIPythonHome {sys.prefix}\n"
        f"WSGISocketPrefix {folder}/wsgi",
    )
    # Apache waits 9 s for a child of its own whose client still waits, and
    # only then tells ours, which then have their five.
    server.stop_seconds = 30
    return server


def mod_proxy_uwsgi(cyborg: deployment.Deployment, folder: Path) -> Server:
    made = folder / "cyborg-api.socket"
    ini = uwsgi_ini(
        cyborg,
        folder,
        {
            "/run/cyborg/cyborg-api.socket": str(made),
            # Apache's user is in no group of ours here.
            "chmod-socket = 660": "chmod-socket = 666",
        },
    )
    behind = children.Child(
        [deployment.program("uwsgi"), "--ini", str(ini)],
        folder / "uwsgi.log",
    )
    server = apache(
        cyborg,
        folder,
        "cyborg-api-proxy-uwsgi",
        ["proxy", "proxy_uwsgi"],
        {"/run/cyborg/cyborg-api.socket": str(made)},
    )
    server.process = _Both(server.process, behind)
    # Apache's own answer, whatever is behind it.
    server.streamed = 411
    return server


class _Both(children.Child):
    """A web server and the application server behind it."""

    def __init__(self, first: children.Child, second: children.Child) -> None:
        self.output = first.output
        self.process = first.process
        self._second = second

    @property
    def running(self) -> bool:
        return super().running and self._second.running

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        began = time.monotonic()
        self._second.process.send_signal(signal.SIGTERM)
        first = super().stop(seconds)
        second = self._second.stop(seconds - (time.monotonic() - began))
        return first or second

    def kill(self) -> None:
        super().kill()
        self._second.kill()


SERVERS: dict[str, Callable[[deployment.Deployment, Path], Server]] = {
    "gunicorn": gunicorn,
    "mod_proxy_uwsgi": mod_proxy_uwsgi,
    "mod_wsgi": mod_wsgi,
    "uwsgi": uwsgi,
}


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_a_web_server_serves_the_api_with_our_sample(
    name: str, cyborg_with_conductor: deployment.Deployment, folder: Path
) -> None:
    cyborg = cyborg_with_conductor
    server = SERVERS[name](cyborg, folder)
    try:
        resources.wait_until(
            lambda: not server.process.running or server.answers(),
            START_SECONDS,
            f"{name} answers:\n{server.process.tail()}",
        )
        assert server.process.running, server.process.tail()
        _serves(server, cyborg)
        _counts_together(server)
        _ends_with_work_in_progress(server, cyborg)
    finally:
        server.process.kill()


def _serves(server: Server, cyborg: deployment.Deployment) -> None:
    root = server.get("/")
    (link,) = root.json()["versions"][0]["links"]
    assert link["href"] == f"{server.url}/v2"
    assert server.get("/healthcheck").status_code == 200
    refused = server.get("/v2/devices")
    assert refused.status_code == 401
    assert "WWW-Authenticate" in refused.headers
    token = cyborg.cloud.keystone.token("admin")
    listed = server.get("/v2/devices", **{"X-Auth-Token": token})
    assert listed.status_code == 200, listed.text
    made = server.post(
        "/v2/device_profiles",
        _profile(),
        token,
    )
    assert made == 201
    # A body whose length is not said, in chunks.
    pieces = json.dumps(_profile()).encode().partition(b"resources")
    streamed = requests.post(
        f"{server.url}/v2/device_profiles",
        data=iter(pieces),
        headers={"X-Auth-Token": token, "Content-Type": "application/json"},
        verify=server.verify,
        timeout=60,
    )
    assert streamed.status_code == server.streamed, streamed.text


def _counts_together(server: Server) -> None:
    """Whichever worker answers knows what all have done."""
    for _ in range(ASKED):
        assert server.get("/v2").status_code == 200
    for _ in range(8):
        answer = server.get("/metrics")
        assert answer.status_code == 200, answer.text
        assert "cyborg_metrics_complete 1.0" in answer.text
        found = COUNT.search(answer.text)
        assert found, answer.text
        assert float(found[1]) == ASKED
    proxied = server.get("/metrics", **{"X-Forwarded-For": "127.0.0.1"})
    unknown = server.get("/nothing", **{"X-Forwarded-For": "127.0.0.1"})
    assert proxied.status_code == unknown.status_code == 401
    assert proxied.json().keys() == unknown.json().keys()


def _ends_with_work_in_progress(
    server: Server, cyborg: deployment.Deployment
) -> None:
    """A request waits for the database when SIGTERM comes."""
    token = cyborg.cloud.keystone.token("admin")
    waiting = threading.Thread(
        target=server.attempt, args=("/v2/devices", token), daemon=True
    )
    engine = sa.create_engine(cyborg.database, poolclass=sa.pool.NullPool)
    with engine.connect() as holder, engine.connect() as watcher:
        holder.exec_driver_sql("LOCK TABLES devices WRITE")
        waiting.start()
        resources.wait_until(
            lambda: watcher.exec_driver_sql(WAITING).scalar(),
            20,
            "a request waits for the table",
        )
        began = time.monotonic()
        server.process.stop(server.stop_seconds)
        assert time.monotonic() - began < server.stop_seconds
    waiting.join(60)
    assert not _listens(server.url)


WAITING = (
    "SELECT count(*) FROM information_schema.processlist "
    "WHERE db = database() AND state LIKE 'Waiting for table%%'"
)


def _profile() -> list[dict[str, object]]:
    return [
        {
            "name": resources.unique_name("profile"),
            "groups": [{"resources:PGPU": "1"}],
        }
    ]


def _listens(url: str) -> bool:
    port = int(url.rpartition(":")[2])
    with contextlib.closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

# SPDX-License-Identifier: Apache-2.0
"""Cyborg as each deployment tool sets it up.

A deployer is a folder of files, in our own words, and the commands that it
starts. Each service has a home of its own, as in a container: what is not
named on its command line it finds there, as it would in /etc/cyborg.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import http.client
import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

import psutil

from cyborg.conf import legacy
from tests import databases
from tests.integration import children
from tests.integration import cloud as cloud_module
from tests.integration import deployment
from tests.integration import identity
from tests.integration import logs
from tests.integration import memcached
from tests.integration import resources

FILES = deployment.HERE / "deployers"
SERVICES = ("api", "conductor", "agent")
READY_SECONDS = 120
STOP_SECONDS = 10
"""Deployers kill after fifteen."""
SERVER_STOP_SECONDS = 60
"""What they leave to uwsgi, whose many processes end one after the other."""
CONF = ("--config-file", "{home}/cyborg.conf")
FOLDER = ("--config-dir", "{home}/cyborg.conf.d")


@dataclasses.dataclass(frozen=True)
class Deployer:
    """What a tool writes and runs; words may name a site's values."""

    conf: str | Mapping[str, str]
    """The one file of all services and dbsync, or one for each."""
    dbsync: tuple[str, ...]
    api: tuple[str, ...]
    conductor: tuple[str, ...]
    agent: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    """File of ours, and its name beside the configuration."""
    environment: tuple[tuple[str, str], ...] = ()
    name: str = "cyborg.conf"
    device: bool = True
    """Whether the agent has something to report."""


def service_arguments(words: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Conductor and agent with the same arguments."""
    return {
        service: (f"cyborg-{service}", *words)
        for service in ("conductor", "agent")
    }


PASTE = (("kolla-helm-paste.ini", "api-paste.ini"),)
DEBIAN_PASTE = (("debian-paste.ini", "api-paste.ini"),)
LOGGING = ("--log-config-append", "{folder}/nowhere/logging-cyborg.conf")
DEBIAN_WORDS = ("--config-file={home}/cyborg.conf",)

DEPLOYERS: dict[str, Deployer] = {
    "devstack after grenade": Deployer(
        "devstack-after-grenade.conf",
        ("cyborg-dbsync", *CONF, "upgrade"),
        ("cyborg-api", *CONF),
        files=DEBIAN_PASTE,
        **service_arguments(CONF),
    ),
    "kolla 2025.1": Deployer(
        "kolla-2025.1.conf",
        ("cyborg-dbsync", "upgrade"),
        ("cyborg-api", *CONF),
        files=PASTE,
        **service_arguments(CONF),
    ),
    "kolla": Deployer(
        "kolla.conf",
        ("cyborg-dbsync", "upgrade"),
        ("uwsgi", "{home}/cyborg-api-uwsgi.ini"),
        files=(*PASTE, ("kolla-uwsgi.ini", "cyborg-api-uwsgi.ini")),
        **service_arguments(CONF),
    ),
    "helm": Deployer(
        "helm.conf",
        ("cyborg-dbsync", *CONF, "upgrade"),
        ("cyborg-api", *CONF, *LOGGING),
        files=PASTE,
        device=False,
        **service_arguments((*CONF, *LOGGING)),
    ),
    "operator": Deployer(
        {
            "dbsync": "operator-dbsync.conf",
            "api": "operator-api.conf",
            "conductor": "operator-conductor.conf",
            "agent": "operator-agent.conf",
        },
        ("cyborg-dbsync", *FOLDER, "upgrade"),
        (sys.executable, str(deployment.HERE / "serve_file.py"), "{port}"),
        name="cyborg.conf.d/01-config.conf",
        **service_arguments(FOLDER),
    ),
    "debian": Deployer(
        "debian.conf",
        ("cyborg-dbsync", *CONF, "upgrade"),
        ("uwsgi", "{home}/cyborg-api-uwsgi.ini"),
        ("cyborg-conductor", *DEBIAN_WORDS, "--log-file={folder}/cond.log"),
        (
            "cyborg-agent",
            *DEBIAN_WORDS,
            "--log-file={folder}/agent.log",
            "--use-syslog",
        ),
        files=(*DEBIAN_PASTE, ("debian-uwsgi.ini", "cyborg-api-uwsgi.ini")),
        environment=(
            ("OS_OSLO_MESSAGING_RABBIT__PROCESSNAME", "cyborg-{service}"),
        ),
    ),
    "without arguments": Deployer(
        "debian.conf",
        ("cyborg-dbsync", "upgrade"),
        ("cyborg-api",),
        files=DEBIAN_PASTE,
        **service_arguments(()),
    ),
    "CubeCOS": Deployer(
        "cubecos.conf",
        ("cyborg-dbsync", *CONF, "upgrade"),
        ("cyborg-api", *CONF),
        files=DEBIAN_PASTE,
        **service_arguments(CONF),
    ),
}


class Site:
    """A database and vhost, and one Cyborg of a deployer in them."""

    def __init__(
        self,
        cloud: cloud_module.Cloud,
        database: str,
        vhost: resources.Vhost,
        cache: memcached.Memcached,
        folder: Path,
    ) -> None:
        self.cloud = cloud
        self.vhost = vhost
        self.cache = cache
        self.folder = folder
        self.port = resources.free_port()
        self.host = f"node-{self.port}"
        self.agent_host = socket.gethostname()
        self.children: dict[str, children.Child] = {}
        self.programs: dict[str, str] = {}
        self.values = {
            "auth_url": cloud.keystone.auth_url,
            "broker": vhost.url,
            "brokers": vhost.url.replace(
                resources.BROKER, f"{resources.BROKER},{resources.BROKER}"
            ),
            "database": database,
            "folder": str(folder),
            "host": self.host,
            "memcached": cache.address,
            "nobody": str(resources.free_port()),
            "password": identity.PASSWORD,
            "port": str(self.port),
            "region": identity.REGION,
            "user": getpass.getuser(),
        }

    def home(self, service: str) -> Path:
        """Where the service looks for its files."""
        return self.folder / service / ".cyborg"

    def _values(self, service: str) -> dict[str, str]:
        log = f"log_file = {self.folder}/cyborg-api.log"
        return {
            **self.values,
            "service": service,
            "home": str(self.home(service)),
            "api_log": log if service == "api" else "# no log_file",
        }

    def write(self, service: str, source: str, name: str) -> Path:
        """A deployer's file with this site's addresses; where it is."""
        path = self.home(service) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (FILES / source).read_text()
        path.write_text(text.format(**self._values(service)))
        return path

    def set_up(self, deployer: Deployer) -> None:
        """Write all that the deployer writes."""
        if not isinstance(deployer.conf, str):
            self.agent_host = self.host
            self.values |= self.cloud.keystone.application_credential("cyborg")
        for service in ("dbsync", *SERVICES):
            conf = deployer.conf
            source = conf if isinstance(conf, str) else conf[service]
            self.write(service, source, deployer.name).chmod(0o600)
            for file, name in deployer.files:
                self.write(service, file, name)

    def environment(
        self, service: str, deployer: Deployer | None = None
    ) -> dict[str, str]:
        """The variables that a process of the service starts with."""
        values = self._values(service)
        more = deployer.environment if deployer else ()
        return {
            "HOME": str(self.home(service).parent),
            **{name: value.format(**values) for name, value in more},
        }

    def command(self, service: str, words: tuple[str, ...]) -> list[str]:
        values = self._values(service)
        program, *rest = (word.format(**values) for word in words)
        if "/" not in program:
            program = deployment.program(program)
        return [program, *rest]

    def launch(
        self, service: str, command: list[str], **environment: str
    ) -> children.Child:
        # A session of its own, as systemd and containers give it:
        # oslo.messaging's queue manager asks for the leader of its group.
        child = children.Child(
            ["setsid", *command], self.folder / f"{service}.out", environment
        )
        self.children[service] = child
        self.programs[service] = Path(command[0]).name
        return child

    def start(self, deployer: Deployer) -> None:
        """All three services by the deployer's own commands."""
        for service in SERVICES:
            self.launch(
                service,
                self.command(service, getattr(deployer, service)),
                **self.environment(service, deployer),
            )
        self.wait()

    def wait(self) -> None:
        """Until each service that was launched is ready."""
        ready = {
            "api": lambda: resources.answers(self.port) and self._loaded(),
            "conductor": lambda: self.vhost.consumers("cyborg-conductor"),
            "agent": lambda: self.vhost.consumers(
                f"cyborg-agent.{self.agent_host}"
            ),
        }
        for service, child in self.children.items():
            resources.wait_until(
                lambda child=child, service=service: (
                    not child.running or ready[service]()
                ),
                READY_SECONDS,
                f"{service} is ready: {child.tail()}",
            )
            assert child.running, child.tail()

    def _loaded(self) -> bool:
        """Whether each worker of uwsgi has the application (all have
        `lazy-apps`): one that is told to end while it loads it serves on.
        """
        if "uwsgi" not in self.programs["api"]:
            return True
        said = self.output("api")
        spawned = said.count("spawned uWSGI worker")
        return 0 < spawned <= said.count("WSGI app 0 (")

    def output(self, service: str) -> str:
        """All that the service logged and printed."""
        found = [self.folder / f"{service}.out"]
        found += self.folder.glob(f"*{service[:4]}*.log")
        return "\n".join(
            file.read_text(errors="replace") for file in found if file.exists()
        )

    def stop(self) -> dict[str, int]:
        """SIGTERM to each main process alone; how each ended.

        Nothing of any may be left after the deployers' patience.
        """
        families = {
            service: psutil.Process(child.pid).children(recursive=True)
            for service, child in self.children.items()
        }
        began = time.monotonic()
        for child in self.children.values():
            child.process.send_signal(signal.SIGTERM)
        codes = {}
        # What is ours first: its limit is the shorter one.
        for service in sorted(self.children, key=self._patience):
            most = self._patience(service)
            codes[service] = self.children[service].stop(most)
            left = max(0, most - (time.monotonic() - began))
            _, alive = psutil.wait_procs(families[service], timeout=left)
            assert not alive, f"{service} left {alive}"
            assert time.monotonic() - began < most, service
        return codes

    def _patience(self, service: str) -> float:
        ours = self.programs[service].startswith("cyborg-")
        return STOP_SECONDS if ours else SERVER_STOP_SECONDS

    def kill(self) -> None:
        for child in self.children.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                family = psutil.Process(child.pid).children(recursive=True)
                for member in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        member.kill()
            child.kill()

    def judge(self) -> None:
        """No traceback, and one line for each option that is gone."""
        for service, child in self.children.items():
            said = self.output(service)
            assert logs.tracebacks(said) == [], f"{service}: {child.tail()}"
            assert "Traceback" not in child.output.read_text()

    def devices(self) -> list[dict[str, object]]:
        """What the API lists."""
        answer = deployment.requests.get(
            f"http://127.0.0.1:{self.port}/v2/devices",
            headers={"X-Auth-Token": self.cloud.keystone.token("admin")},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        return list(answer.json()["devices"])


@contextlib.contextmanager
def site(cloud: cloud_module.Cloud, folder: Path) -> Iterator[Site]:
    """A place for one deployer's Cyborg, empty."""
    with contextlib.ExitStack() as stack:
        made = Site(
            cloud,
            stack.enter_context(databases.empty("mariadb", folder)),
            stack.enter_context(resources.vhost("cyborg")),
            stack.enter_context(memcached.running()),
            folder,
        )
        stack.callback(made.kill)
        yield made


def legacy_options(text: str) -> set[tuple[str, str]]:
    """(group, option) of the file that do nothing any more."""
    found = set()
    group = ""
    for line in text.splitlines():
        if header := re.fullmatch(r"\[(.+)\]", line):
            group = header.group(1)
        name = line.partition("=")[0].strip()
        if name in legacy.REPLACEMENTS.get(group, {}):
            found.add((group, name))
    return found


def plain_get(
    port: int, path: str, token: str = ""
) -> tuple[int, dict[str, str]]:
    """Status and headers for a health checker: HTTP/1.0, no Host."""
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        header = f"X-Auth-Token: {token}\r\n" if token else ""
        connection.sendall(f"GET {path} HTTP/1.0\r\n{header}\r\n".encode())
        return _answer(connection)


def uwsgi_get(
    path: Path, script: str, info: str
) -> tuple[int, dict[str, str], bytes]:
    """An answer over uwsgi's own protocol, which Apache speaks to it."""
    variables = {
        "HTTP_HOST": "cloud.example",
        "PATH_INFO": info,
        "QUERY_STRING": "",
        "REMOTE_ADDR": "192.0.2.1",
        "REQUEST_METHOD": "GET",
        "REQUEST_URI": script + info,
        "SCRIPT_NAME": script,
        "SERVER_NAME": "cloud.example",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
    }
    body = b"".join(
        struct.pack("<H", len(word)) + word.encode()
        for pair in variables.items()
        for word in pair
    )
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(struct.pack("<BHB", 0, len(body), 0) + body)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, _lower(answer), answer.read()


def _answer(connection: socket.socket) -> tuple[int, dict[str, str]]:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status, _lower(answer)


def _lower(answer: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}


def broker_connections(pid: int, port: int = 0) -> set[int]:
    """Local ports of this one process's connections to the machine's broker,
    or to the one on that port."""
    port = port or int(resources.BROKER.rpartition(":")[2])
    return {
        connection.laddr.port
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED
        and connection.raddr.port == port
    }

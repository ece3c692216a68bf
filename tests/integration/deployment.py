# SPDX-License-Identifier: Apache-2.0
"""Cyborg itself: the console scripts as processes of one cyborg.conf."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import uuid
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
import sqlalchemy as sa

from tests.integration import children
from tests.integration import cloud as cloud_module
from tests.integration import identity
from tests.integration import logs
from tests.integration import resources

HERE = Path(__file__).parent
READY_SECONDS = 180
PERIOD = 2
"""`periodic_interval` and `[conductor] reconcile_interval`, seconds."""

CREDENTIALS = """\
auth_type = password
auth_url = {auth_url}
project_domain_name = Default
project_name = service
user_domain_name = Default
username = cyborg
password = {password}
region_name = {region}
"""

CONFIGURATION = """\
[DEFAULT]
host = {host}
debug = true
transport_url = {broker}
state_path = {folder}
periodic_interval = {period}
rpc_response_timeout = {rpc_response_timeout}
bind_timeout = {bind_timeout}
[api]
host_ip = 127.0.0.1
port = {port}
[agent]
enabled_drivers = fake_driver
resource_provider_name = {provider}
[fake]
{fake}
[conductor]
reconcile_interval = {period}
service_down_time = {down}
[database]
connection = {database}
[oslo_concurrency]
lock_path = {folder}/locks
[oslo_messaging_notifications]
driver = noop
[keystone_authtoken]
{credentials}
www_authenticate_uri = {auth_url}
service_type = accelerator
[placement]
{credentials}
valid_interfaces = internal
[nova]
{credentials}
valid_interfaces = internal
[glance]
{credentials}
valid_interfaces = internal
"""


def program(name: str) -> str:
    """The path of one of our console scripts."""
    path = Path(sys.executable).with_name(name)
    assert path.exists(), f"{name} is not installed beside {sys.executable}"
    return str(path)


class Answers:
    """Statuses of all the requests of a test, to be judged at its end."""

    def __init__(self) -> None:
        self.server_errors: list[str] = []

    def note(self, method: str, path: str, answer: requests.Response) -> None:
        if answer.status_code >= 500 and answer.status_code not in (503, 504):
            self.server_errors.append(
                f"{method} {path}: {answer.status_code} {answer.text}"
            )


class Caller:
    """The API as one person uses it; `service` adds Nova's service token."""

    def __init__(
        self,
        deployment: Deployment,
        user: str | None,
        service: str | None = None,
        port: int | None = None,
    ) -> None:
        self._deployment = deployment
        self._user = user
        self._service = service
        self._base = (
            f"{deployment.scheme}://127.0.0.1:{port or deployment.port}"
        )
        self._session = requests.Session()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        version: str | None = "2.3",
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        keystone = self._deployment.cloud.keystone
        sent = dict(headers or {})
        if self._user is not None:
            sent["X-Auth-Token"] = keystone.token(self._user)
        if self._service is not None:
            sent["X-Service-Token"] = keystone.token(self._service)
        if version is not None:
            sent["OpenStack-API-Version"] = f"accelerator {version}"
        answer = self._session.request(
            method,
            self._base + path,
            json=body,
            headers=sent,
            timeout=90,
            # Of the session, the environment would have the last word.
            verify=self._deployment.trusted,
            cert=self._deployment.certificate,
        )
        self._deployment.answers.note(method, path, answer)
        return answer

    def get(self, path: str, status: int = 200) -> Any:
        return self._json("GET", path, None, status)

    def post(self, path: str, body: Any = None, status: int = 201) -> Any:
        return self._json("POST", path, body, status)

    def patch(self, path: str, body: object, status: int = 202) -> Any:
        return self._json("PATCH", path, body, status)

    def delete(self, path: str, status: int = 204) -> Any:
        return self._json("DELETE", path, None, status)

    def _json(self, method: str, path: str, body: object, status: int) -> Any:
        # Nova names no microversion when it binds.
        version = None if method == "PATCH" else "2.3"
        answer = self.request(method, path, body, version)
        assert answer.status_code == status, (
            f"{method} {path}: {answer.status_code} {answer.text}"
        )
        return answer.json() if answer.content else None


def bind_patch(
    provider: str, instance: str, hostname: str
) -> list[dict[str, str]]:
    """The JSON patch that binds one ARQ, in the order that Nova sends."""
    values = {
        "hostname": hostname,
        "device_rp_uuid": provider,
        "instance_uuid": instance,
    }
    return [
        {"path": f"/{key}", "op": "add", "value": value}
        for key, value in values.items()
    ]


@dataclasses.dataclass(frozen=True)
class Host:
    """A further compute node, with an agent of its own."""

    name: str
    """What `[DEFAULT] host` of its agent says."""
    provider_name: str
    root: str

    @property
    def label(self) -> str:
        """Its agent among the deployment's processes."""
        return f"agent {self.name}"


class Deployment:
    """One Cyborg: a database, a vhost, a configuration, processes."""

    def __init__(
        self,
        cloud: cloud_module.Cloud,
        database: str,
        vhost: resources.Vhost,
        folder: Path,
        *,
        fake: Mapping[str, object] | None = None,
        bind_timeout: int = 60,
        rpc_response_timeout: int = 20,
        root: bool = True,
    ) -> None:
        self.cloud = cloud
        self.database = database
        self.vhost = vhost
        self.folder = folder
        self.port = cloud.api_port
        self.scheme = "http"
        self.trusted: str | bool = True
        """Who signed the API's certificate, if it has one."""
        self.certificate: tuple[str, str] | None = None
        """That of its callers, and their key."""
        self.host = f"agent-{uuid.uuid4().hex[:8]}"
        self.provider_name = f"{self.host}.example.org"
        self.root = ""
        self._make_root = root
        self.answers = Answers()
        self.processes: dict[str, children.Child] = {}
        self.configuration = folder / "cyborg.conf"
        credentials = CREDENTIALS.format(
            auth_url=cloud.keystone.auth_url,
            password=identity.PASSWORD,
            region=identity.REGION,
        )
        self.configuration.write_text(
            CONFIGURATION.format(
                host=self.host,
                provider=self.provider_name,
                broker=vhost.url,
                folder=folder,
                period=PERIOD,
                down=3 * PERIOD,
                bind_timeout=bind_timeout,
                rpc_response_timeout=rpc_response_timeout,
                port=self.port,
                fake="\n".join(
                    f"{key} = {value}" for key, value in (fake or {}).items()
                ),
                database=database,
                credentials=credentials,
                auth_url=cloud.keystone.auth_url,
            )
        )

    def prepare(self) -> None:
        """The schema, and the host's root provider as Nova makes it."""
        self.run("cyborg-dbsync", "upgrade")
        if self._make_root:
            self.root = self.cloud.placement.make_root(self.provider_name)

    def run(
        self,
        name: str,
        *words: str,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run one of the commands to its end; what it wrote."""
        done = children.finish(
            [program(name), "--config-file", str(self.configuration), *words],
            environment={**os.environ, **(environment or {})},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def launch(
        self,
        name: str,
        label: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> children.Child:
        """Start `cyborg-<name>` without waiting for it."""
        label = label or name
        child = children.Child(
            [
                program(f"cyborg-{name}"),
                "--config-file",
                str(self.configuration),
            ],
            self.folder / f"{label}.log",
            environment,
        )
        self.processes[label] = child
        return child

    def start_api(
        self,
        label: str = "api",
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        port = port or self.port
        self.launch(
            "api", label, {**(environment or {}), "OS_API__PORT": str(port)}
        )
        self._ready(label, lambda: resources.serves(port))

    def wait_for_consumers(self, label: str, queue: str, number: int) -> None:
        """Until so many listen to that queue; `label` is one of them."""
        self._ready(
            label, lambda: self.vhost.consumers(queue) >= number, READY_SECONDS
        )

    def start_conductor(
        self,
        label: str = "conductor",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        already = sum(
            child.running
            for name, child in self.processes.items()
            if name.startswith("conductor")
        )
        self.launch("conductor", label, environment)
        self._ready(
            label,
            lambda: self.vhost.consumers("cyborg-conductor") > already,
        )

    def start_agent(
        self, environment: Mapping[str, str] | None = None
    ) -> None:
        self.launch("agent", environment=environment)
        self._ready(
            "agent",
            lambda: self.vhost.consumers(f"cyborg-agent.{self.host}") > 0,
        )

    def add_host(self, **options: str) -> Host:
        """A further host: its root provider, as Nova makes it, and its agent,
        ready.

        `options` (`fake__devices="2"`) are the agent's own, over those of
        the file.
        """
        name = f"agent-{uuid.uuid4().hex[:8]}"
        provider = f"{name}.example.org"
        host = Host(name, provider, self.cloud.placement.make_root(provider))
        self.start_agent_of(host, **options)
        return host

    def start_agent_of(self, host: Host, **options: str) -> None:
        """The agent of a further host, once it listens."""
        environment = {
            f"OS_{name.upper()}": value
            for name, value in {
                "default__host": host.name,
                "agent__resource_provider_name": host.provider_name,
                **options,
            }.items()
        }
        self.launch("agent", host.label, environment)
        self._ready(
            host.label,
            lambda: self.vhost.consumers(f"cyborg-agent.{host.name}") > 0,
        )

    def start(self) -> None:
        """All three services, ready."""
        self.launch("conductor")
        self.launch("agent")
        self.start_api()
        self._ready(
            "conductor",
            lambda: self.vhost.consumers("cyborg-conductor") > 0,
        )
        self._ready(
            "agent",
            lambda: self.vhost.consumers(f"cyborg-agent.{self.host}") > 0,
        )

    def _ready(
        self, label: str, condition: Any, seconds: float = READY_SECONDS
    ) -> None:
        child = self.processes[label]
        resources.wait_until(
            lambda: not child.running or condition(),
            seconds,
            f"{label} is ready:\n{child.tail()}",
        )
        assert child.running, f"{label} ended:\n{child.tail()}"

    def kill(self, label: str) -> None:
        """End a process as kill -9 does."""
        self.processes[label].kill()

    def stop(self) -> None:
        for child in self.processes.values():
            if child.running:
                child.process.terminate()
        for child in self.processes.values():
            child.stop()

    def tails(self) -> str:
        """What the processes said last, for a failed test's report."""
        return "\n".join(
            f"--- {label}\n{child.tail()}"
            for label, child in self.processes.items()
        )

    def tracebacks(self) -> dict[str, list[str]]:
        """Process -> what its log says before each traceback."""
        found = {
            label: logs.tracebacks(child.output.read_text(errors="replace"))
            for label, child in self.processes.items()
        }
        return {label: said for label, said in found.items() if said}

    def caller(
        self,
        user: str | None,
        service: str | None = None,
        port: int | None = None,
    ) -> Caller:
        return Caller(self, user, service, port)

    def providers(self, root: str = "") -> dict[str, str]:
        """Name -> uuid of a host's accelerator providers; without `root`
        those of the first host.
        """
        return {
            provider["name"]: provider["uuid"]
            for provider in self.cloud.placement.children_of(root or self.root)
        }

    def wait_for_providers(
        self, number: int = 1, seconds: float = READY_SECONDS, root: str = ""
    ) -> dict[str, str]:
        """The providers, once there are so many with an inventory."""

        def reported() -> bool:
            found = self.providers(root)
            return len(found) == number and all(
                self.cloud.placement.inventory(uuid) for uuid in found.values()
            )

        resources.wait_until(
            reported, seconds, f"{number} providers:\n{self.tails()}"
        )
        return self.providers(root)

    def make_profile(self, groups: list[dict[str, str]]) -> str:
        """The name of a new device profile."""
        name = f"profile-{uuid.uuid4().hex[:12]}"
        self.caller("admin").post(
            "/v2/device_profiles", [{"name": name, "groups": groups}]
        )
        return name

    def handles_in_use(self) -> int:
        """Handles that the database says are taken."""
        engine = sa.create_engine(self.database, poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            return int(
                connection.execute(
                    sa.text("SELECT count(*) FROM attach_handles WHERE in_use")
                ).scalar_one()
            )


Deploy = Callable[..., Deployment]
"""Makes a prepared deployment; see the fixture `deploy`."""


def faultstring(answer: requests.Response) -> str:
    """The human text of an error's body."""
    return str(json.loads(answer.json()["error_message"])["faultstring"])

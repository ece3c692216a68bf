# SPDX-License-Identifier: Apache-2.0
"""Many hosts of one Cyborg, each process behind proxies of its own.

A host is an agent with a fake driver and an inventory file.  Whatever a
process talks to it reaches through proxies that are its alone, so that a
fault meets that process and no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests import proxy
from tests.integration import cloud as clouds
from tests.integration import deployment
from tests.integration import resources
from tests.integration import servers

CONDUCTOR, API, AGENT = "conductor", "api", "agent"


@dataclasses.dataclass
class Links:
    """The proxies of one process."""

    broker: proxy.Broker
    database: proxy.Proxy
    placement: proxy.Http
    nova: proxy.Http
    keystone: proxy.Http

    def all(self) -> Mapping[str, proxy.Proxy]:
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
        }

    def heal(self) -> None:
        for link in self.all().values():
            link.heal()


def _address(url: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80


class Host:
    """One simulated host: its names, and the file that says what it has."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.name = f"host-{number}-{uuid.uuid4().hex[:8]}"
        self.provider_name = f"{self.name}.example.org"
        self.label = f"{AGENT}-{number}"
        self.root = fleet.cyborg.cloud.placement.make_root(self.provider_name)
        self.folder = fleet.cyborg.folder / self.label
        self.folder.mkdir()
        self.file = self.folder / "devices.yaml"
        self._lock = threading.Lock()
        self.devices: dict[str, dict[str, Any]] = {}

    def put(self, address: str, **values: Any) -> None:
        """Plug a device in, or change it."""
        with self._lock:
            self.devices[address] = {"address": address, **values}
            self._write()

    def pull(self, address: str) -> None:
        """Unplug a device."""
        with self._lock:
            self.devices.pop(address, None)
            self._write()

    def _write(self) -> None:
        new = self.file.with_suffix(".new")
        # YAML reads JSON.
        new.write_text(json.dumps(list(self.devices.values())))
        new.replace(self.file)

    def deployable(self, address: str) -> str:
        """The name of a device's provider."""
        return f"{self.name}_FakeDevice_{address}".replace(":", "_").replace(
            ".", "_"
        )


class Fleet:
    """The processes of one deployment, started behind proxies."""

    def __init__(self, cyborg: deployment.Deployment) -> None:
        self.cyborg = cyborg
        self.links: dict[str, Links] = {}
        self.hosts: list[Host] = []
        self.ports: dict[str, int] = {}
        self._environments: dict[str, dict[str, str]] = {}
        self.clocks: dict[str, Clock] = {}

    def close(self) -> None:
        self.cyborg.stop()
        for links in self.links.values():
            for link in links.all().values():
                link.close()

    def add_host(self) -> Host:
        host = Host(self, len(self.hosts))
        self.hosts.append(host)
        return host

    @property
    def roots(self) -> dict[str, str]:
        return {host.provider_name: host.root for host in self.hosts}

    # -- processes

    def prepare(self, label: str, **options: str) -> None:
        """Make the proxies and the environment of a process."""
        cloud = self.cyborg.cloud
        database = sa.make_url(self.cyborg.database)
        links = Links(
            broker=proxy.Broker(
                _address(f"amqp://{self.cyborg.vhost.broker}")
            ),
            database=proxy.Proxy(
                (database.host or "127.0.0.1", database.port or 3306)
            ),
            placement=proxy.Http(_address(cloud.placement.url)),
            nova=proxy.Http(_address(cloud.nova.url)),
            keystone=proxy.Http(_address(cloud.keystone.auth_url)),
        )
        self.links[label] = links
        user = self.cyborg.vhost.broker.rpartition("@")[0]
        auth_url = f"http://{links.keystone.address}/v3"
        # Tokens are validated where the catalogue says that Keystone is.
        region = resources.unique_name("region")
        cloud.keystone.add_region(region, auth_url)
        environment = {
            "OS_KEYSTONE_AUTHTOKEN__REGION_NAME": region,
            "OS_DEFAULT__TRANSPORT_URL": (
                f"rabbit://{user}@{links.broker.address}"
                f"/{self.cyborg.vhost.name}"
            ),
            "OS_DATABASE__CONNECTION": database.set(
                host="127.0.0.1", port=links.database.port
            ).render_as_string(hide_password=False),
            "OS_PLACEMENT__ENDPOINT_OVERRIDE": (
                f"http://{links.placement.address}"
            ),
            "OS_NOVA__ENDPOINT_OVERRIDE": f"http://{links.nova.address}/v2.1",
            "OS_KEYSTONE_AUTHTOKEN__AUTH_URL": auth_url,
            "OS_PLACEMENT__AUTH_URL": auth_url,
            "OS_NOVA__AUTH_URL": auth_url,
        }
        clock = Clock(self.cyborg.folder / f"{label}.clock")
        self.clocks[label] = clock
        environment.update(clock.environment)
        environment.update(options)
        self._environments[label] = environment

    def start(self, conductors: int, apis: int, **options: str) -> None:
        """All of them, ready; `options` go into each environment."""
        for number in range(conductors):
            label = f"{CONDUCTOR}-{number}"
            self.prepare(
                label, OS_DEFAULT__HOST=f"{label}-{uuid.uuid4().hex[:8]}"
            )
        for number in range(apis):
            label = f"{API}-{number}"
            self.ports[label] = resources.free_port()
            self.prepare(label, OS_API__PORT=str(self.ports[label]))
        for host in self.hosts:
            self.prepare(
                host.label,
                OS_DEFAULT__HOST=host.name,
                OS_DEFAULT__STATE_PATH=str(host.folder),
                OS_AGENT__RESOURCE_PROVIDER_NAME=host.provider_name,
                OS_FAKE__INVENTORY_FILE=str(host.file),
            )
        for label, environment in self._environments.items():
            environment.update(options)
            self.launch(label)
        for label in self._environments:
            self.wait(label)
        self.cyborg.wait_for_consumers(
            f"{CONDUCTOR}-0", "cyborg-conductor", conductors
        )

    def launch(self, label: str) -> None:
        """Start a process again, or for the first time; do not wait."""
        self.cyborg.launch(
            label.partition("-")[0], label, self._environments[label]
        )

    def wait(self, label: str) -> None:
        """Until a process that was launched can be asked for something."""
        kind = label.partition("-")[0]
        if kind == API:
            port = self.ports[label]
            child = self.cyborg.processes[label]
            resources.wait_until(
                lambda: not child.running or resources.serves(port),
                deployment.READY_SECONDS,
                f"{label} is ready",
            )
            assert child.running, child.tail()
        else:
            name = self._environments[label]["OS_DEFAULT__HOST"]
            self.cyborg.wait_for_consumers(label, f"cyborg-{kind}.{name}", 1)

    def labels(self, *kinds: str) -> list[str]:
        return [
            label
            for label in self._environments
            if not kinds or label.partition("-")[0] in kinds
        ]

    def restart(self, label: str) -> None:
        """As by kill -9 and a supervisor."""
        self.cyborg.kill(label)
        self.launch(label)

    def heal(self) -> None:
        """No proxy fails any more, and every process runs."""
        for links in self.links.values():
            links.heal()
        for label in self._environments:
            if not self.cyborg.processes[label].running:
                self.launch(label)

    def devices_are_offered(self, seconds: float = 120) -> None:
        """Returns once every device that is plugged in is a provider."""
        placement = self.cyborg.cloud.placement

        def offered() -> bool:
            return all(
                {one["name"] for one in placement.children_of(host.root)}
                == {host.deployable(address) for address in host.devices}
                for host in self.hosts
            )

        resources.wait_until(
            offered, seconds, f"all is offered:\n{self.cyborg.tails()}"
        )


@contextlib.contextmanager
def made(cyborg: deployment.Deployment) -> Iterator[Fleet]:
    """A fleet whose processes and proxies end with the block."""
    fleet = Fleet(cyborg)
    try:
        yield fleet
    finally:
        fleet.close()


@dataclasses.dataclass(frozen=True)
class Apart:
    """A fleet that has its database and its broker for itself."""

    fleet: Fleet
    mariadb: servers.MariaDB
    rabbit: servers.RabbitMQ


@contextlib.contextmanager
def made_apart(
    cloud: clouds.Cloud,
    factory: pytest.TempPathFactory,
    rpc_response_timeout: int,
) -> Iterator[Apart]:
    """A fleet without hosts or processes, and the servers that it uses."""
    with contextlib.ExitStack() as stack:
        mariadb = servers.MariaDB(factory.mktemp("mariadb"))
        stack.callback(mariadb.kill)
        rabbit = servers.RabbitMQ(factory.mktemp("rabbitmq"))
        stack.callback(rabbit.kill)
        cyborg = deployment.Deployment(
            cloud,
            mariadb.url,
            rabbit,
            factory.mktemp("cyborg"),
            rpc_response_timeout=rpc_response_timeout,
            root=False,
        )
        cyborg.prepare()
        fleet = stack.enter_context(made(cyborg))
        yield Apart(fleet, mariadb, rabbit)


class Clock:
    """The clock of processes that are started with `environment`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)
        self.environment = {
            "PYTHONPATH": str(Path(__file__).with_name("shifted")),
            "CYBORG_TEST_CLOCK": str(file),
        }

    def step(self, seconds: float) -> None:
        """Let it be so far ahead of the machine's."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as out:
            out.write(struct.pack("d", seconds))

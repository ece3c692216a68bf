# SPDX-License-Identifier: Apache-2.0
"""A host with devices, and a conductor on a real database, for tests."""

from __future__ import annotations

import dataclasses
import json
import threading
import uuid
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import context as cyborg_context
from cyborg import inventory
from cyborg.clients.nova import BindEvent
from cyborg.conductor.manager import ConductorEndpoint
from cyborg.conductor.work import Work
from cyborg.db import engine
from cyborg.db import models
from cyborg.rpc import codec
from cyborg.rpc.agent import CleanResult
from cyborg.rpc.agent import ProgramOrder
from cyborg.rpc.agent import ProgramResult
from cyborg.rpc.agent import UnitsOrder
from cyborg.rpc.conductor import Binding
from tests import databases

admin_context = cyborg_context.admin_context
CONTEXT = admin_context()
PROJECT = "2f4b1c0d9e8a4d5f8c7b6a5948372615"

Arq = models.AcceleratorRequest
Handle = models.AttachHandle


def handle(bus: int, number: int) -> inventory.AttachHandle:
    return inventory.AttachHandle(
        inventory.AttachType.PCI,
        inventory.pci_json(f"0000:{bus:02x}:{number // 8:02x}.{number % 8}"),
    )


def device(
    bus: int = 0x0C,
    accelerators: int = 16,
    host: str = "compute-1",
    resource_class: str | None = "FPGA",
    traits: Sequence[str] = ("CUSTOM_FAKE_DEVICE",),
    **values: Any,
) -> inventory.Device:
    """A card at 0000:<bus>:00.0 with one deployable."""
    attributes = [(f"trait{i}", trait) for i, trait in enumerate(traits)]
    if resource_class is not None:
        attributes.append(("rc", resource_class))
    return inventory.Device(
        controlpath=inventory.pci_json(f"0000:{bus:02x}:00.0"),
        type=inventory.DeviceType.FPGA,
        vendor="0xABCD",
        model="card",
        driver=values.pop("driver", "fake_driver"),
        std_board_info='{"device_id": "0xabcd"}',
        deployables=(
            inventory.Deployable(
                name=f"{host}_0000:{bus:02x}:00.0",
                num_accelerators=accelerators,
                driver_name="fake",
                attributes=tuple(attributes),
                attach_handles=tuple(
                    handle(bus, n) for n in range(1, accelerators + 1)
                ),
            ),
        ),
        **values,
    )


def report(
    *devices: inventory.Device,
    host: str = "compute-1",
    provider_name: str = "compute-1.example.org",
    provider_uuid: str | None = None,
    faults: Sequence[inventory.DriverFault] = (),
) -> inventory.HostReport:
    return inventory.HostReport(
        host, provider_name, provider_uuid, devices, tuple(faults)
    )


class NovaRecorder:
    """Stands where Nova's client stands; `failing` makes it unreachable."""

    def __init__(self) -> None:
        self.events: list[BindEvent] = []
        self.failing = False
        self.holding: threading.Event | None = None
        """Set by the test to let those go that are being told."""
        self.projects: dict[str, str] = {}
        self._came = threading.Condition()

    def notify(self, events: Sequence[BindEvent]) -> frozenset[str]:
        holding = self.holding
        if holding is not None:
            self.holding = None
            assert holding.wait(10)
        if self.failing:
            return frozenset(event.arq_uuid for event in events)
        with self._came:
            self.events += events
            self._came.notify_all()
        return frozenset()

    def project_of(self, instance_uuid: str) -> str | None:
        return self.projects.get(instance_uuid)

    def wait(self, count: int, timeout: float = 10) -> list[BindEvent]:
        with self._came:
            assert self._came.wait_for(
                lambda: len(self.events) >= count, timeout
            ), self.events
            return list(self.events)


class Hosts:
    """Stands where the agents' client stands.

    `answer`, `on_prepare` and `on_clean` say what an order leads to: they
    return or raise.
    """

    def __init__(self) -> None:
        self.orders: list[ProgramOrder] = []
        self.answer: Callable[[ProgramOrder], ProgramResult] = lambda order: (
            ProgramResult(order.image_uuid)
        )
        self.prepared: list[UnitsOrder] = []
        self.on_prepare: Callable[[UnitsOrder], None] = lambda order: None
        self.cleaned: list[UnitsOrder] = []
        self.asked: list[str] = []
        """Which host each of `cleaned` was sent to."""
        self.on_clean: Callable[[UnitsOrder], CleanResult] = lambda order: (
            CleanResult(done=True, percent=100)
        )

    def program(
        self,
        context: cyborg_context.RequestContext,
        host: str,
        order: ProgramOrder,
    ) -> ProgramResult:
        self.orders.append(order)
        return self.answer(order)

    def prepare(
        self,
        context: cyborg_context.RequestContext,
        host: str,
        order: UnitsOrder,
    ) -> None:
        self.prepared.append(order)
        self.on_prepare(order)

    def clean(
        self,
        context: cyborg_context.RequestContext,
        host: str,
        order: UnitsOrder,
    ) -> CleanResult:
        self.asked.append(host)
        self.cleaned.append(order)
        return self.on_clean(order)


@dataclasses.dataclass
class World:
    """One conductor's endpoint, called without a broker."""

    database: engine.Database
    conf: cfg.ConfigOpts
    work: Work
    endpoint: ConductorEndpoint
    nova: NovaRecorder
    hosts: Hosts

    def close(self) -> None:
        self.work.stop()

    # -- what clients do

    def report(self, *devices: inventory.Device, **values: Any) -> None:
        self.endpoint.report_host(
            CONTEXT, codec.encode(report(*devices, **values))
        )

    def profile(self, name: str = "fpga", *groups: dict[str, str]) -> str:
        return self.endpoint.create_device_profile(
            CONTEXT, name, list(groups or ({"resources:FPGA": "1"},)), None
        )

    def arqs(self, count: int = 1, **group: str) -> list[str]:
        """New ARQs, all of one group."""
        name = f"profile-{uuid.uuid4().hex}-x"
        self.profile(name, {"resources:FPGA": str(count), **group})
        context = cyborg_context.RequestContext(project_id=PROJECT)
        return self.endpoint.create_arqs(context, name, None, None)

    def bind(
        self,
        arqs: Sequence[str],
        provider: str | None = None,
        instance: str | None = None,
        scope: str | None = None,
        host: str = "compute-1.example.org",
    ) -> str:
        """Bind all to one provider and instance (its uuid)."""
        instance = instance or str(uuid.uuid4())
        self.endpoint.bind_arqs(
            CONTEXT,
            [
                codec.encode(
                    Binding(
                        one,
                        host,
                        provider or provider_of(),
                        instance,
                    )
                )
                for one in arqs
            ],
            scope,
        )
        return instance

    def unbind(self, *arqs: str) -> None:
        self.endpoint.unbind_arqs(CONTEXT, list(arqs), None)

    def delete(self, *arqs: str, may_unbind: bool = True) -> None:
        self.endpoint.delete_arqs(CONTEXT, list(arqs), None, may_unbind)

    # -- what is stored

    def arq(self, uuid: str) -> models.AcceleratorRequest:
        with self.database.reader() as session:
            return session.scalars(
                sa.select(Arq).where(Arq.uuid == uuid)
            ).one()

    def states(self, arqs: Sequence[str]) -> list[str]:
        return [self.arq(one).state for one in arqs]

    def all(self, model: type[models.Base]) -> list[Any]:
        with self.database.reader() as session:
            return list(
                session.scalars(sa.select(model).order_by(model.id)).all()
            )

    def used(self) -> list[int]:
        return [row.id for row in self.all(Handle) if row.in_use]

    def execute(self, statement: Any) -> None:
        with self.database.writer() as session:
            session.execute(statement)


def provider_of(bus: int = 0x0C, host: str = "compute-1") -> str:
    """The provider of the deployable that `device` makes."""
    return inventory.provider_uuid(f"{host}_0000:{bus:02x}:00.0")


def configuration(**options: Any) -> cfg.ConfigOpts:
    conf = databases.configuration(None)
    conf.set_override("host", "conductor-1")
    for name, value in options.items():
        group, _, option = name.rpartition("__")
        conf.set_override(option, value, group or None)
    return conf


def make(
    database: engine.Database,
    placement: Any = None,
    nova: NovaRecorder | None = None,
    hosts: Hosts | None = None,
    started: bool = False,
    **options: Any,
) -> World:
    """A conductor; its passes run only where `started`."""
    conf = configuration(**options)
    nova = nova or NovaRecorder()
    hosts = hosts or Hosts()
    work = Work(conf, database, hosts, placement, nova)
    world = World(
        database,
        conf,
        work,
        ConductorEndpoint(conf, database, work),
        nova,
        hosts,
    )
    if started:
        work.start()
    return world


def wait_until(
    holds: Callable[[], bool], timeout: float = 15, step: float = 0.05
) -> None:
    """Waits for rows that no event in this process announces."""
    pause = threading.Event()
    for _ in range(int(timeout / step)):
        if holds():
            return
        pause.wait(step)
    raise AssertionError("it did not come true in time")


def info(row: models.AttachHandle) -> dict[str, str]:
    return dict(json.loads(row.attach_info))

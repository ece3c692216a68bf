# SPDX-License-Identifier: Apache-2.0
"""A host with many cards, real Placement, and ways to spoil their records."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from cyborg.audit import gathering
from cyborg.audit import running
from cyborg.audit.findings import Kind
from cyborg.audit.healing import Healer
from cyborg.audit.state import Patience
from cyborg.clients import nova_servers
from cyborg.clients.placement import Placement
from cyborg.clients.placement_survey import Survey
from cyborg.db import engine
from cyborg.db import models
from tests import placement as placement_module
from tests.functional.conductor import world as worlds
from tests.nova_stand_in import NovaStandIn

Arq = models.AcceleratorRequest
Handle = models.AttachHandle
Job = models.Job
Host = models.Host
Device = models.Device
Deployable = models.Deployable

HOST = "compute-1.example.org"
UNITS = 4
AS_NOVA = "1.36"
"""The microversion at which Nova allocates."""
PATIENCE = Patience(settle=60, down=180, vanish=86400)


def ago(seconds: float) -> dt.datetime:
    return models.now() - dt.timedelta(seconds=seconds)


class Cloud:
    """One host of `cards` cards, everything right."""

    def __init__(
        self,
        database: engine.Database,
        placement: placement_module.PlacementService,
        nova: NovaStandIn,
        nova_adapter: Any,
        cards: int,
    ) -> None:
        self.database = database
        self.placement = placement
        self.nova = nova
        self._nova_adapter = nova_adapter
        self.client = Placement(placement.adapter())
        self.world = worlds.make(database, self.client)
        self.root = placement.create_provider(HOST)
        placement.set_inventories(self.root, {"VCPU": {"total": 64}})
        self.world.report(
            *(worlds.device(0x10 + number, UNITS) for number in range(cards)),
            provider_uuid=self.root,
        )
        self.sync()
        self.settle()
        self.sites = [Site(self, number) for number in range(cards)]

    def close(self) -> None:
        self.world.close()

    def sync(self) -> None:
        for host in self.world.all(Host):
            self.world.work.sync.sync(host.id)

    def settle(self) -> None:
        """Make every row old."""
        for model in (Arq, Handle, Job):
            self.world.execute(
                sa.update(model).values(
                    created_at=ago(7200), updated_at=ago(7200)
                )
            )

    def sources(self, **values: Any) -> gathering.Sources:
        given = {
            "survey": Survey(self.placement.adapter()),
            "servers": nova_servers.Servers(self._nova_adapter),
            "patience": PATIENCE,
            "concurrency": 2,
        }
        return gathering.Sources(self.database, **(given | values))

    def audit(self, *kinds: Kind, **values: Any) -> running.Audit:
        return running.audit(
            gathering.Gatherer(self.sources(**values)),
            running.Choice(frozenset(kinds)),
            lambda _: None,
        )

    def healer(self, **values: Any) -> Healer:
        return Healer(
            self.database,
            self.sources(**values).survey,
            self.client,
            self.world.work.sync,
        )

    def heal(self, *kinds: Kind, **values: Any) -> running.Heal:
        return running.heal(
            gathering.Gatherer(self.sources(**values)),
            self.healer(**values),
            running.Choice(frozenset(kinds)),
            lambda _: None,
        )

    def dump(self) -> dict[str, Any]:
        """Everything that database and Placement hold."""
        rows = {
            table.name: self._rows(table)
            for table in models.Base.metadata.sorted_tables
        }
        for provider in self.placement.ask("GET", "/resource_providers")[
            "resource_providers"
        ]:
            path = f"/resource_providers/{provider['uuid']}"
            rows[path] = [
                provider,
                self.placement.ask("GET", f"{path}/inventories"),
                self.placement.ask("GET", f"{path}/traits"),
                self.placement.ask("GET", f"{path}/allocations"),
            ]
        return rows

    def _rows(self, table: sa.Table) -> list[dict[str, Any]]:
        with self.database.reader() as session:
            return [
                dict(row)
                for row in session.execute(
                    sa.select(table).order_by(table.c.id)
                ).mappings()
            ]


@dataclasses.dataclass
class Site:
    """One card."""

    cloud: Cloud
    number: int

    @property
    def provider(self) -> str:
        return worlds.provider_of(0x10 + self.number)

    @property
    def deployable(self) -> models.Deployable:
        (found,) = [
            one
            for one in self.cloud.world.all(Deployable)
            if one.rp_uuid == self.provider
        ]
        return found

    @property
    def device(self) -> models.Device:
        wanted = self.deployable.device_id
        (found,) = [
            one for one in self.cloud.world.all(Device) if one.id == wanted
        ]
        return found

    def handles(self) -> list[models.AttachHandle]:
        wanted = self.deployable.id
        return [
            one
            for one in self.cloud.world.all(Handle)
            if one.deployable_id == wanted
        ]

    def boot(self, units: int = 1) -> tuple[str, str]:
        """An instance that has some of it: (instance, its first ARQ)."""
        instance = str(uuid.uuid4())
        self.cloud.nova.servers[instance] = worlds.PROJECT
        self.allocate(instance, units)
        arqs = self.cloud.world.arqs(units)
        self.cloud.world.bind(arqs, self.provider, instance)
        # That Nova was told is noted by a thread of the conductor.
        worlds.wait_until(
            lambda: all(
                self.cloud.world.arq(one).event_due_at is None for one in arqs
            )
        )
        self.cloud.settle()
        return instance, arqs[0]

    def allocate(
        self, consumer: str, units: int = 1, *, root: bool = True
    ) -> None:
        """As Nova does; without `root` as what is left of an instance."""
        host = {self.cloud.root: {"resources": {"VCPU": 1}}} if root else {}
        self.cloud.placement.ask(
            "PUT",
            f"/allocations/{consumer}",
            {
                "allocations": {
                    **host,
                    self.provider: {"resources": {"FPGA": units}},
                },
                "project_id": placement_module.PROJECT,
                "user_id": placement_module.USER,
                "consumer_generation": None,
            },
            version=AS_NOVA,
        )

    def change(self, model: Any, row: Any, **values: Any) -> None:
        self.cloud.world.execute(
            sa.update(model).where(model.id == row.id).values(**values)
        )

    def add_job(self, kind: str, state: str, **values: Any) -> models.Job:
        given = {
            "uuid": models.new_uuid(),
            "kind": kind,
            "state": state,
            "hostname": "compute-1",
            "deployable_id": self.deployable.id,
            "arguments": "{}",
            "created_at": ago(7200),
            "deadline": ago(7000),
            # No conductor of the test is to take it.
            "lease_until": ago(-7200),
        } | values
        self.cloud.world.execute(sa.insert(Job).values(**given))
        (found,) = [
            one
            for one in self.cloud.world.all(Job)
            if one.uuid == given["uuid"]
        ]
        return found


Spoil = Callable[[Site], str]
"""Spoils the records of a card; the uuid of what is wrong."""

Clouds = Callable[[str, int], Cloud]
"""Makes a cloud on a kind of database, with so many cards."""

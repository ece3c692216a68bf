# SPDX-License-Identifier: Apache-2.0
"""A running Cyborg whose records are spoiled as an audit's own tests do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from cyborg.clients.placement import Placement
from cyborg.clients.session import adapter
from cyborg.conductor import background
from cyborg.conductor.sync import Synchronizer
from cyborg.db import engine
from cyborg.db import models
from tests import databases
from tests.functional.audit import cloud as audit_cloud
from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources
from tests.integration.cloud import PLACEMENT_VERSION

NEVER = {
    "OS_DEFAULT__PERIODIC_INTERVAL": "3600",
    "OS_CONDUCTOR__RECONCILE_INTERVAL": "3600",
}
"""What conductors mend by themselves they are to leave alone."""


class PlacementTools:
    """The real Placement, by what spoiling needs of it."""

    def __init__(self, made: deployment.Deployment) -> None:
        self._placement = made.cloud.placement
        self.inventories = self._placement.inventory
        self.traits = self._placement.traits
        self.release = self._placement.release

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        version: str = PLACEMENT_VERSION,
    ) -> Any:
        assert version == PLACEMENT_VERSION
        return self._placement.request(method, path, body)

    def create_provider(self, name: str, parent: str, identifier: str) -> str:
        self.ask(
            "POST",
            "/resource_providers",
            {"name": name, "uuid": identifier, "parent_provider_uuid": parent},
        )
        return identifier

    def set_traits(self, provider: str, traits: set[str]) -> None:
        for trait in traits:
            if trait.startswith("CUSTOM_"):
                self.ask("PUT", f"/traits/{trait}")
        self._put(provider, "traits", sorted(traits))

    def set_inventories(self, provider: str, inventories: Any) -> None:
        self._put(provider, "inventories", inventories)

    def _put(self, provider: str, what: str, value: object) -> None:
        path = f"/resource_providers/{provider}"
        generation = self.ask("GET", path)["generation"]
        self.ask(
            "PUT",
            f"{path}/{what}",
            {what: value, "resource_provider_generation": generation},
        )


class Rows:
    """The database of a deployment."""

    def __init__(self, database: engine.Database) -> None:
        self._database = database

    def execute(self, statement: Any) -> None:
        with self._database.writer() as session:
            session.execute(statement)

    def all(self, model: type[models.Base]) -> list[Any]:
        with self._database.reader() as session:
            return list(session.scalars(sa.select(model).order_by(model.id)))

    def arq(self, uuid: str) -> models.AcceleratorRequest:
        (found,) = [
            one
            for one in self.all(models.AcceleratorRequest)
            if one.uuid == uuid
        ]
        return found


class Site(audit_cloud.Site):
    """One card; instances have it as Nova gives it to them."""

    @property
    def provider(self) -> str:
        return self.cloud.providers[self.number]

    def boot(self, units: int = 1) -> tuple[str, str]:
        server = self.start()
        self.cloud.settle()
        return server.uuid, server.arq_uuids[0]

    def start(self) -> instance.Instance:
        """An instance that is up."""
        cloud = self.cloud
        server = instance.Instance(cloud.made, cloud.profile)
        server.providers = {0: self.provider}
        cloud.nova.servers[server.uuid] = cloud.project
        self.allocate(server.uuid)
        server.request()
        server.bind()
        server.wait_resolved()
        return server

    def end(self, server: instance.Instance) -> None:
        """An instance deleted, in Nova's order."""
        server.delete()
        del self.cloud.nova.servers[server.uuid]


class Cloud(audit_cloud.Cloud):
    """A deployment with as many cards as there are providers."""

    def __init__(
        self, made: deployment.Deployment, database: engine.Database
    ) -> None:
        self.made = made
        self.database = database
        self.nova = made.cloud.nova
        self.root = made.root
        self.project = made.cloud.keystone.projects["demo"]
        self.world = Rows(database)
        self.placement = PlacementTools(made)
        self.providers = sorted(made.providers().values())
        self.profile = made.make_profile([instance.FAKE_GROUP])
        self.sites = [Site(self, n) for n in range(len(self.providers))]

    def sync(self) -> None:
        """As a conductor would."""
        conf = databases.configuration(None)
        conf(
            [],
            project="cyborg",
            default_config_files=[str(self.made.configuration)],
        )
        pool = background.Pool(1, "test")
        syncs = Synchronizer(
            self.database,
            Placement(adapter(conf, "placement")),
            60,
            pool,
            lambda _: None,
        )
        for host in self.world.all(models.Host):
            syncs.sync(host.id)
        pool.stop(1)

    def dump(self) -> dict[str, Any]:
        """Rows but for what heartbeats and Nova's answers to events change,
        and the host's tree."""
        rows = {
            table.name: self._rows(table)
            for table in models.Base.metadata.sorted_tables
        }
        for host in rows["hosts"]:
            del host["updated_at"], host["last_seen_at"]
        for arq in rows["extended_accelerator_requests"]:
            del arq["updated_at"], arq["event_due_at"], arq["event_attempts"]
        for provider in self.placement.ask(
            "GET", f"/resource_providers?in_tree={self.root}"
        )["resource_providers"]:
            path = f"/resource_providers/{provider['uuid']}"
            rows[path] = [
                provider["generation"],
                self.placement.ask("GET", f"{path}/allocations"),
            ]
        return rows


@contextlib.contextmanager
def cloud(deploy: deployment.Deploy, kind: str, cards: int) -> Iterator[Cloud]:
    """Conductor, agent and API that run."""
    made = deploy(kind, fake={"devices": cards, "accelerators_per_device": 4})
    made.launch("conductor", environment=NEVER)
    made.launch("agent", environment=NEVER)
    made.start_api()
    resources.wait_until(
        lambda: made.vhost.consumers("cyborg-conductor") > 0,
        deployment.READY_SECONDS,
        "a conductor",
    )
    made.wait_for_providers(cards, 90)
    with databases.opened(made.database) as database:
        yield Cloud(made, database)
    made.stop()

# SPDX-License-Identifier: Apache-2.0
"""A deployment and the fake host of its agent, as a test looks at them from
all sides: the API, the database, Placement, Nova and the host itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import requests
import sqlalchemy as sa

from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources
from tests.integration.fake_host import ALVEO
from tests.integration.fake_host import DISK
from tests.integration.fake_host import OTHER_T4
from tests.integration.fake_host import PAC
from tests.integration.fake_host import T4
from tests.integration.fake_host import FakeHost

PATIENCE = 180
"""Seconds that suffice however busy the machine is."""
DONE, SANITIZING, FAILED = 1, 2, 3
"""What the sanitize log of the host's disk says."""


class Cards:
    """A deployment and its host, as a person with all rights sees them."""

    def __init__(self, cyborg: deployment.Deployment, host: FakeHost) -> None:
        self.cyborg = cyborg
        self.host = host
        self.admin = cyborg.caller("admin")

    def restart_conductor(self, **environment: str) -> None:
        """As by kill -9, and until it listens again."""
        self.cyborg.kill("conductor")
        self.cyborg.launch("conductor", environment=environment)
        resources.wait_until(
            lambda: self.cyborg.vhost.consumers("cyborg-conductor"),
            PATIENCE,
            f"the conductor listens:\n{self.cyborg.tails()}",
        )

    @contextlib.contextmanager
    def cleaning_within(self, seconds: int, usual: int) -> Iterator[None]:
        """Meanwhile the agent has so long to clean an NVMe disk."""
        self._restart_agent(
            seconds, OS_AGENT__CLEAN_TIMEOUTS=f"nvme_driver:{seconds}"
        )
        try:
            yield
        finally:
            self._restart_agent(usual)

    def _restart_agent(self, clean_seconds: int, **environment: str) -> None:
        """Until it has reported how long it may take to clean a disk."""
        self.cyborg.kill("agent")
        self.host.start_agent(**environment)
        resources.wait_until(
            lambda: (
                (clean_seconds,)
                in self.rows(
                    "SELECT clean_seconds FROM devices"
                    " WHERE driver = 'nvme_driver'"
                )
            ),
            PATIENCE,
            f"{clean_seconds} s to clean a disk:\n{self.cyborg.tails()}",
        )

    def crash(self) -> None:
        """Kill the agent and the conductor, and start them again.

        The new conductor does not wait for the old agent's answer.
        """
        self.cyborg.kill("agent")
        self.restart_conductor()
        self.host.start_agent()

    def provider(self, address: str) -> str:
        """The uuid of the provider of a card's one deployable."""
        return self.cyborg.providers()[f"{self.cyborg.host}_{address}"]

    def inventory(self, address: str) -> dict[str, Any]:
        """Its one inventory; empty while it has none."""
        found = self.cyborg.cloud.placement.inventory(self.provider(address))
        return next(map(dict, found.values()), {})

    def reserved(self, address: str) -> int | None:
        return self.inventory(address).get("reserved")

    def await_reserved(self, address: str, amount: int) -> None:
        resources.wait_until(
            lambda: self.reserved(address) == amount,
            PATIENCE,
            f"{address} has {amount} reserved",
        )

    def device(self, address: str) -> dict[str, Any]:
        """What the API says of a card."""
        answer = self.admin.request("GET", "/v2/devices", version="2.4")
        (found,) = (
            device
            for device in answer.json()["devices"]
            if device["address"] == address
        )
        return dict(found)

    def await_state(self, address: str, *states: str) -> dict[str, Any]:
        """The card once it is in one of these states."""
        seen: list[dict[str, Any]] = []

        def there() -> bool:
            seen[:] = [self.device(address)]
            return seen[0]["device_state"] in states

        resources.wait_until(there, PATIENCE, f"{address} is {states}: {seen}")
        return seen[0]

    def deployable(self, address: str) -> dict[str, Any]:
        """What the API says of a card's one deployable."""
        (found,) = (
            one
            for one in self.admin.get("/v2/deployables")["deployables"]
            if one["name"] == f"{self.cyborg.host}_{address}"
        )
        return dict(found)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What the database says."""
        engine = sa.create_engine(
            self.cyborg.database, poolclass=sa.pool.NullPool
        )
        with engine.connect() as connection:
            return [
                tuple(row) for row in connection.execute(sa.text(statement))
            ]

    def handles(self) -> set[str]:
        """The uuids of the attach handles that somebody has."""
        return {
            uuid
            for (uuid,) in self.rows(
                "SELECT uuid FROM attach_handles WHERE in_use"
            )
        }

    def are_free(self) -> bool:
        """Whether nobody has anything of the host."""
        host = self.host
        return not (
            self.handles()
            or host.vgpus.uuids
            or host.other_vgpus.uuids
            or host.ledger()
        )

    def server(self, address: str, group: dict[str, str]) -> instance.Instance:
        """An instance with a claim on this card and an ARQ for it."""
        server = instance.Instance(
            self.cyborg, self.cyborg.make_profile([group])
        )
        provider = self.provider(address)
        placement = self.cyborg.cloud.placement
        found: list[dict[str, Any]] = []

        def offered() -> bool:
            found[:] = [
                one
                for one in placement.candidates([group], self.cyborg.root)
                if provider in one["allocations"]
            ]
            return bool(found)

        resources.wait_until(offered, PATIENCE, f"{address} is offered")
        placement.allocate(
            server.uuid,
            found[0],
            self.cyborg.cloud.keystone.projects["demo"],
        )
        server.providers = {0: provider}
        server.request()
        return server

    def bound(
        self, address: str, group: dict[str, str]
    ) -> tuple[instance.Instance, dict[str, Any]]:
        """An instance that has a unit of this card, and its ARQ."""
        server = self.server(address, group)
        server.bind()
        (arq,) = server.wait_resolved()
        assert arq["state"] == "Bound", self.cyborg.tails()
        return server, arq

    def events(self, server: instance.Instance) -> list[str]:
        """How Nova was told that the binds ended, after the first."""
        events = self.cyborg.cloud.nova.wait_for(server.uuid, 1, PATIENCE)
        assert {event["tag"] for event in events} == set(server.arq_uuids)
        return [event["status"] for event in events]

    def program(self, address: str, image: str) -> requests.Response:
        """Program a card by the API."""
        path = f"/v2/deployables/{self.deployable(address)['uuid']}/program"
        return self.admin.request(
            "PATCH",
            path,
            [
                {
                    "path": "/program",
                    "op": "replace",
                    "value": [{"image_uuid": image}],
                }
            ],
        )


def take_back(cards: Cards) -> None:
    """Take from everybody what they have."""
    host, admin = cards.host, cards.cyborg.caller("admin", "nova")
    for vgpus in (host.vgpus, host.other_vgpus):
        host.kernel.resume(vgpus.create)
    if not cards.cyborg.processes["conductor"].running:
        cards.cyborg.start_conductor()
    if not cards.cyborg.processes["agent"].running:
        host.start_agent()
    for arq in admin.get("/v2/accelerator_requests")["arqs"]:
        admin.delete(f"/v2/accelerator_requests?arqs={arq['uuid']}")

    def free() -> bool:
        host.change_disk(status=DONE)
        for address in (T4, OTHER_T4, DISK):
            device = cards.device(address)
            if device["device_state"] == "error":
                admin.post(f"/v2/devices/{device['uuid']}/enable", status=204)
        return cards.are_free()

    resources.wait_until(free, PATIENCE, "all is given back")


def nothing_left(cards: Cards) -> None:
    """Returns once all is given back: handles, mdevs, the ledger, and in
    Placement what they were."""
    resources.wait_until(cards.are_free, PATIENCE, "all is given back")
    for address in (T4, OTHER_T4, DISK, PAC, ALVEO):
        cards.await_reserved(address, 0)
        assert cards.await_state(address, "available")["status_reason"] is None
    waiting = "SELECT id FROM jobs WHERE state IN ('queued', 'running')"
    assert cards.rows(waiting) == []

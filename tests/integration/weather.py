# SPDX-License-Identifier: Apache-2.0
"""A schedule of faults while operations go on: the network, the clocks, the
processes and all that they talk to."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from tests import proxy
from tests.integration import faults
from tests.integration import fleet as fleets
from tests.integration import operations
from tests.integration import servers
from tests.integration.operations import SEED
from tests.integration.operations import STORMY_ADDRESSES

PER_FAULT = 160
"""Operations from one fault to the next, about."""
EFFECT_SECONDS = 5
OUTAGE_SECONDS = 120
"""How long Placement is away at the end, whatever else comes meanwhile."""
NO_ROOM = "cannot be kept on this host"


class Weather:
    """One fault after another, at operations that the seed chooses.

    Each kind says what it did, nothing where that met nobody.
    """

    def __init__(self, run: operations.Run) -> None:
        self.run = run
        self.fleet = run.fleet
        self.mariadb = run.apart.mariadb
        self.rabbit = run.apart.rabbit
        self.random = random.Random(f"{SEED}/faults")
        self.history: list[str] = []
        self.came: set[str] = set()
        self._client = operations.Client(run, operations.CLIENTS)
        self._kinds: list[Callable[[], str]] = [
            self.cut,
            self.cut,
            self.refuse,
            self.refuse,
            self.stop,
            self.stop,
            self.slow,
            self.cut_soon,
            self.lose_message,
            self.double_message,
            self.double_message,
            self.nova_fails,
            self.kill_conductor,
            self.kill_conductor,
            self.kill_api,
            self.kill_agent,
            self.step_clock,
            self.restart_broker,
            self.restart_database,
            self.read_only_database,
            self.deadlock,
            self.service_fails,
            self.service_fails,
            self.other_writer,
            self.fill_disk,
        ]

    def come(self) -> None:
        """Once each came, Placement is away until the operations end."""
        with contextlib.ExitStack() as outage:
            began = 0.0
            for _ in self._one_by_one():
                if not began and not self.missing():
                    outage.enter_context(
                        faults.nowhere(self.fleet, "placement")
                    )
                    began = time.monotonic()
                if began and time.monotonic() - began > OUTAGE_SECONDS:
                    self.run.may_end = True
        away = time.monotonic() - began
        self.history.append(f"Placement was away for the last {away:.0f} s")

    def missing(self) -> list[str]:
        """The kinds that have not yet done what they are for."""
        return sorted({kind.__name__ for kind in self._kinds} - {*self.came})

    def _one_by_one(self) -> Iterator[None]:
        """Yields after each."""
        try:
            kinds: list[Callable[[], str]] = []
            at = PER_FAULT / 2
            while self.run.await_operation(round(at)):
                if not kinds:
                    kinds = list(self._kinds)
                    self.random.shuffle(kinds)
                number = self.run.done
                start = time.monotonic()
                kind = kinds.pop()
                what = kind()
                self.heal()
                if what:
                    self.came.add(kind.__name__)
                self.history.append(
                    f"{number}-{self.run.done}: {kind.__name__}:"
                    f" {what or 'in vain'} ({time.monotonic() - start:.1f} s)"
                )
                yield
                at += PER_FAULT * self.random.uniform(0.5, 1.5)
        except Exception as error:
            self.run.fail(f"a fault failed: {type(error).__name__}: {error}")
            raise
        finally:
            self.heal()

    def heal(self) -> None:
        self.fleet.heal()
        self.fleet.cyborg.cloud.nova.failure = None

    def _wait(self) -> None:
        self.run.over.wait(self.random.uniform(0.3, 2.5))

    def _until(self, holds: Callable[[], object]) -> None:
        """Wait for what probably comes soon."""
        end = time.monotonic() + EFFECT_SECONDS
        while not holds() and time.monotonic() < end:
            if self.run.over.wait(0.05):
                return

    def _link(self) -> tuple[str, Any]:
        label = self.random.choice(self.fleet.labels())
        kind = label.partition("-")[0]
        names = {
            fleets.API: ("broker", "database"),
            fleets.AGENT: ("broker", "placement"),
            fleets.CONDUCTOR: (
                "broker",
                "database",
                "placement",
                "nova",
                "keystone",
            ),
        }[kind]
        name = self.random.choice(names)
        return f"{label}'s {name}", getattr(self.fleet.links[label], name)

    def cut(self) -> str:
        what, link = self._link()
        for _ in range(3):
            link.cut()
            self.run.over.wait(self.random.uniform(0, 0.5))
        return f"cut {what}"

    def refuse(self) -> str:
        what, link = self._link()
        link.refuse()
        self._wait()
        return f"refused {what}"

    def stop(self) -> str:
        what, link = self._link()
        ways = self.random.choice(((), ("to service",), ("to client",)))
        link.stop(*ways)
        self._wait()
        if self.random.random() < 0.5:
            link.cut()
        return f"stopped {what} {ways}"

    def slow(self) -> str:
        what, link = self._link()
        link.slow(self.random.uniform(0.02, 0.2))
        self._wait()
        return f"slowed {what}"

    def cut_soon(self) -> str:
        what, link = self._link()
        for _ in range(4):
            link.cut_after(self.random.randrange(1, 5000))
            self.run.over.wait(0.4)
        return f"cut {what} after some bytes"

    def lose_message(self) -> str:
        label = self.random.choice(self.fleet.labels(fleets.CONDUCTOR))
        fault = self.fleet.links[label].broker.delivered
        method = self.random.choice(
            (b"create_arqs", b"bind_arqs", b"delete_instance_arqs")
        )
        return self._meet(fault, method, 0, f"{method!r} to {label}")

    def double_message(self) -> str:
        label = self.random.choice(self.fleet.labels(fleets.API))
        fault = self.fleet.links[label].broker.sent
        method = self.random.choice(
            (b"create_arqs", b"bind_arqs", b"delete", b"unbind_arqs")
        )
        return self._meet(fault, method, 2, f"{method!r} of {label}")

    def _meet(
        self, fault: proxy.MessageFault, method: bytes, copies: int, what: str
    ) -> str:
        before = fault.met
        fault.set(method, copies, 1 if copies < 1 else 5)
        self._until(lambda: fault.met > before)
        if copies > 1:
            self._wait()
        fault.set(b"", 1, 0)
        met = fault.met - before
        return f"{met} times {what}" if met else ""

    def nova_fails(self) -> str:
        nova = self.fleet.cyborg.cloud.nova
        nova.failure = self.random.choice((500, 503, "never"))
        self._wait()
        return "Nova failed"

    def _kill(self, kind: str) -> str:
        label = self.random.choice(self.fleet.labels(kind))
        self.run.over.wait(self.random.uniform(0, 0.2))
        self.fleet.restart(label)
        self.fleet.wait(label)
        return f"killed {label}"

    def kill_conductor(self) -> str:
        return self._kill(fleets.CONDUCTOR)

    def kill_agent(self) -> str:
        return self._kill(fleets.AGENT)

    def kill_api(self) -> str:
        label = self.random.choice(self.fleet.labels(fleets.API))
        self.run.deaths[label] = [time.monotonic(), 0.0]
        self.fleet.restart(label)
        self.fleet.wait(label)
        self.run.deaths[label][1] = time.monotonic()
        return f"killed {label}"

    def step_clock(self) -> str:
        label = self.random.choice(sorted(self.fleet.clocks))
        seconds = self.random.choice((3600, -3600))
        self.fleet.clocks[label].step(seconds)
        self._wait()
        self.fleet.clocks[label].step(0)
        return f"the clock of {label} was {seconds} s ahead"

    def restart_broker(self) -> str:
        return self._restart(self.rabbit)

    def restart_database(self) -> str:
        return self._restart(self.mariadb)

    def _restart(self, server: servers.RabbitMQ | servers.MariaDB) -> str:
        end = self.random.choice(("kill", "stop"))
        getattr(server, end)()
        self._wait()
        server.start()
        return end

    def read_only_database(self) -> str:
        with faults.read_only(self.mariadb):
            self._wait()
        return "for some time"

    def deadlock(self) -> str:
        with faults.deadlocks(self.mariadb) as found:
            self._until(lambda: found.ours)
        return f"{found.ours} times" if found.ours else ""

    def service_fails(self) -> str:
        name = self.random.choice(("placement", "keystone", "nova"))
        how = self.random.choice(sorted(faults.OF_SERVICES))
        with faults.OF_SERVICES[how](self.fleet, name):
            self._wait()
        return f"{name} {how}"

    def other_writer(self) -> str:
        placement = self.fleet.cyborg.cloud.placement
        host = self.random.choice(self.fleet.hosts)
        address = self.random.choice(STORMY_ADDRESSES)
        conductors = faults.links(
            self.fleet, "placement", *self.fleet.labels(fleets.CONDUCTOR)
        )

        def conflicts() -> int:
            return sum(int(link.answers[409]) for link in conductors)

        before = conflicts()
        for found in placement.children_of(host.root):
            if found["name"] != host.deployable(address):
                continue
            with faults.other_writer(placement, found["uuid"]):
                for action in ("disable", "enable") * 4:
                    self._client.switch(host.provider_name, address, action)
                    self.run.over.wait(0.3)
                    if conflicts() > before:
                        return f"{host.deployable(address)}"
        return ""

    def fill_disk(self) -> str:
        host = self.random.choice(self.fleet.hosts)
        agent = self.fleet.cyborg.processes[host.label]

        def refusals() -> int:
            return agent.output.read_text().count(NO_ROOM)

        before = refusals()
        with faults.small_disk(host.folder / f"images-{host.name}"):
            for address in STORMY_ADDRESSES:
                self._client.program(
                    host.deployable(address), self.run.large_image
                )
                if refusals() > before:
                    return host.name
        return ""

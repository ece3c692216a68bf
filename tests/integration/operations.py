# SPDX-License-Identifier: Apache-2.0
"""What clients, administrators and hosts do at random, each answer judged
as it comes.

`CYBORG_TEST_SEED` chooses other operations and faults than CI's,
`CYBORG_TEST_OPERATIONS` how many.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

import requests

from tests.integration import deployment
from tests.integration import fleet as fleets
from tests.integration.unheard import Unheard

SEED = int(os.environ.get("CYBORG_TEST_SEED", "20261130"))
OPERATIONS = int(os.environ.get("CYBORG_TEST_OPERATIONS", "10000"))
MOST = 3
"""How many times as many operations there are at most, till each kind of
fault has come."""
CLIENTS = 8
SERVERS_PER_CLIENT = 3

ANSWER_SECONDS = 45
"""Longest that an answer may take: the database is given 20 s to answer,
then the broker 5 to be there and the conductor `rpc_response_timeout`; the
rest is for a machine with much else to do."""
PROGRAM_SECONDS = 80
"""The same for programming: `bind_timeout` is 60 s."""
PATIENCE = 120
BURNT = "burnt"
IDLE_SECONDS = 4

CALM, STORMY = "CUSTOM_CALM", "CUSTOM_STORMY"
"""Nobody ever touches a calm device: a claim on it can always be bound."""
CALM_UNITS, STORMY_UNITS = 16, 8
CALM_ADDRESS = "0000:10:00.0"
STORMY_ADDRESSES = ("0000:20:00.0", "0000:21:00.0")
SIZES = (1, 1, 2, 4, 8)

ARQS = "/v2/accelerator_requests"
UNKNOWN = (503, 504)
"""What was asked may have been done, or may yet be."""


def device(trait: str, units: int, **values: Any) -> dict[str, Any]:
    return {
        "type": "FPGA",
        "resource_class": "FPGA",
        "traits": [trait],
        "accelerators": str(units),
        **values,
    }


@dataclasses.dataclass
class Server:
    """An instance and what it should have."""

    profile: str
    trait: str
    size: int
    host: fleets.Host
    uuid: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
    arqs: list[str] = dataclasses.field(default_factory=list)
    provider: str = ""
    bound: bool = False


class Run:
    """What all clients share: the count of operations, and what failed."""

    def __init__(self, apart: fleets.Apart) -> None:
        self.apart = apart
        self.fleet = apart.fleet
        glance = self.fleet.cyborg.cloud.glance
        self.image = glance.add(b"a bitstream")
        self.large_image = glance.add(os.urandom(300_000))
        """More than a disk holds that is full."""
        self.may_end = False
        """Whether all came that should; there are more operations else."""
        self.profiles: dict[tuple[str, int], str] = {}
        self.unheard = Unheard()
        self.wrong: list[str] = []
        self.over = threading.Event()
        self.claiming = threading.Lock()
        """Placement gives more than there is to claims at the same moment;
        what nobody has claimed too much of must always be bound."""
        self.deaths = {label: [0.0, 0.0] for label in self.fleet.ports}
        """API -> when it was killed last, and when it was there again."""
        self.slowest: dict[str, float] = {}
        self.answers: dict[tuple[str, int], int] = {}
        self._done = 0
        self._changed = threading.Condition()

    @property
    def done(self) -> int:
        return self._done

    def count(self) -> None:
        """One operation more; the clients end with the last."""
        with self._changed:
            self._done += 1
            if self._done >= OPERATIONS and (
                self.may_end or self._done >= MOST * OPERATIONS
            ):
                self.over.set()
            self._changed.notify_all()

    def await_operation(self, number: int) -> bool:
        """Whether that many were done before the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._done >= number or self.over.is_set()
            )
        return not self.over.is_set()

    def fail(self, what: str) -> None:
        with self._changed:
            self.wrong.append(f"operation {self._done}: {what}")
            self.over.set()
            self._changed.notify_all()

    def note(self, name: str, status: int, seconds: float) -> None:
        with self._changed:
            key = (name, status)
            self.answers[key] = self.answers.get(key, 0) + 1
            self.slowest[name] = max(self.slowest.get(name, 0.0), seconds)

    def is_unheard(self, answer: requests.Response | None, made: int) -> None:
        """So many ARQs may have been made which nobody was told of."""
        with self._changed:
            self.unheard.note(answer, made)


class Client:
    """One thread of requests; its choices depend on the seed alone."""

    def __init__(self, run: Run, number: int) -> None:
        self.run = run
        self.random = random.Random(f"{SEED}/{number}")
        self.session = requests.Session()
        self._used = time.monotonic()
        self.servers: list[Server] = []

    def live(self) -> None:
        """Do one thing after another till there were enough."""
        try:
            while not self.run.over.is_set():
                self.step()
        except Exception as error:
            self.run.fail(f"{type(error).__name__}: {error}")
            raise

    def step(self) -> None:
        chosen = self.random.random()
        if chosen < 0.10:
            self.look()
        elif chosen < 0.16:
            self.administer()
        elif len(self.servers) < SERVERS_PER_CLIENT and chosen < 0.6:
            self.create()
        elif self.servers:
            self.use(self.random.choice(self.servers))
        else:
            self.create()

    # -- requests

    def ask(
        self,
        name: str,
        method: str,
        path: str,
        body: Any = None,
        allowed: Iterable[int] = (200,),
        makes: int = 0,
        burnt: bool = False,
    ) -> requests.Response | None:
        """The answer; None where it is not known what was done.

        `makes` is how many ARQs it asks for; with `burnt` it asks for a
        device to be programmed, which may say that it is.
        """
        run = self.run
        label, port = self.random.choice(sorted(run.fleet.ports.items()))
        longest = PROGRAM_SECONDS if burnt else ANSWER_SECONDS
        start = time.monotonic()
        if start - self._used > IDLE_SECONDS:
            # The server may be about to close what has been idle so long.
            self.session.close()
        try:
            answer = self.session.request(
                method,
                f"http://127.0.0.1:{port}{path}",
                json=body,
                headers={"OpenStack-API-Version": "accelerator 2.4"}
                if method != "PATCH"
                else {},
                timeout=longest + 15,
            )
        except requests.RequestException as error:
            killed, back = run.deaths[label]
            if not killed or (back and back < start):
                run.fail(f"{name} at {label}: {error!r}")
            run.is_unheard(None, makes)
            time.sleep(0.1)
            return None
        finally:
            self._used = time.monotonic()
            run.count()
        took = time.monotonic() - start
        run.note(name, answer.status_code, took)
        if took > longest:
            run.fail(f"{name}: {answer.status_code} after {took:.1f} s")
        if answer.status_code in UNKNOWN:
            run.is_unheard(answer, makes)
            return None
        if answer.status_code not in allowed and not (
            burnt and answer.status_code == 500 and BURNT in answer.text
        ):
            run.fail(f"{name}: {answer.status_code} {answer.text}")
        return answer

    def insist(
        self,
        name: str,
        method: str,
        path: str,
        body: Any = None,
        allowed: Iterable[int] = (200,),
    ) -> requests.Response:
        """The answer of as many tries as it takes."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self.ask(name, method, path, body, allowed)
            if answer is not None:
                return answer
            assert not self.run.wrong, "another thing is wrong already"
            time.sleep(0.05)
        raise AssertionError(f"{name} was not answered in {PATIENCE} s")

    def check(self, holds: object, what: str) -> None:
        if not holds:
            self.run.fail(what)

    # -- what an instance does

    def create(self) -> None:
        rng, run = self.random, self.run
        trait = rng.choice((CALM, STORMY))
        size = rng.choice(SIZES)
        server = Server(
            run.profiles[trait, size],
            trait,
            size,
            rng.choice(run.fleet.hosts),
        )
        answer = self.ask(
            "create",
            "POST",
            ARQS,
            {"device_profile_name": server.profile},
            (201,),
            makes=size,
        )
        if answer is not None and answer.status_code == 201:
            server.arqs = [arq["uuid"] for arq in answer.json()["arqs"]]
            self.check(
                len(set(server.arqs)) == size, f"{size} asked: {answer.text}"
            )
            self.servers.append(server)

    def use(self, server: Server) -> None:
        chosen = self.random.random()
        if not server.provider:
            if chosen < 0.85:
                self.claim(server)
            else:
                self.delete(server)
        elif not server.bound:
            if chosen < 0.9:
                self.bind(server)
            else:
                self.delete(server)
        elif chosen < 0.45:
            self.poll(server)
        elif chosen < 0.55:
            self.bind(server)
        elif chosen < 0.65:
            self.unbind(server)
        else:
            self.delete(server)

    def claim(self, server: Server) -> None:
        """Take an allocation, as Nova's scheduler does."""
        placement = self.run.fleet.cyborg.cloud.placement
        found = placement.candidates(
            [
                {
                    "resources:FPGA": str(server.size),
                    f"trait:{server.trait}": "required",
                }
            ],
            server.host.root,
        )
        self.run.count()
        if not found:
            server.host = self.random.choice(self.run.fleet.hosts)
            return
        candidate = self.random.choice(found)
        with self.run.claiming:
            claimed = placement.try_allocate(server.uuid, candidate, "demo")
        if claimed:
            (server.provider,) = candidate["allocations"]
        self.run.count()

    def bind(self, server: Server) -> None:
        body = {
            uuid_: deployment.bind_patch(
                server.provider, server.uuid, server.host.provider_name
            )
            for uuid_ in server.arqs
        }
        allowed = (202,) if server.trait == CALM else (202, 404, 409)
        answer = self.insist("bind", "PATCH", ARQS, body, allowed)
        if answer.status_code not in allowed:
            self.run.fail(f"it was for {server}")
        if answer.status_code == 202:
            server.bound = True
            self.poll(server)
        elif not server.bound:
            # Nova would give up this host.
            self.delete(server)

    def poll(self, server: Server) -> None:
        answer = self.insist(
            "poll",
            "GET",
            f"{ARQS}?instance={server.uuid}&bind_state=resolved",
        )
        if answer.status_code != 200:
            return
        found = answer.json()["arqs"]
        self.check(
            {arq["uuid"] for arq in found} == set(server.arqs),
            f"{server} has {found}",
        )
        states = {arq["state"] for arq in found}
        self.check(states == {"Bound"}, f"{server} is {states}")
        places = {str(arq["attach_handle_info"]) for arq in found}
        self.check(
            len(places) == server.size, f"{server} has the places {places}"
        )

    def unbind(self, server: Server) -> None:
        body = {
            uuid_: [
                {"op": "remove", "path": path}
                for path in ("/hostname", "/device_rp_uuid", "/instance_uuid")
            ]
            for uuid_ in server.arqs
        }
        self.insist("unbind", "PATCH", ARQS, body, (202,))
        server.bound = False

    def delete(self, server: Server) -> None:
        """First the ARQs and then the allocation, as Nova does."""
        if server.bound and self.random.random() < 0.7:
            self.insist(
                "delete",
                "DELETE",
                f"{ARQS}?instance={server.uuid}",
                None,
                (204,),
            )
        else:
            # One that was done without our knowing answers 404.
            self.insist(
                "delete",
                "DELETE",
                f"{ARQS}?arqs={','.join(server.arqs)}",
                None,
                (204, 404),
            )
        if server.provider:
            self.run.fleet.cyborg.cloud.placement.release(server.uuid)
            self.run.count()
        self.servers.remove(server)

    # -- what others do

    def look(self) -> None:
        self.ask(
            "list",
            "GET",
            self.random.choice(
                (
                    ARQS,
                    "/v2/devices",
                    "/v2/deployables",
                    "/v2/device_profiles",
                )
            ),
        )

    def administer(self) -> None:
        host = self.random.choice(self.run.fleet.hosts)
        address = self.random.choice(STORMY_ADDRESSES)
        action = self.random.choice(
            ("disable", "enable", "enable", "program", "pull", "put", "break")
        )
        if action == "pull":
            host.pull(address)
            self.run.count()
        elif action == "put":
            host.put(address, **device(STORMY, STORMY_UNITS))
            self.run.count()
        elif action == "break":
            host.put(address, **device(STORMY, STORMY_UNITS, health=BURNT))
            self.run.count()
        elif action == "program":
            self.program(host.deployable(address), self.run.image)
        else:
            self.switch(host.provider_name, address, action)

    def switch(self, hostname: str, address: str, action: str) -> None:
        answer = self.ask("list", "GET", f"/v2/devices?hostname={hostname}")
        if answer is None or answer.status_code != 200:
            return
        stormy = [
            found["uuid"]
            for found in answer.json()["devices"]
            if found["address"] == address
        ]
        for found in stormy[:1]:
            self.ask(
                action,
                "POST",
                f"/v2/devices/{found}/{action}",
                None,
                (204, 404),
            )

    def program(self, name: str, image: str) -> None:
        answer = self.ask("list", "GET", "/v2/deployables")
        if answer is None or answer.status_code != 200:
            return
        for found in answer.json()["deployables"]:
            if found["name"] == name:
                self.ask(
                    "program",
                    "PATCH",
                    f"/v2/deployables/{found['uuid']}/program",
                    [
                        {
                            "path": "/program",
                            "op": "replace",
                            "value": [{"image_uuid": image}],
                        }
                    ],
                    (200, 404, 409),
                    burnt=True,
                )

# SPDX-License-Identifier: Apache-2.0
"""Thousands of random operations while faults come and go.

Several clients live the lives of instances as Nova does, administrators and
hosts interfere, and a schedule of faults breaks the network, the clocks and
the processes.  Each answer is judged as it comes, and at the end nothing
may be left over: at no moment was a handle held twice.

`CYBORG_TEST_SEED` chooses other operations and faults than CI's,
`CYBORG_TEST_OPERATIONS` how many.  A failing test says its seed.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from concurrent import futures
from typing import Any

import pytest
import requests

from tests.integration import deployment
from tests.integration import fleet as fleets
from tests.integration import judge
from tests.integration.unheard import Unheard

SEED = int(os.environ.get("CYBORG_TEST_SEED", "20261130"))
OPERATIONS = int(os.environ.get("CYBORG_TEST_OPERATIONS", "10000"))
OPERATIONS_PER_FAULT = 160
CLIENTS = 8
HOSTS = 4
SERVERS_PER_CLIENT = 3

RPC_SECONDS = 5
ANSWER_SECONDS = 45
"""Longest that an answer may take: the database is given 20 s to answer,
then the broker 5 to be there and the conductor `rpc_response_timeout`; the
rest is for a machine with much else to do."""
PATIENCE = 120
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

    def __init__(self, fleet: fleets.Fleet, glance_image: str) -> None:
        self.fleet = fleet
        self.image = glance_image
        self.profiles: dict[tuple[str, int], str] = {}
        self.unheard = Unheard()
        self.wrong: list[str] = []
        self.over = threading.Event()
        self.claiming = threading.Lock()
        """Placement gives more than there is to claims at the same moment;
        what nobody has claimed too much of must always be bound."""
        self.deaths = {label: [0.0, 0.0] for label in fleet.ports}
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
            if self._done >= OPERATIONS:
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
    ) -> requests.Response | None:
        """The answer; None where it is not known what was done.

        `makes` is how many ARQs it asks for.
        """
        run = self.run
        label, port = self.random.choice(sorted(run.fleet.ports.items()))
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
                timeout=ANSWER_SECONDS + 15,
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
        if took > ANSWER_SECONDS:
            run.fail(f"{name}: {answer.status_code} after {took:.1f} s")
        if answer.status_code in UNKNOWN:
            run.is_unheard(answer, makes)
            return None
        if answer.status_code not in allowed:
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
            host.put(address, **device(STORMY, STORMY_UNITS, health="burnt"))
            self.run.count()
        elif action == "program":
            self.program(host.deployable(address))
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

    def program(self, name: str) -> None:
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
                            "value": [{"image_uuid": self.run.image}],
                        }
                    ],
                    # 500 is what a device that is at fault answers.
                    (200, 404, 409, 500),
                )


class Faults:
    """One fault after another, at operations that the seed chooses."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.fleet = run.fleet
        self.random = random.Random(f"{SEED}/faults")
        self.history: list[str] = []
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
        ]

    def come(self) -> None:
        try:
            kinds: list[Callable[[], str]] = []
            at = OPERATIONS_PER_FAULT / 2
            while self.run.await_operation(round(at)):
                if not kinds:
                    kinds = list(self._kinds)
                    self.random.shuffle(kinds)
                number = self.run.done
                start = time.monotonic()
                what = kinds.pop()()
                self.heal()
                self.history.append(
                    f"{number}-{self.run.done}: {what}"
                    f" ({time.monotonic() - start:.1f} s)"
                )
                at += OPERATIONS_PER_FAULT * self.random.uniform(0.5, 1.5)
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
        fault.set(method, 0, 1)
        self._wait()
        fault.set(b"", 1, 0)
        return f"lost {fault.met} messages to {label}"

    def double_message(self) -> str:
        label = self.random.choice(self.fleet.labels(fleets.API))
        fault = self.fleet.links[label].broker.sent
        method = self.random.choice(
            (b"create_arqs", b"bind_arqs", b"delete", b"unbind_arqs")
        )
        fault.set(method, 2, 5)
        self._wait()
        fault.set(b"", 1, 0)
        return f"doubled {fault.met} messages {method!r} of {label}"

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


@pytest.fixture(scope="module")
def run(deploy: deployment.Deploy) -> Any:
    cyborg = deploy(rpc_response_timeout=RPC_SECONDS, root=False)
    with fleets.made(cyborg) as fleet:
        for _ in range(HOSTS):
            host = fleet.add_host()
            host.put(CALM_ADDRESS, **device(CALM, CALM_UNITS))
            for address in STORMY_ADDRESSES:
                host.put(address, **device(STORMY, STORMY_UNITS))
        fleet.start(2, 2, OS_DEFAULT__AUTH_STRATEGY="noauth")
        run = Run(fleet, cyborg.cloud.glance.add(b"a bitstream"))
        fleet.devices_are_offered()
        anybody = cyborg.caller(None, None, fleet.ports["api-0"])
        for trait in (CALM, STORMY):
            for size in set(SIZES):
                name = f"{trait.lower()}-{size}".replace("_", "-")
                anybody.post(
                    "/v2/device_profiles",
                    [
                        {
                            "name": name,
                            "groups": [
                                {
                                    "resources:FPGA": str(size),
                                    f"trait:{trait}": "required",
                                }
                            ],
                        }
                    ],
                )
                run.profiles[trait, size] = name
        yield run


def test_random_operations_through_faults_leave_nothing_wrong(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = run.fleet
    judges = judge.Judge(fleet.cyborg, fleet.roots)
    judges.watch()
    clients = [Client(run, number) for number in range(CLIENTS)]
    faults = Faults(run)
    start = time.monotonic()

    with futures.ThreadPoolExecutor(CLIENTS) as pool:
        for client in clients:
            pool.submit(client.live)
        # In this thread: what a thread starts is killed when it ends.
        faults.come()
    took = time.monotonic() - start

    story = "\n".join(
        [
            f"seed {SEED}: {run.done} operations in {took:.0f} s,"
            f" {judges.moments()} changes of handles",
            *faults.history,
            *(f"{key}: {n}" for key, n in sorted(run.answers.items())),
            *(f"slowest {k}: {s:.2f} s" for k, s in run.slowest.items()),
        ]
    )
    if run.wrong:
        story += "\n" + "\n".join(
            [
                *(str(one) for client in clients for one in client.servers),
                *judges.claims(),
                *judges.units(),
                *judges.latest(),
            ]
        )
    with capsys.disabled():
        print(f"\n{story}")
    assert not run.wrong, "\n".join([*run.wrong, story])
    assert judges.held_twice() == [], story

    # What still lives is as its client knows it.
    alive = {server.uuid for client in clients for server in client.servers}
    run.over.clear()
    for client in clients:
        for server in client.servers:
            if server.bound:
                client.poll(server)
    known = {
        uuid_
        for client in clients
        for server in client.servers
        for uuid_ in server.arqs
    }
    anybody = clients[0]
    listed = anybody.insist("list", "GET", ARQS).json()["arqs"]
    unheard = [arq for arq in listed if arq["uuid"] not in known]
    assert {arq["state"] for arq in unheard} <= {"Initial"}, story
    assert run.unheard.strangers(unheard) == [], story
    assert known <= {arq["uuid"] for arq in listed}, story
    converged = judges.converged(alive)

    for client in clients:
        for server in list(client.servers):
            client.delete(server)
    for arq in unheard:
        anybody.insist(
            "delete", "DELETE", f"{ARQS}?arqs={arq['uuid']}", None, (204, 404)
        )
    judges.converged()
    assert anybody.insist("list", "GET", ARQS).json()["arqs"] == []
    assert judges.held_twice() == [], story
    assert not run.wrong, "\n".join([*run.wrong, story])
    assert fleet.cyborg.tracebacks() == {}
    with capsys.disabled():
        print(f"converged after {converged:.1f} s")

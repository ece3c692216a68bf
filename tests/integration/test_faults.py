# SPDX-License-Identifier: Apache-2.0
"""Each fault by itself, with requests going on.

While it lasts the API answers within its time-outs, with what was asked,
503 or 504; afterwards everything converges with nobody's help.  Database
and broker are servers of our own, which are really restarted.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import psutil
import pytest
import requests

from tests.integration import cloud as cloud_module
from tests.integration import deployed
from tests.integration import deployment
from tests.integration import faults
from tests.integration import fleet as fleets
from tests.integration import judge as judging
from tests.integration import resources
from tests.integration.unheard import Unheard

CLIENTS = 3
UNITS = 16
ADDRESS, SECOND = "0000:10:00.0", "0000:11:00.0"
TRAIT = "CUSTOM_TEST_CARD"
CARD = {
    "type": "FPGA",
    "resource_class": "FPGA",
    "traits": [TRAIT],
    "accelerators": str(UNITS),
}
RPC_SECONDS = 4
ANSWER_SECONDS = 45
PATIENCE = 120
ARQS = "/v2/accelerator_requests"
CONDUCTORS = ("conductor-0", "conductor-1")
CHECKING = "api-1"
"""The only process that asks Keystone about tokens."""
SEED = int(os.environ.get("CYBORG_TEST_SEED", "20261130"))
KILLS = 12
DEADLOCKS = 3
CONFLICT = 409


class Arena:
    """The fleet, its servers and its judge."""

    def __init__(self, apart: fleets.Apart) -> None:
        self.fleet = fleet = apart.fleet
        self.mariadb = apart.mariadb
        self.rabbit = apart.rabbit
        self.host = fleet.hosts[0]
        self.cloud = fleet.cyborg.cloud
        self.judge = judging.Judge(
            fleet.cyborg, fleet.roots, apart.mariadb.root_url
        )
        self.unheard = Unheard()
        self.api_may_die = False
        self._traced: set[str] = set()

    def new_tracebacks(self) -> list[str]:
        """What logs hold since we looked last."""
        found = {
            f"{label}: {said}"
            for label, all_said in self.fleet.cyborg.tracebacks().items()
            for said in all_said
        }
        new = found - self._traced
        self._traced |= new
        return sorted(new)

    @property
    def provider(self) -> str:
        (found,) = self.cloud.placement.children_of(self.host.root)
        return str(found["uuid"])

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        session: requests.Session | None = None,
    ) -> requests.Response:
        """One request; fails where its answer is late or of no sense."""
        port = self.fleet.ports["api-0"]
        start = time.monotonic()
        try:
            answer = (session or requests).request(
                method,
                f"http://127.0.0.1:{port}{path}",
                json=body,
                headers={"OpenStack-API-Version": "accelerator 2.4"}
                if method != "PATCH"
                else {},
                timeout=ANSWER_SECONDS,
            )
        except requests.ConnectionError:
            if not self.api_may_die:
                raise
            # As a client sees it: it is not known what was done.
            answer = requests.Response()
            answer.status_code = 503
        took = time.monotonic() - start
        assert took < ANSWER_SECONDS, f"{method} {path}: {took} s"
        assert answer.status_code < 500 or answer.status_code in (503, 504), (
            f"{method} {path}: {answer.status_code} {answer.text}"
        )
        return answer

    def insist(
        self, method: str, path: str, body: Any, *statuses: int
    ) -> requests.Response:
        """The answer of as many tries as it takes."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self.call(method, path, body)
            if answer.status_code < 500:
                assert answer.status_code in statuses, answer.text
                return answer
            time.sleep(0.1)
        raise AssertionError(f"{method} {path}: no answer in {PATIENCE} s")

    def device(self, action: str = "") -> dict[str, Any]:
        """The device, after it was enabled or disabled."""
        (found,) = self.insist("GET", "/v2/devices", None, 200).json()[
            "devices"
        ]
        if action:
            path = f"/v2/devices/{found['uuid']}/{action}"
            self.insist("POST", path, None, 204)
        return dict(found)

    def reserved(self) -> int:
        inventory = self.cloud.placement.inventory(self.provider)
        return int(inventory["FPGA"]["reserved"])


class Load:
    """Clients that live the lives of instances until they are told to
    end; each answer is judged."""

    def __init__(self, arena: Arena, profile: str) -> None:
        self._arena = arena
        self._profile = profile
        self._provider = arena.provider
        self._over = threading.Event()
        self.lives = 0
        self.refused = 0

    @contextlib.contextmanager
    def going_on(self) -> Iterator[Load]:
        """Requests all the while; raises what was wrong with one."""
        with futures.ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self._client) for _ in range(CLIENTS)]
            try:
                yield self
            finally:
                self._over.set()
            for client in clients:
                client.result(2 * PATIENCE)

    def wait_for_lives(self, count: int, seconds: float = PATIENCE) -> None:
        """Until so many more have gone well."""
        wanted = self.lives + count
        resources.wait_until(
            lambda: self.lives >= wanted, seconds, f"{count} lives"
        )

    def wait_for_refusals(self, count: int = 1) -> None:
        wanted = self.refused + count
        resources.wait_until(
            lambda: self.refused >= wanted, PATIENCE, f"{count} refusals"
        )

    def _client(self) -> None:
        with requests.Session() as session:
            while not self._over.is_set():
                self._live(session)

    def _ask(
        self, session: requests.Session, method: str, path: str, body: Any
    ) -> requests.Response | None:
        answer = self._arena.call(method, path, body, session)
        if answer.status_code >= 500:
            if method == "POST":
                # One that was not answered has no headers.
                self._arena.unheard.note(answer if answer.headers else None, 2)
            self.refused += 1
            self._over.wait(0.1)
            return None
        return answer

    def _insist(
        self, session: requests.Session, method: str, path: str, body: Any
    ) -> requests.Response:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self._ask(session, method, path, body)
            if answer is not None:
                return answer
        raise AssertionError(f"{method} {path}: no answer in {PATIENCE} s")

    def _live(self, session: requests.Session) -> None:
        made = self._ask(
            session, "POST", ARQS, {"device_profile_name": self._profile}
        )
        if made is None:
            return
        assert made.status_code == 201, made.text
        arqs = [arq["uuid"] for arq in made.json()["arqs"]]
        instance = str(uuid.uuid4())
        patch = deployment.bind_patch(
            self._provider, instance, self._arena.host.provider_name
        )
        bound = self._insist(
            session, "PATCH", ARQS, dict.fromkeys(arqs, patch)
        )
        if bound.status_code == 202:
            poll = f"{ARQS}?instance={instance}&bind_state=resolved"
            found = self._insist(session, "GET", poll, None).json()["arqs"]
            assert {arq["uuid"] for arq in found} == set(arqs)
            assert {arq["state"] for arq in found} == {"Bound"}
        else:
            # The device may be disabled.
            assert bound.status_code == 409, bound.text
        path = f"{ARQS}?arqs={','.join(arqs)}"
        gone = self._insist(session, "DELETE", path, None)
        assert gone.status_code in (204, 404), gone.text
        self.lives += 1


@pytest.fixture(scope="module")
def arena(
    cloud: cloud_module.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Arena]:
    with fleets.made_apart(cloud, tmp_path_factory, RPC_SECONDS) as apart:
        fleet = apart.fleet
        host = fleet.add_host()
        host.put(ADDRESS, **CARD)
        fleet.start(2, 1, OS_DEFAULT__AUTH_STRATEGY="noauth")
        fleet.ports[CHECKING] = resources.free_port()
        fleet.prepare(CHECKING, OS_API__PORT=str(fleet.ports[CHECKING]))
        fleet.launch(CHECKING)
        fleet.wait(CHECKING)
        fleet.devices_are_offered()
        made = Arena(apart)
        made.judge.watch()
        made.insist(
            "POST",
            "/v2/device_profiles",
            [
                {
                    "name": "two",
                    "groups": [
                        {
                            "resources:FPGA": "2",
                            f"trait:{TRAIT}": "required",
                        }
                    ],
                }
            ],
            201,
        )
        yield made


def _forget_unheard(arena: Arena) -> None:
    """ARQs of creates whose answer was lost, all free; there is no other."""
    listed = arena.insist("GET", ARQS, None, 200).json()["arqs"]
    for arq in listed:
        arena.insist("DELETE", f"{ARQS}?arqs={arq['uuid']}", None, 204, 404)
    assert {arq["state"] for arq in listed} <= {"Initial"}
    assert arena.unheard.strangers(listed) == []


@pytest.fixture
def load(arena: Arena) -> Iterator[Load]:
    """Requests go on during the test; after it nothing may be wrong."""
    with Load(arena, "two").going_on() as load:
        load.wait_for_lives(CLIENTS)
        yield load
        arena.fleet.heal()
        load.wait_for_lives(CLIENTS)
    _forget_unheard(arena)
    took = arena.judge.converged()
    assert took <= judging.CONVERGE_SECONDS
    assert arena.judge.held_twice() == []
    assert arena.new_tracebacks() == []


# -- the broker


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_broker_restarts(arena: Arena, load: Load, end: str) -> None:
    getattr(arena.rabbit, end)()
    load.wait_for_refusals()
    arena.rabbit.start()
    load.wait_for_lives(CLIENTS)
    # Deployers look at the main process, at its connection and its name.
    for label in (*CONDUCTORS, arena.host.label):
        pid = arena.fleet.cyborg.processes[label].pid
        port = arena.fleet.links[label].broker.port
        resources.wait_until(
            lambda pid=pid, port=port: deployed.broker_connections(pid, port),
            PATIENCE,
            f"{label} is connected again",
        )
        kind = label.partition("-")[0]
        assert f"cyborg-{kind}" in " ".join(psutil.Process(pid).cmdline())


@pytest.mark.parametrize("ways", [(), ("to service",), ("to client",)])
def test_a_broker_is_cut_off_from_one_conductor(
    arena: Arena, load: Load, ways: tuple[str, ...]
) -> None:
    (link,) = faults.links(arena.fleet, "broker", CONDUCTORS[0])
    with link.stopping(*ways):
        load.wait_for_lives(CLIENTS)
    link.cut()
    load.wait_for_lives(CLIENTS)
    # It is asked again, not only the other.
    before = link.delivered.seen
    resources.wait_until(
        lambda: link.delivered.seen >= before + CLIENTS,
        PATIENCE,
        "it takes calls again",
    )


def test_a_message_that_is_lost_is_a_gateway_timeout(
    arena: Arena, load: Load
) -> None:
    lossy = faults.links(arena.fleet, "broker", *CONDUCTORS)
    for link in lossy:
        link.delivered.set(b"create_arqs", 0, 1)
    load.wait_for_refusals(2)
    assert [link.delivered.met for link in lossy] == [1, 1]
    load.wait_for_lives(CLIENTS)


@pytest.mark.parametrize(
    "method", [b"create_arqs", b"bind_arqs", b"delete_arqs", b"heartbeat"]
)
def test_a_message_that_comes_twice_is_done_once(
    arena: Arena, load: Load, method: bytes
) -> None:
    source = arena.host.label if method == b"heartbeat" else "api-0"
    (link,) = faults.links(arena.fleet, "broker", source)
    link.sent.set(method, 2, 4)
    resources.wait_until(
        lambda: link.sent.met >= 4, PATIENCE, "four messages come twice"
    )
    link.sent.met = 0
    load.wait_for_lives(CLIENTS)


# -- the database


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_database_restarts(arena: Arena, load: Load, end: str) -> None:
    getattr(arena.mariadb, end)()
    time.sleep(1)
    arena.mariadb.start()
    load.wait_for_lives(CLIENTS)


def test_a_database_that_may_only_be_read_refuses_changes(
    arena: Arena, load: Load
) -> None:
    with faults.read_only(arena.mariadb):
        load.wait_for_refusals(CLIENTS)
        arena.insist("GET", "/v2/devices", None, 200)
        answer = arena.call("POST", ARQS, {"device_profile_name": "two"})
        assert answer.status_code == 503, answer.text
    load.wait_for_lives(CLIENTS)


def test_a_database_forgets_the_connections_of_a_conductor(
    arena: Arena, load: Load
) -> None:
    for link in faults.links(arena.fleet, "database", *CONDUCTORS):
        link.forget()
    load.wait_for_lives(CLIENTS)


def test_a_database_cuts_connections_in_the_middle_of_an_answer(
    arena: Arena, load: Load
) -> None:
    links = faults.links(arena.fleet, "database", *CONDUCTORS, "api-0")
    for count in (1, 10, 100, 700, 1500, 3000):
        for link in links:
            link.cut_after(count)
        load.wait_for_lives(1)


def test_deadlocks_cost_no_request(arena: Arena, load: Load) -> None:
    refused = load.refused
    with faults.deadlocks(arena.mariadb) as deadlocks:
        resources.wait_until(
            lambda: deadlocks.ours >= DEADLOCKS,
            PATIENCE,
            "transactions of ours were rolled back",
        )
    load.wait_for_lives(CLIENTS)
    assert load.refused == refused


# -- Placement, Keystone, Nova


def test_placement_has_another_writer(arena: Arena, load: Load) -> None:
    conductors = faults.links(arena.fleet, "placement", *CONDUCTORS)
    before = sum(link.answers[CONFLICT] for link in conductors)
    end = time.monotonic() + PATIENCE
    with faults.other_writer(arena.cloud.placement, arena.provider):
        while sum(link.answers[CONFLICT] for link in conductors) == before:
            assert time.monotonic() < end, "the writers never met"
            for action, wanted in (("disable", UNITS), ("enable", 0)):
                arena.device(action)
                resources.wait_until(
                    lambda wanted=wanted: arena.reserved() == wanted,
                    judging.CONVERGE_SECONDS,
                    f"{action}d",
                )


@pytest.mark.parametrize("name", ["placement", "keystone"])
@pytest.mark.parametrize("failure", faults.OF_SERVICES)
def test_placement_or_keystone_fails_and_what_is_owed_is_made_good(
    arena: Arena, load: Load, name: str, failure: str
) -> None:
    with faults.OF_SERVICES[failure](arena.fleet, name) as failing:
        if name == "keystone":
            # One that begins has no token yet: whoever is to tell Placement
            # asks for one.
            for label in CONDUCTORS:
                arena.fleet.restart(label)
            for label in CONDUCTORS:
                arena.fleet.wait(label)
        arena.device("disable")
        load.wait_for_lives(CLIENTS)
        if failing is not None:
            resources.wait_until(
                lambda: failing.requests, PATIENCE, f"{name} is asked"
            )
    resources.wait_until(
        lambda: arena.reserved() == UNITS,
        judging.CONVERGE_SECONDS,
        "Placement knows that it is disabled",
    )
    arena.device("enable")


@pytest.mark.parametrize("failure", faults.OF_SERVICES)
def test_without_keystone_a_new_token_gets_503(
    arena: Arena, failure: str
) -> None:
    """It says so in time, and all is well when Keystone is."""
    port = arena.fleet.ports[CHECKING]

    def ask(token: str) -> requests.Response:
        start = time.monotonic()
        answer = requests.get(
            f"http://127.0.0.1:{port}/v2/devices",
            headers={"X-Auth-Token": token},
            timeout=ANSWER_SECONDS,
        )
        assert time.monotonic() - start < ANSWER_SECONDS
        return answer

    token = arena.cloud.keystone.new_token("admin")
    with faults.OF_SERVICES[failure](arena.fleet, "keystone"):
        answer = ask(token)
        assert answer.status_code == (200 if failure == "is slow" else 503)
        assert answer.json()
    assert ask(token).status_code == 200


# -- clocks and disks


@pytest.mark.parametrize("seconds", [3600, -3600])
@pytest.mark.parametrize("kinds", [("conductor",), ("api", "agent")])
def test_clocks_step(
    arena: Arena, load: Load, seconds: float, kinds: tuple[str, ...]
) -> None:
    """Those of one process of each kind."""
    clocks = [
        arena.fleet.clocks[arena.fleet.labels(kind)[0]] for kind in kinds
    ]
    for clock in clocks:
        clock.step(seconds)
    try:
        with faults.away(arena.fleet, "placement"):
            arena.device("disable")
            load.wait_for_lives(3 * CLIENTS)
        arena.host.put(SECOND, **CARD)
        arena.fleet.devices_are_offered()
    finally:
        for clock in clocks:
            clock.step(0)
        arena.host.pull(SECOND)
    arena.fleet.devices_are_offered()
    resources.wait_until(
        lambda: arena.reserved() == UNITS,
        judging.CONVERGE_SECONDS,
        "Placement knows that it is disabled",
    )
    arena.device("enable")


def test_an_agent_whose_disk_is_full_says_so_and_goes_on(
    arena: Arena,
) -> None:
    host = arena.host
    agent = arena.fleet.cyborg.processes[host.label]
    image = arena.cloud.glance.add(os.urandom(300_000))
    (deployable,) = arena.insist("GET", "/v2/deployables", None, 200).json()[
        "deployables"
    ]
    path = f"/v2/deployables/{deployable['uuid']}"
    order = [
        {"path": "/program", "op": "replace", "value": [{"image_uuid": image}]}
    ]
    said = "cannot be kept on this host"
    with futures.ThreadPoolExecutor(1) as pool:
        with faults.small_disk(host.folder / f"images-{host.name}"):
            asked = pool.submit(arena.call, "PATCH", f"{path}/program", order)
            resources.wait_until(
                lambda: said in agent.output.read_text(),
                PATIENCE,
                "the agent says that there is no room",
            )
            # It reports all the same.
            host.put(SECOND, **CARD)
            arena.fleet.devices_are_offered()
            host.pull(SECOND)
            arena.fleet.devices_are_offered()
        # Once there is room the order is repeated, while its client waits.
        answer = asked.result(PATIENCE)
    assert answer.status_code == 200, answer.text
    assert arena.call("GET", path).json()["bitstream_id"] == image
    arena.judge.converged()


# -- kill -9


def test_each_process_is_killed_at_any_point_of_its_work(
    arena: Arena, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = random.Random(f"{SEED}/kills")
    story = []
    deaths = 0
    arena.api_may_die = True
    for number in range(KILLS):
        label = (*CONDUCTORS, "api-0", arena.host.label)[number % 4]
        names = ["broker"]
        if label != arena.host.label:
            names.append("database")
        if label in CONDUCTORS:
            names.append("placement")
        name = choice.choice(names)
        count = choice.randrange(1, 4000)
        story.append(f"{label} after {count} bytes to or from its {name}")
        (link,) = faults.links(arena.fleet, name, label)
        child = arena.fleet.cyborg.processes[label]
        link.cut_after(count, child.process.kill)
        if name == "placement":
            arena.device("disable")
            arena.device("enable")
        with contextlib.suppress(AssertionError):
            # Quiet links may not come so far.
            resources.wait_until(
                lambda child=child: not child.running, 10, "it is dead"
            )
            deaths += 1
        link.heal()
        arena.fleet.restart(label)
        arena.fleet.wait(label)
    with capsys.disabled():
        print(
            f"\nseed {SEED}: {deaths} of {KILLS} in the middle of a"
            f" message: {', '.join(story)}"
        )
    assert deaths >= KILLS / 2
    load.wait_for_lives(CLIENTS)
    arena.api_may_die = False
    arena.device("enable")

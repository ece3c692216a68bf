# SPDX-License-Identifier: Apache-2.0
"""Thousands of random operations while faults come and go.

Several clients live the lives of instances as Nova does, administrators and
hosts interfere, and at the end nothing may be left over: at no moment was a
handle held twice.  A failing test says its seed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent import futures

import pytest

from tests.integration import cloud as clouds
from tests.integration import fleet as fleets
from tests.integration import judge
from tests.integration import operations
from tests.integration import weather as weathers
from tests.integration.operations import ARQS
from tests.integration.operations import CALM
from tests.integration.operations import CLIENTS
from tests.integration.operations import SEED
from tests.integration.operations import STORMY
from tests.integration.operations import Client
from tests.integration.operations import Run
from tests.integration.operations import device

HOSTS = 4
RPC_SECONDS = 5


@pytest.fixture(scope="module")
def run(
    cloud: clouds.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    with fleets.made_apart(cloud, tmp_path_factory, RPC_SECONDS) as apart:
        fleet, cyborg = apart.fleet, apart.fleet.cyborg
        for _ in range(HOSTS):
            host = fleet.add_host()
            host.put(
                operations.CALM_ADDRESS, **device(CALM, operations.CALM_UNITS)
            )
            for address in operations.STORMY_ADDRESSES:
                host.put(address, **device(STORMY, operations.STORMY_UNITS))
        fleet.start(2, 2, OS_DEFAULT__AUTH_STRATEGY="noauth")
        run = Run(apart)
        fleet.devices_are_offered()
        anybody = cyborg.caller(None, None, fleet.ports["api-0"])
        for trait in (CALM, STORMY):
            for size in set(operations.SIZES):
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
    judges = judge.Judge(fleet.cyborg, fleet.roots, run.apart.mariadb.root_url)
    judges.watch()
    clients = [Client(run, number) for number in range(CLIENTS)]
    weather = weathers.Weather(run)
    start = time.monotonic()

    with futures.ThreadPoolExecutor(CLIENTS) as pool:
        for client in clients:
            pool.submit(client.live)
        # In this thread: what a thread starts is killed when it ends.
        weather.come()
    took = time.monotonic() - start

    story = "\n".join(
        [
            f"seed {SEED}: {run.done} operations in {took:.0f} s,"
            f" {judges.moments()} changes of handles",
            *weather.history,
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
    assert weather.missing() == [], story
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

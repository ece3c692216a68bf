# SPDX-License-Identifier: Apache-2.0
"""Kill -9 of a service at each point of the main job, then a restart.

Nothing may be left over: no ARQ stuck, no handle leaked, and providers are
right again within two periods.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
import requests

from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources

STEPS = ("request", "bind", "delete")
DELAYS = (0.0, 0.004, 0.012)
"""Seconds between sending a step's request and the kill."""
CRASHES = [
    *itertools.product(("api", "conductor"), STEPS, DELAYS),
    # The agent has no part in these steps: once is enough.
    *itertools.product(("agent",), STEPS, DELAYS[:1]),
]
PATIENCE = 40
BUSY_CLIENTS = 4
BUSY_SEED = 20261129
PROGRAM_SECONDS = 4


@pytest.fixture(scope="module")
def crashing(deploy: deployment.Deploy) -> deployment.Deployment:
    """A Cyborg whose RPC calls are given up early."""
    made = deploy(rpc_response_timeout=4)
    made.start()
    made.wait_for_providers()
    return made


@pytest.fixture
def cyborg(
    crashing: deployment.Deployment,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> deployment.Deployment:
    return judged(crashing)


def _restart(cyborg: deployment.Deployment, victim: str) -> None:
    start = {
        "api": cyborg.start_api,
        "conductor": cyborg.start_conductor,
        "agent": cyborg.start_agent,
    }
    start[victim]()


def _send(
    server: instance.Instance, step: str
) -> requests.Response | requests.RequestException:
    """One step's request; its answer, or how it was cut off."""
    calls: dict[str, tuple[str, str, Any]] = {
        "request": (
            "POST",
            "/v2/accelerator_requests",
            {"device_profile_name": server.profile},
        ),
        "bind": ("PATCH", "/v2/accelerator_requests", None),
        "delete": (
            "DELETE",
            f"/v2/accelerator_requests?instance={server.uuid}",
            None,
        ),
    }
    method, path, body = calls[step]
    if step == "bind":
        body = server.patch()
    try:
        return server.nova.request(method, path, body)
    except requests.RequestException as error:
        return error


def _interrupted(
    cyborg: deployment.Deployment,
    server: instance.Instance,
    step: str,
    victim: str,
    delay: float,
) -> requests.Response | requests.RequestException:
    """Do a step, kill the victim so long after, and start it again."""
    with futures.ThreadPoolExecutor(1) as pool:
        sent = pool.submit(_send, server, step)
        threading.Event().wait(delay)
        cyborg.kill(victim)
        _restart(cyborg, victim)
        return sent.result(PATIENCE)


def _succeeded(
    answer: requests.Response | requests.RequestException,
) -> bool:
    return isinstance(answer, requests.Response) and answer.ok


def _again(server: instance.Instance, step: str) -> requests.Response:
    """Repeat a step as a client does, until it is answered."""
    answers: list[Any] = []

    def answered() -> bool:
        answers.append(_send(server, step))
        answer = answers[-1]
        return isinstance(
            answer, requests.Response
        ) and answer.status_code not in (503, 504)

    resources.wait_until(answered, PATIENCE, f"{step} is answered")
    return answers[-1]


def _nothing_left(cyborg: deployment.Deployment) -> bool:
    admin = cyborg.caller("admin")
    arqs = admin.get("/v2/accelerator_requests")["arqs"]
    return not arqs and cyborg.handles_in_use() == 0


@pytest.mark.parametrize(("victim", "step", "delay"), CRASHES)
def test_a_crash_within_a_step_leaves_nothing_stuck(
    cyborg: deployment.Deployment, victim: str, step: str, delay: float
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    server = instance.Instance(cyborg, profile)
    server.schedule()

    for current in STEPS:
        if current != step:
            answer = _again(server, current)
            assert answer.ok, answer.text
        else:
            first = _interrupted(cyborg, server, step, victim, delay)
            answer = first if _succeeded(first) else _again(server, current)
            assert answer.ok, answer.text
        if current == "request":
            server.arqs = answer.json()["arqs"]
        if current == "bind":
            (bound,) = server.wait_resolved()
            assert bound["state"] == "Bound"
    cyborg.cloud.placement.release(server.uuid)

    # A request whose answer was lost may have left ARQs that the caller
    # never heard of: they are listed, free, and can be deleted.
    admin = cyborg.caller("admin", "nova")
    for arq in admin.get("/v2/accelerator_requests")["arqs"]:
        assert arq["state"] == "Initial"
        admin.delete(f"/v2/accelerator_requests?arqs={arq['uuid']}")
    assert _nothing_left(cyborg)
    provider = next(iter(cyborg.providers().values()))
    inventory = cyborg.cloud.placement.inventory(provider)
    assert inventory["FPGA"]["reserved"] == 0
    assert inventory["FPGA"]["total"] == 16


def _life(server: instance.Instance) -> None:
    """One instance from its ARQs to its end, through whatever crashes."""
    answer = _again(server, "request")
    assert answer.status_code == 201, answer.text
    server.arqs = answer.json()["arqs"]
    answer = _again(server, "bind")
    assert answer.status_code == 202, answer.text
    (arq,) = _until_polled(server)
    assert arq["state"] == "Bound"
    answer = _again(server, "delete")
    assert answer.status_code == 204, answer.text


def _until_polled(server: instance.Instance) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def polled() -> bool:
        try:
            answer = server.nova.request(
                "GET",
                f"/v2/accelerator_requests?instance={server.uuid}"
                "&bind_state=resolved",
            )
        except requests.RequestException:
            return False
        found[:] = answer.json().get("arqs", [])
        return answer.status_code == 200

    resources.wait_until(polled, PATIENCE, "the poll is answered")
    return found


def test_crashes_at_any_moment_of_a_busy_service_lose_nothing(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    (provider,) = cyborg.providers().values()
    over = threading.Event()

    def client() -> int:
        lives = 0
        while not over.is_set():
            server = instance.Instance(cyborg, profile)
            server.providers = {0: provider}
            _life(server)
            lives += 1
        return lives

    choice = random.Random(BUSY_SEED)
    with futures.ThreadPoolExecutor(BUSY_CLIENTS) as pool:
        clients = [pool.submit(client) for _ in range(BUSY_CLIENTS)]
        try:
            for victim in ("conductor", "api", "conductor", "agent", "api"):
                over.wait(choice.uniform(0.3, 1.2))
                cyborg.kill(victim)
                _restart(cyborg, victim)
        finally:
            over.set()
        assert all(one.result(4 * PATIENCE) for one in clients)

    # A request that was given up may still be carried out late, and one
    # whose answer was lost has left ARQs that nobody knows of.
    admin = cyborg.caller("admin", "nova")
    for arq in admin.get("/v2/accelerator_requests")["arqs"]:
        assert arq["state"] == "Initial", arq
        admin.delete(f"/v2/accelerator_requests?arqs={arq['uuid']}")
    assert _nothing_left(cyborg)


@pytest.mark.parametrize("victim", ["conductor", "agent"])
def test_a_crash_before_the_first_report_only_delays_it(
    deploy: deployment.Deploy, cyborg: deployment.Deployment, victim: str
) -> None:
    fresh = deploy()
    fresh.launch("conductor")
    fresh.launch("agent")
    resources.wait_until(
        lambda: fresh.vhost.consumers("cyborg-conductor") > 0,
        deployment.READY_SECONDS,
        "a conductor",
    )
    fresh.kill(victim)
    _restart(fresh, victim)
    fresh.wait_for_providers(1, 2 * deployment.PERIOD + 10)
    fresh.stop()


@pytest.mark.parametrize("victim", ["conductor", "agent"])
def test_providers_follow_a_change_that_a_crash_interrupted(
    cyborg: deployment.Deployment, victim: str
) -> None:
    admin = cyborg.caller("admin")
    (device,) = admin.get("/v2/devices")["devices"]
    (provider,) = cyborg.providers().values()

    def reserved(amount: int) -> bool:
        inventory = cyborg.cloud.placement.inventory(provider)
        return bool(inventory["FPGA"]["reserved"] == amount)

    for action, amount in (("disable", 16), ("enable", 0)):
        path = f"/v2/devices/{device['uuid']}/{action}"
        cyborg.kill(victim)
        with futures.ThreadPoolExecutor(1) as pool:
            sent = pool.submit(admin.request, "POST", path)
            _restart(cyborg, victim)
            answer = sent.result(PATIENCE)
        if answer.status_code != 204:
            assert answer.status_code in (503, 504)
            admin.post(path, status=204)
        resources.wait_until(
            lambda amount=amount: reserved(amount),
            2 * deployment.PERIOD + 2,
            f"reserved = {amount} after {action}",
        )


@pytest.fixture(scope="module")
def programming(
    deploy: deployment.Deploy, crashing: deployment.Deployment
) -> deployment.Deployment:
    """Two conductors and an agent whose card takes long to program."""
    crashing.stop()
    made = deploy(
        fake={"program_seconds": PROGRAM_SECONDS},
        bind_timeout=20,
        rpc_response_timeout=4,
    )
    made.start()
    made.start_conductor("conductor-2")
    made.wait_for_providers()
    return made


@pytest.mark.parametrize("victim", ["conductor", "conductor-2", "agent"])
def test_a_crash_while_a_card_is_programmed_ends_the_bind_one_way(
    programming: deployment.Deployment,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
    victim: str,
) -> None:
    cyborg = judged(programming)
    image = cyborg.cloud.glance.add(b"bitstream of " + victim.encode())
    profile = cyborg.make_profile(
        [{**instance.FAKE_GROUP, "accel:bitstream_id": image}]
    )
    server = instance.Instance(cyborg, profile)
    server.schedule()
    server.request()
    server.bind()
    server.poll(423)

    cyborg.kill(victim)
    if victim == "agent":
        cyborg.start_agent()
    (arq,) = server.wait_resolved()

    outcome = {"Bound": "completed", "BindFailed": "failed"}[arq["state"]]
    assert cyborg.handles_in_use() == (outcome == "completed")
    cyborg.cloud.nova.wait_for(server.uuid, 1)
    (event,) = cyborg.cloud.nova.events_of(server.uuid)
    assert event["status"] == outcome
    server.delete()
    assert cyborg.handles_in_use() == 0
    if victim != "agent":
        cyborg.start_conductor(victim)

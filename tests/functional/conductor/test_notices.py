# SPDX-License-Identifier: Apache-2.0
"""Each change that is committed is told once, and no other.

`CYBORG_WRITE_SAMPLES=1` writes the samples of the documentation anew;
otherwise one that differs from what is told fails.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg import exception
from cyborg import notification
from cyborg.db import engine
from cyborg.notification import AcceleratorRequestPayload
from cyborg.notification import DevicePayload
from cyborg.notification import Event
from cyborg.notification import Notice
from cyborg.rpc.agent import CleanResult
from cyborg.rpc.agent import UnitsOrder
from tests import statements
from tests.functional.conductor import world as worlds
from tests.functional.conductor.world import CONTEXT
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device

SAMPLES = Path(__file__).parents[3] / "doc" / "notification_samples"
WRITE = os.environ.get("CYBORG_WRITE_SAMPLES") == "1"
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Told(list[Notice]):
    """What was told, in order."""

    def since(self, number: int) -> list[tuple[Event, str]]:
        return [(one.event, one.payload.uuid) for one in self[number:]]

    def of(self, event: Event) -> list[Notice]:
        return [one for one in self if one.event is event]


@pytest.fixture
def told(database: engine.Database) -> Iterator[Told]:
    found = Told()
    database.listener = found.extend
    yield found
    database.listener = None


def _arq(notice: Notice) -> AcceleratorRequestPayload:
    assert isinstance(notice.payload, AcceleratorRequestPayload)
    return notice.payload


def _device(notice: Notice) -> DevicePayload:
    assert isinstance(notice.payload, DevicePayload)
    return notice.payload


def test_the_life_of_a_request_is_told_step_by_step(
    told: Told, world: World
) -> None:
    world.report(device(accelerators=2))
    before = len(told)
    first, second = world.arqs(2)
    instance = world.bind([first, second])
    world.unbind(first)
    world.delete(second)
    assert told.since(before) == [
        (Event.ARQ_CREATED, first),
        (Event.ARQ_CREATED, second),
        (Event.BOUND, first),
        (Event.BOUND, second),
        (Event.UNBOUND, first),
        (Event.ARQ_DELETED, second),
    ]
    created, _, bound, _, unbound, deleted = map(_arq, told[before:])
    assert (created.state, created.instance_uuid) == ("Initial", None)
    assert bound.state == "Bound"
    # Who pays for it and since when must be known at the end, too.
    for one in (bound, unbound, deleted):
        assert one.instance_uuid == instance
        assert one.project_id == worlds.PROJECT
        assert one.hostname == "compute-1.example.org"
        assert one.device_rp_uuid == worlds.provider_of()
        assert one.device_profile_name.startswith("profile-")
    assert (unbound.state, deleted.state) == ("Unbound", "Deleted")


def test_what_is_rolled_back_is_not_told(told: Told, world: World) -> None:
    world.report(device(accelerators=1))
    taken, late = world.arqs(), world.arqs()
    world.bind(taken)
    before = len(told)
    with pytest.raises(exception.Conflict):
        world.bind(late)
    with pytest.raises(exception.Forbidden):
        world.delete(*taken, may_unbind=False)
    with pytest.raises(exception.NotFound):
        world.unbind(*taken, str(uuid.uuid4()))
    assert told.since(before) == []


def test_a_bind_that_takes_long_is_told_at_its_beginning_and_its_end(
    told: Told, database: engine.Database
) -> None:
    world = worlds.make(database, started=True, bind_timeout=20)
    try:
        world.report(device(accelerators=2))
        image = {"accel:bitstream_id": str(uuid.uuid4())}
        before = len(told)
        (good,) = world.arqs(1, **image)
        world.bind([good])
        worlds.wait_until(lambda: world.states([good]) == ["Bound"])
        world.delete(good)

        def refuse(_order: object) -> None:
            raise exception.DeviceFailed("the card is on fire")

        world.hosts.answer = refuse  # type: ignore[assignment]
        other = {"accel:bitstream_id": str(uuid.uuid4())}
        (bad,) = world.arqs(1, **other)
        world.bind([bad])
        worlds.wait_until(lambda: world.states([bad]) == ["BindFailed"])
        worlds.wait_until(lambda: bool(told.of(Event.BIND_FAILED)))
    finally:
        world.close()
    assert [one for one in told.since(before) if one[1] in (good, bad)] == [
        (Event.ARQ_CREATED, good),
        (Event.BIND_STARTED, good),
        (Event.BOUND, good),
        (Event.ARQ_DELETED, good),
        (Event.ARQ_CREATED, bad),
        (Event.BIND_STARTED, bad),
        (Event.BIND_FAILED, bad),
    ]
    (failed,) = map(_arq, told.of(Event.BIND_FAILED))
    assert failed.error is not None
    assert "on fire" in failed.error
    assert failed.instance_uuid is not None


def test_devices_are_told_when_they_come_change_and_go(
    told: Told, world: World
) -> None:
    world.report(device(0x0C), device(0x0D))
    created = [_device(one) for one in told]
    assert [one.event for one in told] == [Event.DEVICE_CREATED] * 2
    assert {one.hostname for one in created} == {"compute-1.example.org"}
    first = created[0].uuid

    world.report(device(0x0C), device(0x0D))
    assert told.since(2) == []

    world.endpoint.set_device_status(CONTEXT, first, "maintaining", "hot")
    world.endpoint.set_device_status(CONTEXT, first, "maintaining", "hot")
    assert told.since(2) == [(Event.DEVICE_UPDATED, first)]
    assert _device(told[2]).status == "maintaining"
    assert _device(told[2]).status_reason == "hot"

    world.report(device(0x0C, fault="ECC errors"), device(0x0D))
    assert told.since(3) == [(Event.DEVICE_UPDATED, first)]
    assert "ECC errors" in str(_device(told[3]).status_reason)

    world.report(device(0x0D))
    assert told.since(4) == [(Event.DEVICE_DELETED, first)]
    assert _device(told[4]).address == created[0].address


def test_a_device_that_is_cleaned_is_told_each_time_it_shows_another_state(
    told: Told, database: engine.Database
) -> None:
    cleaned: list[str] = []

    def clean(order: UnitsOrder) -> CleanResult:
        cleaned.append(order.job_uuid)
        return CleanResult(done=True, percent=100)

    hosts = worlds.Hosts()
    hosts.on_clean = clean
    world = worlds.make(database, hosts=hosts, started=True)
    try:
        world.report(device(accelerators=1, clean_seconds=60))
        (one,) = world.arqs()
        world.bind([one])
        before = len(told)
        world.delete(one)
        worlds.wait_until(lambda: not world.used())
        worlds.wait_until(
            lambda: (
                told[-1].event is Event.DEVICE_UPDATED
                and _device(told[-1]).device_state == "available"
            )
        )
    finally:
        world.close()
    assert len(cleaned) == 1
    states = [
        _device(one).device_state
        for one in told[before:]
        if one.event is Event.DEVICE_UPDATED
    ]
    assert states[0] == "pending_cleaning"
    assert states[-1] == "available"
    assert len(states) == len(set(states)), states


def test_a_device_is_told_of_again_where_another_unit_cannot_be_cleaned(
    told: Told, database: engine.Database
) -> None:
    reasons = iter(["no answer", "locked"])

    def clean(_order: UnitsOrder) -> CleanResult:
        raise exception.DeviceFailed(next(reasons))

    hosts = worlds.Hosts()
    hosts.on_clean = clean
    world = worlds.make(database, hosts=hosts, started=True)
    try:
        world.report(device(accelerators=2, clean_seconds=60))
        for reason in ("no answer", "locked"):
            (one,) = world.arqs()
            world.bind([one])
            world.delete(one)
            worlds.wait_until(
                lambda reason=reason: any(
                    reason in (_device(one).status_reason or "")
                    for one in told.of(Event.DEVICE_UPDATED)
                )
            )
    finally:
        world.close()


@pytest.mark.parametrize("count", [1, 8])
def test_telling_costs_at_most_one_statement_and_none_where_nobody_listens(
    database: engine.Database, world: World, count: int
) -> None:
    world.report(device(accelerators=16))

    def run() -> dict[str, int]:
        costs = {}

        def measure(name: str, work: Callable[[], object]) -> None:
            counter = statements.StatementCounter(database.engine, own=True)
            with counter as found:
                work()
            costs[name] = len(found.statements)

        arqs: list[str] = []
        world.profile("eight", {"resources:FPGA": str(count)})
        measure(
            "create",
            lambda: arqs.extend(
                world.endpoint.create_arqs(CONTEXT, "eight", None, None)
            ),
        )
        measure("bind", lambda: world.bind(arqs))
        measure("unbind", lambda: world.unbind(*arqs))
        world.bind(arqs)
        measure("delete", lambda: world.delete(*arqs))
        world.endpoint.delete_device_profiles(CONTEXT, ["eight"])
        return costs

    quiet = run()
    database.listener = Told().extend
    try:
        told = run()
    finally:
        database.listener = None
    extra = {name: told[name] - quiet[name] for name in told}
    assert extra == {"create": 0, "bind": 1, "unbind": 1, "delete": 1}
    # performance.md's bounds hold with notifications on.
    assert told["bind"] <= 8
    assert told["unbind"] <= 5
    assert told["delete"] <= 5


def _sample(notice: Notice, stable: dict[str, str]) -> str:
    """A message as a listener gets it, the same each time."""
    message = {
        "event_type": notice.event.value,
        "priority": "ERROR" if notice.event.is_error else "INFO",
        "publisher_id": "cyborg-conductor:controller-1",
        "payload": notification.encode(notice.payload),
    }

    def replace(match: re.Match[str]) -> str:
        name = uuid.uuid5(uuid.NAMESPACE_URL, f"notification {len(stable)}")
        return stable.setdefault(match[0], str(name))

    text = json.dumps(message, indent=4) + "\n"
    return TIME.sub("2026-11-30T16:19:32Z", UUID.sub(replace, text))


def test_the_documentation_shows_what_is_told(
    told: Told, database: engine.Database
) -> None:
    world = worlds.make(database, started=True, bind_timeout=20)
    try:
        world.report(device(accelerators=1))
        world.profile("fpga-large")
        (first,) = world.endpoint.create_arqs(
            worlds.cyborg_context.RequestContext(project_id=worlds.PROJECT),
            "fpga-large",
            None,
            None,
        )
        world.bind([first])
        world.unbind(first)
        world.delete(first)

        def refuse(_order: object) -> None:
            raise exception.DeviceFailed("The card does not answer.")

        world.hosts.answer = refuse  # type: ignore[assignment]
        world.profile(
            "fpga-programmed",
            {
                "resources:FPGA": "1",
                "accel:bitstream_id": "c5af00d4-743c-5101-8469-9134ac28e262",
            },
        )
        (second,) = world.endpoint.create_arqs(
            worlds.cyborg_context.RequestContext(project_id=worlds.PROJECT),
            "fpga-programmed",
            None,
            None,
        )
        world.bind([second])
        worlds.wait_until(lambda: bool(told.of(Event.BIND_FAILED)))
        world.delete(second)
        found = _device(told[0]).uuid
        world.endpoint.set_device_status(
            CONTEXT, found, "maintaining", "replaced on Friday"
        )
        world.report()
    finally:
        world.close()
    assert {one.event for one in told} == set(Event), "an event has no sample"
    stable: dict[str, str] = {}
    shown = {
        one.event: _sample(one, stable)
        for one in sorted(told, key=lambda one: list(Event).index(one.event))
    }
    different = []
    for event, text in shown.items():
        path = SAMPLES / f"{event.value}.json"
        if WRITE:
            SAMPLES.mkdir(exist_ok=True)
            path.write_text(text)
        if not path.exists() or path.read_text() != text:
            different.append(path.name)
    assert different == []
    assert {path.name for path in SAMPLES.iterdir()} == {
        f"{event.value}.json" for event in Event
    }

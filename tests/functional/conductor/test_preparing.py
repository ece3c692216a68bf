# SPDX-License-Identifier: Apache-2.0
"""Units that a host makes when they are bound: vGPUs and other mediated
devices, on each database."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime as dt
import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg import inventory
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from cyborg.rpc.agent import CleanResult
from cyborg.rpc.agent import ProgramResult
from cyborg.rpc.agent import UnitsOrder
from tests import databases
from tests.functional.conductor import world as worlds
from tests.functional.conductor.test_programming import abandoned
from tests.functional.conductor.test_races import at_once
from tests.functional.conductor.world import CONTEXT
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device
from tests.functional.conductor.world import provider_of

Handle = models.AttachHandle
Job = models.Job

IMAGE = "c5af00d4-743c-5101-8469-9134ac28e262"
Maker = Callable[..., World]


def t4(
    count: int = 16, clean_seconds: int | None = 30, **values: object
) -> inventory.Device:
    """A card of so many vGPUs, made when they are bound."""
    whole = device(accelerators=count, clean_seconds=clean_seconds, **values)  # type: ignore[arg-type]
    info = inventory.pci_json("0000:0c:00.0", {"asked_type": "nvidia-222"})
    units = (
        inventory.AttachHandle(
            inventory.AttachType.MDEV, info.replace("}", f', "n": "{n}"}}')
        )
        for n in range(count)
    )
    (part,) = whole.deployables
    return dataclasses.replace(
        whole,
        deployables=(dataclasses.replace(part, attach_handles=tuple(units)),),
    )


@pytest.fixture(scope="module", params=databases.ALL)
def prepared_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engine.Database]:
    directory = tmp_path_factory.mktemp("preparing")
    with databases.migrated(request.param, directory) as database:
        yield database


@pytest.fixture
def conductor(prepared_database: engine.Database) -> Iterator[Maker]:
    """Makes started conductors with one T4 between them."""
    databases.clear(prepared_database)
    made: list[World] = []

    def make(**values: object) -> World:
        options: dict[str, object] = {
            "bind_timeout": 20,
            "periodic_interval": 1,
            "started": True,
            **values,
        }
        one = worlds.make(prepared_database, **options)  # type: ignore[arg-type]
        made.append(one)
        if len(made) == 1:
            one.report(t4())
        return one

    yield make
    for one in made:
        one.close()


class Slow:
    """A host that has made units once `done` is set."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.done = threading.Event()

    def __call__(self, order: UnitsOrder) -> None:
        self.begun.release()
        assert self.done.wait(30)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.done.set()


def away(order: UnitsOrder) -> CleanResult:
    raise exception.Unavailable("the agent cannot be reached")


def settled(world: World, arqs: list[str]) -> None:
    worlds.wait_until(lambda: "BindStarted" not in world.states(arqs))


def jobs_of(world: World, kind: str) -> list[Job]:
    return [job for job in world.all(Job) if job.kind == kind]


def test_a_unit_is_made_before_its_bind_is_done(
    conductor: Maker, slow: Slow
) -> None:
    world = conductor()
    world.hosts.on_prepare = slow
    arqs = world.arqs(2)
    instance = world.bind(arqs)
    assert slow.begun.acquire(timeout=5)
    assert world.states(arqs) == ["BindStarted"] * 2
    assert len(world.used()) == 2
    assert world.nova.events == []
    assert world.all(models.Deployable)[0].job_id is None
    slow.done.set()
    events = world.nova.wait(2)
    assert {(e.status, e.instance_uuid) for e in events} == {
        ("completed", instance)
    }
    assert world.states(arqs) == ["Bound"] * 2
    (order,) = world.hosts.prepared
    handles = [row for row in world.all(Handle) if row.in_use]
    assert {unit.uuid for unit in order.units} == {h.uuid for h in handles}
    assert {unit.attach_type for unit in order.units} == {"MDEV"}
    assert all('"asked_type"' in unit.attach_info for unit in order.units)
    assert order.controlpath == t4().controlpath
    assert order.driver == "fake_driver"
    assert 0 < order.timeout <= 20
    assert [job.state for job in jobs_of(world, "prepare")] == ["done"]
    world.unbind(*arqs)
    worlds.wait_until(lambda: world.used() == [])
    assert len(world.hosts.cleaned) == 2


def test_sixteen_units_of_one_card_are_made_at_the_same_time(
    conductor: Maker, slow: Slow
) -> None:
    world = conductor(thread_pool_size=16)
    world.hosts.on_prepare = slow
    arqs = [world.arqs(1)[0] for _ in range(16)]
    ends = at_once([lambda one=one: world.bind([one]) for one in arqs])
    assert ends == [None] * 16
    for _ in range(16):
        assert slow.begun.acquire(timeout=10)
    assert world.states(arqs) == ["BindStarted"] * 16
    slow.done.set()
    assert {event.status for event in world.nova.wait(16)} == {"completed"}
    assert world.states(arqs) == ["Bound"] * 16
    units = [
        unit.uuid for order in world.hosts.prepared for unit in order.units
    ]
    assert len(set(units)) == 16


def test_a_card_that_refuses_fails_the_bind_and_is_cleaned(
    conductor: Maker,
) -> None:
    world = conductor()

    def refuse(order: UnitsOrder) -> None:
        raise exception.DeviceFailed("no vGPU of that type is left")

    world.hosts.on_prepare = refuse
    washed = threading.Event()

    def clean(order: UnitsOrder) -> CleanResult:
        return CleanResult(done=washed.wait(0.1))

    world.hosts.on_clean = clean
    arqs = world.arqs(2)
    world.bind(arqs)
    events = world.nova.wait(2)
    assert {event.status for event in events} == {"failed"}
    row = world.arq(arqs[0])
    assert (row.state, row.attach_handle_id) == ("BindFailed", None)
    assert row.last_error == "no vGPU of that type is left"
    assert len(world.used()) == 2
    washed.set()
    worlds.wait_until(lambda: world.used() == [])
    units = {unit.uuid for one in world.hosts.prepared for unit in one.units}
    assert units == {
        unit.uuid for one in world.hosts.cleaned for unit in one.units
    }


def test_without_cleaning_what_may_have_been_made_is_free_at_once(
    conductor: Maker,
) -> None:
    world = conductor()
    world.report(t4(clean_seconds=None))

    def refuse(order: UnitsOrder) -> None:
        raise exception.DeviceFailed("no")

    world.hosts.on_prepare = refuse
    arqs = world.arqs(1)
    world.bind(arqs)
    settled(world, arqs)
    assert world.used() == []
    assert world.hosts.cleaned == []


def test_a_host_that_does_not_finish_in_time_fails_the_bind(
    conductor: Maker, slow: Slow
) -> None:
    world = conductor(bind_timeout=2)
    world.hosts.on_prepare = slow
    arqs = world.arqs(1)
    world.bind(arqs)
    assert world.nova.wait(1)[0].status == "failed"
    assert world.states(arqs) == ["BindFailed"]
    slow.done.set()
    worlds.wait_until(lambda: world.used() == [])
    assert world.states(arqs) == ["BindFailed"]
    assert len(world.nova.events) == 1


def test_an_agent_that_is_back_in_time_makes_them(conductor: Maker) -> None:
    world = conductor()
    answers = iter([exception.Timeout("x"), exception.Unavailable("y"), None])

    def restart(order: UnitsOrder) -> None:
        error = next(answers)
        if error is not None:
            raise error

    world.hosts.on_prepare = restart
    arqs = world.arqs(1)
    world.bind(arqs)
    settled(world, arqs)
    assert world.states(arqs) == ["Bound"]
    assert len({order.job_uuid for order in world.hosts.prepared}) == 1


@pytest.mark.parametrize("how", ["unbind", "delete", "instance"])
def test_giving_back_while_it_is_made_ends_the_job_and_cleans(
    conductor: Maker, slow: Slow, how: str
) -> None:
    world = conductor()
    world.hosts.on_prepare = slow
    world.hosts.on_clean = away
    arqs = world.arqs(2)
    instance = world.bind(arqs)
    assert slow.begun.acquire(timeout=5)
    if how == "unbind":
        world.unbind(*arqs)
        assert world.states(arqs) == ["Unbound"] * 2
    elif how == "delete":
        world.delete(*arqs)
    else:
        world.endpoint.delete_instance_arqs(CONTEXT, instance, None)
    assert [job.state for job in jobs_of(world, "prepare")] == ["cancelled"]
    assert len(world.used()) == 2
    assert len(jobs_of(world, "clean")) == 2
    slow.done.set()
    worlds.wait_until(lambda: not world.work.runner._running)
    assert [job.state for job in jobs_of(world, "prepare")] == ["cancelled"]
    assert world.nova.events == []
    world.hosts.on_clean = lambda order: CleanResult(done=True)
    worlds.wait_until(lambda: world.used() == [])


def test_a_host_that_is_away_is_not_ordered_what_was_given_back(
    conductor: Maker,
) -> None:
    """Nor does it keep a thread from binds to other hosts."""
    world = conductor(bind_timeout=60, thread_pool_size=1)

    def away(order: UnitsOrder) -> None:
        raise exception.Unavailable("the agent cannot be reached")

    world.hosts.on_prepare = away
    arqs = world.arqs(1)
    world.bind(arqs)
    worlds.wait_until(lambda: len(world.hosts.prepared) > 0)
    world.delete(*arqs)
    worlds.wait_until(lambda: not world.work.runner._running)
    worlds.wait_until(lambda: world.used() == [])
    asked = len(world.hosts.prepared)
    world.hosts.on_prepare = lambda order: None
    more = world.arqs(1)
    world.bind(more)
    settled(world, more)
    assert world.states(more) == ["Bound"]
    later = world.hosts.prepared[asked:]
    assert {order.job_uuid for order in later} == {
        jobs_of(world, "prepare")[-1].uuid
    }


def test_who_still_waits_for_a_job_gets_what_it_makes(
    conductor: Maker, slow: Slow
) -> None:
    world = conductor()
    world.hosts.on_prepare = slow
    arqs = world.arqs(2)
    world.bind(arqs)
    assert slow.begun.acquire(timeout=5)
    world.delete(arqs[0])
    assert [job.state for job in jobs_of(world, "prepare")] == ["running"]
    slow.done.set()
    assert [event.arq_uuid for event in world.nova.wait(1)] == [arqs[1]]
    assert world.states([arqs[1]]) == ["Bound"]
    worlds.wait_until(
        lambda: world.used() == [world.arq(arqs[1]).attach_handle_id]
    )


def test_the_last_of_two_that_give_back_at_once_ends_the_job(
    conductor: Maker, slow: Slow
) -> None:
    world, other = conductor(), conductor()
    world.hosts.on_prepare = slow
    for _ in range(3):
        arqs = world.arqs(2)
        world.bind(arqs)
        assert slow.begun.acquire(timeout=5)
        ends = at_once(
            [
                lambda arqs=arqs: world.delete(arqs[0]),
                lambda arqs=arqs: other.delete(arqs[1]),
            ]
        )
        assert ends == [None, None]
        assert jobs_of(world, "prepare")[-1].state == "cancelled"


def test_what_a_dead_conductor_had_begun_is_made_by_another(
    conductor: Maker, prepared_database: engine.Database
) -> None:
    world = conductor()
    arqs = world.arqs(2)
    abandoned(prepared_database, arqs)
    assert world.states(arqs) == ["BindStarted"] * 2
    expired = models.now() - dt.timedelta(seconds=1)
    world.execute(sa.update(Job).values(lease_until=expired))
    world.nova.wait(2)
    assert world.states(arqs) == ["Bound"] * 2
    assert [order.job_uuid for order in world.hosts.prepared] == [
        job.uuid for job in jobs_of(world, "prepare")
    ]


def test_past_its_deadline_whoever_sees_it_fails_it_and_cleans(
    conductor: Maker, prepared_database: engine.Database
) -> None:
    world = conductor()
    arqs = world.arqs(1)
    abandoned(prepared_database, arqs)
    expired = models.now() - dt.timedelta(seconds=1)
    world.execute(sa.update(Job).values(lease_until=expired, deadline=expired))
    assert world.nova.wait(1)[0].status == "failed"
    worlds.wait_until(lambda: world.used() == [])
    assert world.hosts.prepared == []
    assert len(world.hosts.cleaned) == 1


def test_a_forsaken_bind_is_cleaned_where_something_may_have_been_made(
    conductor: Maker,
) -> None:
    world = conductor(bind_timeout=1)
    arqs = world.arqs(1)
    world.bind(arqs)
    settled(world, arqs)
    world.hosts.on_clean = away
    world.execute(
        sa.update(worlds.Arq).values(
            state="BindStarted",
            job_id=None,
            updated_at=models.now() - dt.timedelta(hours=1),
        )
    )
    worlds.wait_until(lambda: world.states(arqs) == ["BindFailed"])
    assert len(jobs_of(world, "clean")) == 1
    assert len(world.used()) == 1


def test_programming_comes_before_making(conductor: Maker) -> None:
    world = conductor()
    world.hosts.answer = lambda order: ProgramResult(order.image_uuid)
    arqs = world.arqs(1, **{"accel:bitstream_id": IMAGE})
    world.bind(arqs)
    settled(world, arqs)
    assert world.states(arqs) == ["Bound"]
    assert len(world.hosts.orders) == 1
    assert world.hosts.prepared == []


def test_units_of_several_cards_are_made_by_a_job_each(
    conductor: Maker,
) -> None:
    world = conductor()
    other = dataclasses.replace(
        t4(bus=0x20),
        deployables=(
            dataclasses.replace(
                t4(bus=0x20).deployables[0],
                attach_handles=tuple(
                    dataclasses.replace(
                        one, attach_info=one.attach_info.replace("0c", "20")
                    )
                    for one in t4().deployables[0].attach_handles
                ),
            ),
        ),
    )
    plain = device(bus=0x30)
    world.report(t4(), other, plain)
    arqs = world.arqs(3)
    instance = str(uuid.uuid4())
    world.endpoint.bind_arqs(
        CONTEXT,
        [
            worlds.codec.encode(
                worlds.Binding(
                    one,
                    "compute-1.example.org",
                    provider_of(bus),
                    instance,
                )
            )
            for one, bus in zip(arqs, (0x0C, 0x20, 0x30), strict=True)
        ],
        None,
    )
    assert {event.arq_uuid for event in world.nova.wait(3)} == set(arqs)
    assert world.states(arqs) == ["Bound"] * 3
    assert {order.controlpath for order in world.hosts.prepared} == {
        t4().controlpath,
        other.controlpath,
    }


def test_a_deployable_with_a_fault_takes_no_bind(conductor: Maker) -> None:
    world = conductor()
    card = t4()
    (part,) = card.deployables
    world.report(
        dataclasses.replace(
            card,
            deployables=(dataclasses.replace(part, fault="VFs are gone"),),
        )
    )
    with pytest.raises(exception.Conflict, match="VFs are gone"):
        world.bind(world.arqs(1))
    (found,) = devices.list_devices(world.database, detailed=True)
    assert (found.status_reason, found.address) == (
        "VFs are gone",
        "0000:0c:00.0",
    )
    world.report(card)
    world.bind(world.arqs(1))


def test_the_last_unit_goes_to_one_of_those_who_want_it_once_it_is_clean(
    conductor: Maker,
) -> None:
    world, other = conductor(), conductor()
    world.report(t4(1))
    for _ in range(3):
        first = world.arqs(1)
        world.bind(first)
        settled(world, first)
        wanted = [world.arqs(1), world.arqs(1)]
        stop = threading.Event()

        def insist(world: World, arqs: list[str]) -> bool:
            while not stop.is_set():
                try:
                    world.bind(arqs)
                except exception.Conflict:
                    stop.wait(0.05)
                else:
                    return True
            return False

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            racing = [
                pool.submit(insist, of, arqs)
                for of, arqs in zip((world, other), wanted, strict=True)
            ]
            reporting = pool.submit(
                lambda: [world.report(t4(1)) for _ in range(10)]
            )
            world.delete(*first)
            worlds.wait_until(lambda: any(one.done() for one in racing))
            stop.set()
            reporting.result(30)
        assert sorted(one.result(30) for one in racing) == [False, True]
        settled(world, [*wanted[0], *wanted[1]])
        assert sorted(world.states([*wanted[0], *wanted[1]])) == [
            "Bound",
            "Initial",
        ]
        world.delete(*wanted[0], *wanted[1])
        worlds.wait_until(lambda: world.used() == [])

# SPDX-License-Identifier: Apache-2.0
"""Units that are cleaned before the next instance gets them, on each
database: what hosts, conductors and administrators do in between."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor import jobs as running
from cyborg.conductor import requests
from cyborg.db import device_changes
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from cyborg.rpc.agent import CleanResult
from cyborg.rpc.agent import UnitsOrder
from tests import databases
from tests.functional.conductor import world as worlds
from tests.functional.conductor.test_races import at_once
from tests.functional.conductor.world import CONTEXT
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device
from tests.functional.conductor.world import provider_of

Device = models.Device
Handle = models.AttachHandle
Job = models.Job

SECONDS = 30
DONE = CleanResult(done=True, percent=100)
Maker = Callable[..., World]


@pytest.fixture(scope="module", params=databases.ALL)
def cleaned_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engine.Database]:
    directory = tmp_path_factory.mktemp("cleaning")
    with databases.migrated(request.param, directory) as database:
        yield database


@pytest.fixture
def conductor(cleaned_database: engine.Database) -> Iterator[Maker]:
    """Makes started conductors with one card of four units between them."""
    databases.clear(cleaned_database)
    made: list[World] = []

    def make(**values: object) -> World:
        options: dict[str, object] = {
            "bind_timeout": 20,
            "periodic_interval": 1,
            "started": True,
            **values,
        }
        one = worlds.make(cleaned_database, **options)  # type: ignore[arg-type]
        made.append(one)
        if len(made) == 1:
            one.report(card())
        return one

    yield make
    for one in made:
        one.close()


def card(**values: object) -> worlds.inventory.Device:
    values.setdefault("accelerators", 4)
    values.setdefault("clean_seconds", SECONDS)
    return device(**values)  # type: ignore[arg-type]


class Washer:
    """A host whose devices are clean once `done` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.done = threading.Event()
        self.percent = 10

    def __call__(self, order: UnitsOrder) -> CleanResult:
        self.begun.set()
        if self.done.wait(0.1):
            return DONE
        return CleanResult(done=False, percent=self.percent)


def away(order: UnitsOrder) -> CleanResult:
    raise exception.Unavailable("the agent cannot be reached")


def refuses(order: UnitsOrder) -> CleanResult:
    raise exception.DeviceFailed("sanitize failed: 0x1d")


def shown(world: World) -> worlds.Any:
    """The first device as API users see it."""
    return devices.list_devices(world.database, detailed=True)[0]


def clean_jobs(world: World) -> list[Job]:
    return [job for job in world.all(Job) if job.kind == "clean"]


def free(world: World) -> bool:
    return world.used() == []


def released(world: World, count: int = 1) -> list[str]:
    """ARQs that were bound and gave their units back."""
    arqs = world.arqs(count)
    world.bind(arqs)
    world.unbind(*arqs)
    return arqs


def in_error(world: World) -> World:
    """A conductor whose card could not be cleaned."""
    world.hosts.on_clean = refuses
    released(world)
    worlds.wait_until(lambda: shown(world).device_state == "error")
    return world


def test_a_unit_that_is_given_back_is_cleaned_before_it_is_free(
    conductor: Maker,
) -> None:
    world = conductor()
    washer = world.hosts.on_clean = Washer()
    arqs = world.arqs(1)
    world.bind(arqs)
    assert shown(world).device_state == "allocated"
    (used,) = world.used()
    world.unbind(*arqs)
    assert world.states(arqs) == ["Unbound"]
    assert world.arq(arqs[0]).attach_handle_id is None
    assert world.used() == [used]
    assert washer.begun.wait(10)
    worlds.wait_until(lambda: shown(world).device_state == "cleaning")
    worlds.wait_until(lambda: clean_jobs(world)[0].percent == 10)
    washer.done.set()
    worlds.wait_until(lambda: free(world))
    assert shown(world).device_state == "available"
    assert [job.state for job in clean_jobs(world)] == ["done"]
    order = world.hosts.cleaned[0]
    handle = next(row for row in world.all(Handle) if row.id == used)
    assert order.timeout == SECONDS
    assert order.driver == "fake_driver"
    assert order.controlpath == card().controlpath
    assert order.deployable_name == "compute-1_0000:0c:00.0"
    (unit,) = order.units
    assert (unit.uuid, unit.attach_type) == (handle.uuid, "PCI")
    assert unit.attach_info == handle.attach_info
    assert len({one.job_uuid for one in world.hosts.cleaned}) == 1


@pytest.mark.parametrize("how", ["unbind", "delete", "instance"])
def test_every_way_to_give_back_cleans(conductor: Maker, how: str) -> None:
    world = conductor()
    world.hosts.on_clean = away
    arqs = world.arqs(2)
    instance = world.bind(arqs)
    if how == "unbind":
        world.unbind(*arqs)
    elif how == "delete":
        world.delete(*arqs)
    else:
        world.endpoint.delete_instance_arqs(CONTEXT, instance, None)
    assert len(world.used()) == 2
    assert len(clean_jobs(world)) == 2
    assert {row.job_id for row in world.all(Handle) if row.in_use} == {
        job.id for job in clean_jobs(world)
    }


def test_what_a_dead_service_was_deleting_is_cleaned(
    conductor: Maker,
) -> None:
    world = conductor()
    world.hosts.on_clean = away
    arqs = world.arqs(1)
    world.bind(arqs)
    world.execute(sa.update(worlds.Arq).values(state="Deleting"))
    worlds.wait_until(lambda: world.all(worlds.Arq) == [])
    assert len(clean_jobs(world)) == 1
    assert len(world.used()) == 1


def test_what_a_dead_service_was_deleting_waits_for_the_hosts_agent(
    conductor: Maker,
) -> None:
    world = conductor()
    world.hosts.on_clean = away
    arqs = world.arqs(1)
    world.bind(arqs)
    # As adopted: no agent has said yet whether its device is cleaned.
    world.execute(sa.update(models.Device).values(driver=None))
    world.execute(sa.update(worlds.Arq).values(state="Deleting"))
    world.work._sweep()
    assert world.states(arqs) == ["Deleting"]
    assert len(world.used()) == 1
    world.execute(sa.update(models.Device).values(driver="fake_driver"))
    world.work._sweep()
    assert world.all(worlds.Arq) == []
    assert len(clean_jobs(world)) == len(world.used()) == 1


def test_nothing_is_cleaned_where_that_is_switched_off(
    conductor: Maker,
) -> None:
    world = conductor()
    world.report(card(clean_seconds=None))
    released(world)
    assert free(world)
    assert world.all(Job) == []


def test_units_that_are_cleaned_are_given_to_nobody(
    conductor: Maker,
) -> None:
    world = conductor()
    world.hosts.on_clean = away
    released(world, 3)
    with pytest.raises(exception.Conflict, match="no free"):
        world.bind(world.arqs(2))
    world.bind(world.arqs(1))
    assert len(world.used()) == 4
    image = "c5af00d4-743c-5101-8469-9134ac28e262"
    with pytest.raises(exception.Conflict):
        world.endpoint.program_deployable(
            CONTEXT, world.all(models.Deployable)[0].uuid, image
        )


def test_what_cannot_be_cleaned_stays_and_its_device_is_in_error(
    conductor: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world = in_error(conductor())
    found = shown(world)
    assert found.status == "enabled"
    assert found.status_reason == "sanitize failed: 0x1d"
    assert len(world.used()) == 1
    (job,) = clean_jobs(world)
    assert (job.state, job.error) == ("failed", "sanitize failed: 0x1d")
    assert found.uuid in caplog.text
    assert "enable" in caplog.text
    # A report changes nothing of that, nor do others that are given back.
    world.report(card())
    world.hosts.on_clean = lambda order: DONE
    released(world)
    worlds.wait_until(lambda: len(world.used()) == 1)
    assert shown(world).device_state == "error"
    assert shown(world).status_reason == "sanitize failed: 0x1d"
    assert len(world.hosts.cleaned) == 2


@pytest.mark.parametrize("before", ["enabled", "maintaining"])
def test_enabling_has_it_cleaned_again(conductor: Maker, before: str) -> None:
    world = in_error(conductor())
    found = shown(world)
    if before == "maintaining":
        world.endpoint.set_device_status(
            CONTEXT, found.uuid, "maintaining", "see ticket 7"
        )
        assert shown(world).status_reason == (
            "sanitize failed: 0x1d; see ticket 7"
        )
    world.hosts.on_clean = away
    world.endpoint.set_device_status(CONTEXT, found.uuid, "enabled")
    waiting = shown(world)
    assert waiting.device_state in ("pending_cleaning", "cleaning")
    assert (waiting.status, waiting.status_reason) == ("enabled", None)
    world.hosts.on_clean = lambda order: DONE
    worlds.wait_until(lambda: free(world))
    assert shown(world).device_state == "available"
    assert [job.state for job in clean_jobs(world)] == ["failed", "done"]
    assert len({one.job_uuid for one in world.hosts.cleaned}) == 2


def test_enabling_frees_what_need_not_be_cleaned_any_more(
    conductor: Maker,
) -> None:
    world = in_error(conductor())
    world.report(card(clean_seconds=None))
    assert len(world.used()) == 1
    world.endpoint.set_device_status(CONTEXT, shown(world).uuid, "enabled")
    assert free(world)
    found = shown(world)
    assert (found.device_state, found.status_reason) == ("available", None)
    assert world.all(models.Host)[0].sync_due_at is not None


def test_enabling_puts_right_what_an_adopted_row_says(
    conductor: Maker,
) -> None:
    world = conductor()
    for stale, is_shown in (("error", "error"), ("allocated", "available")):
        world.execute(sa.update(Device).values(device_state=stale))
        assert shown(world).device_state == is_shown
        world.endpoint.set_device_status(CONTEXT, shown(world).uuid, "enabled")
        assert shown(world).device_state == "available"


def test_a_host_that_takes_too_long_has_failed(conductor: Maker) -> None:
    world = conductor()

    def late(order: UnitsOrder) -> CleanResult:
        raise exception.Timeout("it took more than 30 s")

    world.hosts.on_clean = late
    released(world)
    worlds.wait_until(lambda: shown(world).device_state == "error")
    assert shown(world).status_reason == "it took more than 30 s"


def test_a_host_that_says_for_ever_that_it_cleans_has_failed(
    conductor: Maker,
) -> None:
    world = conductor()
    washer = world.hosts.on_clean = Washer()
    released(world)
    assert washer.begun.wait(10)
    (job,) = clean_jobs(world)
    left = job.deadline - job.created_at
    assert dt.timedelta(seconds=3600) < left
    assert left <= dt.timedelta(seconds=4 * SECONDS + 3600)

    def is_given_up() -> bool:
        world.execute(
            sa.update(Job)
            .where(Job.owner.is_(None))
            .values(deadline=job.created_at + dt.timedelta(seconds=1))
        )
        return bool(shown(world).device_state == "error")

    worlds.wait_until(is_given_up)
    assert shown(world).status_reason == running.TOO_LATE


def test_an_answer_that_comes_after_the_time_still_counts(
    conductor: Maker,
) -> None:
    """No conductor was there for a month; the host has long cleaned."""
    world = conductor(started=False)
    released(world)
    long_ago = models.now() - dt.timedelta(days=30)
    world.execute(
        sa.update(Job).values(
            created_at=long_ago,
            lease_until=long_ago,
            deadline=long_ago + dt.timedelta(seconds=3600),
        )
    )
    world.work.start()
    worlds.wait_until(lambda: free(world))


def test_a_host_that_is_away_is_waited_for(
    conductor: Maker,
) -> None:
    world = conductor()
    world.hosts.on_clean = away
    released(world, 4)
    worlds.wait_until(
        lambda: (
            shown(world).device_state == "pending_cleaning"
            and len(world.hosts.cleaned) > 0
        )
    )
    (first, *_) = before = [job.deadline for job in clean_jobs(world)]
    worlds.wait_until(lambda: len(world.hosts.cleaned) > 4, timeout=30)
    # However long: its time is not counted, and it is asked ever less.
    assert [job.deadline for job in clean_jobs(world)] == before
    assert first > models.now()
    assert shown(world).device_state == "pending_cleaning"
    # Nobody has them between two questions.
    worlds.wait_until(
        lambda: all(job.owner is None for job in clean_jobs(world))
    )
    world.hosts.on_clean = lambda order: DONE
    world.execute(sa.update(Job).values(lease_until=models.now()))
    worlds.wait_until(lambda: free(world))
    assert shown(world).device_state == "available"


def test_a_host_that_is_away_leaves_room_for_others(
    conductor: Maker,
) -> None:
    world = conductor(thread_pool_size=3)
    gone = threading.Event()

    def answer(order: UnitsOrder) -> CleanResult:
        if order.deployable_name.startswith("compute-1"):
            gone.wait(4)
            return away(order)
        return DONE

    world.hosts.on_clean = answer
    world.report(card(accelerators=64))
    world.report(
        card(host="compute-2"),
        host="compute-2",
        provider_name="compute-2.example.org",
    )
    released(world, 64)
    other = world.arqs(4)
    world.bind(
        other, provider_of(host="compute-2"), host="compute-2.example.org"
    )
    began = time.monotonic()
    world.unbind(*other)
    dead = {
        row.id
        for row in world.all(Handle)
        if row.deployable_id == world.all(models.Deployable)[0].id
    }
    worlds.wait_until(lambda: set(world.used()) <= dead)
    assert time.monotonic() - began < 4
    # Nor do binds wait.
    image = "c5af00d4-743c-5101-8469-9134ac28e262"
    more = world.arqs(1, **{"accel:bitstream_id": image})
    world.bind(
        more, provider_of(host="compute-2"), host="compute-2.example.org"
    )
    worlds.wait_until(lambda: world.states(more) == ["Bound"], timeout=3)
    # Of a host that does not answer one is asked at a time.
    gone.set()
    worlds.wait_until(
        lambda: all(
            job.owner is None
            for job in clean_jobs(world)
            if job.state != "done"
        )
    )
    asked = len(world.hosts.cleaned)
    worlds.wait_until(lambda: len(world.hosts.cleaned) > asked, timeout=20)
    threading.Event().wait(1.0)
    assert len(world.hosts.cleaned) <= asked + 2


def test_what_a_dead_conductor_had_begun_another_asks_for(
    conductor: Maker, cleaned_database: engine.Database
) -> None:
    dead = conductor(started=False)
    (arq,) = released(dead)
    lease = dead.work.settings.new_lease()
    from cyborg.conductor import job_rows

    _, taken, _ = job_rows.look(
        cleaned_database, {}, lease, lambda chosen: set()
    )
    assert [job.kind for job in taken] == ["clean"]
    assert shown(dead).device_state == "cleaning"
    expired = models.now() - dt.timedelta(seconds=1)
    dead.execute(sa.update(Job).values(lease_until=expired))
    heir = conductor()
    worlds.wait_until(lambda: free(heir))
    assert dead.hosts.cleaned == []
    assert heir.hosts.cleaned[0].job_uuid == taken[0].uuid
    assert heir.states([arq]) == ["Unbound"]


def test_a_conductor_that_stops_leaves_cleaning_to_another(
    conductor: Maker,
) -> None:
    world = conductor()
    washer = world.hosts.on_clean = Washer()
    released(world)
    assert washer.begun.wait(10)
    world.close()
    assert shown(world).device_state == "cleaning"
    heir = conductor()
    worlds.wait_until(lambda: free(heir))


def test_several_conductors_ask_for_one_job_by_turns(
    conductor: Maker,
) -> None:
    here, there = conductor(), conductor()
    asking = threading.Semaphore(1)
    overlaps: list[str] = []

    def answer(order: UnitsOrder) -> CleanResult:
        if not asking.acquire(blocking=False):
            overlaps.append(order.job_uuid)
            return CleanResult(done=False)
        threading.Event().wait(0.2)
        asking.release()
        asked = len(here.hosts.cleaned) + len(there.hosts.cleaned)
        return CleanResult(done=asked > 4, percent=asked)

    here.hosts.on_clean = there.hosts.on_clean = answer
    released(here)
    worlds.wait_until(lambda: free(here), timeout=30)
    assert overlaps == []


def test_a_device_that_is_lost_keeps_what_was_to_be_cleaned_for_a_day(
    conductor: Maker,
) -> None:
    world = conductor()

    def no_such(order: UnitsOrder) -> CleanResult:
        raise exception.Conflict("The host has no such device now.")

    world.hosts.on_clean = no_such
    released(world)
    world.report()
    worlds.wait_until(lambda: shown(world).device_state == "error")
    assert shown(world).status_reason == (
        "the host does not have it any more; The host has no such device now."
    )
    world.work._sweep()
    assert len(world.all(Device)) == 1
    # It is back: nobody gets it before it is clean.
    world.report(card())
    assert shown(world).device_state == "error"
    assert len(world.used()) == 1
    world.report()
    long_ago = models.now() - dt.timedelta(seconds=requests.KEEP_LOST + 60)
    world.execute(sa.update(Job).values(created_at=long_ago))
    world.execute(sa.update(Device).values(lost_at=long_ago))
    worlds.wait_until(lambda: world.all(Device) == [])
    assert world.all(Handle) == []


def test_jobs_of_a_device_that_is_gone_for_good_are_ended(
    conductor: Maker,
) -> None:
    world = conductor()
    world.hosts.on_clean = away
    released(world, 2)
    world.report()
    long_ago = models.now() - dt.timedelta(days=3)
    world.execute(sa.update(Job).values(created_at=long_ago))
    world.execute(sa.update(Device).values(lost_at=long_ago))
    worlds.wait_until(lambda: world.all(Device) == [])
    assert {job.state for job in clean_jobs(world)} == {"cancelled"}


def test_a_unit_that_is_gone_for_good_is_not_held_for_ever(
    conductor: Maker,
) -> None:
    world = conductor()
    released_units = released(world, 1)
    worlds.wait_until(lambda: free(world))
    world.hosts.on_clean = refuses
    arqs = world.arqs(4)
    world.bind(arqs)
    world.unbind(*arqs)
    worlds.wait_until(
        lambda: (
            all(
                job.state != "queued" and job.owner
                for job in clean_jobs(world)
            )
            and shown(world).device_state == "error"
        )
    )
    world.report(card(accelerators=3))
    (lost,) = [row for row in world.all(Handle) if row.lost_at]
    long_ago = models.now() - dt.timedelta(days=3)
    world.execute(sa.update(Job).values(created_at=long_ago))
    world.execute(
        sa.update(Handle).where(Handle.id == lost.id).values(lost_at=long_ago)
    )
    world.work._sweep()
    world.report(card(accelerators=3))
    assert len(world.all(Handle)) == 3
    assert len(world.used()) == 3
    assert released_units


def test_a_device_whose_driver_failed_keeps_its_jobs(
    conductor: Maker,
) -> None:
    world = conductor()
    world.hosts.on_clean = away
    released(world)
    world.report(
        faults=[worlds.inventory.DriverFault("fake_driver", "it hangs")]
    )
    assert shown(world).device_state != "available"
    assert world.all(Device)[0].lost_at is None
    world.hosts.on_clean = lambda order: DONE
    worlds.wait_until(lambda: free(world))


def test_jobs_that_units_refer_to_are_not_forgotten(
    conductor: Maker,
) -> None:
    world = in_error(conductor())
    image = "c5af00d4-743c-5101-8469-9134ac28e262"
    world.hosts.on_clean = lambda order: DONE
    released(world)
    worlds.wait_until(lambda: len(world.used()) == 1)
    world.report(card(), card(bus=0x20))
    other = world.all(models.Deployable)[1]
    world.endpoint.program_deployable(CONTEXT, other.uuid, image)
    long_ago = models.now() - dt.timedelta(days=30)
    world.execute(sa.update(Job).values(finished_at=long_ago))
    world.work._sweep()
    assert [(job.kind, job.state) for job in world.all(Job)] == [
        ("clean", "failed"),
        ("program", "done"),
    ]


def test_a_reason_that_no_column_could_hold_is_stored_all_the_same(
    conductor: Maker,
) -> None:
    world = conductor()

    def odd(order: UnitsOrder) -> CleanResult:
        raise exception.DeviceFailed("no \0 \U0001f525 " + "x" * 100_000)

    world.hosts.on_clean = odd
    released(world)
    worlds.wait_until(lambda: shown(world).device_state == "error")
    reason = shown(world).status_reason
    assert reason.startswith("no ? ? xxx")
    assert len(reason) == 1000


def test_a_job_of_a_newer_release_is_left_alone(conductor: Maker) -> None:
    world = conductor()
    world.hosts.on_clean = away
    released(world)
    past = models.now() - dt.timedelta(hours=1)
    world.execute(
        sa.update(Job).values(kind="polish", lease_until=past, deadline=past)
    )
    asked = len(world.hosts.cleaned)
    world.work.runner.look()
    assert world.all(Job)[0].state in ("queued", "running")
    assert len(world.hosts.cleaned) <= asked + 1


def test_the_reason_to_disable_is_kept_and_cleared(conductor: Maker) -> None:
    world = conductor()
    found = shown(world).uuid
    endpoint = world.endpoint
    endpoint.set_device_status(CONTEXT, found, "maintaining", "fan")
    assert shown(world).status_reason == "fan"
    endpoint.set_device_status(CONTEXT, found, "maintaining")
    assert shown(world).status_reason == "fan"
    endpoint.set_device_status(CONTEXT, found, "maintaining", "Fan")
    assert shown(world).status_reason == "Fan"
    endpoint.set_device_status(CONTEXT, found, "enabled")
    assert shown(world).status_reason is None
    _, changed = device_changes.set_device_status(
        world.database, found, "enabled"
    )
    assert not changed
    with pytest.raises(exception.NotFound):
        endpoint.set_device_status(CONTEXT, str(uuid.uuid4()), "enabled")


def test_units_that_are_clean_at_the_same_time_leave_no_state_behind(
    conductor: Maker,
) -> None:
    here, there = conductor(thread_pool_size=12), conductor()
    here.report(card(accelerators=16))
    gate = threading.Barrier(4)

    def together(order: UnitsOrder) -> CleanResult:
        with contextlib.suppress(threading.BrokenBarrierError):
            gate.wait(0.5)
        return DONE

    here.hosts.on_clean = there.hosts.on_clean = together
    for _ in range(3):
        gate.reset()
        released(here, 16)
        worlds.wait_until(lambda: free(here), timeout=30)
        worlds.wait_until(lambda: shown(here).device_state == "available")
    assert world_is_quiet(here)


def world_is_quiet(world: World) -> bool:
    return all(job.state == "done" for job in world.all(Job))


def test_enabling_twice_at_once_cleans_once(conductor: Maker) -> None:
    here = in_error(conductor())
    there = conductor()
    here.hosts.on_clean = there.hosts.on_clean = away
    found = shown(here).uuid
    for _ in range(3):
        ends = at_once(
            [
                lambda of=of: of.endpoint.set_device_status(
                    CONTEXT, found, "enabled"
                )
                for of in (here, there, here, there)
            ]
        )
        assert ends == [None] * 4
        active = [
            job
            for job in clean_jobs(here)
            if job.state in ("queued", "running")
        ]
        assert len(active) == 1
        (held,) = [row.job_id for row in here.all(Handle) if row.in_use]
        assert held == active[0].id
        here.execute(
            sa.update(Job).where(Job.id == held).values(state="failed")
        )
        here.execute(sa.update(Device).values(device_state="error"))


def test_what_no_unit_waits_for_is_never_cleaned(conductor: Maker) -> None:
    world = conductor(started=False)
    released(world)
    world.execute(sa.update(Handle).values(in_use=False, job_id=None))
    arqs = world.arqs(4)
    world.bind(arqs)
    world.work.start()
    world.work.clean_soon()
    threading.Event().wait(1.5)
    assert world.hosts.cleaned == []


def test_a_report_and_a_release_at_once_agree(conductor: Maker) -> None:
    here, there = conductor(), conductor()
    for round_ in range(6):
        arqs = here.arqs(4)
        here.bind(arqs)
        fewer = card(accelerators=4 if round_ % 2 else 3)
        ends = at_once(
            [
                lambda arqs=arqs: here.delete(*arqs),
                lambda fewer=fewer: there.report(fewer),
                lambda: there.report(card()),
            ]
        )
        assert ends == [None] * 3
        here.report(card())
        worlds.wait_until(lambda: free(here), timeout=30)
        here.report(card())
        handles = here.all(Handle)
        assert len(handles) == 4
        assert not any(row.lost_at or row.job_id for row in handles)
        assert here.all(models.Deployable)[0].num_accelerators == 4
        assert shown(here).device_state == "available"


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_host_whose_agent_has_another_name_now_is_asked_by_that(
    conductor: Maker, known: bool
) -> None:
    world = conductor()

    def answer(order: UnitsOrder) -> CleanResult:
        return DONE if world.hosts.asked[-1] == "agent-2" else away(order)

    world.hosts.on_clean = answer
    if not known:
        world.execute(sa.delete(models.Host))
    released(world, 2)
    worlds.wait_until(lambda: len(world.hosts.cleaned) > 0)
    long_ago = models.now() - dt.timedelta(days=1)
    world.execute(sa.update(models.Host).values(last_seen_at=long_ago))
    world.report(card(), host="agent-2")
    worlds.wait_until(lambda: free(world))
    assert shown(world).device_state == "available"


def test_a_unit_of_a_device_that_was_lost_long_before_is_kept_for_a_day(
    conductor: Maker,
) -> None:
    """What counts is when it was given back: until then the instance that
    had it kept its rows."""
    world = conductor()
    world.hosts.on_clean = away
    arqs = world.arqs(1)
    world.bind(arqs)
    world.report()
    long_ago = models.now() - dt.timedelta(days=3)
    world.execute(sa.update(Device).values(lost_at=long_ago))
    world.delete(*arqs)
    world.work._sweep()
    assert len(world.used()) == 1
    world.report(card())
    assert len(world.used()) == 1
    assert shown(world).device_state != "available"


def test_what_a_second_request_holds_is_not_cleaned(conductor: Maker) -> None:
    """Of an adopted database, whose service may have given one unit twice."""
    world = conductor()
    first, second = world.arqs(2)
    world.bind([first, second])
    held = world.arq(first).attach_handle_id
    given = world.arq(second).attach_handle_id
    world.execute(
        sa.update(worlds.Arq)
        .where(worlds.Arq.uuid == second)
        .values(attach_handle_id=held)
    )
    world.execute(
        sa.update(Handle).where(Handle.id == given).values(in_use=False)
    )
    world.delete(first)
    assert world.used() == [held]
    assert clean_jobs(world) == []
    world.unbind(second)
    worlds.wait_until(lambda: free(world))
    assert [job.state for job in clean_jobs(world)] == ["done"]


def unheld(world: World, **values: object) -> None:
    """One more unit is in use, and no request has it."""
    free = next(row.id for row in world.all(Handle) if not row.in_use)
    world.execute(
        sa.update(Handle)
        .where(Handle.id == free)
        .values(in_use=True, updated_at=models.now() - dt.timedelta(hours=2))
    )
    if values:
        world.execute(sa.update(Device).values(**values))


def test_a_unit_that_an_adopted_row_has_in_use_for_nobody_is_given_back(
    conductor: Maker,
) -> None:
    world = conductor()
    held = world.arqs(2)
    world.bind(held)
    long_ago = models.now() - dt.timedelta(hours=2)
    world.execute(sa.update(Handle).values(updated_at=long_ago))
    in_use = {world.arq(one).attach_handle_id for one in held}
    unheld(world, device_state="allocated")
    worlds.wait_until(lambda: set(world.used()) == in_use)
    assert [job.state for job in clean_jobs(world)] == ["done"]
    assert shown(world).device_state == "allocated"
    world.report(card(clean_seconds=None))
    unheld(world)
    worlds.wait_until(lambda: set(world.used()) == in_use)
    assert len(clean_jobs(world)) == 1


@pytest.mark.parametrize("why", ["young", "old agent"])
def test_a_unit_in_use_for_nobody_may_be_waiting_for_its_request(
    conductor: Maker, why: str
) -> None:
    world = conductor(periodic_interval=1000)
    unheld(world, driver=None if why == "old agent" else "fake_driver")
    if why == "young":
        world.execute(sa.update(Handle).values(updated_at=models.now()))
    (used,) = world.used()
    world.work._sweep()
    assert world.used() == [used]


@pytest.mark.parametrize("said", ["pending_cleaning", "cleaning", "error"])
def test_a_device_that_nobody_cleans_though_an_adopted_row_says_so_is_cleaned(
    conductor: Maker, said: str
) -> None:
    world = conductor(periodic_interval=1000)
    world.hosts.on_clean = away
    (arq,) = world.arqs(1)
    world.bind([arq])
    world.execute(sa.update(Device).values(device_state=said))
    world.work._sweep()
    assert len(clean_jobs(world)) == 3
    assert len(world.used()) == 4
    assert world.arq(arq).attach_handle_id not in {
        row.id for row in world.all(Handle) if row.job_id is not None
    }
    world.hosts.on_clean = lambda order: DONE
    worlds.wait_until(lambda: len(world.used()) == 1, timeout=30)
    assert shown(world).device_state == "allocated"
    world.report(card(clean_seconds=None))
    world.execute(sa.update(Device).values(device_state=said))
    world.work._sweep()
    assert shown(world).device_state == "allocated"
    assert len(clean_jobs(world)) == 3

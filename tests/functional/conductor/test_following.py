# SPDX-License-Identifier: Apache-2.0
"""Placement and Nova follow the rows, whatever fails in between."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import BindEvent
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Placement
from cyborg.conductor import background
from cyborg.conductor import events
from cyborg.conductor.sync import Change
from cyborg.conductor.sync import Synchronizer
from cyborg.conductor.work import Work
from cyborg.db import clock
from cyborg.db import device_changes
from cyborg.db import engine
from cyborg.db import models
from tests.functional.conductor import world as worlds
from tests.functional.conductor.test_reports import changed
from tests.functional.conductor.world import CONTEXT
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device
from tests.functional.conductor.world import provider_of
from tests.nova_stand_in import NovaStandIn
from tests.nova_stand_in import nova_stand_in
from tests.placement import Answer
from tests.placement import PlacementService

__all__ = ["nova_stand_in"]

Host = models.Host


@pytest.fixture
def root(placement: PlacementService) -> str:
    return placement.create_provider("compute-1.example.org")


@pytest.fixture
def synced(
    database: engine.Database, placement: PlacementService
) -> Iterator[World]:
    """A conductor with the real Placement."""
    made = worlds.make(
        database,
        Placement(placement.adapter()),
        started=True,
        periodic_interval=1,
        conductor__reconcile_interval=1,
    )
    yield made
    made.close()


def owed(world: World) -> bool:
    return any(row.revision != row.synced_revision for row in world.all(Host))


def settle(world: World) -> None:
    worlds.wait_until(lambda: not owed(world))


def test_a_report_reaches_placement(
    synced: World, placement: PlacementService, root: str
) -> None:
    synced.report(device(), device(bus=0x20), provider_uuid=root)
    settle(synced)
    assert set(placement.providers(root)) == {
        "compute-1.example.org",
        "compute-1_0000:0c:00.0",
        "compute-1_0000:20:00.0",
    }
    inventory = placement.inventories(provider_of())["FPGA"]
    assert (inventory["total"], inventory["reserved"]) == (16, 0)
    assert placement.traits(provider_of()) == {
        "CUSTOM_FAKE_DEVICE",
        "OWNER_CYBORG",
    }


def test_changes_follow_and_others_traits_stay(
    synced: World, placement: PlacementService, root: str
) -> None:
    synced.report(device(), device(bus=0x20), provider_uuid=root)
    settle(synced)
    placement.set_traits(
        provider_of(), {"CUSTOM_FAKE_DEVICE", "OWNER_CYBORG", "CUSTOM_OPS"}
    )
    synced.report(
        changed(
            device(),
            attributes=(("trait0", "CUSTOM_NEW"), ("rc", "CUSTOM_BOARD")),
        ),
        provider_uuid=root,
    )
    settle(synced)
    assert placement.traits(provider_of()) == {
        "CUSTOM_NEW",
        "OWNER_CYBORG",
        "CUSTOM_OPS",
    }
    assert list(placement.inventories(provider_of())) == ["CUSTOM_BOARD"]
    assert "compute-1_0000:20:00.0" not in placement.providers(root)
    assert synced.all(models.Deployable)[0].retired_traits is None


def test_disabling_reserves_every_deployable_of_the_device(
    synced: World, placement: PlacementService, root: str
) -> None:
    synced.report(device(), provider_uuid=root)
    settle(synced)
    row = synced.all(models.Device)[0]
    for status, reserved in (("maintaining", 16), ("enabled", 0)) * 2:
        synced.endpoint.set_device_status(CONTEXT, row.uuid, status)
        settle(synced)
        inventory = placement.inventories(provider_of())["FPGA"]
        assert inventory["reserved"] == reserved
        assert inventory["max_unit"] == inventory["total"] == 16


def unstarted(world: World, placement: PlacementService) -> Synchronizer:
    """What a conductor brings to Placement, when it is told to."""
    return Synchronizer(
        world.database,
        Placement(placement.adapter()),
        3600,
        background.Pool(1, "test"),
        lambda delay: None,
    )


def test_a_device_that_is_disabled_late_does_not_hide_another_change(
    world: World, placement: PlacementService, root: str
) -> None:
    first = unstarted(world, placement)
    world.report(device(), device(bus=0x20), provider_uuid=root)
    host = world.all(Host)[0]
    first.sync(host.id)
    row = world.all(models.Device)[1]
    late, _ = device_changes.set_device_status(
        world.database, row.uuid, "maintaining"
    )
    first.sync(host.id)
    other = world.all(models.Deployable)[0]
    device_changes.create_attribute(
        world.database, other.id, "trait9", "CUSTOM_X"
    )
    first.sync(host.id, Change(row.uuid, late.revision))
    assert "CUSTOM_X" in placement.traits(provider_of())
    assert not owed(world)


def test_enabling_what_is_enabled_does_not_hide_another_change(
    world: World, placement: PlacementService, root: str
) -> None:
    syncs = []
    world.report(device(), device(bus=0x20), provider_uuid=root)
    world.work.sync.soon = (  # type: ignore[method-assign]
        lambda *arguments: syncs.append(arguments)
    )
    row = world.all(models.Device)[1]
    for _ in range(2):
        world.endpoint.set_device_status(CONTEXT, row.uuid, "maintaining")
    host = world.all(Host)[0]
    assert syncs == [
        (host.id, Change(row.uuid, host.revision)),
        (host.id, None),
    ]


def test_an_audit_that_another_conductor_overtook_is_done_again(
    world: World, placement: PlacementService, root: str
) -> None:
    slow, fast = unstarted(world, placement), unstarted(world, placement)
    world.report(device(), provider_uuid=root)
    host = world.all(Host)[0]
    fast.sync(host.id)
    world.execute(sa.update(Host).values(sync_due_at=clock.after(-1)))
    row = world.all(models.Device)[0]
    done = []

    def overtake(method: str, path: str, body: bytes) -> None:
        if not done:
            done.append(path)
            device_changes.set_device_status(
                world.database, row.uuid, "maintaining"
            )
            fast.sync(host.id)

    placement.hook = overtake
    slow.pass_due()
    assert done
    assert not owed(world)
    assert placement.inventories(provider_of())["FPGA"]["reserved"] == 16


def test_a_faulty_and_a_lost_card_are_withheld(
    synced: World, placement: PlacementService, root: str
) -> None:
    synced.report(device(fault="hot"), provider_uuid=root)
    settle(synced)
    assert placement.inventories(provider_of())["FPGA"]["reserved"] == 16
    synced.report(device(), provider_uuid=root)
    settle(synced)
    assert placement.inventories(provider_of())["FPGA"]["reserved"] == 0
    consumer = placement.allocate(provider_of(), {"FPGA": 1})
    arqs = synced.arqs(1)
    synced.bind(arqs)
    synced.report(provider_uuid=root)
    settle(synced)
    assert placement.inventories(provider_of())["FPGA"]["reserved"] == 16
    placement.release(consumer)
    synced.delete(*arqs)
    worlds.wait_until(
        lambda: set(placement.providers(root)) == {"compute-1.example.org"}
    )


def test_nothing_is_scheduled_on_a_card_that_is_programmed(
    synced: World, placement: PlacementService, root: str
) -> None:
    synced.report(device(), provider_uuid=root)
    settle(synced)
    seen: list[int] = []

    def program(order: worlds.ProgramOrder) -> worlds.ProgramResult:
        settle(synced)
        seen.append(placement.inventories(provider_of())["FPGA"]["reserved"])
        return worlds.ProgramResult(order.image_uuid)

    synced.hosts.answer = program
    synced.endpoint.program_deployable(
        CONTEXT, synced.all(models.Deployable)[0].uuid, str(uuid.uuid4())
    )
    settle(synced)
    assert seen == [16]
    assert placement.inventories(provider_of())["FPGA"]["reserved"] == 0


def stock(placement: PlacementService) -> tuple[int, int]:
    """How many accelerators of the card there are, and are reserved."""
    found = placement.inventories(provider_of())["FPGA"]
    return found["total"], found["reserved"]


def test_what_is_cleaned_is_not_offered_and_all_else_is(
    synced: World, placement: PlacementService, root: str
) -> None:
    def away(order: worlds.UnitsOrder) -> worlds.CleanResult:
        raise exception.Unavailable("the agent cannot be reached")

    def refuse(order: worlds.UnitsOrder) -> worlds.CleanResult:
        raise exception.DeviceFailed("the reset timed out")

    def clean(order: worlds.UnitsOrder) -> worlds.CleanResult:
        return worlds.CleanResult(done=True)

    synced.hosts.on_clean = away
    synced.report(device(clean_seconds=30), provider_uuid=root)
    settle(synced)
    consumers = [
        placement.allocate(provider_of(), {"FPGA": 1}) for _ in range(16)
    ]
    arqs = [synced.arqs(1)[0] for _ in range(16)]
    for one in arqs:
        synced.bind([one])
    settle(synced)
    assert stock(placement) == (16, 0)
    # Nova may give its allocation back before we do, or after.
    synced.delete(arqs[0])
    worlds.wait_until(lambda: stock(placement) == (16, 1))
    placement.release(consumers[0])
    asked = "resources=FPGA:1&required=CUSTOM_FAKE_DEVICE"
    assert placement.candidates(asked) == []
    placement.release(consumers[1])
    assert placement.candidates(asked) == [provider_of()]
    synced.unbind(arqs[1])
    worlds.wait_until(lambda: stock(placement) == (16, 2))
    assert placement.candidates(asked) == []
    for consumer in consumers[2:]:
        placement.release(consumer)
    asked_all = "resources=FPGA:14&required=CUSTOM_FAKE_DEVICE"
    assert placement.candidates(asked_all) == [provider_of()]
    synced.hosts.on_clean = refuse
    synced.execute(sa.update(models.Job).values(lease_until=models.now()))
    synced.work.clean_soon()
    row = synced.all(models.Device)[0]
    worlds.wait_until(
        lambda: {job.state for job in synced.all(models.Job)} == {"failed"}
    )
    settle(synced)
    assert stock(placement) == (16, 2)
    synced.hosts.on_clean = clean
    synced.endpoint.set_device_status(CONTEXT, row.uuid, "enabled")
    worlds.wait_until(lambda: stock(placement) == (16, 0))
    synced.delete(*arqs[1:])
    worlds.wait_until(lambda: synced.used() == [], timeout=30)
    worlds.wait_until(lambda: stock(placement) == (16, 0))


def test_a_part_with_a_fault_is_withheld_alone(
    synced: World, placement: PlacementService, root: str
) -> None:
    good, bad = device(), device(bus=0x20)
    parts = (
        *good.deployables,
        dataclasses.replace(bad.deployables[0], fault="VFs are gone"),
    )
    synced.report(
        dataclasses.replace(good, deployables=parts), provider_uuid=root
    )
    settle(synced)
    reserved = [
        placement.inventories(provider_of(bus))["FPGA"]["reserved"]
        for bus in (0x0C, 0x20)
    ]
    assert reserved == [0, 16]


def test_what_placement_missed_is_made_good_when_it_is_back(
    synced: World, placement: PlacementService, root: str
) -> None:
    placement.hook = lambda method, path, body: Answer(503)
    synced.report(device(), provider_uuid=root)
    worlds.wait_until(lambda: len(placement.calls) > 1)
    assert owed(synced)
    placement.hook = None
    settle(synced)
    assert "compute-1_0000:0c:00.0" in placement.providers(root)


def test_what_somebody_broke_in_placement_heals_by_itself(
    synced: World, placement: PlacementService, root: str
) -> None:
    synced.report(device(), provider_uuid=root)
    settle(synced)
    placement.set_inventories(provider_of(), {})
    worlds.wait_until(lambda: "FPGA" in placement.inventories(provider_of()))


def test_a_root_provider_that_is_gone_is_looked_for_again(
    synced: World, placement: PlacementService
) -> None:
    report = worlds.report(device(), provider_uuid=str(uuid.uuid4()))
    synced.report(device(), provider_uuid=report.provider_uuid)
    worlds.wait_until(lambda: synced.all(Host)[0].provider_uuid is None)
    assert not synced.endpoint.heartbeat(CONTEXT, "compute-1", report.digest())


def test_a_sync_that_a_dead_conductor_owes_is_done_by_another(
    synced: World,
    placement: PlacementService,
    root: str,
    database: engine.Database,
) -> None:
    dead = worlds.make(database, periodic_interval=1)
    dead.report(device(), provider_uuid=root)  # it has no Placement
    assert synced.all(Host)[0].synced_revision == 0
    settle(synced)
    assert "compute-1_0000:0c:00.0" in placement.providers(root)
    dead.close()


def test_hosts_that_placement_refuses_do_not_hold_the_others_back(
    placement: PlacementService, database: engine.Database
) -> None:
    elsewhere = placement.create_provider("elsewhere")
    often = {"periodic_interval": 1, "conductor__reconcile_interval": 1}
    dead = worlds.make(database, **often)
    for host in ("bad-1", "bad-2", "bad-3", "bad-4", "good"):
        root = placement.create_provider(f"{host}.example.org")
        if host != "good":
            placement.create_provider(
                f"of-{host}", elsewhere, provider_of(host=host)
            )
        dead.report(
            device(host=host),
            host=host,
            provider_name=f"{host}.example.org",
            provider_uuid=root,
        )
    dead.close()
    alive = worlds.make(
        database,
        Placement(placement.adapter()),
        started=True,
        thread_pool_size=1,
        **often,
    )
    worlds.wait_until(lambda: "good_0000:0c:00.0" in placement.providers(root))
    alive.close()


def test_an_operators_trait_reaches_placement_and_leaves_it(
    synced: World, placement: PlacementService, root: str
) -> None:
    synced.report(device(), provider_uuid=root)
    settle(synced)
    row = synced.all(models.Deployable)[0]
    made = synced.endpoint.create_attribute(
        CONTEXT, row.id, "trait9", "CUSTOM_MINE"
    )
    settle(synced)
    assert "CUSTOM_MINE" in placement.traits(provider_of())
    synced.endpoint.delete_attribute(CONTEXT, made)
    settle(synced)
    assert "CUSTOM_MINE" not in placement.traits(provider_of())


# -- Nova


@pytest.fixture
def telling(
    database: engine.Database,
    nova_stand_in: NovaStandIn,
    adapter_for: Callable[..., Any],
) -> Iterator[World]:
    """A conductor with a Nova that answers over HTTP."""
    made = worlds.make(database)
    made.work.stop()
    work = Work(
        worlds.configuration(periodic_interval=1),
        database,
        made.hosts,
        None,
        Nova(adapter_for("nova", nova_stand_in.url)),
    )
    made.work = made.endpoint._work = work
    work.start()
    made.report(device())
    yield made
    made.close()


def untold(world: World) -> list[str]:
    return [
        row.uuid
        for row in world.all(worlds.Arq)
        if row.event_due_at is not None
    ]


def test_nova_refusing_an_event_changes_no_bind(
    telling: World, nova_stand_in: NovaStandIn
) -> None:
    good, bad = telling.arqs(1), telling.arqs(1)
    early = str(uuid.uuid4())
    nova_stand_in.codes[early] = 422
    telling.bind(bad, instance=early)
    telling.bind(good)
    assert nova_stand_in.wait_for_events(1)[0]["tag"] == good[0]
    worlds.wait_until(lambda: untold(telling) == [])
    assert telling.states([*good, *bad]) == ["Bound"] * 2


@pytest.mark.parametrize("failure", [500, 503])
def test_an_event_that_nova_could_not_take_is_sent_again(
    telling: World, nova_stand_in: NovaStandIn, failure: int
) -> None:
    nova_stand_in.failure = failure
    arqs = telling.arqs(2)
    telling.bind(arqs)
    worlds.wait_until(lambda: len(nova_stand_in.requests) > 0)
    assert telling.states(arqs) == ["Bound"] * 2
    nova_stand_in.failure = None
    events = nova_stand_in.wait_for_events(2)
    assert {event["tag"] for event in events} == set(arqs)
    worlds.wait_until(lambda: untold(telling) == [])


def test_an_event_is_given_up_after_enough_attempts(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.nova.failing = True
    world.report(device())
    arqs = world.arqs(1)
    world.bind(arqs)
    worlds.wait_until(lambda: world.arq(arqs[0]).event_attempts == 1)
    for attempt in range(2, events.MAX_ATTEMPTS + 1):
        world.execute(
            sa.update(worlds.Arq).values(
                event_due_at=models.now() - dt.timedelta(seconds=1)
            )
        )
        world.work.notifier.send_due()
        if attempt < events.MAX_ATTEMPTS:
            row = world.arq(arqs[0])
            assert row.event_attempts == attempt
            assert row.event_due_at is not None
            assert row.event_due_at > models.now()
    assert untold(world) == []
    assert world.states(arqs) == ["Bound"]
    assert arqs[0] in caplog.text


def test_a_request_without_a_project_gets_that_of_its_instance(
    world: World,
) -> None:
    world.report(device())
    arqs = [world.arqs(1)[0] for _ in range(3)]
    instances = [world.bind([one]) for one in arqs]
    world.execute(sa.update(worlds.Arq).values(project_id=None))
    world.nova.projects = {instances[0]: "a", instances[2]: "c"}
    world.work._sweep()
    assert [world.arq(one).project_id for one in arqs] == ["a", None, "c"]


def test_two_conductors_do_not_both_send_what_is_due(
    world: World, database: engine.Database
) -> None:
    world.nova.failing = True
    world.report(device())
    arqs = world.arqs(4)
    world.bind(arqs)
    worlds.wait_until(lambda: world.arq(arqs[3]).event_attempts == 1)
    world.execute(sa.update(worlds.Arq).values(event_due_at=models.now()))
    world.nova.failing = False
    other = worlds.make(database, nova=world.nova)
    from tests.functional.conductor.test_races import at_once

    ends = at_once(
        [world.work.notifier.send_due, other.work.notifier.send_due]
    )
    assert ends == [None, None]
    assert sorted(e.arq_uuid for e in world.nova.events) == sorted(arqs)
    other.close()


@pytest.mark.parametrize("failing", [False, True])
def test_an_event_that_is_being_sent_for_long_is_not_sent_beside_it(
    world: World, failing: bool
) -> None:
    release = world.nova.holding = threading.Event()
    world.report(device())
    (arq,) = world.arqs(1)
    instance = world.bind([arq])
    worlds.wait_until(lambda: world.nova.holding is None)
    world.execute(sa.update(worlds.Arq).values(event_due_at=models.now()))

    world.work.notifier.send_due()
    assert world.nova.events == []
    assert untold(world) == [arq]

    world.nova.failing = failing
    release.set()
    if failing:
        worlds.wait_until(lambda: world.arq(arq).event_attempts == 1)
        world.nova.failing = False
        world.execute(sa.update(worlds.Arq).values(event_due_at=models.now()))
        world.work.notifier.send_due()
    worlds.wait_until(lambda: untold(world) == [])
    assert world.nova.events == [BindEvent(instance, arq, "completed")]


def test_an_event_does_not_wait_for_threads_that_placement_holds(
    world: World,
) -> None:
    release, held = threading.Event(), []
    for _ in range(world.conf.thread_pool_size):
        world.work._pool.submit(lambda: held.append(release.wait(30)))
    try:
        world.report(device())
        (arq,) = world.arqs(1)
        instance = world.bind([arq])
        world.execute(sa.update(worlds.Arq).values(event_due_at=models.now()))
        world.work.notifier.send_due()
        told = [BindEvent(instance, arq, "completed")]
        assert world.nova.events == told
        assert untold(world) == []
    finally:
        release.set()
    # Its own thread, which is free by now, finds it told.
    done = threading.Event()
    world.work._pool.submit(done.set)
    assert done.wait(30)
    worlds.wait_until(lambda: not world.work._pool._running)
    assert world.nova.events == told

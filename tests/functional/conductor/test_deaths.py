# SPDX-License-Identifier: Apache-2.0
"""A conductor dies (kill -9) right after any of its commits; another one
finds in the rows what it left, and everything is right again."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg.clients.placement import Placement
from cyborg.db import engine
from cyborg.db import models
from cyborg.rpc.agent import CleanResult
from tests.functional.conductor import world as worlds
from tests.functional.conductor.test_preparing import t4
from tests.functional.conductor.world import CONTEXT
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device
from tests.functional.conductor.world import provider_of
from tests.placement import PlacementService

IMAGE = "c5af00d4-743c-5101-8469-9134ac28e262"
PERIOD = 1


class KilledError(BaseException):
    """The process is not there any more."""


class Mortal:
    """A database whose user dies right after its commit number `last`.

    What it would do in its other threads does not happen either.
    """

    def __init__(self, database: engine.Database, last: int) -> None:
        self._database = database
        self.last = last
        self._lock = threading.Lock()

    def _live(self) -> None:
        if self.last <= 0:
            raise KilledError

    @contextlib.contextmanager
    def reader(self) -> Iterator[orm.Session]:
        self._live()
        with self._database.reader() as session:
            yield session
        self._live()

    @contextlib.contextmanager
    def writer(self) -> Iterator[orm.Session]:
        with self._lock:
            self._live()
            with self._database.writer() as session:
                yield session
            self.last -= 1
            self._live()


Scenario = Callable[[World, str, list[str]], object]


def bind(world: World, root: str, arqs: list[str]) -> None:
    world.bind(arqs)


def unbind(world: World, root: str, arqs: list[str]) -> None:
    world.bind(arqs)
    world.unbind(*arqs)


def delete(world: World, root: str, arqs: list[str]) -> None:
    world.bind(arqs)
    world.delete(*arqs)


def program(world: World, root: str, arqs: list[str]) -> None:
    found = world.all(models.Deployable)[0]
    world.endpoint.program_deployable(CONTEXT, found.uuid, IMAGE)


def disable(world: World, root: str, arqs: list[str]) -> None:
    found = world.all(models.Device)[0]
    world.endpoint.set_device_status(CONTEXT, found.uuid, "maintaining")


def plug(world: World, root: str, arqs: list[str]) -> None:
    world.report(device(), device(bus=0x20), provider_uuid=root)


def unplug_in_use(world: World, root: str, arqs: list[str]) -> None:
    world.bind(arqs)
    world.report(provider_uuid=root)
    world.delete(*arqs)


def bind_made(world: World, root: str, arqs: list[str]) -> None:
    world.report(t4(), provider_uuid=root)
    world.bind(arqs)


def unbind_made(world: World, root: str, arqs: list[str]) -> None:
    bind_made(world, root, arqs)
    world.unbind(*arqs)


def unbind_cleaned(world: World, root: str, arqs: list[str]) -> None:
    world.report(device(clean_seconds=30), provider_uuid=root)
    world.bind(arqs)
    world.unbind(*arqs)


def clean_in_parts(world: World, root: str, arqs: list[str]) -> None:
    world.hosts.on_clean = lambda order: CleanResult(done=False, percent=7)
    unbind_cleaned(world, root, arqs)
    for _ in range(3):
        world.work.runner.look()
        threading.Event().wait(0.1)


SCENARIOS: list[tuple[Scenario, dict[str, str]]] = [
    (bind, {}),
    (bind, {"accel:bitstream_id": IMAGE}),
    (unbind, {}),
    (unbind, {"accel:bitstream_id": IMAGE}),
    (delete, {"accel:bitstream_id": IMAGE}),
    (program, {}),
    (disable, {}),
    (plug, {}),
    (unplug_in_use, {}),
    (bind_made, {}),
    (unbind_made, {}),
    (unbind_cleaned, {}),
    (clean_in_parts, {}),
]


@pytest.mark.parametrize("commits", range(1, 7))
@pytest.mark.parametrize(
    ("scenario", "group"),
    SCENARIOS,
    ids=[f"{one.__name__}-{len(group)}" for one, group in SCENARIOS],
)
def test_another_conductor_makes_good_what_a_dead_one_left(
    database: engine.Database,
    placement: PlacementService,
    scenario: Scenario,
    group: dict[str, str],
    commits: int,
) -> None:
    root = placement.create_provider("compute-1.example.org")
    options: dict[str, Any] = {
        "bind_timeout": 20,
        "periodic_interval": PERIOD,
        "conductor__reconcile_interval": PERIOD,
    }
    heir = worlds.make(database, Placement(placement.adapter()), **options)
    heir.report(device(), provider_uuid=root)
    arqs = heir.arqs(2, **group)
    mortal: Any = Mortal(database, commits)
    dying = worlds.make(
        mortal, Placement(placement.adapter()), nova=heir.nova, **options
    )
    with contextlib.suppress(KilledError):
        scenario(dying, root, arqs)
    dying.work._pool.stop(5)
    dying.work.runner._pools[False].stop(5)
    dying.work.runner._pools[True].stop(5)
    _let_leases_run_out(heir)
    heir.work.start()
    try:
        worlds.wait_until(lambda: _is_settled(heir), timeout=10)
        _check_handles(heir)
        worlds.wait_until(
            lambda: _is_placement_right(heir, placement, root),
            timeout=2 * PERIOD + 1,
        )
        _check_nova(heir)
    finally:
        heir.close()


def _let_leases_run_out(world: World) -> None:
    past = models.now() - dt.timedelta(seconds=1)
    world.execute(
        sa.update(models.Job)
        .where(models.Job.lease_until.is_not(None))
        .values(lease_until=past)
    )


def _is_settled(world: World) -> bool:
    return (
        all(
            row.state != "BindStarted" and row.event_due_at is None
            for row in world.all(worlds.Arq)
        )
        and all(row.job_id is None for row in world.all(models.Deployable))
        and all(row.job_id is None for row in world.all(worlds.Handle))
        and all(row.device_state is None for row in world.all(models.Device))
        and all(
            row.revision == row.synced_revision
            for row in world.all(models.Host)
        )
        and all(
            row.lost_at is None or world.used()
            for row in world.all(models.Device)
        )
    )


def _check_handles(world: World) -> None:
    held = [
        row.attach_handle_id
        for row in world.all(worlds.Arq)
        if arq.State(row.state) in arq.HOLDING
    ]
    assert None not in held
    assert sorted(held) == world.used()
    assert all(
        row.attach_handle_id is None
        for row in world.all(worlds.Arq)
        if arq.State(row.state) not in arq.HOLDING
    )


def _is_placement_right(
    world: World, placement: PlacementService, root: str
) -> bool:
    devices = {row.id: row for row in world.all(models.Device)}
    wanted = {
        row.name: devices[row.device_id].status == "maintaining"
        or devices[row.device_id].lost_at is not None
        for row in world.all(models.Deployable)
    }
    found = placement.providers(root)
    if found.keys() != {"compute-1.example.org", *wanted}:
        return False
    stocks = {
        name: placement.inventories(found[name]["uuid"])["FPGA"]
        for name in wanted
    }
    return all(
        stock["reserved"] == (stock["total"] if wanted[name] else 0)
        for name, stock in stocks.items()
    )


def _check_nova(world: World) -> None:
    told = {event.arq_uuid: event.status for event in world.nova.events}
    for row in world.all(worlds.Arq):
        outcome = arq.nova_outcome(arq.State(row.state))
        if outcome is not None:
            assert told[row.uuid] == outcome


def test_the_dead_do_no_more(
    database: engine.Database, tmp_path: Path
) -> None:
    mortal: Any = Mortal(database, 1000)
    dying = worlds.make(mortal)
    dying.work.stop()  # which may write, too
    mortal.last = 1
    with pytest.raises(KilledError):
        dying.report(device())
    assert len(worlds.make(database).all(models.Device)) == 1
    with pytest.raises(KilledError):
        dying.profile(str(uuid.uuid4()))
    assert provider_of()

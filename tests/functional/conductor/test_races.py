# SPDX-License-Identifier: Apache-2.0
"""Several conductors at once: real threads, real databases."""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor import requests
from cyborg.db import arq_writes
from cyborg.db import clock
from cyborg.db import engine
from cyborg.db import models
from cyborg.rpc.agent import ProgramOrder
from cyborg.rpc.agent import ProgramResult
from tests import databases
from tests.functional.conductor import world as worlds
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device


@pytest.fixture(scope="module", params=databases.ALL)
def raced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engine.Database]:
    directory = tmp_path_factory.mktemp("races")
    with databases.migrated(request.param, directory) as database:
        yield database


@pytest.fixture
def conductors(raced: engine.Database) -> Iterator[list[World]]:
    """Two conductors on one database."""
    databases.clear(raced)
    made = [worlds.make(raced), worlds.make(raced)]
    yield made
    for one in made:
        one.close()


def at_once(
    works: Sequence[Callable[[], object]],
) -> list[BaseException | None]:
    """Begins all works at the same moment; how each ended."""
    gate = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        gate.wait(30)
        work()

    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(run, work) for work in works]
        return [future.exception(120) for future in futures]


def test_sixteen_handles_go_to_sixteen_of_seventeen(
    conductors: list[World],
) -> None:
    world = conductors[0]
    world.report(device())
    arqs = [world.arqs(1)[0] for _ in range(17)]
    ends = at_once(
        [
            lambda one=one, of=conductors[number % 2]: of.bind([one])
            for number, one in enumerate(arqs)
        ]
    )
    refused = [end for end in ends if end is not None]
    assert [type(end) for end in refused] == [exception.Conflict]
    bound = [row for row in world.all(worlds.Arq) if row.state == "Bound"]
    assert len({row.attach_handle_id for row in bound}) == 16
    assert len(world.used()) == 16
    at_once(
        [
            lambda one=one, of=conductors[number % 2]: of.delete(one)
            for number, one in enumerate(arqs)
        ]
    )
    assert world.used() == []


def test_requests_for_several_handles_are_served_whole_or_not_at_all(
    conductors: list[World],
) -> None:
    world = conductors[0]
    world.report(device())
    wanted = [world.arqs(3) for _ in range(6)]
    ends = at_once(
        [
            lambda arqs=arqs, of=conductors[number % 2]: of.bind(arqs)
            for number, arqs in enumerate(wanted)
        ]
    )
    assert sum(end is None for end in ends) == 5
    for arqs in wanted:
        assert len(set(world.states(arqs))) == 1
    assert len(world.used()) == 15


def test_one_instance_gets_its_requests_from_one_bind_only(
    conductors: list[World],
) -> None:
    world = conductors[0]
    world.report(device())
    for _ in range(5):
        instance = str(uuid.uuid4())
        arqs = [world.arqs(1), world.arqs(1)]
        ends = at_once(
            [
                lambda one=one, of=of, instance=instance: of.bind(
                    one, instance=instance
                )
                for one, of in zip(arqs, conductors, strict=True)
            ]
        )
        assert [type(end) for end in ends if end] == [exception.Conflict]
        states = sorted(world.states([*arqs[0], *arqs[1]]))
        assert states == ["Bound", "Initial"]
        world.endpoint.delete_instance_arqs(worlds.CONTEXT, instance, None)


def test_the_same_bind_twice_at_once_succeeds_twice(
    conductors: list[World],
) -> None:
    world = conductors[0]
    world.report(device())
    arqs = world.arqs(4)
    instance = str(uuid.uuid4())
    ends = at_once(
        [lambda of=of: of.bind(arqs, instance=instance) for of in conductors]
    )
    assert ends == [None, None]
    assert len(world.used()) == 4


def test_a_bind_and_an_unbind_at_once_leak_no_handle(
    conductors: list[World],
) -> None:
    world = conductors[0]
    world.report(device(accelerators=2))
    for _ in range(5):
        arqs = world.arqs(2)
        instance = world.bind(arqs)
        ends = at_once(
            [
                lambda arqs=arqs: conductors[0].unbind(*arqs),
                lambda instance=instance: conductors[
                    1
                ].endpoint.delete_instance_arqs(
                    worlds.CONTEXT, instance, None
                ),
                lambda: conductors[0].report(device(accelerators=2)),
            ]
        )
        assert all(
            end is None or isinstance(end, exception.NotFound) for end in ends
        ), ends
        held = [row for row in world.all(worlds.Arq) if row.attach_handle_id]
        assert held == []
        assert world.used() == []
        world.delete(*[row.uuid for row in world.all(worlds.Arq)] or [""]) if (
            world.all(worlds.Arq)
        ) else None


def test_two_first_reports_of_a_host_make_one_host(
    conductors: list[World],
) -> None:
    cards = [device(bus=bus, accelerators=4) for bus in range(1, 5)]
    ends = at_once(
        [
            lambda of=conductors[number % 2]: of.report(*cards)
            for number in range(4)
        ]
    )
    assert ends == [None] * 4
    world = conductors[0]
    assert len(world.all(models.Host)) == 1
    assert len(world.all(models.Device)) == 4
    assert len(world.all(worlds.Handle)) == 16


def test_many_hosts_report_at_once(conductors: list[World]) -> None:
    ends = at_once(
        [
            lambda host=f"compute-{number}": conductors[number % 2].report(
                device(host=host),
                host=host,
                provider_name=f"{host}.example.org",
            )
            for number in range(12)
        ]
    )
    assert ends == [None] * 12
    assert len(conductors[0].all(models.Host)) == 12


def test_a_report_without_the_card_never_takes_it_from_a_bind(
    conductors: list[World],
) -> None:
    world = conductors[0]
    for _ in range(5):
        world.report(device(accelerators=2))
        arqs = world.arqs(1)
        ends = at_once(
            [
                lambda arqs=arqs: conductors[0].bind(arqs),
                lambda: conductors[1].report(),
            ]
        )
        assert ends[1] is None
        if ends[0] is None:
            assert world.states(arqs) == ["Bound"]
            assert world.all(models.Device)[0].lost_at is not None
            world.delete(*arqs)
            worlds.wait_until(lambda: world.all(models.Device) == [])
        else:
            assert isinstance(ends[0], exception.NotFound | exception.Conflict)
            assert world.all(models.Device) == []
            world.delete(*arqs)


def test_only_one_of_a_bind_and_a_programming_gets_the_card(
    conductors: list[World],
) -> None:
    world = conductors[0]
    world.report(device(accelerators=2))
    card = world.all(models.Deployable)[0]
    release = threading.Event()

    def programmed(
        order: worlds.ProgramOrder,
    ) -> worlds.ProgramResult:
        release.wait(10)
        return worlds.ProgramResult(order.image_uuid)

    for one in conductors:
        one.hosts.answer = programmed
    for _ in range(4):
        release.clear()
        plain = world.arqs(1)
        image = str(uuid.uuid4())
        other = world.arqs(1, **{"accel:bitstream_id": image})
        ends = at_once(
            [
                lambda plain=plain: conductors[0].bind(plain),
                lambda other=other: conductors[1].bind(other),
            ]
        )
        assert [type(end) for end in ends if end] == [exception.Conflict]
        release.set()
        worlds.wait_until(
            lambda: world.all(models.Deployable)[0].job_id is None
        )
        world.delete(*plain, *other)
        assert world.used() == []
    assert card.num_accelerators == 2


# SQLite has no clock of its own: only that of this machine.
@pytest.mark.parametrize("raced", list(databases.SERVERS), indirect=True)
@pytest.mark.parametrize("seconds", [-70, 70])
def test_a_conductor_whose_clock_is_wrong_takes_no_job_of_another(
    conductors: list[World], monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    here, there = conductors
    done = threading.Event()

    def slow(order: ProgramOrder) -> ProgramResult:
        done.wait(30)
        return ProgramResult(order.image_uuid)

    here.report(device())
    arqs = here.arqs(1, **{"accel:bitstream_id": str(uuid.UUID(int=1))})
    real, wrong = models.now, dt.timedelta(seconds=seconds)
    begins, looks = (here, there) if seconds > 0 else (there, here)
    begins.hosts.answer = slow
    if seconds < 0:
        monkeypatch.setattr(models, "now", lambda: real() + wrong)
        begins.bind(arqs)
        monkeypatch.undo()
    else:
        begins.bind(arqs)
        monkeypatch.setattr(models, "now", lambda: real() + wrong)
    looks.work.runner.look()
    monkeypatch.undo()
    assert here.states(arqs) == ["BindStarted"]
    assert looks.hosts.orders == []
    done.set()
    worlds.wait_until(lambda: here.states(arqs) == ["Bound"])


def test_ending_a_forsaken_bind_frees_nothing_that_another_has_taken(
    conductors: list[World],
) -> None:
    here, there = conductors
    here.report(device(accelerators=1))
    forsaken, other = here.arqs(1), here.arqs(1)
    here.bind(forsaken)
    here.execute(
        sa.update(worlds.Arq)
        .where(worlds.Arq.uuid == forsaken[0])
        .values(state="BindStarted", updated_at=clock.after(-3600))
    )

    def take() -> None:
        there.unbind(*forsaken)
        there.bind(other)

    taking = threading.Thread(target=take)

    def overtake(*arguments: Any) -> None:
        statement = arguments[2]
        if "coalesce" in statement.lower() and not taking.ident:
            taking.start()
            taking.join(2)

    sa.event.listen(here.database.engine, "after_cursor_execute", overtake)
    try:
        requests.sweep(here.database, here.work.settings)
    finally:
        sa.event.remove(here.database.engine, "after_cursor_execute", overtake)
        taking.join(30)
    assert here.states(other) == ["Bound"]
    assert here.used() == [here.arq(other[0]).attach_handle_id]


def test_a_bind_that_is_repeated_while_it_commits_is_no_conflict(
    conductors: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = conductors
    here.report(device(accelerators=4))
    arqs, instance = here.arqs(4), str(uuid.uuid4())
    real = arq_writes.free_handles
    first = threading.Thread(target=lambda: here.bind(arqs, instance=instance))

    def overtaken(session: Any, deployables: Any) -> Any:
        # Where binds for an instance are done one after another, the first
        # to come has to end before this one.
        if first.ident is None:
            first.start()
            first.join(2)
        return real(session, deployables)

    monkeypatch.setattr(arq_writes, "free_handles", overtaken)
    there.bind(arqs, instance=instance)
    first.join(30)
    assert here.states(arqs) == ["Bound"] * 4
    taken = [row for row in here.all(worlds.Handle) if row.in_use]
    assert len(taken) == 4

# SPDX-License-Identifier: Apache-2.0
"""Binds that need work on the host, and what becomes of them when
conductors and agents die in between."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db import engine
from cyborg.db import models
from cyborg.rpc import codec
from cyborg.rpc.agent import ProgramOrder
from cyborg.rpc.agent import ProgramResult
from cyborg.rpc.conductor import Binding
from tests.functional.conductor import world as worlds
from tests.functional.conductor.world import CONTEXT
from tests.functional.conductor.world import Hosts
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device
from tests.functional.conductor.world import provider_of

IMAGE = "c5af00d4-743c-5101-8469-9134ac28e262"
OTHER = "11111111-743c-5101-8469-9134ac28e262"

Deployable = models.Deployable
Job = models.Job


class Slow:
    """A card whose programming ends when `done` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.done = threading.Event()

    def __call__(self, order: ProgramOrder) -> ProgramResult:
        self.begun.set()
        assert self.done.wait(30)
        return ProgramResult(order.image_uuid)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.done.set()


Maker = Callable[..., World]


@pytest.fixture
def conductor(database: engine.Database) -> Iterator[Maker]:
    """Makes started conductors with one card between them."""
    made: list[World] = []

    def make(**values: object) -> World:
        one = worlds.make(
            database,
            started=True,
            **{"bind_timeout": 20, "periodic_interval": 1, **values},  # type: ignore[arg-type]
        )
        made.append(one)
        if len(made) == 1:
            one.report(device(accelerators=4))
        return one

    yield make
    for one in made:
        one.close()


def wanting(world: World, count: int = 1, image: str = IMAGE) -> list[str]:
    return world.arqs(count, **{"accel:bitstream_id": image})


def settled(world: World, arqs: list[str]) -> None:
    worlds.wait_until(lambda: "BindStarted" not in world.states(arqs))


def card(world: World) -> models.Deployable:
    found: models.Deployable = world.all(Deployable)[0]
    return found


def test_a_bind_that_needs_programming_ends_bound(
    conductor: Maker, slow: Slow
) -> None:
    world = conductor()
    world.hosts.answer = slow
    arqs = wanting(world, 3)
    instance = world.bind(arqs)
    assert slow.begun.wait(5)
    assert world.states(arqs) == ["BindStarted"] * 3
    assert len(world.used()) == 3
    assert world.nova.events == []
    slow.done.set()
    events = world.nova.wait(3)
    assert {e.status for e in events} == {"completed"}
    assert {e.instance_uuid for e in events} == {instance}
    assert world.states(arqs) == ["Bound"] * 3
    assert (card(world).bitstream_id, card(world).job_id) == (IMAGE, None)
    (order,) = world.hosts.orders
    assert order.driver == "fake_driver"
    assert order.deployable_name == "compute-1_0000:0c:00.0"
    assert order.image_uuid == IMAGE
    assert order.controlpath == device().controlpath
    assert 0 < order.timeout <= 20


def test_what_is_programmed_already_is_bound_at_once(
    conductor: Maker,
) -> None:
    world = conductor()
    world.execute(sa.update(Deployable).values(bitstream_id=IMAGE))
    arqs = wanting(world)
    world.bind(arqs)
    assert world.states(arqs) == ["Bound"]
    assert world.hosts.orders == []


def test_a_wanted_function_is_ordered_by_its_id(conductor: Maker) -> None:
    world = conductor()
    world.hosts.answer = lambda order: ProgramResult(OTHER)
    arqs = world.arqs(1, **{"accel:function_id": "gzip"})
    world.bind(arqs)
    settled(world, arqs)
    assert world.states(arqs) == ["Bound"]
    assert world.hosts.orders[0].function_id == "gzip"
    assert card(world).bitstream_id == OTHER
    more = world.arqs(1, **{"accel:function_id": "gzip"})
    world.bind(more)
    assert world.states(more) == ["Bound"]
    with pytest.raises(exception.Conflict, match="is bound"):
        world.bind(world.arqs(1, **{"accel:function_id": "crypto"}))
    assert len(world.hosts.orders) == 1


def test_the_image_that_the_creator_named_is_programmed(
    conductor: Maker,
) -> None:
    world = conductor()
    world.profile("plain")
    arqs = world.endpoint.create_arqs(
        worlds.admin_context(), "plain", None, IMAGE
    )
    world.bind(arqs)
    settled(world, arqs)
    assert card(world).bitstream_id == IMAGE


def test_a_card_that_refuses_fails_the_bind_and_frees_the_handles(
    conductor: Maker,
) -> None:
    world = conductor()

    def refuse(order: ProgramOrder) -> ProgramResult:
        raise exception.DeviceFailed("the card says no")

    world.hosts.answer = refuse
    arqs = wanting(world, 2)
    instance = world.bind(arqs)
    events = world.nova.wait(2)
    assert {e.status for e in events} == {"failed"}
    row = world.arq(arqs[0])
    assert row.state == "BindFailed"
    assert row.last_error == "the card says no"
    assert row.instance_uuid == instance
    assert row.attach_handle_id is None
    assert world.used() == []
    assert card(world).job_id is None
    world.unbind(*arqs)
    assert world.states(arqs) == ["Unbound"] * 2


def test_a_busy_or_bound_card_is_not_programmed(
    conductor: Maker, slow: Slow
) -> None:
    world = conductor()
    world.hosts.answer = slow
    first = world.arqs(1)
    world.bind(first)
    with pytest.raises(exception.Conflict, match="is bound"):
        world.bind(wanting(world))
    world.unbind(*first)
    world.bind(wanting(world))
    for arqs in (wanting(world), world.arqs(1)):
        with pytest.raises(exception.Conflict, match="busy"):
            world.bind(arqs)
        assert world.states(arqs) == ["Initial"]
    with pytest.raises(exception.Conflict, match="busy"):
        world.endpoint.program_deployable(CONTEXT, card(world).uuid, OTHER)
    assert len(world.used()) == 1


def test_a_card_that_needs_a_shell_is_programmed_and_not_bound(
    conductor: Maker,
) -> None:
    """A fault of the deployable alone keeps guests off, not its cure."""
    world = conductor()
    whole = device(accelerators=4)
    faulty = dataclasses.replace(whole.deployables[0], fault="needs it")
    world.report(dataclasses.replace(whole, deployables=(faulty,)))
    with pytest.raises(exception.Conflict, match="needs it"):
        world.bind(world.arqs(1))

    world.endpoint.program_deployable(CONTEXT, card(world).uuid, IMAGE)

    assert [order.image_uuid for order in world.hosts.orders] == [IMAGE]


def test_two_bitstreams_for_one_card_in_one_request_are_refused(
    conductor: Maker,
) -> None:
    world = conductor()
    arqs = [*wanting(world), *wanting(world, image=OTHER)]
    with pytest.raises(exception.Conflict, match="two things"):
        world.bind(arqs)
    assert world.states(arqs) == ["Initial"] * 2
    assert world.all(Job) == []


def test_one_request_programs_two_cards(conductor: Maker) -> None:
    world = conductor()
    world.report(device(accelerators=4), device(bus=0x20, accelerators=1))
    one, other = wanting(world), wanting(world, image=OTHER)
    instance = str(uuid.uuid4())
    world.endpoint.bind_arqs(
        CONTEXT,
        [
            codec.encode(Binding(arq, "compute-1", provider, instance))
            for arq, provider in (
                (one[0], provider_of()),
                (other[0], provider_of(0x20)),
            )
        ],
        None,
    )
    settled(world, [*one, *other])
    assert world.states([*one, *other]) == ["Bound"] * 2
    assert [row.bitstream_id for row in world.all(Deployable)] == [
        IMAGE,
        OTHER,
    ]


def test_an_unbound_request_is_not_touched_by_the_end_of_its_job(
    conductor: Maker, slow: Slow
) -> None:
    world = conductor()
    world.hosts.answer = slow
    arqs = wanting(world, 2)
    world.bind(arqs)
    assert slow.begun.wait(5)
    world.unbind(arqs[0])
    world.delete(arqs[1])
    assert world.used() == []
    slow.done.set()
    worlds.wait_until(lambda: card(world).job_id is None)
    assert world.states(arqs[:1]) == ["Unbound"]
    assert card(world).bitstream_id == IMAGE
    assert world.nova.events == []


def test_a_bind_that_takes_too_long_fails_and_is_never_revived(
    conductor: Maker, slow: Slow
) -> None:
    world = conductor(bind_timeout=2)
    world.hosts.answer = slow
    arqs = wanting(world)
    world.bind(arqs)
    began = time.monotonic()
    events = world.nova.wait(1)
    assert time.monotonic() - began < 4
    assert events[0].status == "failed"
    assert world.used() == []
    slow.done.set()
    worlds.wait_until(lambda: not world.work.runner._running)
    assert world.states(arqs) == ["BindFailed"]
    assert card(world).bitstream_id is None
    assert len(world.nova.events) == 1


def test_an_agent_that_does_not_answer_is_asked_again(
    conductor: Maker,
) -> None:
    world = conductor()
    answers = iter([exception.Timeout("no answer"), None])

    def restart(order: ProgramOrder) -> ProgramResult:
        error = next(answers)
        if error is not None:
            raise error
        return ProgramResult(order.image_uuid)

    world.hosts.answer = restart
    arqs = wanting(world)
    world.bind(arqs)
    settled(world, arqs)
    assert world.states(arqs) == ["Bound"]
    assert len({order.job_uuid for order in world.hosts.orders}) == 1
    assert len(world.hosts.orders) == 2


def abandoned(
    database: engine.Database, arqs: list[str], **values: object
) -> World:
    """Binds on a conductor that dies (kill -9) right after the commit."""
    dead = worlds.make(database, bind_timeout=20)
    from cyborg.conductor import binding

    binding.bind(
        database,
        [
            Binding(one, "compute-1", provider_of(), str(uuid.UUID(int=9)))
            for one in arqs
        ],
        None,
        dead.work.settings,
    )
    return dead


def test_a_job_of_a_dead_conductor_is_ended_by_another(
    conductor: Maker, database: engine.Database
) -> None:
    world = conductor()
    arqs = wanting(world, 2)
    abandoned(database, arqs)
    assert world.states(arqs) == ["BindStarted"] * 2
    expired = models.now() - dt.timedelta(seconds=1)
    world.execute(sa.update(Job).values(lease_until=expired))
    world.nova.wait(2)
    assert world.states(arqs) == ["Bound"] * 2
    assert [row.state for row in world.all(Job)] == ["done"]
    assert world.hosts.orders[0].job_uuid == world.all(Job)[0].uuid


def test_a_lease_runs_out_by_itself(
    conductor: Maker, database: engine.Database
) -> None:
    world = conductor(bind_timeout=8)
    arqs = wanting(world)
    from cyborg.conductor import binding

    dead = worlds.make(database, bind_timeout=8)
    began = time.monotonic()
    binding.bind(
        database,
        [Binding(arqs[0], "compute-1", provider_of(), str(uuid.uuid4()))],
        None,
        dead.work.settings,
    )
    world.nova.wait(1)
    assert time.monotonic() - began < 6
    assert world.states(arqs) == ["Bound"]


def test_a_job_past_its_deadline_is_failed_by_whoever_sees_it(
    conductor: Maker, database: engine.Database
) -> None:
    world = conductor()
    arqs = wanting(world)
    abandoned(database, arqs)
    expired = models.now() - dt.timedelta(seconds=1)
    world.execute(sa.update(Job).values(lease_until=expired, deadline=expired))
    assert world.nova.wait(1)[0].status == "failed"
    assert world.states(arqs) == ["BindFailed"]
    assert world.used() == []
    assert world.hosts.orders == []


def test_an_event_that_a_dead_conductor_owes_is_sent_by_another(
    conductor: Maker, database: engine.Database
) -> None:
    world = conductor()
    arqs = world.arqs(1)
    abandoned(database, arqs)
    assert world.states(arqs) == ["Bound"]
    world.execute(sa.update(worlds.Arq).values(event_due_at=models.now()))
    assert world.nova.wait(1)[0].arq_uuid == arqs[0]


def test_a_running_job_is_not_taken_from_a_conductor_that_lives(
    conductor: Maker, slow: Slow
) -> None:
    world = conductor(bind_timeout=8)
    world.hosts.answer = slow
    other = conductor(bind_timeout=8)
    arqs = wanting(world)
    world.bind(arqs)
    assert slow.begun.wait(5)
    threading.Event().wait(3.5)  # longer than the lease of 2 seconds
    assert other.hosts.orders == []
    slow.done.set()
    settled(world, arqs)
    assert world.states(arqs) == ["Bound"]


def test_a_conductor_that_stops_leaves_its_job_to_another(
    conductor: Maker, database: engine.Database
) -> None:
    world = conductor()
    stopping = worlds.make(database, started=True, bind_timeout=20)

    def unreachable(order: ProgramOrder) -> ProgramResult:
        raise exception.Unavailable("the agent cannot be reached")

    stopping.hosts.answer = unreachable
    arqs = wanting(world)
    stopping.bind(arqs)
    stopping.close()
    settled(world, arqs)
    assert world.states(arqs) == ["Bound"]
    assert len(world.hosts.orders) == 1


def test_programming_a_deployable_waits_for_its_end(
    conductor: Maker,
) -> None:
    world = conductor()
    found = card(world)
    world.endpoint.program_deployable(CONTEXT, found.uuid, IMAGE)
    assert card(world).bitstream_id == IMAGE
    with pytest.raises(exception.NotFound):
        world.endpoint.program_deployable(CONTEXT, str(uuid.uuid4()), IMAGE)
    for error in (
        exception.DeviceFailed("the card says no"),
        exception.NotFound("no such image"),
        exception.Conflict("not programmable"),
    ):

        def refuse(
            order: ProgramOrder, error: exception.CyborgError = error
        ) -> ProgramResult:
            raise error

        world.hosts.answer = refuse
        with pytest.raises(type(error), match=error.message):
            world.endpoint.program_deployable(CONTEXT, found.uuid, OTHER)
        assert card(world).job_id is None
    world.bind(world.arqs(1))
    with pytest.raises(exception.Conflict, match="is bound"):
        world.endpoint.program_deployable(CONTEXT, found.uuid, IMAGE)


def test_what_an_older_service_left_half_done_is_ended(
    conductor: Maker,
) -> None:
    world = conductor(bind_timeout=1)
    world.profile("old")
    arqs = world.endpoint.create_arqs(
        worlds.admin_context(), "old", None, None
    )
    more = world.endpoint.create_arqs(
        worlds.admin_context(), "old", None, None
    )
    used = world.all(worlds.Handle)[0].id
    world.execute(
        sa.update(worlds.Handle)
        .where(worlds.Handle.id == used)
        .values(in_use=True)
    )
    long_ago = dt.datetime(2026, 3, 1)  # noqa: DTZ001
    world.execute(
        sa.update(worlds.Arq)
        .where(worlds.Arq.uuid == arqs[0])
        .values(
            state="BindStarted",
            attach_handle_id=used,
            instance_uuid="not-a-uuid",
            created_at=long_ago,
            updated_at=None,
        )
    )
    world.execute(
        sa.update(worlds.Arq)
        .where(worlds.Arq.uuid == more[0])
        .values(state="Deleting")
    )
    worlds.wait_until(lambda: len(world.all(worlds.Arq)) == 1)
    worlds.wait_until(lambda: world.states(arqs) == ["BindFailed"])
    assert world.used() == []
    assert world.nova.wait(1)[0].status == "failed"


def test_jobs_that_ended_long_ago_are_forgotten_but_for_the_last(
    conductor: Maker,
) -> None:
    world = conductor()
    for image in (IMAGE, OTHER):
        world.endpoint.program_deployable(CONTEXT, card(world).uuid, image)
    long_ago = models.now() - dt.timedelta(days=30)
    world.execute(sa.update(Job).values(finished_at=long_ago))
    worlds.wait_until(lambda: len(world.all(Job)) == 1)
    world.work._sweep()
    assert OTHER in world.all(Job)[0].arguments


def test_hosts_named_otherwise_are_ordered_by_their_agents_name(
    conductor: Maker,
) -> None:
    world = conductor()
    names: list[str] = []
    program = world.hosts.program

    class Named(Hosts):
        def program(self, context, host, order):  # type: ignore[no-untyped-def]
            names.append(host)
            return program(context, host, order)

    world.work.runner._agents = Named()
    arqs = wanting(world)
    world.bind(arqs)
    settled(world, arqs)
    assert names == ["compute-1"]


def test_an_answer_too_late_is_no_success_where_another_ended_the_job(
    conductor: Maker,
) -> None:
    world = conductor()

    def late(order: ProgramOrder) -> ProgramResult:
        world.execute(
            sa.update(Job).values(state="failed", error="it is too late")
        )
        return ProgramResult(order.image_uuid)

    world.hosts.answer = late
    with pytest.raises(exception.DeviceFailed, match="it is too late"):
        world.endpoint.program_deployable(CONTEXT, card(world).uuid, IMAGE)

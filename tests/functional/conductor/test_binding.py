# SPDX-License-Identifier: Apache-2.0
"""Binding, unbinding and deleting on rows as they are stored."""

from __future__ import annotations

import contextlib
import itertools
import types
import uuid

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor import manager
from cyborg.conductor import requests
from cyborg.db import models
from cyborg.rpc import codec
from cyborg.rpc import conductor as rpc
from cyborg.rpc.conductor import Binding
from tests.functional.conductor import world as worlds
from tests.functional.conductor.world import CONTEXT
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device
from tests.functional.conductor.world import provider_of

Device = models.Device


@pytest.fixture(autouse=True)
def host(world: World) -> None:
    world.report(device())


def test_a_bind_gives_each_request_a_handle_of_its_own(world: World) -> None:
    arqs = world.arqs(3)
    instance = world.bind(arqs)
    rows = [world.arq(one) for one in arqs]
    assert [row.state for row in rows] == ["Bound"] * 3
    assert {row.instance_uuid for row in rows} == {instance}
    assert {row.hostname for row in rows} == {"compute-1.example.org"}
    assert {row.device_rp_uuid for row in rows} == {provider_of()}
    assert {row.project_id for row in rows} == {worlds.PROJECT}
    assert sorted(row.attach_handle_id for row in rows) == world.used()
    assert len(world.used()) == 3


def test_nova_is_told_once_of_each_bound_request(world: World) -> None:
    arqs = world.arqs(2)
    instance = world.bind(arqs)
    events = world.nova.wait(2)
    assert {event.arq_uuid for event in events} == set(arqs)
    assert {event.instance_uuid for event in events} == {instance}
    assert {event.status for event in events} == {"completed"}
    worlds.wait_until(
        lambda: all(world.arq(one).event_due_at is None for one in arqs)
    )


def test_either_name_of_a_host_is_taken(world: World) -> None:
    arqs = world.arqs(2)
    instance = world.bind([arqs[0]], host="compute-1")
    assert world.arq(arqs[0]).hostname == "compute-1"
    with pytest.raises(exception.Conflict, match="not one of host"):
        world.bind([arqs[1]], host="compute-2")
    assert instance


def test_a_request_that_asks_more_than_is_free_changes_nothing(
    world: World,
) -> None:
    first = world.arqs(10)
    world.bind(first)
    more = world.arqs(7)
    with pytest.raises(exception.Conflict, match="no free"):
        world.bind(more)
    assert world.states(more) == ["Initial"] * 7
    assert len(world.used()) == 10


def test_the_seventeenth_bind_of_sixteen_accelerators_is_refused(
    world: World,
) -> None:
    for one in world.arqs(16):
        world.bind([one])
        world.report(device())
    assert len(set(world.used())) == 16
    with pytest.raises(exception.Conflict):
        world.bind(world.arqs(1))


def test_an_unknown_request_or_provider_is_not_found(world: World) -> None:
    arqs = world.arqs(1)
    with pytest.raises(exception.NotFound, match="accelerator request"):
        world.bind([*arqs, str(uuid.uuid4())])
    with pytest.raises(exception.NotFound, match="resource provider"):
        world.bind(arqs, provider=str(uuid.uuid4()))
    assert world.states(arqs) == ["Initial"]


def test_a_request_of_another_project_does_not_exist(world: World) -> None:
    arqs = world.arqs(1)
    with pytest.raises(exception.NotFound):
        world.bind(arqs, scope="somebody-else")
    world.bind(arqs, scope=worlds.PROJECT)
    with pytest.raises(exception.NotFound):
        world.endpoint.unbind_arqs(CONTEXT, arqs, "somebody-else")
    with pytest.raises(exception.NotFound):
        world.endpoint.delete_arqs(CONTEXT, arqs, "somebody-else", True)
    world.endpoint.delete_instance_arqs(
        CONTEXT, world.arq(arqs[0]).instance_uuid or "", "somebody-else"
    )
    assert world.states(arqs) == ["Bound"]


def test_only_a_free_request_can_be_bound(world: World) -> None:
    arqs = world.arqs(1)
    world.bind(arqs)
    with pytest.raises(exception.Conflict, match="Initial or Unbound"):
        world.bind(arqs)


def test_a_bind_that_is_done_already_is_told_again(world: World) -> None:
    arqs = world.arqs(2)
    instance = world.bind(arqs)
    world.nova.wait(2)
    used = world.used()
    world.bind(arqs, instance=instance)
    assert len(world.nova.wait(4)) == 4
    assert world.used() == used


def test_an_instance_with_other_bound_requests_is_refused(
    world: World,
) -> None:
    instance = world.bind(world.arqs(1))
    more = world.arqs(1)
    with pytest.raises(exception.Conflict, match="other accelerator"):
        world.bind(more, instance=instance)
    assert world.states(more) == ["Initial"]
    assert len(world.used()) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"status": "maintaining"}, "disabled"),
        ({"fault": "too hot"}, "too hot"),
        ({"lost_at": models.now()}, "does not have it"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused(
    world: World, values: dict[str, object], words: str
) -> None:
    world.execute(sa.update(Device).values(values))
    arqs = world.arqs(1)
    with pytest.raises(exception.Conflict, match=words):
        world.bind(arqs)
    assert world.states(arqs) == ["Initial"]
    assert world.used() == []


def test_a_provider_without_the_class_that_is_asked_is_refused(
    world: World,
) -> None:
    world.report(device(), device(bus=0x20, resource_class="PGPU"))
    arqs = world.arqs(1)
    with pytest.raises(exception.Conflict, match="FPGA"):
        world.bind(arqs, provider=provider_of(0x20))


def test_one_request_binds_for_several_instances_and_providers(
    world: World,
) -> None:
    world.report(device(), device(bus=0x20, accelerators=1))
    one, other = world.arqs(1), world.arqs(1)
    instances = [str(uuid.uuid4()), str(uuid.uuid4())]
    world.endpoint.bind_arqs(
        CONTEXT,
        [
            codec.encode(
                Binding(arq, "compute-1.example.org", provider, instance)
            )
            for arq, provider, instance in zip(
                (*one, *other),
                (provider_of(), provider_of(0x20)),
                instances,
                strict=True,
            )
        ],
        None,
    )
    assert [
        world.arq(arq).instance_uuid for arq in (*one, *other)
    ] == instances
    events = world.nova.wait(2)
    assert {(e.arq_uuid, e.instance_uuid) for e in events} == {
        (one[0], instances[0]),
        (other[0], instances[1]),
    }


def test_the_project_of_a_bind_is_stored(world: World) -> None:
    arqs = world.arqs(1)
    world.endpoint.bind_arqs(
        CONTEXT,
        [
            codec.encode(
                Binding(
                    arqs[0],
                    "compute-1",
                    provider_of(),
                    str(uuid.uuid4()),
                    "another-project",
                )
            )
        ],
        None,
    )
    assert world.arq(arqs[0]).project_id == "another-project"


def test_what_is_unbound_is_empty_and_can_be_taken_again(
    world: World,
) -> None:
    arqs = world.arqs(16)
    world.bind(arqs)
    world.unbind(*arqs)
    assert world.states(arqs) == ["Unbound"] * 16
    row = world.arq(arqs[0])
    assert (
        row.hostname,
        row.device_rp_uuid,
        row.instance_uuid,
        row.attach_handle_id,
        row.deployable_id,
    ) == (None,) * 5
    assert world.used() == []
    world.bind(arqs)
    assert len(world.used()) == 16


def test_unbinding_what_is_not_bound_changes_nothing(world: World) -> None:
    arqs = world.arqs(1)
    world.unbind(*arqs)
    assert world.states(arqs) == ["Initial"]


def test_unbinding_with_an_unknown_request_changes_nothing(
    world: World,
) -> None:
    arqs = world.arqs(1)
    world.bind(arqs)
    with pytest.raises(exception.NotFound):
        world.unbind(*arqs, str(uuid.uuid4()))
    assert world.states(arqs) == ["Bound"]


def test_what_is_made_too_late_for_its_caller_is_not_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was told that it failed would never ask for it or delete it."""
    with monkeypatch.context() as patch:
        make_late(world, patch)
        with pytest.raises(exception.Unavailable, match="too long"):
            world.arqs(2)
    assert world.all(models.AcceleratorRequest) == []
    assert len(world.arqs(2)) == 2


def test_a_message_that_comes_again_and_late_takes_nothing_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one was answered in time."""
    world.profile("once")
    made = world.endpoint.create_arqs(CONTEXT, "once")
    with monkeypatch.context() as patch:
        make_late(world, patch)
        with contextlib.suppress(exception.Unavailable):
            world.endpoint.create_arqs(CONTEXT, "once")
    assert world.states(made) == ["Initial"]


def make_late(world: World, patch: pytest.MonkeyPatch) -> None:
    """Between any two looks at the clock too much time goes by."""
    seconds = itertools.count(step=rpc.answer_seconds(world.conf) + 1)
    late = types.SimpleNamespace(monotonic=seconds.__next__)
    for module in (manager, requests):
        patch.setattr(module, "time", late)


def test_deleting_frees_what_was_bound(world: World) -> None:
    arqs = world.arqs(4)
    world.bind(arqs)
    with pytest.raises(exception.NotFound):
        world.delete(*arqs, str(uuid.uuid4()))
    assert world.all(worlds.Arq) == []
    assert world.used() == []


def test_a_bound_request_is_deleted_only_by_a_service(world: World) -> None:
    arqs = world.arqs(2)
    world.bind(arqs[:1])
    with pytest.raises(exception.Forbidden, match="requires a service token"):
        world.delete(*arqs, may_unbind=False)
    assert world.states(arqs) == ["Bound", "Initial"]
    world.delete(arqs[1], may_unbind=False)


def test_deleting_the_requests_of_an_instance_is_idempotent(
    world: World,
) -> None:
    arqs = world.arqs(2)
    instance = world.bind(arqs)
    for _ in range(2):
        world.endpoint.delete_instance_arqs(CONTEXT, instance, None)
    assert world.all(worlds.Arq) == []
    assert world.used() == []


def test_requests_come_in_the_order_of_their_groups(world: World) -> None:
    world.profile(
        "two",
        {"resources:FPGA": "2"},
        {"resources:PGPU": "1"},
        {"resources:FPGA": "1", "trait:CUSTOM_FPGA_XILINX": "required"},
    )
    made = world.endpoint.create_arqs(
        worlds.admin_context(), "two", None, None
    )
    groups = [world.arq(one).device_profile_group_id for one in made]
    assert groups == [0, 0, 1, 2, 2]
    made = world.endpoint.create_arqs(worlds.admin_context(), "two", 1, None)
    assert [world.arq(one).device_profile_group_id for one in made] == [1]
    with pytest.raises(exception.Invalid, match="device_profile_group_id"):
        world.endpoint.create_arqs(worlds.admin_context(), "two", 3, None)


def test_a_profile_is_found_by_its_exact_name(world: World) -> None:
    world.profile("Name")
    for wrong in ("name", "", "Name "):
        with pytest.raises(exception.NotFound):
            world.endpoint.create_arqs(
                worlds.admin_context(), wrong, None, None
            )


def test_more_than_the_limit_is_refused_and_nothing_made(
    world: World,
) -> None:
    with pytest.raises(exception.Invalid, match="at most 64"):
        world.arqs(100000)
    assert world.all(worlds.Arq) == []


def test_a_board_of_two_functions_hands_over_both(world: World) -> None:
    card = device(bus=0x30, accelerators=2)
    deployable = card.deployables[0]
    board = worlds.dataclasses.replace(
        card,
        deployables=(
            worlds.dataclasses.replace(
                deployable,
                num_accelerators=1,
                attributes=(
                    ("trait0", "CUSTOM_FPGA_XILINX"),
                    ("rc", "FPGA"),
                ),
            ),
        ),
    )
    world.report(device(), board)
    arqs = world.arqs(1, **{"trait:CUSTOM_FPGA_XILINX": "required"})
    assert len(arqs) == 2
    world.bind(arqs, provider=provider_of(0x30))
    assert len(world.used()) == 2


def test_a_request_that_is_delivered_twice_makes_its_arqs_once(
    world: World,
) -> None:
    world.profile("three", {"resources:FPGA": "3"})
    context = worlds.admin_context()
    made = world.endpoint.create_arqs(context, "three", None, None)
    again = world.endpoint.create_arqs(context, "three", None, None)
    assert again == made
    assert {row.uuid for row in world.all(worlds.Arq)} == set(made)
    other = world.endpoint.create_arqs(
        worlds.admin_context(), "three", None, None
    )
    assert not set(other) & set(made)

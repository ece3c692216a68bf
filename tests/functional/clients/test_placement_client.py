# SPDX-License-Identifier: Apache-2.0
"""The Placement client against the real Placement."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import requests
from keystoneauth1 import adapter

from cyborg import exception
from cyborg import inventory
from cyborg.clients import placement as client
from tests.placement import Answer
from tests.placement import PlacementService

STANDARD = frozenset({"OWNER_CYBORG", "HW_GPU_API_VULKAN"})
CUSTOM = frozenset({"CUSTOM_GPU_NVIDIA", "CUSTOM_NVIDIA_1EB8"})


def wanted(
    name: str = "compute-1_0000:5e:00.0",
    resource_class: str = "PGPU",
    total: int = 2,
    reserved: int = 0,
    traits: frozenset[str] = STANDARD | CUSTOM,
    retired: frozenset[str] = frozenset(),
) -> client.WantedProvider:
    return client.WantedProvider(
        name=name,
        uuid=inventory.provider_uuid(name),
        resource_class=resource_class,
        total=total,
        reserved=reserved,
        traits=traits,
        retired_traits=retired,
    )


def devices(count: int, host: str = "h") -> list[client.WantedProvider]:
    return [wanted(f"{host}_0000:{index:02x}:00.0") for index in range(count)]


def right(total: int = 2, reserved: int = 0) -> dict[str, object]:
    return {
        "total": total,
        "reserved": reserved,
        "min_unit": 1,
        "max_unit": total,
        "step_size": 1,
        "allocation_ratio": 1.0,
    }


@pytest.fixture
def root(placement: PlacementService) -> str:
    return placement.create_provider("compute-1.example.org")


@pytest.fixture
def ours(placement: PlacementService) -> client.Placement:
    return client.Placement(placement.adapter())


def test_a_root_provider_is_found_by_name_and_a_child_or_nothing_is_not(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    placement.create_provider("a child", root)

    assert ours.find_provider("compute-1.example.org") == root
    assert ours.find_provider("a child") is None
    assert ours.find_provider("no/such & host?") is None


def test_a_new_device_gets_provider_inventory_and_traits(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    device = wanted()

    ours.reconcile(root, [device])

    made = placement.providers(root)[device.name]
    assert made["uuid"] == inventory.provider_uuid(device.name)
    assert made["parent_provider_uuid"] == root
    assert placement.inventories(device.uuid) == {"PGPU": right()}
    assert placement.traits(device.uuid) == STANDARD | CUSTOM
    assert placement.candidates(
        "resources=PGPU:1&required=CUSTOM_GPU_NVIDIA,OWNER_CYBORG"
    ) == [device.uuid]


@pytest.mark.parametrize("count", [1, 8, 64])
def test_a_first_report_costs_one_call_and_three_for_each_device(
    placement: PlacementService,
    root: str,
    ours: client.Placement,
    count: int,
) -> None:
    other = placement.create_provider("compute-2")
    ours.reconcile(other, [wanted("compute-2_0")])  # the names are known now

    with placement.counted() as calls:
        ours.reconcile(root, devices(count))

    assert len(calls) == 1 + 3 * count


def test_missing_names_cost_the_same_for_one_device_as_for_many(
    placement: PlacementService, root: str
) -> None:
    costs = []
    for count in (1, 8):
        new = client.Placement(placement.adapter())
        host = placement.create_provider(f"host-{count}")
        traits = frozenset(f"CUSTOM_T{count}_{index}" for index in range(3))
        with placement.counted() as calls:
            new.reconcile(
                host,
                [
                    wanted(f"{host}_{index}", f"CUSTOM_C{count}", 1, 0, traits)
                    for index in range(count)
                ],
            )
        costs.append(len(calls) - 3 * count)
    assert costs == [6, 6]  # tree, traits, three traits made, one class made


def test_an_audit_of_an_unchanged_host_is_one_call(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, devices(8))

    with placement.counted() as calls:
        ours.reconcile(root, devices(8))

    assert [call.path for call in calls] == [
        f"/resource_providers?in_tree={root}"
    ]


def test_an_audit_after_a_restart_reads_each_provider_once(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, devices(8))
    restarted = client.Placement(placement.adapter())

    with placement.counted() as calls:
        restarted.reconcile(root, devices(8))
    with placement.counted() as second:
        restarted.reconcile(root, devices(8))

    assert len(calls) == 1 + 2 * 8
    assert {call.method for call in calls} == {"GET"}
    assert len(second) == 1


@pytest.mark.parametrize("count", [1, 8, 64])
def test_a_change_to_one_device_costs_at_most_four_calls(
    placement: PlacementService,
    root: str,
    ours: client.Placement,
    count: int,
) -> None:
    before = devices(count)
    ours.reconcile(root, before)
    changed = wanted(
        before[0].name,
        "FPGA",
        5,
        traits=STANDARD | {"CUSTOM_NEVER_SEEN"},
        retired=CUSTOM,
    )

    with placement.counted() as calls:
        ours.reconcile(root, [changed, *before[1:]])

    assert len(calls) <= 4
    assert placement.inventories(changed.uuid) == {"FPGA": right(5)}
    assert placement.traits(changed.uuid) == STANDARD | {"CUSTOM_NEVER_SEEN"}


@pytest.mark.parametrize("count", [1, 8])
def test_disabling_costs_two_calls_and_one_for_each_deployable_even_cold(
    placement: PlacementService,
    root: str,
    ours: client.Placement,
    count: int,
) -> None:
    made = [
        wanted(f"d{index}", "CUSTOM_CHIP", 4, traits=STANDARD)
        for index in range(count)
    ]
    ours.reconcile(root, [*made, *devices(8)])
    cold = client.Placement(placement.adapter())
    disabled = [
        wanted(each.name, "CUSTOM_CHIP", 4, 4, STANDARD) for each in made
    ]

    with placement.counted() as calls:
        cold.refresh_inventories(root, disabled)

    assert len(calls) <= 2 + count
    for each in made:
        assert placement.inventories(each.uuid) == {"CUSTOM_CHIP": right(4, 4)}
    assert placement.candidates("resources=CUSTOM_CHIP:1") == []
    with placement.counted() as calls:
        cold.refresh_inventories(root, made)
    assert len(calls) <= 2 + count
    for each in made:
        assert placement.inventories(each.uuid) == {"CUSTOM_CHIP": right(4)}
    assert len(placement.providers(root)) == 1 + count + 8


def test_refreshing_makes_a_missing_provider_whole_and_leaves_others(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    first, second = devices(2)
    ours.reconcile(root, [first])

    ours.refresh_inventories(root, [second])

    assert placement.traits(second.uuid) == STANDARD | CUSTOM
    assert placement.inventories(first.uuid) == {"PGPU": right()}
    assert placement.inventories(second.uuid) == {"PGPU": right()}


def test_a_changed_resource_class_replaces_the_old_one(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, [wanted(resource_class="PGPU")])

    ours.reconcile(root, [wanted(resource_class="VGPU", total=8)])

    assert placement.inventories(wanted().uuid) == {"VGPU": right(8)}


def test_an_old_resource_class_in_use_is_closed_until_it_is_free(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    device = wanted()
    ours.reconcile(root, [device])
    consumer = placement.allocate(device.uuid, {"PGPU": 1})
    changed = wanted(resource_class="VGPU", total=8)

    ours.reconcile(root, [changed])

    both = {"PGPU": right(2, 2), "VGPU": right(8)}
    assert placement.inventories(device.uuid) == both
    assert placement.candidates("resources=PGPU:1") == []
    with placement.counted() as calls:
        ours.reconcile(root, [changed])
    assert len(calls) == 2  # the tree, and whether the old one may go
    cold = client.Placement(placement.adapter())
    cold.refresh_inventories(root, [changed])
    assert placement.inventories(device.uuid) == both
    placement.release(consumer)
    ours.reconcile(root, [changed])
    assert placement.inventories(device.uuid) == {"VGPU": right(8)}


def test_a_total_may_shrink_below_what_is_used(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, [wanted(total=4)])
    placement.allocate(wanted().uuid, {"PGPU": 3})

    ours.reconcile(root, [wanted(total=2)])

    assert placement.inventories(wanted().uuid) == {"PGPU": right(2)}
    assert placement.candidates("resources=PGPU:1") == []


def test_no_accelerators_mean_no_inventory(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, [wanted()])

    ours.reconcile(root, [wanted(total=0)])

    assert placement.inventories(wanted().uuid) == {}


def test_a_device_that_is_gone_loses_its_provider(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    first, second = devices(2)
    ours.reconcile(root, [first, second])

    ours.reconcile(root, [second])

    assert set(placement.providers(root)) == {
        "compute-1.example.org",
        second.name,
    }


def test_a_device_that_is_gone_but_used_is_closed_and_goes_with_its_user(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    device = wanted()
    ours.reconcile(root, [device])
    consumer = placement.allocate(device.uuid, {"PGPU": 1})

    for each in (ours, client.Placement(placement.adapter())):
        each.reconcile(root, [])
        each.reconcile(root, [])
        assert placement.inventories(device.uuid) == {"PGPU": right(2, 2)}

    placement.release(consumer)
    ours.reconcile(root, [])
    assert device.name not in placement.providers(root)


def test_a_device_that_comes_back_while_its_provider_was_closed_is_open(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    device = wanted()
    ours.reconcile(root, [device])
    placement.allocate(device.uuid, {"PGPU": 1})
    ours.reconcile(root, [])

    ours.reconcile(root, [device])

    assert placement.inventories(device.uuid) == {"PGPU": right()}


def test_a_trait_of_an_operator_stays_and_a_retired_one_goes(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    device = wanted()
    ours.reconcile(root, [device])
    operators = {"CUSTOM_RACK_7", "COMPUTE_NODE"}
    placement.set_traits(
        device.uuid, placement.traits(device.uuid) | operators
    )

    ours.reconcile(
        root, [wanted(traits=STANDARD, retired=CUSTOM | {"OWNER_CYBORG"})]
    )

    assert placement.traits(device.uuid) == STANDARD | operators


def test_of_two_devices_that_share_a_trait_only_the_one_that_lost_it_loses_it(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    first, second = devices(2)
    ours.reconcile(root, [first, second])

    ours.reconcile(
        root, [wanted(first.name, traits=STANDARD, retired=CUSTOM), second]
    )

    assert placement.traits(first.uuid) == STANDARD
    assert placement.traits(second.uuid) == STANDARD | CUSTOM


def test_names_that_somebody_else_made_are_no_error(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    placement.ask("PUT", "/traits/CUSTOM_GPU_NVIDIA")
    placement.ask("PUT", "/resource_classes/CUSTOM_CHIP")

    ours.reconcile(root, [wanted(resource_class="CUSTOM_CHIP")])

    assert placement.traits(wanted().uuid) == STANDARD | CUSTOM


def test_names_deleted_behind_our_back_are_made_again(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    first, second = (wanted(each.name, "CUSTOM_CHIP") for each in devices(2))
    ours.reconcile(root, [first])
    ours.reconcile(root, [])
    for trait in CUSTOM:
        placement.ask("DELETE", f"/traits/{trait}")
    placement.ask("DELETE", "/resource_classes/CUSTOM_CHIP")

    ours.reconcile(root, [second])

    assert placement.traits(second.uuid) == STANDARD | CUSTOM
    assert placement.inventories(second.uuid) == {"CUSTOM_CHIP": right()}


def test_a_trait_that_placement_cannot_have_does_not_keep_the_others_back(
    placement: PlacementService,
    root: str,
    ours: client.Placement,
    caplog: pytest.LogCaptureFixture,
) -> None:
    strange = {"HW_OF_NEXT_YEAR", "CUSTOM_small", "CUSTOM_" + "X" * 300}

    ours.reconcile(root, [wanted(traits=STANDARD | CUSTOM | strange)])

    assert placement.traits(wanted().uuid) == STANDARD | CUSTOM
    assert "HW_OF_NEXT_YEAR" in caplog.text
    with placement.counted() as calls:
        ours.reconcile(root, [wanted(traits=STANDARD | CUSTOM | strange)])
    assert len(calls) == 1


def test_a_class_that_placement_does_not_know_stops_only_its_own_device(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    strange, usual = devices(2)

    with pytest.raises(exception.PlacementUnavailable, match="NO_SUCH_CLASS"):
        ours.reconcile(root, [wanted(strange.name, "NO_SUCH_CLASS"), usual])

    assert placement.inventories(usual.uuid) == {"PGPU": right()}
    assert placement.inventories(strange.uuid) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"reserved": 1},
        {"allocation_ratio": 16.0},
        {"max_unit": 1},
        {"step_size": 2},
        {"min_unit": 2},
        {"total": 7, "max_unit": 7},
    ],
)
def test_an_inventory_that_somebody_changed_is_repaired(
    placement: PlacementService,
    root: str,
    ours: client.Placement,
    change: dict[str, float],
) -> None:
    ours.reconcile(root, [wanted()])
    placement.set_inventories(wanted().uuid, {"PGPU": {**right(), **change}})

    ours.reconcile(root, [wanted()])

    assert placement.inventories(wanted().uuid) == {"PGPU": right()}


def test_providers_of_others_are_left_alone(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    theirs = placement.create_provider("compute-1_0000:af:00.0", root)
    placement.set_inventories(theirs, {"VGPU": {"total": 1}})
    shared = placement.create_provider("shared storage")
    before = placement.generation(theirs), placement.generation(root)

    ours.reconcile(root, [wanted()])
    ours.reconcile(root, [])

    assert set(placement.providers(root)) == {
        "compute-1.example.org",
        "compute-1_0000:af:00.0",
    }
    assert (placement.generation(theirs), placement.generation(root)) == before
    assert placement.generation(shared) == 0


def test_another_host_is_not_touched(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    other = placement.create_provider("compute-2")
    theirs = wanted("compute-2_0")
    ours.reconcile(other, [theirs])
    before = placement.generation(theirs.uuid)

    ours.reconcile(root, [wanted()])
    ours.reconcile(root, [])

    assert placement.generation(theirs.uuid) == before


def test_a_missing_root_is_not_found_and_nothing_is_made(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    absent = "11111111-2222-4333-8444-555555555555"

    with pytest.raises(exception.NotFound, match=absent):
        ours.reconcile(absent, [wanted()])
    with pytest.raises(exception.NotFound, match=absent):
        ours.refresh_inventories(absent, [wanted()])

    assert set(placement.providers(root)) == {"compute-1.example.org"}


def test_a_root_that_goes_while_we_write_is_not_found(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    def remove_root(method: str, path: str, body: bytes) -> None:
        if method == "POST":
            placement.ask("DELETE", f"/resource_providers/{root}")

    placement.hook = remove_root

    with pytest.raises(exception.NotFound, match=root):
        ours.reconcile(root, [wanted()])


def test_a_provider_renamed_by_somebody_gets_its_name_back(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, [wanted()])
    path = f"/resource_providers/{wanted().uuid}"
    placement.ask("PUT", path, {"name": "mine"}, version="1.26")

    ours.reconcile(root, [wanted()])

    assert wanted().name in placement.providers(root)
    assert "mine" not in placement.providers(root)


def test_a_provider_below_another_root_is_left_there_and_named(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    old = placement.create_provider("old-name")
    first, second = devices(2)
    ours.reconcile(old, [first])

    with pytest.raises(exception.PlacementUnavailable) as caught:
        ours.reconcile(root, [first, second])

    assert first.uuid in caught.value.message
    assert old in caught.value.message
    assert second.name in placement.providers(root)
    assert first.name in placement.providers(old)


def test_a_name_that_another_provider_has_is_refused_and_named(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    first, second = devices(2)
    placement.create_provider(first.name, root)

    with pytest.raises(exception.PlacementUnavailable, match=first.name):
        ours.reconcile(root, [first, second])

    assert placement.inventories(second.uuid) == {"PGPU": right()}


def test_a_provider_deleted_behind_our_back_is_made_again(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, [wanted()])
    placement.ask("DELETE", f"/resource_providers/{wanted().uuid}")

    ours.reconcile(root, [wanted()])

    assert placement.inventories(wanted().uuid) == {"PGPU": right()}
    assert placement.traits(wanted().uuid) == STANDARD | CUSTOM


def test_a_provider_deleted_between_reading_and_writing_is_made_again(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, [wanted()])
    path = f"/resource_providers/{wanted().uuid}"

    def delete_once(method: str, asked: str, body: bytes) -> None:
        if method == "PUT":
            placement.hook = None
            placement.ask("DELETE", path)

    placement.hook = delete_once
    ours.reconcile(root, [wanted(total=5)])

    assert placement.inventories(wanted().uuid) == {"PGPU": right(5)}
    assert placement.traits(wanted().uuid) == STANDARD | CUSTOM


def test_a_write_that_lost_a_race_reads_again_and_keeps_the_others_change(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, [wanted(traits=STANDARD)])
    uuid = wanted().uuid

    def operator_first(method: str, path: str, body: bytes) -> None:
        if method == "PUT" and path.endswith("/traits"):
            placement.hook = None
            placement.set_traits(uuid, STANDARD | {"CUSTOM_RACK_7"})

    placement.hook = operator_first
    ours.reconcile(root, [wanted(traits=STANDARD | CUSTOM)])

    assert placement.traits(uuid) == STANDARD | CUSTOM | {"CUSTOM_RACK_7"}


def test_allocations_at_the_same_time_do_not_stop_a_disable(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, [wanted(total=16)])
    left = 3

    def allocate(method: str, path: str, body: bytes) -> None:
        nonlocal left
        if method == "PUT" and left:
            left -= 1
            placement.allocate(wanted().uuid, {"PGPU": 1})

    placement.hook = allocate
    ours.refresh_inventories(root, [wanted(total=16, reserved=16)])

    assert left == 0
    assert placement.inventories(wanted().uuid) == {"PGPU": right(16, 16)}


def test_a_provider_that_changes_for_ever_is_given_up_after_bounded_tries(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    ours.reconcile(root, [wanted()])
    conflict = Answer(
        409,
        {
            "errors": [
                {
                    "code": "placement.concurrent_update",
                    "detail": "generation conflict",
                }
            ]
        },
    )
    placement.hook = lambda method, path, body: (
        conflict if method == "PUT" else None
    )

    with (
        placement.counted() as calls,
        pytest.raises(
            exception.PlacementUnavailable, match="generation conflict"
        ),
    ):
        ours.reconcile(root, [wanted(total=5)])

    assert len(calls) <= 25


def _raise(error: Exception) -> object:
    def hook(method: str, path: str, body: bytes) -> None:
        raise error

    return hook


FAILURES = {
    "500": lambda *_: Answer(500),
    "502 in HTML": lambda *_: Answer(502),
    "503": lambda *_: Answer(503),
    "our credential is refused": lambda *_: Answer(401),
    "our role does not suffice": lambda *_: Answer(403),
    "down": _raise(requests.ConnectionError("refused")),
    "no answer": _raise(requests.ReadTimeout("too slow")),
    "too old": lambda *_: Answer(406),
    "half an answer": _raise(
        requests.exceptions.ChunkedEncodingError("broken")
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_an_outage_is_one_clear_error_after_one_call_and_heals(
    placement: PlacementService,
    root: str,
    ours: client.Placement,
    failure: str,
) -> None:
    placement.hook = FAILURES[failure]
    for attempt in (
        lambda: ours.reconcile(root, devices(8)),
        lambda: ours.refresh_inventories(root, devices(8)),
        lambda: ours.find_provider("compute-1.example.org"),
    ):
        with (
            placement.counted() as calls,
            pytest.raises(exception.PlacementUnavailable, match="Placement"),
        ):
            attempt()
        assert len(calls) == 1

    placement.hook = None
    ours.reconcile(root, devices(8))

    assert len(placement.providers(root)) == 9


def test_an_outage_in_the_middle_stops_there_and_the_next_call_completes(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    writes = 0

    def fail_fourth(method: str, path: str, body: bytes) -> Answer | None:
        nonlocal writes
        writes += path.startswith("/resource_providers/")
        return Answer(503) if writes == 4 else None

    placement.hook = fail_fourth
    with pytest.raises(exception.PlacementUnavailable):
        ours.reconcile(root, devices(4))
    placement.hook = None

    ours.reconcile(root, devices(4))

    for device in devices(4):
        assert placement.inventories(device.uuid) == {"PGPU": right()}
        assert placement.traits(device.uuid) == STANDARD | CUSTOM


@pytest.mark.parametrize("lost", range(3, 13))
def test_a_write_whose_answer_was_lost_is_made_good(
    placement: PlacementService,
    root: str,
    ours: client.Placement,
    lost: int,
) -> None:
    inner = placement.answer
    count = 0

    class Lossy(PlacementService):
        """Does the work of call number `lost`, and loses the answer."""

        def __init__(self) -> None:
            self.calls = []
            self.hook = None

        def answer(self, *arguments: Any) -> Any:
            nonlocal count
            count += 1
            found = inner(*arguments)
            if count == lost:
                raise requests.ReadTimeout("lost")
            return found

    lossy = client.Placement(Lossy().adapter())

    def report_twice() -> None:
        for total in (2, 3):
            lossy.reconcile(root, [wanted(total=total), *devices(1)])

    with pytest.raises(exception.PlacementUnavailable):
        report_twice()

    lossy.reconcile(root, [wanted(total=3), *devices(1)])

    assert placement.inventories(wanted().uuid) == {"PGPU": right(3)}
    assert placement.traits(wanted().uuid) == STANDARD | CUSTOM


def _run_all(jobs: Sequence[threading.Thread]) -> None:
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
        assert not job.is_alive()


def test_many_hosts_and_one_host_many_times_at_once(
    placement: PlacementService,
) -> None:
    roots = [placement.create_provider(f"h{index}") for index in range(6)]
    shared = client.Placement(placement.adapter())
    others = [client.Placement(placement.adapter()) for _ in range(2)]
    errors: list[Exception] = []

    def job(each: client.Placement, index: int) -> None:
        try:
            each.reconcile(roots[index], devices(3, f"h{index}"))
        except exception.CyborgError as error:
            errors.append(error)

    _run_all(
        [
            threading.Thread(target=job, args=(each, index))
            for each in (shared, shared, *others)
            for index in range(6)
        ]
    )

    assert errors == []
    for index, root in enumerate(roots):
        assert len(placement.providers(root)) == 4
        for device in devices(3, f"h{index}"):
            assert placement.inventories(device.uuid) == {"PGPU": right()}
            assert placement.traits(device.uuid) == STANDARD | CUSTOM


def test_one_host_is_never_worked_on_twice_at_once_in_a_process(
    placement: PlacementService, root: str, ours: client.Placement
) -> None:
    inside = 0
    most = 0
    guard = threading.Lock()

    class Watched(adapter.Adapter):
        def request(self, *arguments: Any, **options: Any) -> Any:
            nonlocal inside, most
            with guard:
                inside += 1
                most = max(most, inside)
            try:
                return super().request(*arguments, **options)
            finally:
                with guard:
                    inside -= 1

    watched = client.Placement(
        Watched(placement.adapter().session, service_type="placement")
    )
    _run_all(
        [
            threading.Thread(target=watched.reconcile, args=(root, devices(3)))
            for _ in range(4)
        ]
    )

    assert most == 1
    assert len(placement.providers(root)) == 4

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import inventory
from cyborg.db import models

NAMES = st.text(
    st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=8
)
HANDLES = st.builds(
    inventory.AttachHandle,
    st.sampled_from(inventory.AttachType),
    NAMES,
)
DEPLOYABLES = st.builds(
    inventory.Deployable,
    name=NAMES,
    num_accelerators=st.integers(0, 4),
    driver_name=NAMES,
    attributes=st.lists(st.tuples(NAMES, NAMES), max_size=3).map(tuple),
    attach_handles=st.lists(HANDLES, max_size=3).map(tuple),
)
DEVICES = st.builds(
    inventory.Device,
    controlpath=st.sampled_from("abcdef"),
    type=st.sampled_from(inventory.DeviceType),
    vendor=NAMES,
    model=NAMES,
    driver=NAMES,
    fault=st.sampled_from(("", "hot")),
    deployables=st.lists(DEPLOYABLES, max_size=2).map(tuple),
)
HOSTS = st.lists(DEVICES, max_size=6, unique_by=lambda one: one.controlpath)


def by_path(
    devices: tuple[inventory.Device, ...] | list[inventory.Device],
) -> dict[str, inventory.Device]:
    return {device.controlpath: device for device in devices}


@given(HOSTS, HOSTS)
def test_applying_the_difference_gives_the_other(
    stored: list[inventory.Device], reported: list[inventory.Device]
) -> None:
    changes = inventory.diff(stored, reported)
    assert by_path(inventory.apply(changes, stored)) == by_path(reported)


@given(HOSTS, st.randoms())
def test_a_host_does_not_differ_from_itself(
    stored: list[inventory.Device], random: object
) -> None:
    shuffled = list(stored)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert not inventory.diff(stored, shuffled)


@given(HOSTS, HOSTS)
def test_a_difference_names_each_device_once(
    stored: list[inventory.Device], reported: list[inventory.Device]
) -> None:
    changes = inventory.diff(stored, reported)
    named = [
        device.controlpath
        for device in (
            *changes.added,
            *changes.removed,
            *(new for _, new in changes.changed),
        )
    ]
    assert len(named) == len(set(named))
    assert all(old != new for old, new in changes.changed)


def report(**values: object) -> inventory.HostReport:
    base = inventory.HostReport("host", "host.example.org", None)
    return dataclasses.replace(base, **values)  # type: ignore[arg-type]


@given(HOSTS, HOSTS)
def test_equal_reports_and_no_others_have_equal_digests(
    one: list[inventory.Device], other: list[inventory.Device]
) -> None:
    first, second = report(devices=tuple(one)), report(devices=tuple(other))
    assert (first == second) == (first.digest() == second.digest())


def test_a_digest_depends_on_all_of_a_report() -> None:
    digests = {
        report().digest(),
        report(provider_uuid="x").digest(),
        report(provider_name="x").digest(),
        report(host="x").digest(),
        report(faults=(inventory.DriverFault("a", "b"),)).digest(),
    }
    assert len(digests) == 5


def test_provider_uuids_are_those_that_operators_have() -> None:
    assert inventory.provider_uuid("compute-2_0000:3b:00.0") == (
        "5aa11f72-d806-325a-bdcb-450761a4e3ee"
    )


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("CUSTOM_FPGA_INTEL", True),
        ("HW_GPU_API_VULKAN", True),
        ("OWNER_CYBORG", True),
        ("CUSTOM_", False),
        ("CUSTOM_a b!", False),
        ("CUSTOM_X\n", False),
        ("FPGA_NOBODY_KNOWS", False),
        ("", False),
        ("CUSTOM_" + "A" * 248, True),
        ("CUSTOM_" + "A" * 249, False),
    ],
)
def test_traits_are_judged_as_placement_does(name: str, legal: bool) -> None:
    assert inventory.is_trait(name) is legal


def test_resource_classes_are_judged_as_placement_does() -> None:
    assert inventory.is_resource_class("FPGA")
    assert inventory.is_resource_class("SRIOV_NET_VF")
    assert inventory.is_resource_class("CUSTOM_QAT")
    assert not inventory.is_resource_class("CUSTOM_foo bar")
    assert not inventory.is_resource_class("QAT")


@given(st.text(max_size=300))
def test_any_words_make_a_legal_custom_name(words: str) -> None:
    name = inventory.custom_name(words or "X")
    assert inventory.is_trait(name)


def test_the_kinds_are_those_of_the_database() -> None:
    assert {kind.value for kind in inventory.DeviceType} == set(
        models.DEVICE_TYPES
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"bus": "5e", "device": "00", "domain": "0000", "function": "1"}',
        '{"function":"1","domain":"0000","device":"00","bus":"5e"}',
    ],
)
def test_an_address_is_the_same_however_it_is_spelled(text: str) -> None:
    assert inventory.canonical(text) == inventory.pci_json("0000:5e:00.1")


@pytest.mark.parametrize("text", ["", "nvme0", "[1]", "7", '"x"', "{"])
def test_what_is_no_json_object_is_left_alone(text: str) -> None:
    assert inventory.canonical(text) == text


def test_a_pci_address_has_string_keys_in_order() -> None:
    text = inventory.pci_json("0000:5E:00.1", {"physical_network": "net1"})
    assert json.loads(text) == {
        "bus": "5e",
        "device": "00",
        "domain": "0000",
        "function": "1",
        "physical_network": "net1",
    }
    assert list(json.loads(text)) == sorted(json.loads(text))
    with pytest.raises(ValueError, match="not a PCI address"):
        inventory.pci_json("5e:00.1")

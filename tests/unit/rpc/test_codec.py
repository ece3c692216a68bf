# SPDX-License-Identifier: Apache-2.0
"""What crosses RPC comes out as it went in."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import exception
from cyborg import inventory
from cyborg.rpc import agent
from cyborg.rpc import codec
from cyborg.rpc import conductor

SHAPES = {
    inventory.HostReport: "6093d90c4301f486",
    conductor.Binding: "370d1423d78176a8",
    agent.ProgramOrder: "f8b93d831914eea3",
    agent.ProgramResult: "b4ddc4695034557d",
    agent.UnitsOrder: "ec33c1f5bbfb4264",
    agent.CleanResult: "44d6ade426c61c49",
}
"""A changed shape needs a new RPC version: then, and only then, a new hash."""

texts = st.text(max_size=20)
handles = st.builds(
    inventory.AttachHandle,
    attach_type=st.sampled_from(inventory.AttachType),
    attach_info=texts,
)
deployables = st.builds(
    inventory.Deployable,
    name=texts,
    num_accelerators=st.integers(0, 64),
    driver_name=texts,
    attributes=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    attach_handles=st.lists(handles, max_size=3).map(tuple),
    fault=texts,
)
devices = st.builds(
    inventory.Device,
    controlpath=texts,
    type=st.sampled_from(inventory.DeviceType),
    vendor=texts,
    model=texts,
    driver=texts,
    std_board_info=st.none() | texts,
    vendor_board_info=st.none() | texts,
    fault=texts,
    deployables=st.lists(deployables, max_size=2).map(tuple),
    clean_seconds=st.none() | st.integers(1, 10**6),
)
reports = st.builds(
    inventory.HostReport,
    host=texts,
    provider_name=texts,
    provider_uuid=st.none() | texts,
    devices=st.lists(devices, max_size=2).map(tuple),
    faults=st.lists(
        st.builds(inventory.DriverFault, driver=texts, error=texts),
        max_size=2,
    ).map(tuple),
)
orders = st.builds(
    agent.UnitsOrder,
    job_uuid=texts,
    driver=texts,
    controlpath=texts,
    deployable_name=texts,
    units=st.lists(
        st.builds(
            agent.Unit, uuid=texts, attach_type=texts, attach_info=texts
        ),
        max_size=3,
    ).map(tuple),
    timeout=st.floats(0, 1e6),
)


@given(reports)
def test_a_report_survives_a_message(report: inventory.HostReport) -> None:
    message = json.loads(json.dumps(codec.encode(report)))
    assert codec.decode(inventory.HostReport, message) == report


@given(orders)
def test_an_order_survives_a_message(order: agent.UnitsOrder) -> None:
    message = json.loads(json.dumps(codec.encode(order)))
    assert codec.decode(agent.UnitsOrder, message) == order


@pytest.mark.parametrize(("cls", "expected"), SHAPES.items())
def test_the_shape_of_a_payload_changes_only_with_its_version(
    cls: type, expected: str
) -> None:
    text = json.dumps(codec.shape(cls), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == expected


def test_a_key_of_a_newer_release_is_passed_over() -> None:
    result = codec.decode(
        agent.ProgramResult, {"bitstream_id": "b", "colour": "blue"}
    )
    assert result == agent.ProgramResult("b")


def test_a_key_that_an_older_release_does_not_send_takes_its_default() -> None:
    device = codec.decode(
        inventory.Device,
        {
            "controlpath": "p",
            "type": "GPU",
            "vendor": "v",
            "model": "m",
            "driver": "d",
        },
    )
    assert device.deployables == ()
    assert device.fault == ""
    assert device.clean_seconds is None
    deployable = codec.decode(
        inventory.Deployable,
        {"name": "n", "num_accelerators": 1, "driver_name": "d"},
    )
    assert deployable.fault == ""
    assert codec.decode(agent.CleanResult, {"done": False}).percent == 0


@dataclasses.dataclass(frozen=True)
class Sample:
    number: float
    names: Mapping[str, int] = dataclasses.field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    pair: tuple[str, int] = ("", 0)


def test_maps_sets_and_fixed_tuples_survive_a_message() -> None:
    sample = Sample(1.5, {"a": 1}, frozenset({"x", "y"}), ("p", 2))
    message = json.loads(json.dumps(codec.encode(sample)))
    assert codec.decode(Sample, message) == sample


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "number: missing"),
        ({"number": "1"}, "number: expected float, not str"),
        ({"number": 1, "names": {"a": "b"}}, "names: expected int, not str"),
        ({"number": 1, "pair": ["a"]}, "pair: expected 2 items"),
        ({"number": 1, "marks": "xy"}, "marks: expected list, not str"),
        ([], "expected dict, not list"),
    ],
)
def test_a_message_of_another_shape_is_refused_by_the_fields_name(
    data: object, field: str
) -> None:
    with pytest.raises(exception.Invalid) as caught:
        codec.decode(Sample, data)
    assert caught.value.message == field


def test_an_unknown_member_of_an_enumeration_is_refused() -> None:
    with pytest.raises(exception.Invalid, match="TOASTER"):
        codec.decode(
            inventory.AttachHandle,
            {"attach_type": "TOASTER", "attach_info": ""},
        )


def test_what_json_cannot_hold_does_not_cross() -> None:
    with pytest.raises(TypeError, match="object cannot cross RPC"):
        codec.encode(object())

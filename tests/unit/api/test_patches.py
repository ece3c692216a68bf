# SPDX-License-Identifier: Apache-2.0
"""What the PATCH of accelerator requests asks for."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import exception
from cyborg.api.microversions import Version
from cyborg.api.v2 import patches
from cyborg.rpc.conductor import Binding

PLACES = ("/hostname", "/device_rp_uuid", "/instance_uuid")
PROVIDER = "9c796892-5dfb-5303-b920-3b65606f3a56"
INSTANCE = "5922a70f-1e06-4cfd-88dd-a332120d7144"
NEW = Version(2, 1)
VALUES = {
    "/hostname": "compute-1",
    "/device_rp_uuid": PROVIDER,
    "/instance_uuid": INSTANCE,
    "/project_id": "p",
}


def entries(operation: str, *paths: str) -> list[dict[str, Any]]:
    return [
        {"op": operation, "path": path, "value": VALUES[path]}
        for path in paths
    ]


def parse(body: Any, version: Version = NEW) -> patches.Change:
    patches.SCHEMA.check(body)
    return patches.parse(body, version)


uuids = st.lists(st.uuids().map(str), min_size=1, max_size=5, unique=True)


@given(uuids, st.permutations(PLACES))
def test_a_bind_binds_each_of_its_requests(
    keys: list[str], paths: list[str]
) -> None:
    change = parse({key: entries("add", *paths) for key in keys})
    assert change.uuids == keys
    assert change.bindings == [
        Binding(key, "compute-1", PROVIDER, INSTANCE) for key in keys
    ]


@given(uuids, st.permutations(PLACES))
def test_an_unbind_names_each_of_its_requests(
    keys: list[str], paths: list[str]
) -> None:
    change = parse({key: entries("remove", *paths) for key in keys})
    assert (change.uuids, change.bindings) == (keys, [])


entry = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from(["add", "remove", "replace", 5, None]),
        "path": st.sampled_from([*VALUES, "/other", "", 5]),
        "value": st.sampled_from([*VALUES.values(), "", None, 5, "x" * 256]),
        "more": st.none(),
    },
)


@given(
    st.dictionaries(
        st.uuids().map(str) | st.text(max_size=5),
        st.lists(entry, max_size=5),
        max_size=3,
    ),
    st.sampled_from([Version(2, 0), Version(2, 3)]),
)
def test_anything_else_is_invalid(body: Any, version: Version) -> None:
    try:
        change = parse(body, version)
    except exception.Invalid as error:
        message = error.message
    else:
        message = "taken"
        assert len(change.uuids) == len(body)
        assert change.bindings == [] or len(change.bindings) == len(body)
    assert message


def test_the_project_is_taken_from_2_1() -> None:
    body = {str(uuid.uuid4()): entries("add", *PLACES, "/project_id")}
    assert parse(body).bindings[0].project_id == "p"
    with pytest.raises(exception.Invalid, match="/project_id"):
        parse(body, Version(2, 0))

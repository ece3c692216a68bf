# SPDX-License-Identifier: Apache-2.0
"""Queries, and what is shown of a row."""

from __future__ import annotations

import datetime
import types as python_types
import urllib.parse
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import exception
from cyborg.api import types
from cyborg.api.microversions import Version

A_UUID = "4f2c1d0e-8a6b-4c3d-9e5f-7a1b2c3d4e5f"
UUID = "0f9ab253-66ea-4693-8601-2277059038cb"
LIST = types.Parameters(
    own={"instance": types.TEXT},
    columns=dict.fromkeys(("uuid", "name", "type")),
)


@given(st.text(max_size=60))
def test_any_query_is_parsed_or_invalid(text: str) -> None:
    quoted = urllib.parse.quote(text, safe="&=%.[]+;", errors="replace")
    try:
        LIST.parse(quoted)
    except exception.Invalid:
        return


@given(
    st.lists(
        st.sampled_from(
            ["filters", "filters.field", "filters.value", "filters[0].field"]
            + ["filters[0].value", "filters[1]", "filters.x", "filters."]
        ),
        max_size=6,
    ),
    st.sampled_from(["name", "limit", "1", ""]),
)
def test_odd_filters_are_parsed_or_invalid(
    names: list[str], value: str
) -> None:
    try:
        LIST.parse("&".join(f"{name}={value}" for name in names))
    except exception.Invalid:
        return


@pytest.mark.parametrize(
    "text",
    [
        "name=a&type=b&limit=3&sort_key=name&sort_dir=desc",
        "filters.field=name&filters.value=a&filters.field=type"
        "&filters.value=b&filters.field=limit&filters.value=3"
        "&filters.field=sort_key&filters.value=name"
        "&filters.field=sort_dir&filters.value=desc",
    ],
    ids=["plain", "filters"],
)
def test_both_ways_of_filtering_mean_the_same(text: str) -> None:
    page = LIST.parse(text).page
    assert page.filters == {"name": "a", "type": "b"}
    assert (page.limit, page.sort_key, page.sort_dir) == (3, "name", "desc")


def test_an_endpoint_without_a_list_knows_its_own_parameters_alone() -> None:
    alone = types.Parameters(own={"value": types.TEXT})
    assert alone.parse("value=a,b").own == {"value": "a,b"}
    for text in ("limit=1", "name=x", "filters.field=a&filters.value=b"):
        with pytest.raises(exception.Invalid):
            alone.parse(text)


@pytest.mark.parametrize("text", ["new=1", "sort_key=new"])
def test_a_column_is_known_from_its_version_on(text: str) -> None:
    known = types.Parameters(
        columns=dict.fromkeys(("uuid", "new")), since={"new": Version(2, 3)}
    )
    page = known.parse(text, Version(2, 3)).page
    assert (page.filters, page.sort_key) in [({"new": "1"}, None), ({}, "new")]
    with pytest.raises(exception.Invalid, match="new"):
        known.parse(text, Version(2, 2))
    filters = "filters.field=new&filters.value=1"
    assert known.parse(filters, Version(2, 3)).page.filters == {"new": "1"}
    with pytest.raises(exception.Invalid, match="new"):
        known.parse(filters, Version(2, 2))


@given(st.uuids())
def test_every_spelling_of_a_uuid_is_the_same(value: uuid.UUID) -> None:
    for text in (str(value), value.hex, str(value).upper()):
        assert types.as_uuid(text) == str(value)


@pytest.mark.parametrize(
    "text",
    ["", "x", None, 5, "0" * 31, f"{{{A_UUID}}}", f"{A_UUID}\n"]
    + [f"urn:uuid:{A_UUID}"],
)
def test_what_is_no_uuid_is_none(text: object) -> None:
    assert types.as_uuid(text) is None


def test_a_view_shows_what_its_version_knows() -> None:
    view = types.View(
        "things",
        types.Field("uuid"),
        types.Field("new", lambda row: row.old * 2, since=Version(2, 3)),
        bookmark=True,
    )
    row = python_types.SimpleNamespace(
        uuid="u",
        old=21,
        created_at=datetime.datetime.fromisoformat("2026-11-29T16:19:32.900"),
        updated_at=None,
    )
    shown = {
        "uuid": "u",
        "created_at": "2026-11-29T16:19:32+00:00",
        "updated_at": None,
        "links": [
            {"href": "http://x/v2/things/u", "rel": "self"},
            {"href": "http://x/things/u", "rel": "bookmark"},
        ],
    }
    assert view.render([row], Version(2, 2), "http://x") == [shown]
    assert view.render([row], Version(2, 3), "http://x") == [
        {**shown, "new": 42}
    ]

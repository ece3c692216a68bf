# SPDX-License-Identifier: Apache-2.0
"""From bytes to values that can be trusted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import exception
from cyborg.api import body

storable = st.text(
    st.characters(max_codepoint=0xFFFF, exclude_characters="\0", codec="utf-8")
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(storable, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values)
def test_what_is_json_is_read_as_it_was_meant(value: object) -> None:
    assert body.parse(json.dumps(value).encode()) == value


@given(st.binary())
def test_any_bytes_are_a_value_or_invalid(data: bytes) -> None:
    try:
        body.parse(data)
    except exception.Invalid:
        return
    json.loads(data)


@pytest.mark.parametrize("depth", [1, 31, 32])
@pytest.mark.parametrize("inner", ["", "1", '"text"'])
def test_thirty_two_levels_are_read(depth: int, inner: str) -> None:
    body.parse(("[" * depth + inner + "]" * depth).encode())


@pytest.mark.parametrize("depth", [33, 500, 5_000, 100_000])
def test_more_levels_are_invalid(depth: int) -> None:
    for text in (
        "[" * depth + "]" * depth,
        '{"a":' * depth + "1" + "}" * depth,
    ):
        with pytest.raises(exception.Invalid, match="nested deeper"):
            body.parse(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        *('"\\u0000"', '"\\ud800"', '["\\ud83d\\ude00"]', '{"\\u0000": 1}'),
        *("NaN", "[-Infinity]", '{"a": 1, "a": 1}', "[1,]", "'a'", ""),
    ],
)
def test_what_cannot_be_stored_or_meant_is_invalid(text: str) -> None:
    with pytest.raises(exception.Invalid):
        body.parse(text.encode())


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({}, "amount"),
        ({"amount": 1.0}, "amount"),
        ({"amount": True}, "amount"),
        ({"amount": 1, "more": 2}, "more"),
        ({"amount": "x" * 10_000}, "amount"),
    ],
)
def test_a_schema_names_the_field_in_few_words(
    value: object, named: str
) -> None:
    schema = body.Schema(
        {
            "type": "object",
            "properties": {"amount": {"type": "integer"}},
            "required": ["amount"],
            "additionalProperties": False,
        }
    )
    schema.check({"amount": 10**400})
    with pytest.raises(exception.Invalid, match=named) as caught:
        schema.check(value)
    assert len(caught.value.message) < 500

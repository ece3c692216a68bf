# SPDX-License-Identifier: Apache-2.0
"""How a request asks for a microversion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import exception
from cyborg.api import microversions
from cyborg.api.microversions import Version


@pytest.mark.parametrize(
    ("header", "version"),
    [
        (None, "2.0"),
        ("", "2.0"),
        (" , ", "2.0"),
        ("accelerator 2.0", "2.0"),
        ("accelerator 2.3", "2.3"),
        ("ACCELERATOR 2.2", "2.2"),
        ("  accelerator   2.1 ", "2.1"),
        ("2.1", "2.1"),
        ("accelerator 2.4", "2.4"),
        ("latest", "2.4"),
        ("accelerator latest", "2.4"),
        ("compute 2.1", "2.0"),
        ("compute 2.99", "2.0"),
        ("compute 2.1, accelerator 2.3", "2.3"),
        ("accelerator 2.3,placement 1.36", "2.3"),
        ("accelerator 2.3, accelerator 2.3", "2.3"),
    ],
)
def test_the_header_names_a_version(header: str | None, version: str) -> None:
    assert str(microversions.negotiate(header)) == version


@pytest.mark.parametrize(
    "header",
    [
        *("accelerator", "accelerator 2", "accelerator two", "nonsense"),
        *("accelerator 2.5", "accelerator 1.9", "accelerator 3.0"),
        *("accelerator 2.03", "accelerator 2.-1", "accelerator 2.1.0"),
        *("accelerator 2.1 2.2", "accelerator 2.1, accelerator 2.2"),
        *("2.5", "accelerator \u0662.\u0661", "accelerator " + "9" * 5000),
    ],
)
def test_what_is_not_served_is_refused_with_the_range(header: str) -> None:
    with pytest.raises(exception.NotAcceptable, match=r"2\.0 to 2\.4"):
        microversions.negotiate(header)


@given(st.text())
def test_no_header_does_anything_else(header: str) -> None:
    try:
        version = microversions.negotiate(header)
    except exception.NotAcceptable:
        return
    assert version in microversions.HISTORY


def test_versions_compare_as_numbers() -> None:
    assert Version(2, 10) > Version(2, 9)
    assert Version(2, 0) == microversions.MINIMUM
    assert Version(2, 4) == microversions.MAXIMUM

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from cyborg.conductor import providers
from cyborg.db.hosts import Offer


def offer(**values: object) -> Offer:
    base: dict[str, object] = {
        "id": 1,
        "name": "node_0000:5e:00.0",
        "rp_uuid": "rp-1",
        "num_accelerators": 4,
        "withheld": False,
        "attributes": (("trait0", "CUSTOM_A"), ("rc", "FPGA")),
        "retired_traits": None,
    }
    return Offer(**(base | values))  # type: ignore[arg-type]


def test_a_deployable_becomes_a_provider() -> None:
    (found,) = providers.wanted([offer()])
    assert (found.name, found.uuid) == ("node_0000:5e:00.0", "rp-1")
    assert (found.resource_class, found.total, found.reserved) == (
        "FPGA",
        4,
        0,
    )
    assert found.traits == {"CUSTOM_A", "OWNER_CYBORG"}
    assert found.retired_traits == frozenset()


def test_what_is_withheld_is_reserved_whole() -> None:
    (found,) = providers.wanted([offer(withheld=True)])
    assert found.reserved == found.total == 4


@pytest.mark.parametrize(
    ("total", "handles", "cleaned", "reserved"),
    [
        (4, 4, 0, 0),
        (4, 4, 1, 1),
        (4, 4, 4, 4),
        (2, 4, 1, 1),
        (2, 4, 2, 1),
        (2, 4, 3, 2),
        (4, 3, 3, 3),
        (1, 0, 0, 0),
        (1, 2, 3, 1),
    ],
)
def test_what_is_cleaned_is_reserved(
    total: int, handles: int, cleaned: int, reserved: int
) -> None:
    (found,) = providers.wanted(
        [offer(num_accelerators=total, handles=handles, cleaned=cleaned)]
    )
    assert (found.total, found.reserved) == (total, reserved)


@pytest.mark.parametrize(
    "values",
    [
        {"rp_uuid": None},
        {"num_accelerators": 0},
        {"attributes": (("trait0", "CUSTOM_A"),)},
        {"attributes": (("rc", "not legal"),)},
    ],
)
def test_what_placement_could_not_hold_has_no_provider(
    values: dict[str, object],
) -> None:
    assert providers.wanted([offer(**values)]) == []


def test_an_illegal_trait_is_left_out() -> None:
    (found,) = providers.wanted(
        [offer(attributes=(("trait0", "what ever"), ("rc", "FPGA")))]
    )
    assert found.traits == {"OWNER_CYBORG"}


@pytest.mark.parametrize(
    ("stored", "retired"),
    [
        (None, set()),
        ('["CUSTOM_A", "CUSTOM_B"]', {"CUSTOM_B"}),
        ("not json", set()),
        ("{}", set()),
        ('["CUSTOM_B", 7]', {"CUSTOM_B"}),
    ],
)
def test_retired_traits_are_those_that_it_has_no_more(
    stored: str | None, retired: set[str]
) -> None:
    (found,) = providers.wanted([offer(retired_traits=stored)])
    assert found.retired_traits == retired


def test_two_deployables_of_one_provider_are_one() -> None:
    found = providers.wanted([offer(), offer(id=2, num_accelerators=1)])
    assert [one.total for one in found] == [4]

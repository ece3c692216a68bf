# SPDX-License-Identifier: Apache-2.0
"""What a device profile may ask for, and how many accelerators that is."""

from __future__ import annotations

import os_resource_classes
import os_traits
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import exception
from cyborg import profile

UUID = "864fc4a0-1c3e-4d8e-9a40-55b1f7a0d9a1"

custom = st.from_regex(r"\ACUSTOM_[A-Z0-9_]{1,20}\Z")
classes = st.sampled_from(sorted(os_resource_classes.STANDARDS)) | custom
traits = st.sampled_from(sorted(os_traits.get_traits())) | custom
amounts = st.integers(1, 64)
padding = st.sampled_from(["", " ", "  "])


@st.composite
def groups_to_send(draw: st.DrawFn) -> dict[str, object]:
    """A group as a client may write it."""
    group: dict[str, object] = {}
    for name in draw(st.sets(classes, min_size=1, max_size=3)):
        amount = draw(amounts)
        key = f"resources:{draw(padding)}{name}{draw(padding)}"
        group[key] = draw(st.sampled_from([amount, str(amount)]))
    for name in draw(st.sets(traits, max_size=3)):
        key = f"trait:{draw(padding)}{name}{draw(padding)}"
        group[key] = draw(st.sampled_from(["required", "forbidden"]))
    if draw(st.booleans()):
        group["accel:function_id"] = draw(st.text())
    return group


odd_values = st.none() | st.booleans() | st.integers() | st.text()
anything = st.recursive(
    odd_values | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(groups_to_send(), min_size=1, max_size=4))
def test_what_parse_gives_is_strings_and_parses_to_itself(
    groups: list[dict[str, object]],
) -> None:
    parsed = profile.parse(groups)
    assert len(parsed) == len(groups)
    for group in parsed:
        assert all(
            isinstance(key, str) and isinstance(value, str)
            for key, value in group.items()
        )
        assert not any(
            key.partition(":")[2] != key.partition(":")[2].strip(" ")
            for key in group
        )
    assert profile.parse(parsed) == parsed


@given(st.lists(groups_to_send(), min_size=1, max_size=4))
def test_each_parsed_group_gives_at_least_one_request(
    groups: list[dict[str, object]],
) -> None:
    for group in profile.parse(groups):
        count = profile.accelerator_count(group)
        asked = sum(
            int(value)
            for key, value in group.items()
            if key.startswith("resources:")
        )
        assert asked <= count <= 2 * asked
        assert profile.resource_class(group) is not None


@given(anything)
def test_whatever_is_sent_parse_either_takes_it_or_says_invalid(
    groups: object,
) -> None:
    try:
        parsed = profile.parse(groups)
    except exception.Invalid:
        return
    assert profile.parse(parsed) == parsed


@given(
    st.dictionaries(
        st.sampled_from(
            ["resources:FPGA", "resources:", "trait:CUSTOM_FPGA_XILINX", "x"]
        )
        | st.text(max_size=5),
        anything,
    )
    | anything
)
def test_no_group_of_an_adopted_database_makes_counting_fail(
    group: object,
) -> None:
    count = profile.accelerator_count(group)  # type: ignore[arg-type]
    assert count >= 0
    profile.resource_class(group)  # type: ignore[arg-type]
    profile.wanted_bitstream(group)  # type: ignore[arg-type]
    profile.wanted_function(group)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("group", "count"),
    [
        ({"resources:FPGA": "2"}, 2),
        ({"resources:FPGA": "2", "trait:CUSTOM_FPGA_XILINX": "required"}, 4),
        ({"resources:FPGA": "2", "trait:CUSTOM_FPGA_XILINX": "forbidden"}, 2),
        ({"resources:PGPU": "3", "trait:CUSTOM_FPGA_XILINX": "required"}, 3),
        ({"resources:FPGA": "0"}, 0),
        ({"resources:FPGA": "x"}, 0),
        ({"resources:FPGA": True}, 0),
        ({"resources:FPGA": 2}, 2),
        ({"trait:CUSTOM_A": "required"}, 0),
        ({}, 0),
    ],
)
def test_a_group_gives_as_many_requests_as_it_asks_accelerators(
    group: dict[str, str], count: int
) -> None:
    assert profile.accelerator_count(group) == count


@pytest.mark.parametrize(
    "amount",
    [
        *(0, -1, True, False, None, "x", "1.5", 1.0, "", " 1", "-1", "+1"),
        *("0", "\u0661", "1_0", "9" * 5000, 2**31, [], {}),
    ],
)
def test_an_amount_that_is_no_positive_integer_is_refused_by_name(
    amount: object,
) -> None:
    with pytest.raises(exception.Invalid, match=r"groups\[1\].*resources:F"):
        profile.parse([{"resources:FPGA": 1}, {"resources:FPGA": amount}])


@pytest.mark.parametrize(
    "group",
    [
        "a string",
        None,
        [],
        {},
        {"trait:CUSTOM_A": "required"},
        {"resources:FPGA": 1, "trait:CUSTOM_a b!": "required"},
        {"resources:FPGA": 1, "trait:CUSTOM_A": "maybe"},
        {"resources:FPGA": 1, "trait:CUSTOM_A": ["required"]},
        {"resources:FPGA": 1, "trait:NOT_A_TRAIT": "required"},
        {"resources:FPGA": 1, "trait:": "required"},
        {"resources:CUSTOM_foo bar": 1},
        {"resources:CUSTOM_": 1},
        {"resources:CUSTOM_" + "A" * 249: 1},
        {"resources:CUSTOM_A\n": 1},
        {"resources:NOT_A_CLASS": 1},
        {"resources:": 1},
        {"resources:FPGA": 1, "resources: FPGA": 1},
        {"resources:FPGA": 1, "accel:x": 1},
        {"resources:FPGA": 1, "accel:x": None},
        {"resources:FPGA": 1, "accel:": "x"},
        {"resources:FPGA": 1, "accel:bitstream_id": "no uuid"},
        {
            "resources:FPGA": 1,
            "accel:bitstream_id": UUID,
            "accel:function_id": "f",
        },
        {"resources:FPGA": 1, "other:x": "y"},
        {"resources:FPGA": 1, "": "y"},
    ],
)
def test_a_group_that_is_wrong_is_refused_with_its_index(
    group: object,
) -> None:
    with pytest.raises(exception.Invalid, match=r"groups\[0\]"):
        profile.parse([group])


@pytest.mark.parametrize("groups", [None, [], {}, "x", 1])
def test_groups_must_be_a_list_with_something_in_it(groups: object) -> None:
    with pytest.raises(exception.Invalid, match="groups"):
        profile.parse(groups)


@pytest.mark.parametrize(
    "name", ["GPU", "FPGA", "PGPU", "VGPU", "SRIOV_NET_VF", "CUSTOM_X"]
)
def test_known_and_custom_resource_classes_are_taken(name: str) -> None:
    groups = [{f"resources:{name}": "1"}]
    assert profile.parse(groups) == groups


@pytest.mark.parametrize(
    "key",
    ["trait:OWNER_CYBORG", "trait:HW_GPU_API_VULKAN", "trait: CUSTOM_X "],
)
def test_standard_and_custom_traits_are_taken(key: str) -> None:
    parsed = profile.parse([{"resources:SRIOV_NET_VF": 1, key: "forbidden"}])
    name = key.replace(" ", "")
    assert parsed == [{"resources:SRIOV_NET_VF": "1", name: "forbidden"}]


def test_a_bitstream_and_a_function_are_found_again() -> None:
    parsed = profile.parse(
        [
            {"resources:FPGA": 1, "accel:bitstream_id": UUID.upper()},
            {"resources:FPGA": 1, "accel:function_id": "sha"},
        ]
    )
    assert profile.wanted_bitstream(parsed[0]) == UUID
    assert profile.wanted_function(parsed[0]) is None
    assert profile.wanted_bitstream(parsed[1]) is None
    assert profile.wanted_function(parsed[1]) == "sha"


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 255, "0"])
def test_a_plain_name_is_taken(name: str) -> None:
    assert profile.check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "a b", "abc\n", "\u00e9", "x" * 256, None, 1, "a.b"),
        *(UUID, UUID.upper(), UUID.replace("-", "")),
    ],
)
def test_any_other_name_is_refused(name: object) -> None:
    with pytest.raises(exception.Invalid, match="name"):
        profile.check_name(name)

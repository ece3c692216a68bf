# SPDX-License-Identifier: Apache-2.0
"""What a device profile asks for.

A profile is a list of groups; each group is one request group of Placement
and gives one accelerator request per accelerator that it asks.  `parse`
judges what a client sends; the other functions also take what an adopted
database holds, however odd, and never raise for it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from collections.abc import Mapping

from cyborg import exception
from cyborg import inventory

RESOURCES = "resources:"
TRAIT = "trait:"
ACCEL = "accel:"
BITSTREAM = "accel:bitstream_id"
FUNCTION = "accel:function_id"

XILINX_TRAIT = "trait:CUSTOM_FPGA_XILINX"
"""A board that carries it is handed over as two functions."""

GPU = "GPU"
"""A class of profiles that clients store; Placement has none of this name."""

MAX_AMOUNT = 2**31 - 1
"""What Placement can store."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_UUID = re.compile(
    r"[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}",
    re.IGNORECASE,
)
_AMOUNT = re.compile(r"[0-9]{1,10}")


def check_name(name: object) -> str:
    """`name` where a profile may be called so; else raises Invalid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise exception.Invalid(
            "name must be 1 to 255 of the characters A-Z a-z 0-9 _ -"
        )
    if _UUID.fullmatch(name):
        raise exception.Invalid("name must not have the form of a uuid")
    return name


def parse(groups: object) -> list[dict[str, str]]:
    """The groups as they are stored: names stripped, amounts as text.

    Raises Invalid, which names the group and the key.
    """
    if not isinstance(groups, list) or not groups:
        raise exception.Invalid("groups must be a list of at least one group")
    return [_group(index, group) for index, group in enumerate(groups)]


def accelerator_count(group: Mapping[str, str]) -> int:
    """How many accelerator requests the group gives; 0 where none."""
    asked = [
        (_class_of(key), _amount(value))
        for key, value in _items(group)
        if key.startswith(RESOURCES)
    ]
    count = sum(amount for _, amount in asked)
    if group_requires(group, XILINX_TRAIT):
        count += sum(amount for name, amount in asked if name == "FPGA")
    return count


def group_requires(group: Mapping[str, str], trait: str) -> bool:
    """Whether the group requires `trait`, a key such as `trait:CUSTOM_X`."""
    return any(
        key.startswith(TRAIT)
        and TRAIT + key[len(TRAIT) :].strip(" ") == trait
        and value == "required"
        for key, value in _items(group)
    )


def resource_class(group: Mapping[str, str]) -> str | None:
    """The (first) resource class that the group asks for."""
    for key, _ in _items(group):
        if key.startswith(RESOURCES):
            return _class_of(key)
    return None


def wanted_bitstream(group: Mapping[str, str]) -> str | None:
    """The image to program before the accelerator is handed over."""
    return _text(group, BITSTREAM)


def wanted_function(group: Mapping[str, str]) -> str | None:
    """The function that the accelerator must be programmed with."""
    return _text(group, FUNCTION)


def _items(group: object) -> list[tuple[str, object]]:
    if not isinstance(group, Mapping):
        return []
    return [
        (key, value) for key, value in group.items() if isinstance(key, str)
    ]


def _text(group: object, wanted: str) -> str | None:
    for key, value in _items(group):
        if key == wanted and isinstance(value, str) and value:
            return value
    return None


def _class_of(key: str) -> str:
    return key[len(RESOURCES) :].strip(" ")


def _amount(value: object) -> int:
    """An amount as a number, 0 where it is none."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value if 0 < value <= MAX_AMOUNT else 0
    if isinstance(value, str) and _AMOUNT.fullmatch(value):
        number = int(value)
        return number if number <= MAX_AMOUNT else 0
    return 0


def _group(index: int, group: object) -> dict[str, str]:
    where = f"groups[{index}]"
    if not isinstance(group, dict) or not group:
        raise exception.Invalid(f"{where} must be an object with keys")
    parsed: dict[str, str] = {}
    for key, value in group.items():
        name, text = _entry(where, key, value)
        if name in parsed:
            raise exception.Invalid(f"{where}: {name} is given twice")
        parsed[name] = text
    if not any(key.startswith(RESOURCES) for key in parsed):
        raise exception.Invalid(f"{where}: no resources:<CLASS> is asked for")
    if BITSTREAM in parsed and FUNCTION in parsed:
        raise exception.Invalid(
            f"{where}: only one of {BITSTREAM} and {FUNCTION} can be given"
        )
    return parsed


def _entry(where: str, key: object, value: object) -> tuple[str, str]:
    if isinstance(key, str):
        for prefix, judge in _JUDGES.items():
            if key.startswith(prefix):
                name = key[len(prefix) :]
                if prefix != ACCEL:
                    name = name.strip(" ")
                return prefix + name, judge(f"{where}: {key!r}", name, value)
    raise exception.Invalid(
        f"{where}: {key!r} is not resources:<CLASS>, trait:<TRAIT> or"
        " accel:<key>"
    )


def _resource(where: str, name: str, value: object) -> str:
    if name != GPU and not inventory.is_resource_class(name):
        raise exception.Invalid(f"{where} is no known resource class")
    amount = _amount(value)
    if not amount:
        raise exception.Invalid(
            f"{where} must be an integer from 1 to {MAX_AMOUNT}"
        )
    return str(amount)


def _trait(where: str, name: str, value: object) -> str:
    if not inventory.is_trait(name):
        raise exception.Invalid(f"{where} is no known trait")
    if value not in ("required", "forbidden"):
        raise exception.Invalid(f"{where} must be required or forbidden")
    return str(value)


def _accel(where: str, name: str, value: object) -> str:
    if not name.strip():
        raise exception.Invalid(f"{where} has no name after accel:")
    if not isinstance(value, str):
        raise exception.Invalid(f"{where} must be a string")
    if ACCEL + name != BITSTREAM:
        return value
    if not _UUID.fullmatch(value):
        raise exception.Invalid(f"{where} must be a uuid")
    return str(uuid.UUID(value))


_JUDGES: dict[str, Callable[[str, str, object], str]] = {
    RESOURCES: _resource,
    TRAIT: _trait,
    ACCEL: _accel,
}
"""Prefix of a key -> what takes (where, name, value) and gives the text."""

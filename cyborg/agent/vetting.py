# SPDX-License-Identifier: Apache-2.0
"""Is what a driver answered fit to be stored and scheduled on?

Drivers come from anywhere, and one bad device must not spoil the report of
a whole host: each is looked at by itself before it leaves the agent.  Pure:
no I/O, no threads.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeVar

from cyborg import inventory

MAX_STRING = 255
MAX_DRIVER_NAME = 100
MAX_COUNT = 2**31 - 1
CACHED = 8192
"""Handles whose text is known already: a host is looked at again and again,
and most of it is as it was."""
ADDRESS_KEYS = ("domain", "bus", "device", "function")

_NO_JSON = object()

_Kind = TypeVar("_Kind", inventory.DeviceType, inventory.AttachType)


class UnfitError(ValueError):
    """What is wrong with a device, in words for an operator."""


def vetted(driver: str, device: object) -> inventory.Device:
    """The device in its normal form: `driver` named as its driver, tuples,
    deployables and handles in one order whatever order they came in.

    Raises UnfitError where it could not be stored or scheduled on.
    """
    if not isinstance(device, inventory.Device):
        raise UnfitError(f"a {type(device).__name__} is not a Device")
    _json_object("controlpath", device.controlpath)
    deployables = [_deployable(item) for item in _many(device.deployables)]
    _unlike("deployable", [item.name for item in deployables])
    return dataclasses.replace(
        device,
        driver=driver,
        type=_kind(inventory.DeviceType, device.type),
        vendor=_text("vendor", device.vendor, MAX_STRING),
        model=_text("model", device.model, MAX_STRING),
        std_board_info=_board_info(device.std_board_info),
        vendor_board_info=_optional(device.vendor_board_info),
        fault=_long_text("fault", device.fault),
        deployables=tuple(sorted(deployables, key=lambda item: item.name)),
        clean_seconds=_seconds(device.clean_seconds),
    )


def addresses(device: inventory.Device) -> frozenset[str]:
    """What of the host the device lays claim to: its control path and each
    function that it would hand to an instance."""
    claimed = {address(device.controlpath)}
    for deployable in device.deployables:
        claimed.update(
            address(handle.attach_info)
            for handle in deployable.attach_handles
            if handle.attach_type is not inventory.AttachType.TEST_PCI
        )
    return frozenset(claimed)


@functools.lru_cache(maxsize=CACHED)
def address(text: str) -> str:
    """One spelling of the PCI address in JSON text, or the text itself
    where it holds none.

    Never raises: what adopted rows and old ledgers have for an address was
    vetted by nobody.
    """
    parts = _parsed(text)
    if not isinstance(parts, dict) or not all(
        isinstance(parts.get(key), str) for key in ADDRESS_KEYS
    ):
        return text
    domain, bus, device, function = (
        parts[key].lower() for key in ADDRESS_KEYS
    )
    return f"{domain:0>4}:{bus:0>2}:{device:0>2}.{function}"


def _deployable(deployable: object) -> inventory.Deployable:
    if not isinstance(deployable, inventory.Deployable):
        raise UnfitError(f"a {type(deployable).__name__} is not a Deployable")
    name = _text(
        "deployable name", deployable.name, inventory.MAX_PROVIDER_NAME
    )
    if not name:
        raise UnfitError("a deployable has no name")
    count = deployable.num_accelerators
    if type(count) is not int or not 0 <= count <= MAX_COUNT:
        raise UnfitError(f"num_accelerators {count!r} is not a count")
    handles = [_handle(item) for item in _many(deployable.attach_handles)]
    _unlike("attach handle", handles)
    return dataclasses.replace(
        deployable,
        driver_name=_text(
            "driver_name", deployable.driver_name, MAX_DRIVER_NAME
        ),
        attributes=_attributes(deployable.attributes),
        attach_handles=tuple(
            inventory.AttachHandle(inventory.AttachType(kind), info)
            for kind, info in sorted(handles)
        ),
        fault=_long_text("deployable fault", deployable.fault),
    )


def _seconds(value: object) -> int | None:
    """How long cleaning may take; `type` since True is an int."""
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        raise UnfitError(f"clean_seconds {value!r} is not a number of seconds")
    return value


def _attributes(pairs: object) -> tuple[tuple[str, str], ...]:
    result = []
    for pair in _many(pairs):
        match pair:
            case (str() as key, str() as value) if key:
                result.append((key, value))
            case _:
                raise UnfitError(f"{pair!r} is not an attribute")
        _text("attribute key", key, MAX_STRING)
        _long_text(f"attribute {key}", value)
        if key == "rc" and not inventory.is_resource_class(value):
            raise UnfitError(f"{value[:80]!r} is no legal resource class")
        if key.startswith("trait") and not inventory.is_trait(value):
            raise UnfitError(f"{value[:80]!r} is no legal trait")
    if sum(key == "rc" for key, _ in result) > 1:
        raise UnfitError("a deployable has more than one resource class")
    return tuple(result)


def _handle(handle: object) -> tuple[str, str]:
    if not isinstance(handle, inventory.AttachHandle):
        raise UnfitError(f"a {type(handle).__name__} is not an AttachHandle")
    kind = _kind(inventory.AttachType, handle.attach_type)
    if not isinstance(handle.attach_info, str):
        raise UnfitError(f"attach_info {handle.attach_info!r} is not a string")
    return kind.value, _attach_info(handle.attach_info)


@functools.lru_cache(maxsize=CACHED)
def _attach_info(text: str) -> str:
    info = _json_object("attach_info", text)
    for key in ADDRESS_KEYS:
        if not isinstance(info.get(key), str):
            raise UnfitError(f"attach_info has no {key}")
    return text


def _text(what: str, value: object, limit: int) -> str:
    """`value`, if every database of ours can hold it."""
    if not isinstance(value, str):
        raise UnfitError(f"{what} {value!r} is not a string")
    if "\x00" in value or not _encodable(value):
        raise UnfitError(f"{what} {value[:80]!a} is not text")
    if len(value) > limit:
        raise UnfitError(f"{what} is longer than {limit} characters")
    return value


def _long_text(what: str, value: object) -> str:
    text = _text(what, value, inventory.MAX_TEXT_BYTES)
    if len(text.encode()) > inventory.MAX_TEXT_BYTES:
        raise UnfitError(
            f"{what} is longer than {inventory.MAX_TEXT_BYTES} bytes"
        )
    return text


def _encodable(value: str) -> bool:
    """False for the lone surrogates that undecodable file names bring."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _optional(value: object) -> str | None:
    if value is None:
        return None
    return _long_text("vendor_board_info", value)


def _board_info(value: object) -> str | None:
    if value is None:
        return None
    text = _long_text("std_board_info", value)
    if _parsed(text) is _NO_JSON:
        raise UnfitError(f"std_board_info {text[:80]!r} is not JSON")
    return text


def _json_object(what: str, value: object) -> Mapping[str, object]:
    text = _text(what, value, MAX_STRING)
    parsed = _parsed(text)
    if parsed is _NO_JSON:
        raise UnfitError(f"{what} {text!r} is not JSON")
    if not isinstance(parsed, dict) or not parsed:
        raise UnfitError(f"{what} {text!r} is not a JSON object")
    return parsed


def _parsed(text: str) -> object:
    """What JSON text means; `_NO_JSON` where it is none, or is nested
    deeper than anybody can read."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON
    return found


def _kind(kinds: type[_Kind], value: object) -> _Kind:
    try:
        return kinds(value)
    except (TypeError, ValueError) as error:
        raise UnfitError(f"{value!r} is no {kinds.__name__}") from error


def _many(value: object) -> Iterable[object]:
    if not isinstance(value, (tuple, list)):
        raise UnfitError(f"{value!r} is not a tuple")
    return value


def _unlike(what: str, names: Sequence[Hashable]) -> None:
    if len(set(names)) < len(names):
        raise UnfitError(f"one {what} comes twice")

# SPDX-License-Identifier: Apache-2.0
"""The language in which an operator names PCI functions.

The one that Nova's `[pci] device_spec` made common: JSON objects with ids
and either an address or an interface name, and free tags.  Pure: text in,
a decision about a function out.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Protocol

import os_resource_classes

from cyborg.drivers.base import EntryError
from cyborg.drivers.base import OptionError
from cyborg.drivers.base import placement_name
from cyborg.drivers.base import trait_name
from cyborg.hardware.pci import Address
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import parse_address

MATCH_KEYS = frozenset({"vendor_id", "product_id", "address", "devname"})
PLAIN_TAG_LIMIT = 128
"""Characters of a tag's value in JSON: it has to fit an attach handle."""
TAG_KEY_LIMIT = 255

_RESERVED_TAGS = frozenset(
    {"rc", "numa_node", "pcie_root", "iommu_group", "also_claimed_by"}
)
_PARTS = ("domain", "bus", "slot", "function")
_HIGHEST = {"domain": 0xFFFFFFFF, "bus": 0xFF, "slot": 0x1F, "function": 7}
_GLOB = re.compile(r"[0-9a-fA-F*?\[\]!-]*")


class _AddressPattern(Protocol):
    def matches(self, address: Address) -> bool: ...


def _texts(address: Address) -> dict[str, str]:
    """The four parts as the kernel writes them."""
    return {
        "domain": f"{address.domain:04x}",
        "bus": f"{address.bus:02x}",
        "slot": f"{address.device:02x}",
        "function": f"{address.function}",
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Glob:
    """`*:0a:00.*`: each part a number, a glob or nothing (any)."""

    parts: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> _Glob:
        """Parts may be left out from the left and after the dot."""
        path, _, function = text.strip().partition(".")
        places = path.split(":")
        if len(places) > 3:
            raise EntryError("more than domain:bus:slot.function")
        filled = ["*"] * (3 - len(places)) + places + [function]
        return cls(
            {
                name: _glob_part(name, part or "*")
                for name, part in zip(_PARTS, filled, strict=True)
            }
        )

    def matches(self, address: Address) -> bool:
        return all(
            fnmatch.fnmatchcase(text, self.parts[name])
            for name, text in _texts(address).items()
        )


def _glob_part(name: str, text: str) -> str:
    """A part as a glob over the kernel's writing of it."""
    if _GLOB.fullmatch(text) is None:
        raise EntryError(f"{name} {text!r} is neither hexadecimal nor a glob")
    if set(text) & set("*?["):
        return text.lower()
    try:
        number = int(text, 16)
    except ValueError:
        raise EntryError(f"{name} {text!r} is not hexadecimal") from None
    if not 0 <= number <= _HIGHEST[name]:
        raise EntryError(f"{name} {text!r} is above {_HIGHEST[name]:x}")
    width = {"domain": 4, "bus": 2, "slot": 2, "function": 1}[name]
    return f"{number:0{width}x}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Regex:
    """`{"domain": ".*", "bus": "0[a-f]"}`: each matches its whole part."""

    parts: Mapping[str, re.Pattern[str]]

    @classmethod
    def parse(cls, value: Mapping[str, object]) -> _Regex:
        parts = {}
        for name, pattern in value.items():
            if name not in _PARTS:
                raise EntryError(f"{name!r} is none of {', '.join(_PARTS)}")
            if not isinstance(pattern, str):
                raise EntryError(f"{name} must be a text")
            try:
                parts[name] = re.compile(pattern, re.IGNORECASE)
            except (re.error, OverflowError, RecursionError) as error:
                raise EntryError(
                    f"{name} {pattern!r} is not a regular expression: {error}"
                ) from None
        return cls(parts)

    def matches(self, address: Address) -> bool:
        texts = _texts(address)
        return all(
            pattern.fullmatch(texts[name])
            for name, pattern in self.parts.items()
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One object of the whitelist; None means that it does not care."""

    vendor: str | None = None
    product: str | None = None
    address: _AddressPattern | None = None
    interface: str | None = None
    resource_class: str | None = None
    traits: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    def matches(
        self, function: PciFunction, parent: PciFunction | None = None
    ) -> bool:
        """Whether the entry means this function.

        `parent` is the physical function of a virtual one: its address and
        its interfaces stand for its virtual functions as well.
        """
        return (
            self.vendor in (None, function.vendor)
            and self.product in (None, function.device)
            and self._is_here(function)
            and self._is_interface(function, parent)
        )

    def _is_here(self, function: PciFunction) -> bool:
        if self.address is None:
            return True
        places = (function.address, function.physical_function)
        return any(
            self.address.matches(parse_address(place))
            for place in places
            if place
        )

    def _is_interface(
        self, function: PciFunction, parent: PciFunction | None
    ) -> bool:
        if self.interface is None:
            return True
        return self.interface in function.interfaces or (
            parent is not None and self.interface in parent.interfaces
        )


def parse(option: str, values: Iterable[str]) -> tuple[Entry, ...]:
    """The entries of a repeatable option, in order.

    Raises OptionError that names `option`, the value's place and what is
    wrong with it.
    """
    entries: list[Entry] = []
    for number, value in enumerate(values, 1):
        where = f"value {number}"
        try:
            loaded = json.loads(value, object_pairs_hook=_object)
        except EntryError as error:
            raise OptionError(
                option, f"{where}: {error}: {value[:80]!r}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise OptionError(
                option, f"{where} is not JSON: {error}: {value[:80]!r}"
            ) from error
        several = isinstance(loaded, list)
        for index, item in enumerate(loaded if several else [loaded], 1):
            place = f"{where}, entry {index}" if several else where
            try:
                entries.append(_entry(item))
            except ValueError as error:
                raise OptionError(
                    option, f"{place}: {error}: {json.dumps(item)[:200]}"
                ) from error
    return tuple(entries)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON; a key that comes twice would lose a value."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise EntryError(f"{key[:40]!r} comes twice in an object")
        found[key] = value
    return found


def first_match(
    entries: Sequence[Entry],
    function: PciFunction,
    parent: PciFunction | None = None,
) -> Entry | None:
    """The first entry that means the function: its tags count."""
    return next(
        (entry for entry in entries if entry.matches(function, parent)), None
    )


def _entry(item: object) -> Entry:
    if not isinstance(item, dict):
        raise EntryError("must be an object")
    if "address" in item and "devname" in item:
        raise EntryError("has both address and devname; give one of them")
    if not MATCH_KEYS & item.keys():
        raise EntryError(
            "names no device: give vendor_id, product_id, address or devname"
        )
    interface = item.get("devname")
    if interface is not None and not (
        isinstance(interface, str) and interface.strip()
    ):
        raise EntryError("devname must be the name of a network interface")
    return Entry(
        vendor=_identity(item, "vendor_id"),
        product=_identity(item, "product_id"),
        address=_address(item["address"]) if "address" in item else None,
        interface=interface and interface.strip(),
        resource_class=_resource_class(item),
        traits=_traits(item),
        tags=_tags(item),
    )


def _identity(item: Mapping[str, object], key: str) -> str | None:
    """A vendor or product id as four lower-case digits; `*` is any."""
    value = item.get(key, "*")
    if not isinstance(value, str):
        raise EntryError(f"{key} must be a text of four hex digits")
    text = value.strip().lower().removeprefix("0x")
    if text == "*":
        return None
    if re.fullmatch(r"[0-9a-f]{4}", text) is None:
        raise EntryError(f"{key} {value!r} is not four hex digits")
    return text


def _address(value: object) -> _AddressPattern:
    try:
        if isinstance(value, dict):
            return _Regex.parse(value)
        if isinstance(value, str) and value.strip():
            return _Glob.parse(value)
    except ValueError as error:
        raise EntryError(f"address: {error}") from None
    raise EntryError("address must be a text or an object")


def _resource_class(item: Mapping[str, object]) -> str | None:
    if "resource_class" not in item:
        return None
    value = item["resource_class"]
    if not isinstance(value, str):
        raise EntryError("resource_class must be a text")
    try:
        return placement_name(value, os_resource_classes.STANDARDS)
    except ValueError as error:
        raise EntryError(f"resource_class: {error}") from None


def _traits(item: Mapping[str, object]) -> tuple[str, ...]:
    """Trait names from a list or from text separated by commas."""
    value = item.get("traits", [])
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(
        isinstance(word, str) for word in words
    ):
        raise EntryError("traits must be a list of texts")
    try:
        return tuple(trait_name(word) for word in words)
    except ValueError as error:
        raise EntryError(f"traits: {error}") from None


def _tags(item: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """All that is left: plain metadata."""
    known = MATCH_KEYS | {"resource_class", "traits"}
    return tuple(
        (key, _tag(key, value))
        for key, value in item.items()
        if key not in known
    )


def _tag(key: str, value: object) -> str:
    if not key or key in _RESERVED_TAGS or key.startswith("trait"):
        raise EntryError(f"a tag must not be called {key!r}")
    if len(key) > TAG_KEY_LIMIT or not _is_storable(key):
        raise EntryError(f"a tag must not be called {key[:40]!a}")
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise EntryError(f"tag {key!r} must be a text")
    text = str(value)
    if not _is_storable(text):
        raise EntryError(f"tag {key!r} holds what is no text: {text[:40]!a}")
    if len(json.dumps(text)) - 2 > PLAIN_TAG_LIMIT:
        raise EntryError(
            f"tag {key!r} is longer than {PLAIN_TAG_LIMIT} characters in JSON"
        )
    return text


def _is_storable(text: str) -> bool:
    """Whether every database takes the text."""
    return not any(
        letter == "\x00" or "\ud800" <= letter <= "\udfff" for letter in text
    )

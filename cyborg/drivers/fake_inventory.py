# SPDX-License-Identifier: Apache-2.0
"""The inventory file of the fake driver: YAML to cards.

Pure but for reading the file.  A file that is wrong in one entry is refused
as a whole, so that a slip of the pen is not taken for an unplugged device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import os_resource_classes
import yaml

from cyborg import inventory
from cyborg.drivers.base import DriverError
from cyborg.drivers.base import EntryError
from cyborg.drivers.base import placement_name
from cyborg.drivers.base import trait_name
from cyborg.hardware.pci import Address
from cyborg.hardware.pci import parse_address

_Type = inventory.DeviceType

RESOURCE_CLASSES = {
    _Type.GPU: "PGPU",
    _Type.FPGA: "FPGA",
    _Type.AICHIP: "CUSTOM_NPU",
    _Type.QAT: "CUSTOM_QAT",
    _Type.NIC: "CUSTOM_NIC",
    _Type.SSD: "CUSTOM_SSD",
    _Type.MDEV: "VGPU",
    _Type.PCI: "CUSTOM_PCI",
    _Type.NVME: "CUSTOM_NVME",
}
"""What a card of a type offers if its entry does not say."""

PLACES = {
    inventory.AttachType.PCI: 0x100,
    inventory.AttachType.TEST_PCI: 0x800,
    inventory.AttachType.MDEV: 0x800,
}
"""Places for handles on a bus: 32 devices of 8 functions; 256 devices for
those that nobody attaches."""

MOST_ACCELERATORS = 0x7FF
_TEXT_LIMIT = 255
_UNSET = ("", "~", "null")
_WELL = frozenset({"ok", "well", "healthy", "true"})
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}


class _TextLoader(yaml.SafeLoader):
    """Leaves each scalar as text.

    YAML's own guesses turn `0000:12:00.0` and `0xABCD` into numbers.
    """


_TextLoader.yaml_implicit_resolvers = {}


@dataclasses.dataclass(frozen=True, slots=True)
class FakeCard:
    """One simulated device; the defaults are the contract's.

    `health` says what is wrong with it, empty where it is well.
    """

    address: Address
    type: inventory.DeviceType = _Type.FPGA
    vendor: str = "0xABCD"
    model: str = "miss model info"
    resource_class: str = "FPGA"
    traits: tuple[str, ...] = ("CUSTOM_FAKE_DEVICE",)
    accelerators: int = 16
    attach_type: inventory.AttachType = inventory.AttachType.TEST_PCI
    numa_node: int | None = None
    health: str = ""
    programmable: bool = True


def read(path: Path, accelerators: int) -> list[FakeCard]:
    """The cards of the file, in its order.

    `accelerators` is for entries that do not say.  Raises DriverError that
    names the file and the entry.
    """
    where = f"[fake] inventory_file {path}"
    loaded = _load(path, where)
    if not isinstance(loaded, list):
        raise DriverError(f"{where} must hold a list of devices")
    cards: dict[Address, FakeCard] = {}
    for number, item in enumerate(loaded, 1):
        try:
            card = _card(item, accelerators)
        except ValueError as error:
            raise DriverError(f"{where}, entry {number}: {error}") from error
        if card.address in cards:
            raise DriverError(
                f"{where}, entry {number}: address {card.address} comes twice"
            )
        cards[card.address] = card
    return list(cards.values())


def _load(path: Path, where: str) -> object:
    try:
        loader = _TextLoader(path.read_text("utf-8"))
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (OSError, UnicodeDecodeError) as error:
        raise DriverError(f"{where} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise DriverError(f"{where} is not YAML: {error}") from error


def _card(item: object, accelerators: int) -> FakeCard:
    if not isinstance(item, dict):
        raise EntryError("must be a mapping")
    unknown = sorted(str(key) for key in item.keys() - _FIELDS.keys())
    if unknown:
        raise EntryError(
            f"unknown {', '.join(unknown)}; there are {', '.join(_FIELDS)}"
        )
    if "address" not in item:
        raise EntryError("address is missing")
    values: dict[str, Any] = {"accelerators": accelerators}
    for key, value in item.items():
        if value in _UNSET:
            continue
        try:
            values[key] = _FIELDS[key](value)
        except ValueError as error:
            raise EntryError(f"{key}: {error}") from None
    kind = values.get("type", _Type.FPGA)
    values.setdefault("resource_class", RESOURCE_CLASSES[kind])
    card = FakeCard(**values)
    _check_places(card)
    return card


def _check_places(card: FakeCard) -> None:
    """Refuse more handles than there are places on the card's bus."""
    first = card.address.device * 8 + card.address.function
    if first + card.accelerators >= PLACES[card.attach_type]:
        raise EntryError(
            f"accelerators: {card.accelerators} do not fit on the bus after"
            f" {card.address}"
        )


def _parse_address(value: object) -> Address:
    return parse_address(_parse_text(value))


def _parse_type(value: object) -> inventory.DeviceType:
    try:
        return _Type(value)
    except ValueError:
        raise EntryError(f"{value!r} is none of {', '.join(_Type)}") from None


def _parse_attach_type(value: object) -> inventory.AttachType:
    try:
        return inventory.AttachType(value)
    except ValueError:
        raise EntryError(
            f"{value!r} is none of {', '.join(inventory.AttachType)}"
        ) from None


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise EntryError("must be a text")
    if len(value) > _TEXT_LIMIT:
        raise EntryError(f"is longer than {_TEXT_LIMIT} characters")
    return value


def _parse_resource_class(value: object) -> str:
    return placement_name(_parse_text(value), os_resource_classes.STANDARDS)


def _parse_traits(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise EntryError("must be a list of texts")
    return tuple(trait_name(_parse_text(word)) for word in value)


def _whole_number(lowest: int, highest: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        text = _parse_text(value)
        if not (text.isascii() and text.isdecimal()):
            raise EntryError(f"{text[:40]!r} is not a whole number")
        if not lowest <= int(text) <= highest:
            raise EntryError(f"{text} is not from {lowest} to {highest}")
        return int(text)

    return parse


def _parse_health(value: object) -> str:
    """Empty where the device is well, else its fault in words."""
    text = _parse_text(value).strip()
    if text.lower() in _WELL:
        return ""
    return "simulated health fault" if text.lower() == "false" else text


def _parse_flag(value: object) -> bool:
    text = _parse_text(value).lower()
    if text not in _FLAGS:
        raise EntryError(f"{text[:40]!r} is neither true nor false")
    return _FLAGS[text]


_FIELDS: dict[str, Callable[[object], object]] = {
    "address": _parse_address,
    "type": _parse_type,
    "vendor": _parse_text,
    "model": _parse_text,
    "resource_class": _parse_resource_class,
    "traits": _parse_traits,
    "accelerators": _whole_number(1, MOST_ACCELERATORS),
    "attach_type": _parse_attach_type,
    "numa_node": _whole_number(0, 1023),
    "health": _parse_health,
    "programmable": _parse_flag,
}

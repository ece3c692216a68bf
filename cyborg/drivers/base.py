# SPDX-License-Identifier: Apache-2.0
"""What a driver is, and what it may be able to do besides.

A driver is required to find devices.  All else that one may be able to do is
a protocol of its own here, and the agent asks with `isinstance`.  A driver
does not know of the agent, the database or Placement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Protocol
from typing import runtime_checkable

import os_traits
from oslo_config import cfg

import cyborg.conf
from cyborg import inventory
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pci import parse_address
from cyborg.hardware.pciids import PciNames
from cyborg.hardware.tools import Tools
from cyborg.hardware.usage import host_use
from cyborg.hardware.writes import Writer

NOVA_HIGHEST_DOMAIN = 0xFFFF
"""Nova's PCI code takes four digits of domain."""


class DriverError(Exception):
    """A driver cannot answer; the message says to an operator why.

    Its devices keep their last reported state.
    """


class OptionError(DriverError, ValueError):
    """An option that a driver reads is wrong; the message names it."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")


class EntryError(ValueError):
    """What is wrong with one entry of an option or file, in words."""


@dataclasses.dataclass(frozen=True, slots=True)
class DriverHost:
    """What a driver is given: the host it runs on, how to see it and how to
    change it.

    `name` is `[DEFAULT] host`, the first part of each deployable's name.
    """

    name: str
    sysfs: Sysfs
    conf: cfg.ConfigOpts
    names: PciNames = dataclasses.field(default_factory=PciNames)
    writer: Writer = dataclasses.field(default_factory=Writer)
    tools: Tools = dataclasses.field(default_factory=Tools)

    def why_not(
        self, function: PciFunction, together: Collection[str] = ()
    ) -> str:
        """Why an instance cannot have this function now, in words for an
        operator; empty where it can.  `together`: the addresses that it
        would get with it.

        Raises HardwareError where it cannot be told how the host uses its
        hardware: that is no fault of one function, to be left out for it.
        """
        reason = why_not_attachable(function)
        if reason:
            return reason
        try:
            use = self.sysfs.once(host_use)
        except UnreadableError as error:
            raise HardwareError(str(error)) from error
        return use.why(function, together)

    def option(self, group: str, name: str) -> Any:
        """The value of an option of the driver.

        Raises OptionError where what is written there cannot be used, so
        that this driver alone stops.
        """
        try:
            return cyborg.conf.driver_option(self.conf, group, name)
        except ValueError as error:
            raise OptionError(f"[{group}] {name}", str(error)) from error


@runtime_checkable
class Driver(Protocol):
    """Required of each driver; built as `Driver(host)`.

    `name` is its entry point.  Building one must not touch hardware; a wrong
    option raises OptionError.
    """

    name: str

    def __init__(self, host: DriverHost) -> None: ...

    def discover(self) -> Iterable[inventory.Device]:
        """Every device of this driver, as it is now.

        Raises where that cannot be known: an empty answer means that there
        is none.
        """


@runtime_checkable
class Programmable(Protocol):
    """A driver whose deployables take a bitstream."""

    def program(
        self,
        deployable_name: str,
        controlpath: str,
        image: Path,
        properties: Mapping[str, str],
        timeout: float,
    ) -> None:
        """Write `image` to the card; returns once it runs.

        Raises exception.DeviceFailed with the card's reason, also when it
        took more than `timeout` seconds.
        """


@runtime_checkable
class Cancellable(Protocol):
    """A driver whose running work can be given up when the agent stops."""

    def cancel(self) -> None:
        """Let what runs fail now; never blocks."""


@runtime_checkable
class Monitored(Protocol):
    """A driver that can tell a device's health between two discoveries."""

    def health(self, controlpath: str) -> str:
        """Why the device must not be used now; empty where it is well."""


@runtime_checkable
class Mediated(Protocol):
    """A driver whose units must be made before an instance gets them
    (`inventory.is_made`): mediated devices, vGPUs of virtual functions."""

    def create(
        self, unit: inventory.AttachHandle, identity: str, timeout: float
    ) -> None:
        """Make the unit; `identity` is its uuid.

        One that is there already as it should be is no error.  Raises
        exception.DeviceFailed with the reason, also when it took more than
        `timeout` seconds.
        """

    def remove(
        self, unit: inventory.AttachHandle, identity: str, timeout: float
    ) -> None:
        """Remove the unit; one that is not there is no error.

        Raises exception.DeviceFailed, also while a guest still has it.
        """


@runtime_checkable
class Cleanable(Protocol):
    """A driver that can take a tenant's data off a unit.

    Its devices say so by `Device.clean_seconds`.
    """

    def clean(
        self,
        unit: inventory.AttachHandle,
        controlpath: str,
        timeout: float,
        progress: Callable[[int], None],
    ) -> None:
        """Returns once nothing of the last user is left on the unit.

        Work that an earlier call began and the device goes on with is
        waited for, not begun anew.  `progress` takes percents.  Raises
        exception.DeviceFailed where it is not certain that all is gone.
        """


@runtime_checkable
class Carving(Protocol):
    """A driver that gives its cards virtual functions."""

    def claims(self, function: PciFunction) -> bool:
        """Whether the function is one of this driver's."""

    def carve(self, function: PciFunction, count: int, timeout: float) -> None:
        """Give a card that has no virtual function `count` of them.

        Raises exception.DeviceFailed, and exception.Invalid for a number
        that the card cannot have.
        """


def placement_name(text: str, standard: Iterable[str]) -> str:
    """A legal trait or resource class from what an operator wrote.

    One of `standard` stays as it is, any other becomes `CUSTOM_…`.  Raises
    ValueError where nothing is left or it is too long.
    """
    word = text.strip().upper()
    if not word.removeprefix("CUSTOM_"):
        raise EntryError("an empty name")
    if len(word) > inventory.MAX_TRAIT_LENGTH - len("CUSTOM_"):
        raise EntryError(f"{text[:40]!r}… is too long")
    if word in standard:
        return word
    return inventory.custom_name(word.removeprefix("CUSTOM_"))


def trait_name(text: str) -> str:
    """`placement_name` of a trait."""
    return placement_name(text, os_traits.get_traits())


def attributes(
    traits: Iterable[str],
    resource_class: str,
    plain: Iterable[tuple[str, str]] = (),
    first_trait: int = 0,
    trait_key: str = "trait",
) -> tuple[tuple[str, str], ...]:
    """A deployable's attributes in the order that is reported everywhere:
    traits (numbered, none twice), resource class, everything else.

    Raises ValueError where a key of `plain` would pass for one of the
    others, or comes twice.
    """
    plain = tuple(plain)
    keys = [key for key, _ in plain]
    for number, key in enumerate(keys):
        if key == "rc" or key.startswith("trait") or key in keys[:number]:
            raise ValueError(f"{key!r} cannot be a plain attribute's key")
    return (
        *(
            (f"{trait_key}{number}", trait)
            for number, trait in enumerate(dict.fromkeys(traits), first_trait)
        ),
        ("rc", resource_class),
        *plain,
    )


def why_not_attachable(function: PciFunction) -> str:
    """Why this function cannot be given to an instance now, in words for
    an operator; empty where it can."""
    if function.virtual_functions:
        return (
            f"{len(function.virtual_functions)} virtual functions of it are"
            " active"
        )
    if function.mediated:
        return f"{len(function.mediated)} mediated devices exist on it"
    if function.boot_vga:
        return "the host's boot display"
    if _is_bridge(function):
        return "a bridge of the host"
    if parse_address(function.address).domain > NOVA_HIGHEST_DOMAIN:
        return (
            "Nova cannot attach a device whose PCI domain has more than four"
            f" digits ({function.address})"
        )
    return ""


def _is_bridge(function: PciFunction) -> bool:
    """Class 06, but "other": NVIDIA's NVSwitch is 0680 and is passed on."""
    return function.class_code.startswith(
        "06"
    ) and not function.class_code.startswith("0680")

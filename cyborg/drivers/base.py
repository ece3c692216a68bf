# SPDX-License-Identifier: Apache-2.0
"""What a driver is, and the PCI card driver that most are made from.

A driver is required to find devices.  All else that one may be able to do is
a protocol of its own here, and the agent asks with `isinstance`.  A driver
does not know of the agent, the database or Placement.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from typing import Protocol
from typing import runtime_checkable

import os_traits
from oslo_config import cfg

from cyborg import inventory
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pci import parse_address
from cyborg.hardware.pciids import PciNames

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
    """What a driver is given: the host it runs on and how to see it.

    `name` is `[DEFAULT] host`, the first part of each deployable's name.
    """

    name: str
    sysfs: Sysfs
    conf: cfg.ConfigOpts
    names: PciNames = dataclasses.field(default_factory=PciNames)


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
    """A driver whose handles must be made before an instance gets them."""

    def create(self, attach_info: str, identity: str) -> None:
        """Make the mediated device with the uuid `identity`."""

    def remove(self, attach_info: str, identity: str) -> None:
        """Remove it; one that is not there is no error."""


@runtime_checkable
class Cleanable(Protocol):
    """A driver that can take a tenant's data off a device."""

    def clean(
        self, deployable_name: str, controlpath: str, timeout: float
    ) -> None:
        """Returns once nothing of the last user is left on the device.

        Raises exception.DeviceFailed where that is not certain.
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
    traits (numbered, none twice), resource class, everything else."""
    return (
        *(
            (f"{trait_key}{number}", trait)
            for number, trait in enumerate(dict.fromkeys(traits), first_trait)
        ),
        ("rc", resource_class),
        *plain,
    )


def topology(function: PciFunction) -> tuple[tuple[str, str], ...]:
    """Where the function is in its host, as plain attributes."""
    places = (
        ("numa_node", function.numa_node),
        ("pcie_root", function.root or None),
        ("iommu_group", function.iommu_group),
    )
    return tuple(
        (key, str(value)) for key, value in places if value is not None
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


class PciCardDriver:
    """A driver of one vendor's cards, declared by class attributes.

    Offers each function of `vendor` whose product id is in `products`
    (empty: any) and whose class starts with one of `classes` (empty: any) as
    one device with one accelerator, the function itself.  `traits` are
    words: each becomes `CUSTOM_<WORD>`, `{product}` is the product id.
    Virtual functions are left out unless `virtual_functions` is set.
    """

    name: ClassVar[str]
    driver_name: ClassVar[str]
    type: ClassVar[inventory.DeviceType]
    resource_class: ClassVar[str]
    vendor: ClassVar[str]
    products: ClassVar[frozenset[str]] = frozenset()
    classes: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[tuple[str, ...]] = ()
    virtual_functions: ClassVar[bool] = False

    def __init__(self, host: DriverHost) -> None:
        self.host = host

    def discover(self) -> Iterable[inventory.Device]:
        return [
            self.device(function)
            for function in self.host.sysfs.functions()
            if self.claims(function)
        ]

    def claims(self, function: PciFunction) -> bool:
        """Whether the function is one of this driver's."""
        return (
            function.vendor == self.vendor
            and (not self.products or function.device in self.products)
            and (
                not self.classes
                or function.class_code.startswith(self.classes)
            )
            and (self.virtual_functions or not function.physical_function)
        )

    def device(self, function: PciFunction) -> inventory.Device:
        """The report of one function."""
        return pci_device(
            self.host,
            function,
            driver=self.name,
            kind=self.type,
            fault=why_not_attachable(function),
            deployables=(
                pci_deployable(
                    self.host,
                    function,
                    driver_name=self.driver_name,
                    traits=[
                        inventory.custom_name(
                            word.format(product=function.device)
                        )
                        for word in self.traits
                    ],
                    resource_class=self.resource_class,
                ),
            ),
        )


def pci_deployable(
    host: DriverHost,
    function: PciFunction,
    *,
    driver_name: str,
    traits: Iterable[str],
    resource_class: str,
    plain: Iterable[tuple[str, str]] = (),
    handle_extra: Mapping[str, str] | None = None,
) -> inventory.Deployable:
    """A function as one accelerator; `plain` are further attributes."""
    return inventory.Deployable(
        name=f"{host.name}_{function.address}",
        num_accelerators=1,
        driver_name=driver_name,
        attributes=attributes(
            traits, resource_class, (*topology(function), *plain)
        ),
        attach_handles=(
            inventory.AttachHandle(
                inventory.AttachType.PCI,
                inventory.pci_json(function.address, handle_extra),
            ),
        ),
    )


def pci_device(
    host: DriverHost,
    function: PciFunction,
    *,
    driver: str,
    kind: inventory.DeviceType,
    deployables: tuple[inventory.Deployable, ...],
    fault: str = "",
) -> inventory.Device:
    """A card whose control path is `function`, its names as the host knows
    them."""
    model = host.names.device(function.vendor, function.device)
    return inventory.Device(
        controlpath=inventory.pci_json(function.address),
        type=kind,
        vendor=function.vendor,
        model=(model or f"{function.vendor}:{function.device}")[:255],
        driver=driver,
        std_board_info=json.dumps(
            {
                "class": function.class_code,
                "product_id": function.device,
                "revision": function.revision,
                "subsystem": (
                    f"{function.subsystem_vendor}:{function.subsystem_device}"
                ),
            },
            sort_keys=True,
        ),
        fault=fault,
        deployables=deployables,
    )

# SPDX-License-Identifier: Apache-2.0
"""Drivers of PCI cards: the one that most are made from, and its parts.

A vendor's driver is data over `PciCardDriver`: ids, type, class, traits.
One whose cards are more than a function puts its report together from
`pci_device` and `pci_deployable`, and takes from `FunctionDriver` how the
functions that it hands out are cleaned and carved.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import ClassVar

from cyborg import exception
from cyborg import inventory
from cyborg.drivers.base import DriverHost
from cyborg.drivers.base import OptionError
from cyborg.drivers.base import attributes
from cyborg.drivers.base import why_not_attachable
from cyborg.hardware import files
from cyborg.hardware import sriov
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import parse_address
from cyborg.hardware.reset import can_reset
from cyborg.hardware.reset import reset

MAX_CLEAN_SECONDS = 86_400


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


class FunctionDriver:
    """What every driver can do whose units are PCI functions.

    `resets`: a function-level reset takes its last user's data off one.
    Building one raises OptionError where the times for cleaning are wrong.
    """

    name: ClassVar[str]
    resets: ClassVar[bool] = True

    def __init__(self, host: DriverHost) -> None:
        self.host = host
        clean_seconds(host, self.name, default=True)

    def why_not(self, function: PciFunction) -> str:
        """Why the function cannot be offered now; a driver adds what only
        it knows."""
        return self.host.why_not(function)

    def can_clean(self, function: PciFunction) -> bool:
        """Whether the function may be reset, and can be, by itself alone."""
        return self.resets and can_reset(function)

    def clean_seconds(self, function: PciFunction) -> int | None:
        """How long a reset of the function may take; None where it is not
        reset when it is given back."""
        if not self.can_clean(function):
            return None
        return clean_seconds(self.host, self.name, default=False)

    def clean(
        self,
        unit: inventory.AttachHandle,
        controlpath: str,
        timeout: float,
        progress: Callable[[int], None],
    ) -> None:
        """A function-level reset of the unit.

        Refused where it would harm what others have by now: virtual
        functions and mediated devices do not survive that of their parent.
        """
        function = unit_function(self.host, unit)
        reason = why_not_attachable(function) or (
            "" if self.can_clean(function) else "it has no reset of its own"
        )
        if reason:
            raise exception.DeviceFailed(
                f"{function.address} cannot be reset: {reason}"
            )
        try:
            reset(self.host.writer, function, timeout)
        except HardwareError as error:
            raise exception.DeviceFailed(str(error)) from error

    def carve(self, function: PciFunction, count: int, timeout: float) -> None:
        """Virtual functions by the kernel's own way."""
        most = most_virtual_functions(function)
        if not 1 <= count <= most:
            raise exception.Invalid(
                f"{function.address} cannot have {count} virtual functions,"
                f" it can have {most}"
            )
        try:
            sriov.enable(self.host.writer, function, count, timeout)
        except HardwareError as error:
            raise exception.DeviceFailed(str(error)) from error


class PciCardDriver(FunctionDriver):
    """A driver of one vendor's cards, declared by class attributes.

    Offers each function of `vendor` whose product id is in `products`
    (empty: any) and whose class starts with one of `classes` (empty: any) as
    one device with one accelerator, the function itself.  `traits` are
    words: each becomes `CUSTOM_<WORD>`, `{product}` is the product id.
    Virtual functions are left out unless `virtual_functions` is set.
    """

    driver_name: ClassVar[str]
    type: ClassVar[inventory.DeviceType]
    resource_class: ClassVar[str]
    vendor: ClassVar[str]
    products: ClassVar[frozenset[str]] = frozenset()
    classes: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[tuple[str, ...]] = ()
    virtual_functions: ClassVar[bool] = False

    def discover(self) -> Iterable[inventory.Device]:
        return each(
            self.host,
            self.name,
            filter(self.claims, self.host.sysfs.functions()),
            self.device,
        )

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
            fault=self.why_not(function),
            deployables=(self.deployable(function),),
            clean_seconds=self.clean_seconds(function),
        )

    def deployable(
        self,
        function: PciFunction,
        traits: Iterable[str] = (),
        plain: Iterable[tuple[str, str]] = (),
        handle_extra: Mapping[str, str] | None = None,
        fault: str = "",
    ) -> inventory.Deployable:
        """A function as one accelerator: the driver's traits and those
        given here (whole names)."""
        return pci_deployable(
            self.host,
            function,
            driver_name=self.driver_name,
            traits=(*self.trait_names(function), *traits),
            resource_class=self.resource_class,
            plain=plain,
            handle_extra=handle_extra,
            fault=fault,
        )

    def trait_names(self, function: PciFunction) -> list[str]:
        """The traits that the class's words make of a function."""
        return [
            inventory.custom_name(word.format(product=function.device))
            for word in self.traits
        ]


def each(
    host: DriverHost,
    name: str,
    functions: Iterable[PciFunction],
    device: Callable[[PciFunction], inventory.Device | None],
) -> list[inventory.Device]:
    """The devices that `device` makes of functions, for driver `name`.

    One of which a file cannot be read is left out with one warning, one
    that went away meanwhile silently; the rest is reported.
    """
    found = []
    for function in functions:
        try:
            one = _tried(host, function, device)
        except UnreadableError as error:
            host.sysfs.leave_out(function.address, str(error), name)
            continue
        host.sysfs.well(function.address, name)
        if one is not None:
            found.append(one)
    return found


def _tried(
    host: DriverHost,
    function: PciFunction,
    device: Callable[[PciFunction], inventory.Device | None],
) -> inventory.Device | None:
    """What `device` makes of a function; None where that went away.

    It is asked once more where a file cannot be read: the files of a driver
    go while a guest gets the function, and the device is still there.
    """
    try:
        return device(function)
    except UnreadableError:
        try:
            now = host.sysfs.function(function.address)
        except HardwareError:
            now = function
        return None if now is None else device(now)


def clean_seconds(host: DriverHost, name: str, default: bool) -> int | None:
    """How long driver `name` may clean a unit; None where it should not.

    `default` holds where `[agent] clean_on_release` is not set.
    """
    wanted = host.option("agent", "clean_on_release")
    if not (default if wanted is None else wanted):
        return None
    return clean_limit(host, name)


def clean_limit(host: DriverHost, name: str) -> int:
    """The seconds that driver `name` may take to clean a unit."""
    limits: Mapping[str, str] = host.option("agent", "clean_timeouts")
    if name not in limits:
        return int(host.option("agent", "clean_timeout"))
    text = limits[name]
    good = len(text) < 10 and text.isdecimal()
    if not good or not 0 < int(text) <= MAX_CLEAN_SECONDS:
        raise OptionError(
            "[agent] clean_timeouts",
            f"{name}: {text[:40]!r} is not a number of seconds from 1 to "
            f"{MAX_CLEAN_SECONDS}",
        )
    return int(text)


def most_virtual_functions(function: PciFunction) -> int:
    """How many virtual functions a card can have; 0 for one without.

    Raises DeviceFailed where the kernel does not say.
    """
    name = "sriov_totalvfs"
    try:
        return files.Directory(function.path).number(name) or 0
    except (OSError, UnreadableError) as error:
        raise exception.DeviceFailed(
            f"{function.address}: {name} cannot be read"
        ) from error


def unit_address(unit: inventory.AttachHandle) -> str:
    """The PCI address in a unit's information, as the kernel writes it.

    Raises DeviceFailed where there is none.
    """
    try:
        parts = json.loads(unit.attach_info)
        text = "{domain}:{bus}:{device}.{function}".format_map(parts)
        return str(parse_address(text))
    except (KeyError, TypeError, ValueError) as error:
        raise exception.DeviceFailed(
            f"no PCI address in {unit.attach_info[:80]!r}"
        ) from error


def unit_function(
    host: DriverHost, unit: inventory.AttachHandle
) -> PciFunction:
    """The function that a unit is, or is on.  Raises DeviceFailed where
    the host has it no more."""
    address = unit_address(unit)
    try:
        function = host.sysfs.function(address)
    except HardwareError as error:
        raise exception.DeviceFailed(str(error)) from error
    if function is None:
        raise exception.DeviceFailed(f"there is no PCI function {address}")
    return function


def pci_deployable(
    host: DriverHost,
    function: PciFunction,
    *,
    driver_name: str,
    traits: Iterable[str],
    resource_class: str,
    plain: Iterable[tuple[str, str]] = (),
    handle_extra: Mapping[str, str] | None = None,
    fault: str = "",
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
        fault=fault,
    )


def pci_device(
    host: DriverHost,
    function: PciFunction,
    *,
    driver: str,
    kind: inventory.DeviceType,
    deployables: tuple[inventory.Deployable, ...],
    fault: str = "",
    clean_seconds: int | None = None,
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
        clean_seconds=clean_seconds,
    )

# SPDX-License-Identifier: Apache-2.0
"""`intel_fpga_driver`: Intel's FPGA cards, whole or by virtual functions.

A card is one device with one deployable: its handle is the physical function
itself, or, where that has virtual functions, each of those.  A card is
programmed by OPAE's `fpgaconf`, always through the physical function.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import bitstream
from cyborg.drivers import card
from cyborg.drivers.base import DriverHost
from cyborg.hardware.fpga import Fpga
from cyborg.hardware.fpga import read_fpga
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import parse_address

PRODUCTS = {
    "09c4": "PAC_ARRIA10",
    "0b2b": "PAC_D5005",
    "0b30": "PAC_N3000",
    "bcce": "OFS",
    "bcbd": "INTEGRATED",
    "bcc0": "INTEGRATED",
}
"""Product id of a physical function -> the word of its trait."""

BOARDS = {
    "8086:1770": "N6000",
    "8086:1771": "N6001",
    "8086:17d4": "C6100",
    "8086:138d": "PAC_D5005",
}
"""Subsystem -> the word, for `bcce`: boards of many names have that id."""

PASSED = "vfio-pci"
"""The driver that has a function while a guest has it."""

FAILURES = {
    1: "fpgaconf does not take this command",
    2: "the image is not a bitstream that fpgaconf can read",
    3: "fpgaconf cannot look for FPGAs",
    4: "no FPGA at this address takes the bitstream: it was built for another"
    " interface id, or the host's FPGA driver does not have the card",
    5: "the FPGA is in use, or programming it failed",
    6: "fpgaconf has too little memory",
    7: "fpgaconf does not take the card's address",
    8: "fpgaconf cannot read the card's properties",
}
"""What fpgaconf's exit codes mean (its main.c)."""


class IntelFpgaDriver(card.PciCardDriver):
    """Programmable acceleration cards and integrated FPGAs."""

    name = "intel_fpga_driver"
    driver_name = "intel"
    type = inventory.DeviceType.FPGA
    resource_class = "FPGA"
    vendor = "8086"
    products = frozenset(PRODUCTS)

    def __init__(self, host: DriverHost) -> None:
        super().__init__(host)
        self._known: dict[str, Fpga] = {}
        """By address, as of the last look: the host sees nothing of a
        function that a guest has."""

    def discover(self) -> Iterable[inventory.Device]:
        look = _Look(self._known)
        functions = {one.address: one for one in self.host.sysfs.functions()}
        slots: dict[str, list[PciFunction]] = {}
        for function in filter(self.claims, functions.values()):
            slots.setdefault(_slot(function), []).append(function)
        devices = card.each(
            self.host,
            self.name,
            (slot[0] for slot in slots.values()),
            lambda first: self._device(slots[_slot(first)], functions, look),
        )
        self._known = look.seen
        return devices

    def trait_names(self, function: PciFunction) -> list[str]:
        word = PRODUCTS[function.device]
        if function.device == "bcce":
            subsystem = (
                f"{function.subsystem_vendor}:{function.subsystem_device}"
            )
            word = BOARDS.get(subsystem, word)
        return [
            inventory.custom_name("FPGA_INTEL"),
            inventory.custom_name("FPGA_INTEL", word),
        ]

    def program(
        self,
        deployable_name: str,
        controlpath: str,
        image: Path,
        properties: Mapping[str, str],
        timeout: float,
    ) -> None:
        """The card's region gets the bitstream `image` (a .gbs)."""
        function = bitstream.function_of(self.host, controlpath)
        address = parse_address(function.physical_function or function.address)
        command = (
            "fpgaconf",
            *("--segment", f"0x{address.domain:04x}"),
            *("--bus", f"0x{address.bus:02x}"),
            *("--device", f"0x{address.device:02x}"),
            *("--function", f"0x{address.function:x}"),
            str(image),
        )
        changed = {str(address), *function.virtual_functions}
        try:
            bitstream.write(self.host, command, image, timeout, FAILURES)
        finally:
            self._known = {
                one: fpga
                for one, fpga in self._known.items()
                if one not in changed
            }

    def carve(self, function: PciFunction, count: int, timeout: float) -> None:
        """Virtual functions of a card whose ports were released to them.

        Else the kernel's driver refuses (EINVAL, drivers/fpga/dfl.c).
        """
        try:
            super().carve(function, count, timeout)
        except exception.DeviceFailed as error:
            cause = error.__cause__
            if (
                not isinstance(cause, HardwareError)
                or cause.errno != errno.EINVAL
            ):
                raise
            raise exception.DeviceFailed(
                f"{error.message}; the card's ports must be released first:"
                f" pci_device {function.address} vf {count}"
            ) from error

    def _device(
        self,
        slot: list[PciFunction],
        functions: Mapping[str, PciFunction],
        look: _Look,
    ) -> inventory.Device:
        """The card that the physical functions of a slot are.

        An N6001 has several of one id; the one with the management engine
        is the card.
        """
        function, fpga = min(
            ((one, look.at(one)) for one in slot), key=_standing
        )
        fault = _stub(function, fpga)
        if function.virtual_functions:
            units, faults = self._units(function, functions)
            shown = [look.at(unit) for unit in units]
        else:
            fault = fault or self.why_not(function)
            units, shown = [function], []
        deployable = self.deployable(
            function, _identities(fpga, shown), _plain(fpga)
        )
        if function.virtual_functions:
            deployable = _carved(deployable, units, faults)
        return card.pci_device(
            self.host,
            function,
            driver=self.name,
            kind=self.type,
            fault=fault,
            deployables=(deployable,),
            clean_seconds=self._clean_seconds(units),
        )

    def _units(
        self, function: PciFunction, functions: Mapping[str, PciFunction]
    ) -> tuple[list[PciFunction], list[str]]:
        """The virtual functions that can be attached, and why others
        cannot."""
        units, faults = [], []
        for address in function.virtual_functions:
            if address not in functions:
                faults.append(f"{address}: it cannot be read")
                continue
            reason = self.host.why_not(functions[address])
            if reason:
                faults.append(f"{address}: {reason}")
                self.host.sysfs.leave_out(address, reason, self.name)
            else:
                units.append(functions[address])
                self.host.sysfs.well(address, self.name)
        return units, faults

    def _clean_seconds(self, units: list[PciFunction]) -> int | None:
        """Where some can be reset and others cannot, the others must fail
        to be cleaned and not go on as they are."""
        limits = (self.clean_seconds(unit) for unit in units)
        return next((limit for limit in limits if limit is not None), None)


class _Look:
    """One look at the cards; `seen` is what the next one may remember."""

    def __init__(self, known: Mapping[str, Fpga]) -> None:
        self._known = known
        self.seen: dict[str, Fpga] = {}

    def at(self, function: PciFunction) -> Fpga | None:
        """What a function shows; while a guest has it, what it showed
        before.  Raises UnreadableError."""
        found = read_fpga(function.path)
        if found is None and function.driver == PASSED:
            found = self._known.get(function.address)
        if found is not None:
            self.seen[function.address] = found
        return found


def _slot(function: PciFunction) -> str:
    return function.address.rpartition(".")[0]


def _standing(found: tuple[PciFunction, Fpga | None]) -> int:
    """Smaller: rather the card itself than another function of it."""
    fpga = found[1]
    if fpga is None:
        return 2
    return 0 if fpga.managed else 1


def _stub(function: PciFunction, fpga: Fpga | None) -> str:
    if fpga is not None:
        return ""
    return (
        "a stub: the host's FPGA driver shows nothing of it (no fpga class"
        f" entry), it is bound to {function.driver or 'no driver'}"
    )


def _identities(fpga: Fpga | None, units: list[Fpga | None]) -> Iterable[str]:
    """The traits of what the card is programmed with and of what it takes.

    A function that is not in every unit that can be read is none that the
    card promises.
    """
    readable = [set(unit.afu_ids) for unit in units if unit and unit.afu_ids]
    if readable:
        functions = sorted(set.intersection(*readable))
    else:
        functions = list(fpga.afu_ids) if fpga else []
    for identity in functions:
        yield inventory.custom_name("FPGA_FUNCTION_ID_INTEL", identity)
    for identity in fpga.interface_ids if fpga else ():
        yield inventory.custom_name("FPGA_REGION_INTEL", identity)


def _plain(fpga: Fpga | None) -> Iterable[tuple[str, str]]:
    if fpga is None:
        return
    yield "fpga_layout", fpga.layout
    if fpga.port_errors:
        yield "port_errors", " ".join(fpga.port_errors)


def _carved(
    deployable: inventory.Deployable,
    units: list[PciFunction],
    faults: list[str],
) -> inventory.Deployable:
    """The same with those virtual functions that can be attached."""
    return dataclasses.replace(
        deployable,
        num_accelerators=len(units),
        attach_handles=tuple(
            inventory.AttachHandle(
                inventory.AttachType.PCI, inventory.pci_json(unit.address)
            )
            for unit in units
        ),
        fault=(
            ""
            if units
            else "none of its virtual functions can be attached"
            + "".join(f"; {fault}" for fault in faults)
        ),
    )

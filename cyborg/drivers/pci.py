# SPDX-License-Identifier: Apache-2.0
"""`pci_driver`: the PCI functions that an operator names, whatever they are.

For cards that no driver of their own knows.  What is offered is chosen by
`[pci] passthrough_whitelist` alone (drivers/whitelist.py).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable

from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers import card
from cyborg.drivers import whitelist
from cyborg.hardware import net
from cyborg.hardware import pciids
from cyborg.hardware.pci import PciFunction

LOG = logging.getLogger(__name__)

OPTION = "[pci] passthrough_whitelist"
RESOURCE_CLASS = "CUSTOM_PCI"

_Type = inventory.DeviceType

TYPES_BY_CLASS = {
    "03": _Type.GPU,
    "02": _Type.NIC,
    "0108": _Type.SSD,
    "0b40": _Type.QAT,
}
"""By the first digits of the class code."""

TYPES_OF_ACCELERATORS = {
    "1002": _Type.GPU,
    "1da3": _Type.AICHIP,
    "19e5": _Type.AICHIP,
    "17cb:a100": _Type.AICHIP,
    "8086:7d1d": _Type.AICHIP,
    "8086:ad1d": _Type.AICHIP,
    "8086:643e": _Type.AICHIP,
    "8086:b03e": _Type.AICHIP,
    "8086": _Type.FPGA,
    "10ee": _Type.FPGA,
    "1bd4": _Type.FPGA,
}
"""Of class 1200, which says no more than "processing accelerator": by
`vendor:device`, else by vendor."""


def device_type(function: PciFunction) -> inventory.DeviceType:
    """The kind of device by its class; PCI where the class says nothing."""
    if function.class_code.startswith("1200"):
        return TYPES_OF_ACCELERATORS.get(
            f"{function.vendor}:{function.device}",
            TYPES_OF_ACCELERATORS.get(function.vendor, _Type.PCI),
        )
    return next(
        (
            kind
            for prefix, kind in TYPES_BY_CLASS.items()
            if function.class_code.startswith(prefix)
        ),
        _Type.PCI,
    )


class PciDriver(card.FunctionDriver):
    """Each whitelisted function as a device with one accelerator."""

    name = "pci_driver"

    def __init__(self, host: base.DriverHost) -> None:
        super().__init__(host)
        self._entries = whitelist.parse(
            OPTION, host.option("pci", "passthrough_whitelist") or ()
        )
        self._interfaces = net.LastSeen()
        if not self._entries:
            LOG.warning("%s is empty: %s offers nothing", OPTION, self.name)

    def discover(self) -> Iterable[inventory.Device]:
        functions = self.host.sysfs.functions()
        self._interfaces.look(functions)
        by_address = {function.address: function for function in functions}

        def device(function: PciFunction) -> inventory.Device | None:
            parent = by_address.get(function.physical_function or "")
            entry = self._entry(function, parent)
            return None if entry is None else self._device(function, entry)

        return card.each(self.host, self.name, functions, device)

    def claims(self, function: PciFunction) -> bool:
        """Whether the whitelist means the function.

        Raises HardwareError where it has a parent that cannot be read.
        """
        parent = function.physical_function and self.host.sysfs.function(
            function.physical_function
        )
        return self._entry(function, parent or None) is not None

    def _entry(
        self, function: PciFunction, parent: PciFunction | None
    ) -> whitelist.Entry | None:
        """What the whitelist says of a function, whoever has it now: with
        a guest it has no interface, and is the same still."""
        if not self._entries:
            return None
        return whitelist.first_match(
            self._entries,
            self._with_interfaces(function),
            parent and self._with_interfaces(parent),
        )

    def _with_interfaces(self, function: PciFunction) -> PciFunction:
        return dataclasses.replace(
            function,
            interfaces=function.interfaces
            or self._interfaces.of(function.address),
        )

    def _device(
        self, function: PciFunction, entry: whitelist.Entry
    ) -> inventory.Device:
        network = dict(entry.tags).get("physical_network")
        deployable = card.pci_deployable(
            self.host,
            function,
            driver_name=self._vendor(function.vendor),
            traits=(
                inventory.custom_name(
                    "PCI", pciids.vendor_word(function.vendor)
                ),
                inventory.custom_name("PCI_PRODUCT_ID", function.device),
                *entry.traits,
            ),
            resource_class=entry.resource_class or RESOURCE_CLASS,
            plain=entry.tags,
            handle_extra={"physical_network": network} if network else None,
        )
        return card.pci_device(
            self.host,
            function,
            driver=self.name,
            kind=device_type(function),
            fault=self.why_not(function),
            deployables=(deployable,),
            clean_seconds=self.clean_seconds(function),
        )

    def _vendor(self, vendor: str) -> str:
        """For people: our word, the host's name for it, or the id."""
        if vendor in pciids.VENDOR_WORDS:
            return pciids.vendor_word(vendor)
        return (self.host.names.vendor(vendor) or vendor).upper()[:100]

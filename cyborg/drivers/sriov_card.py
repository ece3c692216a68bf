# SPDX-License-Identifier: Apache-2.0
"""Drivers of cards whose virtual functions go to instances."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence

from cyborg import inventory
from cyborg.drivers import card
from cyborg.hardware.pci import PciFunction


class SriovCardDriver(card.PciCardDriver):
    """A card is one device, whose control path is its physical function.

    Without virtual functions it has one deployable, itself; with them each
    is a deployable of its own, and what keeps one from being offered keeps
    none of the others.  A virtual function whose physical function is not
    one of this driver's, or not to be seen at all (the host is a guest
    itself), is a device.  `products` holds the ids of both kinds.
    """

    virtual_functions = True

    def discover(self) -> Iterable[inventory.Device]:
        functions = self.host.sysfs.functions()
        here = {None, *(function.address for function in functions)}
        claimed = {
            function.address: function
            for function in functions
            if self.claims(function)
        }
        return card.each(
            self.host,
            self.name,
            [
                function
                for function in claimed.values()
                if function.physical_function in here - claimed.keys()
            ],
            lambda function: self._card(
                function,
                [
                    claimed[address]
                    for address in function.virtual_functions
                    if address in claimed
                ],
            ),
        )

    def offers(self, unit: PciFunction) -> bool:
        """Whether the operator wants the function reported."""
        return True

    def fault(self, function: PciFunction) -> str:
        """Why no virtual function of a card works now."""
        return ""

    def part(
        self, unit: PciFunction, function: PciFunction, fault: str
    ) -> inventory.Deployable:
        """The report of one unit of the card at `function`: a virtual
        function of it, or the card itself."""
        return self.deployable(unit, fault=fault)

    def _card(
        self, function: PciFunction, virtual: Sequence[PciFunction]
    ) -> inventory.Device | None:
        units = [unit for unit in virtual or (function,) if self.offers(unit)]
        if not units:
            return None
        if virtual:
            fault = self.fault(function)
            faults = [self.why_not(unit) for unit in units]
        else:
            fault = self.why_not(function)
            faults = [""]
        return card.pci_device(
            self.host,
            function,
            driver=self.name,
            kind=self.type,
            fault=fault,
            deployables=tuple(
                self.part(unit, function, why)
                for unit, why in zip(units, faults, strict=True)
            ),
            clean_seconds=self._seconds(units),
        )

    def _seconds(self, units: Iterable[PciFunction]) -> int | None:
        """How long cleaning a unit may take, if one of them can be cleaned:
        those that cannot fail then, rather than go on as they are."""
        times = (self.clean_seconds(unit) for unit in units)
        return next((time for time in times if time is not None), None)

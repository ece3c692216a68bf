# SPDX-License-Identifier: Apache-2.0
"""Network interfaces of PCI functions."""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Iterable

from cyborg.hardware import files
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(hpf|vf\d+|sf\d+)?|vf\d+")
"""`phys_port_name` of an interface that stands for another function
(kernel documentation, networking/representors); an uplink's is `p0`."""


def own_interface(sysfs: Sysfs, interfaces: Collection[str]) -> str | None:
    """Which of a function's interfaces is its own (first) port's; None
    where none is.

    A function in switchdev mode has the representors of others as well: they
    are told apart by `phys_port_name`, ports by `dev_port`.  Raises
    UnreadableError.
    """
    if len(interfaces) < 2:
        return next(iter(interfaces), None)
    own = [
        interface
        for interface in interfaces
        if not _REPRESENTOR.fullmatch(_port_name(sysfs, interface))
    ]
    return min(own, key=lambda one: (_port(sysfs, one), one), default=None)


def _port_name(sysfs: Sysfs, interface: str) -> str:
    """Empty where the driver gives none, which it says by an error."""
    try:
        return files.text(f"{_directory(sysfs, interface)}/phys_port_name")
    except files.UnreadableError:
        return ""


def _port(sysfs: Sysfs, interface: str) -> int:
    """The port's number; 0 where its function has one port alone."""
    directory = _directory(sysfs, interface)
    if "dev_port" not in files.children(directory):
        return 0
    text = files.text(f"{directory}/dev_port")
    if not text.isdecimal():
        raise files.UnreadableError(
            f"{directory}/dev_port", f"{text[:40]!r} is not a number"
        )
    return int(text)


def _directory(sysfs: Sysfs, interface: str) -> str:
    return f"{sysfs.root}/class/net/{interface}"


class LastSeen:
    """The interfaces of functions, also of those that are with a guest.

    A function loses its interface when a guest gets it.  What an operator
    said of it by the interface's name must go on to hold, or the unit that
    the guest has would be another than the one that is reported.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ...]] = {}

    def look(self, functions: Iterable[PciFunction]) -> None:
        """Take in what there is now; a function that is gone is forgotten,
        and so is one whose interface another has by now."""
        functions = tuple(functions)
        taken = {name for one in functions for name in one.interfaces}
        self._known = {
            function.address: function.interfaces
            or tuple(
                name
                for name in self._known.get(function.address, ())
                if name not in taken
            )
            for function in functions
        }

    def of(self, address: str) -> tuple[str, ...]:
        """The interfaces of a function, now or when last seen."""
        return self._known.get(address, ())

# SPDX-License-Identifier: Apache-2.0
"""Which network interfaces the host itself uses.

It has an address on one, or something that it made of it: a bond, a bridge
(of Open vSwitch, too), a VLAN.  An address that every interface gives itself
(link-local) is none.
"""

from __future__ import annotations

from collections.abc import Iterator

from cyborg.hardware import files
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs

ANY = "0" * 8
LINK_LOCAL = "0000FEA9"
"""169.254.0.0 as the kernel writes it."""

GLOBAL = "00"
"""The scope of an address of IPv6 that is not the link's alone."""


class Networks:
    """The interfaces that the host uses."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._interfaces = f"{sysfs.root}/class/net"
        self._unknown: UnreadableError | None = None
        self._default: set[str] = set()
        self._addressed: set[str] = set()
        try:
            self._read(sysfs)
        except UnreadableError as error:
            self._unknown = error

    def _read(self, sysfs: Sysfs) -> None:
        for words in _rows(sysfs, "net/route", 8):
            if words[1] == words[7] == ANY:
                self._default.add(words[0])
            elif words[1] != LINK_LOCAL:
                self._addressed.add(words[0])
        for words in _rows(sysfs, "net/ipv6_route", 10):
            if words[:2] == ["0" * 32, "00"]:
                self._default.add(words[9])
        for words in _rows(sysfs, "net/if_inet6", 6):
            if words[3] == GLOBAL:
                self._addressed.add(words[5])

    def why(self, function: PciFunction) -> str:
        """How the host uses an interface of the function; empty where not.

        Raises UnreadableError, also for any interface while it cannot be
        read which have an address.
        """
        if function.interfaces and self._unknown is not None:
            raise self._unknown
        reasons = (self._why(one) for one in function.interfaces)
        return next(filter(None, reasons), "")

    def _why(self, interface: str) -> str:
        above = self._above(interface)
        by = self._default & {interface, *above}
        if by:
            way = f" ({min(by)})" if interface not in by else ""
            return (
                "in use by the host: its default route goes over "
                f"{interface}{way}"
            )
        if above:
            return f"in use by the host: {min(above)} is made of {interface}"
        if interface in self._addressed:
            return f"in use by the host: it has an address on {interface}"
        return ""

    def _above(self, interface: str) -> set[str]:
        """All that is made of an interface: bonds, bridges, VLANs."""
        found: set[str] = set()
        left = [interface]
        while left:
            here = f"{self._interfaces}/{left.pop()}"
            names = files.children(here)
            upper = {
                name.removeprefix("upper_")
                for name in names
                if name.startswith("upper_")
            }
            if "master" in names:
                upper.add(files.target(f"{here}/master") or "")
            left += upper - found
            found |= upper
        return found - {interface, ""}


def _rows(sysfs: Sysfs, table: str, columns: int) -> Iterator[list[str]]:
    """The words of each line that has at least so many."""
    rows = (line.split() for line in sysfs.table(table))
    return (row for row in rows if len(row) >= columns)

# SPDX-License-Identifier: Apache-2.0
"""What of its PCI functions the host itself uses.

A card is not offered while the host boots its display by it, has mounted or
swaps on its disk, or reaches a network through it; nor while VFIO would
refuse it, because a neighbour in its IOMMU group is in the host's hands.

Read from sysfs and proc alone, without privilege, once per look at the host.
What cannot be seen so: ZFS pools and programs that use a raw disk.  Sources
are in the kernel's documentation: filesystems/proc, ABI/testing/
sysfs-class-net, driver-api/vfio.
"""

# ruff: noqa: PTH110, PTH115 - many small reads: paths stay text here.

from __future__ import annotations

import collections
import os
import re
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg.hardware import files
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import ADDRESS
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.usage_net import Networks

GONE = b"\xff" * 4
"""What reading the first register of a function that is not there gives."""


class HostUse:
    """Why functions of this host cannot be taken from it.

    `uses` are the reasons by address, `functions` all of the host's.
    """

    def __init__(
        self, functions: Iterable[PciFunction], uses: Mapping[str, str]
    ) -> None:
        self._uses = uses
        self._groups: dict[int, list[PciFunction]] = {}
        for function in functions:
            if function.iommu_group is not None and not _is_bridge(function):
                self._groups.setdefault(function.iommu_group, []).append(
                    function
                )

    def why(
        self, function: PciFunction, together: Collection[str] = ()
    ) -> str:
        """Why an instance cannot have the function, in words for an
        operator; empty where it can.

        `together` are the addresses that would go to the instance with it:
        they are no strangers in its IOMMU group.
        """
        return (
            self._uses.get(function.address)
            or self._why_group(function, together)
            or _why_lost(function)
        )

    def _why_group(
        self, function: PciFunction, together: Collection[str]
    ) -> str:
        """VFIO takes a group only if nothing of it is in the host's hands;
        bridges and what has no driver do not count."""
        if function.iommu_group is None:
            return ""
        for mate in self._groups.get(function.iommu_group, ()):
            if mate.address == function.address or mate.address in together:
                continue
            use = self._uses.get(mate.address) or (
                "" if _is_free(mate) else f"bound to {mate.driver}"
            )
            if use:
                return (
                    f"{mate.address}, which shares IOMMU group "
                    f"{function.iommu_group} with it, is {use}"
                )
        return ""


def host_use(sysfs: Sysfs) -> HostUse:
    """How the host uses its functions now; ask by `sysfs.once`.

    Raises HardwareError where the bus cannot be read.
    """
    functions = sysfs.functions()
    disks = _Disks(sysfs)
    networks = Networks(sysfs)
    uses = {}
    for function in functions:
        if _is_free(function) and function.driver is not None:
            continue  # it was taken from the host already
        try:
            use = (
                ("the host's boot display" if function.boot_vga else "")
                or disks.why(function)
                or networks.why(function)
            )
        except UnreadableError as error:
            use = f"perhaps in use by the host, which cannot be told: {error}"
        if use:
            uses[function.address] = use
    return HostUse(functions, uses)


def _is_free(function: PciFunction) -> bool:
    """Whether no driver of the host has it: none, or one that only keeps it
    for VFIO (vfio-pci, a vendor's variant such as mlx5_vfio_pci)."""
    driver = function.driver
    return driver is None or driver == "pci-stub" or "vfio" in driver


def _is_bridge(function: PciFunction) -> bool:
    """Of PCI buses: what VFIO does not look at."""
    return function.class_code.startswith(("0604", "0607", "0609"))


def _why_lost(function: PciFunction) -> str:
    """Whether the function fell off the bus: every sign must say so.

    Its link has no speed though it is powered, and its registers read all
    ones, which those of a virtual function always do.  One that sleeps is
    let sleep: a read of its registers would wake it.
    """
    if (
        function.physical_function is not None
        or _shown(f"{function.path}/power_state") != "D0"
        or not _shown(f"{function.path}/current_link_speed").startswith(
            "Unknown"
        )
        or _registers(f"{function.path}/config") != GONE
    ):
        return ""
    return "not on the PCI bus any more: its registers read all ones"


def _shown(path: str) -> str:
    try:
        return files.text(path)
    except UnreadableError:
        return ""


def _registers(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, len(GONE))
    except OSError:
        return b""
    finally:
        os.close(file)


class _Disks:
    """Block devices, of which functions they are, and what is on them."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._blocks = f"{sysfs.root}/class/block"
        self._unknown: UnreadableError | None = None
        self._mounts: Mapping[str, str] = {}
        self._swaps: Collection[str] = ()
        try:
            self._mounts = _mounts(sysfs)
            self._swaps = _swaps(sysfs)
        except UnreadableError as error:
            self._unknown = error
        self._members = {
            name
            for pool in files.children(f"{sysfs.root}/fs/btrfs")
            for name in files.children(f"{sysfs.root}/fs/btrfs/{pool}/devices")
        }
        self._of_function: dict[str, list[str]] = collections.defaultdict(list)
        for name in files.children(self._blocks):
            self._add(f"{self._blocks}/{name}", f"{self._blocks}/{name}")
        self._add_shared(f"{sysfs.root}/class/nvme-subsystem")

    def _add(self, place: str, block: str) -> None:
        """`block` is a disk of each function above `place`: of the disk's
        own, and of a storage controller (VMD) that this hangs on."""
        for address in _functions_above(place):
            self._of_function[address].append(block)

    def _add_shared(self, subsystems: str) -> None:
        """Disks of NVMe's native multipath: their place tells no function,
        the controllers beside them do."""
        for subsystem in files.children(subsystems):
            here = f"{subsystems}/{subsystem}"
            names = files.children(here)
            blocks = [
                f"{here}/{path}"
                for name in names
                if re.fullmatch(r"nvme\d+n\d+", name)
                for path in (name, *_partitions(here, name))
            ]
            for name in names:
                if re.fullmatch(r"nvme\d+", name):
                    for block in blocks:
                        self._add(f"{here}/{name}", block)

    def why(self, function: PciFunction) -> str:
        """How the host uses the disks of a function; empty where not.

        Raises UnreadableError, also for any disk while it cannot be read
        what the host has mounted or swaps on.
        """
        blocks = self._of_function.get(function.address, ())
        if blocks and self._unknown is not None:
            raise self._unknown
        reasons = filter(
            None, (self._why_block(block, frozenset()) for block in blocks)
        )
        return next(reasons, "")

    def _why_block(self, block: str, below: frozenset[str]) -> str:
        """The same of one disk, partition, or what is made of it."""
        name = block.rpartition("/")[2]
        number = ""
        if os.path.exists(f"{block}/dev"):
            number = files.text(f"{block}/dev")
        mount = self._mounts.get(number) or self._mounts.get(name)
        if mount:
            return f"in use by the host: {name} is mounted at {mount}"
        if name in self._swaps:
            return f"in use by the host: it swaps on {name}"
        if name in self._members:
            return f"in use by the host: {name} is part of a btrfs"
        for holder in files.children(f"{block}/holders"):
            if holder in below:
                continue
            above = f"{self._blocks}/{holder}"
            return (
                self._why_block(above, below | {name})
                or f"in use by the host: {holder} is made of {name}"
            )
        return ""


def _partitions(place: str, disk: str) -> list[str]:
    """The partitions in a disk's directory, with that before them."""
    return [
        f"{disk}/{name}"
        for name in files.children(f"{place}/{disk}")
        if name.startswith(f"{disk}p")
    ]


def _functions_above(path: str) -> list[str]:
    """The PCI functions on the way to where a link points."""
    try:
        parts = os.readlink(path).split("/")
    except OSError:
        return []
    return [part for part in parts if ADDRESS.fullmatch(part)]


def _mounts(sysfs: Sysfs) -> dict[str, str]:
    """Where devices are mounted, by number (`259:1`) and by name.

    The name is for file systems over several devices (btrfs), which show
    a number of their own.  Of several places the first by name.
    """
    found: dict[str, str] = {}
    for line in _mount_table(sysfs):
        fields, _, rest = line.partition(" - ")
        words = fields.split(" ")
        source = rest.split(" ")[1] if " " in rest else ""
        if len(words) < 5:
            continue
        for key in (words[2], *_names(source)):
            found[key] = min(words[4], found.get(key, words[4]))
    return found


def _mount_table(sysfs: Sysfs) -> list[str]:
    """Of the host's first process, or, where that does not let itself be
    seen, of the agent."""
    try:
        lines = sysfs.table("1/mountinfo")
    except UnreadableError:
        lines = sysfs.table("self/mountinfo")
        if lines:
            return lines
        raise
    return lines or sysfs.table("self/mountinfo")


def _names(source: str) -> Iterator[str]:
    """Of the device nodes that are mounted: one, or `one:two:three`."""
    if source.startswith("/dev/"):
        for node in source.split(":"):
            yield node.rpartition("/")[2]


def _swaps(sysfs: Sysfs) -> set[str]:
    return {
        line.split()[0].rpartition("/")[2]
        for line in sysfs.table("swaps")[1:]
        if line.startswith("/dev/")
    }

# SPDX-License-Identifier: Apache-2.0
"""NVMe controllers and their namespaces, as the kernel shows them.

Reading needs no privilege.  What is done to a disk goes through nvme-cli
(`nvme_cli.py`).  Sources: the kernel's drivers/nvme/host.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from cyborg.hardware import files
from cyborg.hardware.files import Directory
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs

LIVE = "live"
PASSING_STATES = frozenset({"new", "resetting", "connecting"})
"""Of a controller that will be live again by itself."""

SECTOR = 512
"""The unit of `size`, whatever the blocks of a namespace are."""

_CONTROLLER = re.compile(r"nvme\d+")
_NAMESPACE = re.compile(r"nvme(\d+)(c\d+)?n(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Controller:
    """The controller `nvmeN` of a PCI function; its texts without padding.

    `subsystem` is the NQN of the NVM subsystem that it is part of.
    """

    name: str
    model: str
    serial: str
    firmware: str
    state: str
    subsystem: str
    path: str

    @property
    def node(self) -> str:
        """Its device node."""
        return f"/dev/{self.name}"

    @property
    def why_not(self) -> str:
        """Why its disk cannot be used now; empty where it can."""
        if self.state == LIVE:
            return ""
        now = " now" if self.state in PASSING_STATES else ""
        return f"its NVMe controller is {self.state}{now}"


@dataclasses.dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace and its block device; `size` is in bytes."""

    disk: str
    nsid: int
    size: int

    @property
    def node(self) -> str:
        """Its device node."""
        return f"/dev/{self.disk}"


def controller(function: PciFunction) -> Controller | None:
    """The controller of a function; None while no NVMe driver has it.

    Raises UnreadableError.
    """
    place = f"{function.path}/nvme"
    for name in files.children(place):
        if _CONTROLLER.fullmatch(name):
            return _read(f"{place}/{name}", name)
    return None


def _read(path: str, name: str) -> Controller:
    directory = _directory(path)
    named = "subsysnqn" in directory.names
    return Controller(
        name=name,
        model=_text(directory, "model", 40),
        serial=_text(directory, "serial", 20),
        firmware=_text(directory, "firmware_rev", 8),
        state=_text(directory, "state", 40),
        subsystem=_text(directory, "subsysnqn", 256) if named else "",
        path=path,
    )


def _text(directory: Directory, name: str, width: int) -> str:
    """What a file holds, padding stripped; never more than `width`."""
    found = directory.text(name)
    if len(found) > width:
        raise UnreadableError(
            f"{directory.path}/{name}", f"longer than {width} characters"
        )
    return found


def neighbours(sysfs: Sysfs, one: Controller) -> tuple[str, ...]:
    """The names of other controllers of the same NVM subsystem: what is
    done to one of them is done to the disk of all.

    Raises UnreadableError.
    """
    together = sysfs.once(_subsystems).get(one.subsystem, ())
    return tuple(name for name in together if name != one.name)


def _subsystems(sysfs: Sysfs) -> dict[str, tuple[str, ...]]:
    """The controllers of each NVM subsystem that has a name."""
    found: dict[str, tuple[str, ...]] = {}
    everybody = sysfs.root / "class" / "nvme"
    for name in files.children(str(everybody)):
        try:
            subsystem = files.text(str(everybody / name / "subsysnqn"))
        except UnreadableError:
            continue  # one that goes, or that says nothing of it
        if subsystem:
            found[subsystem] = (*found.get(subsystem, ()), name)
    return found


def namespaces(root: Path, one: Controller) -> tuple[Namespace, ...]:
    """The namespaces that the kernel made block devices of, by number.

    Raises UnreadableError.
    """
    found = [
        _namespace(root, one, match)
        for match in map(_NAMESPACE.fullmatch, files.children(one.path))
        if match
    ]
    return tuple(sorted(found, key=lambda each: each.nsid))


def _namespace(root: Path, one: Controller, match: re.Match[str]) -> Namespace:
    subsystem, path_number, number = match.groups()
    directory = _directory(f"{one.path}/{match.group()}")
    if path_number is not None:
        # Native multipath: this is one hidden way to the subsystem's disk.
        disk = f"nvme{subsystem}n{number}"
        directory = _directory(
            str(root / f"class/nvme-subsystem/nvme-subsys{subsystem}" / disk)
        )
    return Namespace(
        disk=directory.path.rpartition("/")[2],
        nsid=_number(directory, "nsid"),
        size=_number(directory, "size") * SECTOR,
    )


def _number(directory: Directory, name: str) -> int:
    number = directory.number(name)
    if number is None:
        raise UnreadableError(f"{directory.path}/{name}", "no number")
    return number


def _directory(path: str) -> Directory:
    try:
        return Directory(path)
    except OSError as error:
        raise UnreadableError(path, error.strerror or str(error)) from error

# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of a host, read from sysfs.

The only code that reads `/sys/bus/pci`.  It reads below a root that it is
given, so that a test, a demo and a real host are read by the same lines, and
it needs no privilege.  It knows no vendor and no card: what a function is
good for is a driver's business.
"""

# ruff: noqa: PTH115, PTH116, PTH208 - a scan is thousands of small reads and
# must be cheap: paths stay text here.

from __future__ import annotations

import dataclasses
import logging
import os
import re
import stat
import threading
from pathlib import Path
from typing import NamedTuple

LOG = logging.getLogger(__name__)

_ADDRESS = re.compile(
    r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])"
)
_HEX = {
    digits: re.compile(rf"0x([0-9a-f]{{{digits}}})") for digits in (2, 4, 6)
}
_FILE_LIMIT = 4096


class HardwareError(Exception):
    """The host's hardware cannot be read; the message names the path.

    Not the same as having none: who gets this knows nothing.
    """


class Address(NamedTuple):
    """Where a PCI function is; the four parts as numbers."""

    domain: int
    bus: int
    device: int
    function: int

    def __str__(self) -> str:
        return (
            f"{self.domain:04x}:{self.bus:02x}:"
            f"{self.device:02x}.{self.function}"
        )


def parse_address(text: str) -> Address:
    """The address that `text` writes as `domain:bus:device.function`.

    Takes four to eight digits of domain and capitals (as NVIDIA's tools
    print); `str` of the result is the kernel's own writing.  Raises
    ValueError for anything else.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(f"not a PCI address: {text!r}")
    return Address(*(int(part, 16) for part in match.groups()))


@dataclasses.dataclass(frozen=True, slots=True)
class PciFunction:
    """One PCI function as the kernel shows it now.

    Ids are lower-case hex without `0x`: `vendor` and `device` (four digits),
    `class_code` (six: base, sub, interface), `revision` (two).  `root` is
    where it hangs in the PCIe tree: host bridge and root port, or the host
    bridge alone for a function on the root bus; empty where unknown.
    `numa_node` is None where the kernel does not know it.  `mediated` holds
    the uuids of the mediated devices that exist on it.
    """

    address: str
    vendor: str
    device: str
    class_code: str
    subsystem_vendor: str = "0000"
    subsystem_device: str = "0000"
    revision: str = "00"
    driver: str | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    physical_function: str | None = None
    virtual_functions: tuple[str, ...] = ()
    reset_methods: tuple[str, ...] = ()
    boot_vga: bool = False
    interfaces: tuple[str, ...] = ()
    mediated: tuple[str, ...] = ()
    root: str = ""
    path: str = dataclasses.field(default="", compare=False)


class _UnreadableError(Exception):
    """A file of a function that is missing, unreadable or malformed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class _Directory:
    """The sysfs directory of one function; its names are listed once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.names = frozenset(os.listdir(path))

    def text(self, name: str) -> str:
        """What the file holds, stripped."""
        path = f"{self.path}/{name}"
        try:
            # A pipe or a device left in a fake tree must not block.
            descriptor = os.open(
                path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
            try:
                return os.read(descriptor, _FILE_LIMIT).decode("ascii").strip()
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _UnreadableError(
                path, error.strerror or str(error)
            ) from error
        except UnicodeDecodeError as error:
            raise _UnreadableError(path, "not text") from error

    def hexadecimal(self, name: str, digits: int, missing: str = "") -> str:
        """The digits of a file such as `0x10de`; `missing` if there is no
        such file and it is not one that every kernel has."""
        if missing and name not in self.names:
            return missing
        text = self.text(name)
        match = _HEX[digits].fullmatch(text)
        if match is None:
            raise _UnreadableError(
                f"{self.path}/{name}",
                f"{text[:40]!r} is not 0x and {digits} hex digits",
            )
        return match.group(1)

    def number(self, name: str) -> int | None:
        """A whole number, None where the file is missing or says -1."""
        if name not in self.names:
            return None
        text = self.text(name)
        try:
            number = int(text)
        except ValueError:
            raise _UnreadableError(
                f"{self.path}/{name}", f"{text[:40]!r} is not a number"
            ) from None
        return number if number >= 0 else None

    def target(self, name: str) -> str | None:
        """The last part of what a link points to, None without the link."""
        if name not in self.names:
            return None
        path = f"{self.path}/{name}"
        try:
            return os.readlink(path).rpartition("/")[2]
        except OSError as error:
            raise _UnreadableError(
                path, error.strerror or str(error)
            ) from error

    def children(self, *names: str) -> tuple[str, ...]:
        """The sorted names in a directory below; none where it is not."""
        try:
            return tuple(sorted(os.listdir("/".join((self.path, *names)))))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise _UnreadableError(
                "/".join((self.path, *names)), error.strerror or str(error)
            ) from error


class Sysfs:
    """The host's sysfs below `root` (`/sys`, or a tree of the same shape).

    One is shared by all drivers of a host; it may be used from several
    threads.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._warned: dict[str, str] = {}
        self._lock = threading.Lock()

    def functions(self) -> list[PciFunction]:
        """Every PCI function that can be read, by address.

        One that cannot is left out, with one warning until it can be read
        again; one that vanishes meanwhile is left out silently.  Raises
        HardwareError if there is no PCI bus to read, or nothing on it can
        be read: that is not a host without devices.
        """
        bus = self.root / "bus" / "pci" / "devices"
        try:
            names = os.listdir(bus)
        except OSError as error:
            raise HardwareError(
                f"the PCI bus cannot be read: {bus}: {error.strerror}"
            ) from error
        self._forget(names)
        found: list[PciFunction] = []
        failure: str | None = None
        for name in sorted(names, key=lambda name: (len(name), name)):
            try:
                function = self._read(f"{bus}/{name}", name)
            except _UnreadableError as error:
                failure = str(error)
                self._warn(name, failure)
                continue
            if function is not None:
                found.append(function)
                self._well(name)
        if failure is not None and not found:
            raise HardwareError(f"no PCI function can be read: {failure}")
        return found

    def function(self, address: str) -> PciFunction | None:
        """One function, None where there is none at this address.

        Raises HardwareError where it cannot be read.
        """
        try:
            return self._read(
                str(self.root / "bus" / "pci" / "devices" / address), address
            )
        except _UnreadableError as error:
            raise HardwareError(str(error)) from error

    def _read(self, path: str, name: str) -> PciFunction | None:
        try:
            directory = _Directory(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _UnreadableError(
                path, error.strerror or str(error)
            ) from error
        try:
            return _function(directory, name)
        except _UnreadableError:
            if _vanished(path):
                LOG.debug("PCI function %s went away while it was read", name)
                return None
            raise

    def _warn(self, name: str, reason: str) -> None:
        with self._lock:
            if self._warned.get(name) == reason:
                return
            self._warned[name] = reason
        LOG.warning("PCI function %s is left out: %s", name, reason)

    def _well(self, name: str) -> None:
        if name in self._warned:
            with self._lock:
                self._warned.pop(name, None)

    def _forget(self, names: list[str]) -> None:
        """Let a function that is gone be warned of again if it returns."""
        with self._lock:
            for name in self._warned.keys() - set(names):
                del self._warned[name]


def _vanished(path: str) -> bool:
    """Whether the function's directory is gone."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _function(directory: _Directory, name: str) -> PciFunction:
    path = directory.path
    if _ADDRESS.fullmatch(name) is None:
        raise _UnreadableError(path, "the name is not a PCI address")
    return PciFunction(
        address=name,
        vendor=directory.hexadecimal("vendor", 4),
        device=directory.hexadecimal("device", 4),
        class_code=directory.hexadecimal("class", 6),
        subsystem_vendor=directory.hexadecimal("subsystem_vendor", 4, "0000"),
        subsystem_device=directory.hexadecimal("subsystem_device", 4, "0000"),
        revision=directory.hexadecimal("revision", 2, "00"),
        driver=directory.target("driver"),
        numa_node=directory.number("numa_node"),
        iommu_group=_iommu_group(directory),
        physical_function=directory.target("physfn"),
        virtual_functions=_virtual_functions(directory),
        reset_methods=(
            tuple(directory.text("reset_method").split())
            if "reset_method" in directory.names
            else ()
        ),
        boot_vga=directory.number("boot_vga") == 1,
        interfaces=_interfaces(directory),
        mediated=_mediated(directory),
        root=_root(path),
        path=path,
    )


def _iommu_group(directory: _Directory) -> int | None:
    group = directory.target("iommu_group")
    if group is None:
        return None
    if not group.isdecimal():
        raise _UnreadableError(
            f"{directory.path}/iommu_group", f"{group!r} is not a number"
        )
    return int(group)


def _virtual_functions(directory: _Directory) -> tuple[str, ...]:
    """The active virtual functions by number.

    Counted from the links: reading `sriov_numvfs` waits for the device's
    lock, for ever where its driver hangs.
    """
    numbers = sorted(
        int(name[len("virtfn") :])
        for name in directory.names
        if name.startswith("virtfn") and name[len("virtfn") :].isdecimal()
    )
    return tuple(
        directory.target(f"virtfn{number}") or "" for number in numbers
    )


def _interfaces(directory: _Directory) -> tuple[str, ...]:
    """Network interfaces; a virtio function has them one level lower."""
    if "net" in directory.names:
        return directory.children("net")
    return tuple(
        interface
        for name in sorted(directory.names)
        if name.startswith("virtio")
        for interface in directory.children(name, "net")
    )


def _mediated(directory: _Directory) -> tuple[str, ...]:
    types = "mdev_supported_types"
    if types not in directory.names:
        return ()
    return tuple(
        identity
        for name in directory.children(types)
        for identity in directory.children(types, name, "devices")
    )


def _root(path: str) -> str:
    """Host bridge and root port, from the place that the link points to."""
    try:
        parts = os.readlink(path).split("/")
    except OSError:
        return ""
    for index, part in enumerate(parts[:-1]):
        if part.startswith("pci"):
            return "/".join(parts[index : min(index + 2, len(parts) - 1)])
    return ""

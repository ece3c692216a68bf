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

import contextlib
import dataclasses
import logging
import os
import re
import stat
import threading
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from cyborg.hardware import files
from cyborg.hardware.files import Directory
from cyborg.hardware.files import UnreadableError

LOG = logging.getLogger(__name__)

_Found = TypeVar("_Found")

ADDRESS = re.compile(
    r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])"
)


class HardwareError(Exception):
    """The host's hardware cannot be read or written; the message names the
    path.

    Not the same as having none: who gets this knows nothing.  `errno` is
    the kernel's, where it gave one.
    """

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


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
    match = ADDRESS.fullmatch(text)
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


class _Answer:
    """What a look found, or how it failed; there once it has ended."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._found: Any = None
        self._error: BaseException | None = None

    def fill(self, look: Callable[[], Any]) -> None:
        """Look, in this thread."""
        try:
            self._found = look()
        except BaseException as error:  # noqa: BLE001 - raised by `get`
            self._error = error
        finally:
            self._there.set()

    def get(self) -> Any:
        """Wait for the look; raises what it raised."""
        self._there.wait()
        if self._error is not None:
            raise self._error
        return self._found


class Sysfs:
    """The host's sysfs below `root` (`/sys`, or a tree of the same shape).

    One is shared by all drivers of a host; it may be used from several
    threads.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._warned: dict[tuple[str, str], str] = {}
        self._unreadable: set[str] = set()
        self._lock = threading.Lock()
        self._shared: dict[object, _Answer] = {}
        self._sharers = 0

    @property
    def proc(self) -> Path:
        """The host's proc: `/proc`, or what lies beside a fake tree."""
        return self.root.parent / "proc"

    def table(self, name: str) -> list[str]:
        """The lines of a file of proc, none where there is no such file.

        Raises UnreadableError, which is warned of once until it can be read.
        """
        path = f"{self.proc}/{name}"
        try:
            lines = files.lines(path)
        except UnreadableError as error:
            with self._lock:
                known = path in self._unreadable
                self._unreadable.add(path)
            if not known:
                LOG.warning(
                    "What the host uses is not wholly known: %s", error
                )
            raise
        self._unreadable.discard(path)
        return lines

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Meanwhile one scan answers everybody who asks: a dozen drivers
        that look at one host at once read it once."""
        with self._lock:
            self._sharers += 1
            self._shared = {}
        try:
            yield
        finally:
            with self._lock:
                self._sharers -= 1
                self._shared = {}

    def once(self, look: Callable[[Sysfs], _Found]) -> _Found:
        """What `look(self)` answers; while the scan is shared it is asked
        once for all.  Raises what it raises.

        A look that hangs holds up those alone who want the same.
        """
        with self._lock:
            known = self._shared.get(look)
            answer = known or _Answer()
            if self._sharers:
                self._shared[look] = answer
        if known is None:
            answer.fill(lambda: look(self))
        found: _Found = answer.get()
        return found

    def functions(self) -> list[PciFunction]:
        """Every PCI function that can be read, by address.

        One that cannot is left out, with one warning until it can be read
        again; one that vanishes meanwhile is left out silently.  Raises
        HardwareError if there is no PCI bus to read, or nothing on it can
        be read: that is not a host without devices.
        """
        return list(self.once(Sysfs._scan))

    def _scan(self) -> list[PciFunction]:
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
            except UnreadableError as error:
                failure = str(error)
                self.leave_out(name, failure)
                continue
            if function is not None:
                found.append(function)
                self.well(name)
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
        except UnreadableError as error:
            raise HardwareError(str(error)) from error

    def _read(self, path: str, name: str) -> PciFunction | None:
        try:
            directory = Directory(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableError(
                path, error.strerror or str(error)
            ) from error
        try:
            return _function(directory, name)
        except UnreadableError:
            if _vanished(path):
                LOG.debug("PCI function %s went away while it was read", name)
                return None
            raise

    def leave_out(self, name: str, reason: str, by: str = "") -> None:
        """Warn, once for each reason, that a function is not reported.

        `by` is who leaves it out: a driver, or (empty) the scan.
        """
        with self._lock:
            if self._warned.get((by, name)) == reason:
                return
            self._warned[by, name] = reason
        LOG.warning("PCI function %s is left out: %s", name, reason)

    def well(self, name: str, by: str = "") -> None:
        """The function can be reported again."""
        if (by, name) in self._warned:
            with self._lock:
                self._warned.pop((by, name), None)

    def _forget(self, names: list[str]) -> None:
        """Let a function that is gone be warned of again if it returns."""
        here = set(names)
        with self._lock:
            for key in [key for key in self._warned if key[1] not in here]:
                del self._warned[key]


def _vanished(path: str) -> bool:
    """Whether the function's directory is gone."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _function(directory: Directory, name: str) -> PciFunction:
    path = directory.path
    if ADDRESS.fullmatch(name) is None:
        raise UnreadableError(path, "the name is not a PCI address")
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
        virtual_functions=virtual_functions(directory),
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


def _iommu_group(directory: Directory) -> int | None:
    group = directory.target("iommu_group")
    if group is None:
        return None
    if not group.isdecimal():
        raise UnreadableError(
            f"{directory.path}/iommu_group", f"{group!r} is not a number"
        )
    return int(group)


def virtual_functions(directory: Directory) -> tuple[str, ...]:
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


def _interfaces(directory: Directory) -> tuple[str, ...]:
    """Network interfaces; a virtio function has them one level lower."""
    if "net" in directory.names:
        return directory.children("net")
    return tuple(
        interface
        for name in sorted(
            name for name in directory.names if name.startswith("virtio")
        )
        for interface in directory.children(name, "net")
    )


def _mediated(directory: Directory) -> tuple[str, ...]:
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

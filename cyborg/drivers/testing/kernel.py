# SPDX-License-Identifier: Apache-2.0
"""A writer that does to a fake tree what the kernel would to a host."""

from __future__ import annotations

import errno
import fnmatch
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from cyborg.drivers.testing import drawing
from cyborg.drivers.testing.cards import Card
from cyborg.drivers.testing.drawing import write
from cyborg.drivers.testing.tree import SysfsTree
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.writes import Writer

WITHOUT_SRIOV = frozenset({"nvidia", "amdgpu", "dfl-pci"})
"""Drivers of the kernel that refuse a write to `sriov_numvfs` (NVIDIA's has
a tool of its own, DFL a port to be released first)."""

ALL_OR_NONE = frozenset({"4xxx", "420xx", "c3xxx", "c6xx", "dh895xcc"})
"""Drivers that enable every virtual function whatever the number (QAT)."""

Act = Callable[[Path, str], None]


class Kernel(Writer):
    """Writes to the files of `tree`, with the kernel's own refusals.

    `writes` are all values that were to be written, with their paths below
    the root; `resets` the functions that were reset and by which method.
    """

    def __init__(self, tree: SysfsTree) -> None:
        self.tree = tree
        self.writes: list[tuple[str, str]] = []
        self.resets: list[tuple[str, str]] = []
        self._failures: list[tuple[str, int | None]] = []
        self._acts: dict[str, Act] = {
            "bind": self._bind,
            "create": self._create_mdev,
            "current_vgpu_type": self._set_vgpu_type,
            "driver_override": self._override,
            "remove": self._remove,
            "reset": self._reset,
            "reset_method": self._set_reset_method,
            "sriov_drivers_autoprobe": self._store,
            "sriov_numvfs": self._set_vfs,
            "unbind": self._unbind,
            "vgpu_params": self._store,
        }

    def fail(self, pattern: str, number: int) -> None:
        """Let writes to paths (below the root) that match a glob fail with
        an errno."""
        self._failures.append((pattern, number))

    def hang(self, pattern: str) -> None:
        """Let writes to such paths never come back: the time is up."""
        self._failures.append((pattern, None))

    def heal(self) -> None:
        """No write fails or hangs by `fail` and `hang` any more."""
        self._failures.clear()

    def write(self, path: str, value: str, timeout: float = 10.0) -> None:
        below = os.path.relpath(path, self.tree.root)
        self.writes.append((below, value))
        for pattern, number in self._failures:
            if fnmatch.fnmatch(below, pattern):
                if number is None:
                    raise HardwareError(
                        f"{path}: not written within {timeout:g} s"
                    )
                raise _refusal(path, number)
        place = Path(path)
        try:
            # The directory may be a link, the file itself never is.
            place = place.parent.resolve() / place.name
            self._act(place)(place, value.removesuffix("\n"))
        except OSError as error:
            raise _refusal(path, error.errno or errno.EIO) from error

    def _act(self, path: Path) -> Act:
        if not path.exists():
            raise OSError(errno.ENOENT, "")
        if path.parent.name == "qat":
            return self._configure
        if path.name == "remove" and (path.parent / "mdev_type").exists():
            return self._remove_mdev
        try:
            return self._acts[path.name]
        except KeyError:
            raise OSError(errno.EACCES, "") from None

    # Mediated devices and vGPUs ----------------------------------------

    def _create_mdev(self, path: Path, value: str) -> None:
        kind, parent = path.parent, path.parents[2]
        if len(value) != 36:
            raise OSError(errno.EINVAL, "")
        try:
            identity = str(uuid.UUID(value))
        except ValueError:
            raise OSError(errno.EINVAL, "") from None
        if (self.tree.root / "bus/mdev/devices" / identity).exists():
            raise OSError(errno.EEXIST, "")
        if int((kind / "available_instances").read_text()) < 1:
            raise OSError(errno.EUSERS, "")
        self.tree.add_mdev(parent.name, kind.name, identity)

    def _remove_mdev(self, path: Path, value: str) -> None:
        _check(value == "1")
        self.tree.remove_mdev(path.parent.name)

    def _set_vgpu_type(self, path: Path, value: str) -> None:
        current = path.read_text().strip()
        creatable = (path.parent / "creatable_vgpu_types").read_text()
        allowed = {
            line.partition(":")[0].strip()
            for line in creatable.splitlines()[1:]
        }
        _check(value == "0" or (current == "0" and value in allowed))
        write(path, value)
        card = self.tree.cards[path.parents[1].name]
        assert card.physical is not None
        self._show_creatable(card.physical, card.vgpu_types)

    def _show_creatable(self, physical: str, types: tuple[str, ...]) -> None:
        """The lists of all virtual functions: one type on a card."""
        places = {
            place: (place / "current_vgpu_type").read_text().strip()
            for place in self.tree.path(physical).glob("virtfn*/nvidia")
        }
        used = [kind for kind in places.values() if kind != "0"]
        free = [
            text
            for text in types
            if not used
            or (
                text.split(":")[0] in used
                and len(used) < int(text.split(":")[2])
            )
        ]
        for place, kind in places.items():
            write(
                place / "creatable_vgpu_types",
                drawing.vgpu_table(free if kind == "0" else ()),
            )

    # Virtual functions ---------------------------------------------------

    def sriov_manage(self, command: list[str]) -> str:
        """NVIDIA's tool: `-e` or `-d` and an address; idempotent."""
        action, address = command[1:]
        card = self.tree.cards[address.lower()]
        if action == "-d":
            self.tree.remove_virtual_functions(card.address)
        elif not list(self.tree.path(card.address).glob("virtfn0")):
            self.tree.add_virtual_functions(card, card.total_vfs or 0)
        return ""

    def _set_vfs(self, path: Path, value: str) -> None:
        _check(value.isdecimal())
        card = self.tree.cards[path.parent.name]
        driver = self.tree.driver(card.address)
        count, total = int(value), card.total_vfs or 0
        now = len(list(path.parent.glob("virtfn*")))
        if count > total:
            raise OSError(errno.ERANGE, "")
        if not driver or driver in WITHOUT_SRIOV:
            raise OSError(errno.ENOENT, "")
        if count and driver in ALL_OR_NONE:
            count = total
        if count == now:
            return
        if count and now:
            raise OSError(errno.EBUSY, "")
        if count:
            self.tree.add_virtual_functions(card, count)
        else:
            self.tree.remove_virtual_functions(card.address)

    # Functions and their drivers -----------------------------------------

    def _reset(self, path: Path, value: str) -> None:
        _check(value == "1")
        methods = (path.parent / "reset_method").read_text().split()
        if not methods:
            raise OSError(errno.ENOTTY, "")
        self.resets.append((path.parent.name, methods[0]))

    def _set_reset_method(self, path: Path, value: str) -> None:
        default = self.tree.cards[path.parent.name].reset_method or ""
        if value.strip() == "default":
            value = default
        _check(set(value.split()) <= set(default.split()))
        write(path, " ".join(value.split()))

    def _override(self, path: Path, value: str) -> None:
        write(path, value.strip() or "(null)")

    def _bind(self, path: Path, value: str) -> None:
        card = self._function(value)
        if self.tree.driver(card.address):
            raise OSError(errno.EBUSY, "")
        place = self.tree.path(card.address)
        wanted = (place / "driver_override").read_text().strip()
        if wanted not in {"(null)", path.parent.name}:
            raise OSError(errno.ENODEV, "")
        self.tree.bind(card, place, path.parent.name)

    def _unbind(self, path: Path, value: str) -> None:
        card = self._function(value)
        if self.tree.driver(card.address) != path.parent.name:
            raise OSError(errno.ENODEV, "")
        self.tree.unbind(card.address)

    def _remove(self, path: Path, value: str) -> None:
        _check(value == "1")
        self.tree.unplug(path.parent.name)

    def _function(self, address: str) -> Card:
        try:
            return self.tree.cards[address]
        except KeyError:
            raise OSError(errno.ENODEV, "") from None

    # Others --------------------------------------------------------------

    def _configure(self, path: Path, value: str) -> None:
        """QAT's own files: services are changed while it is down."""
        state = (path.parent / "state").read_text().strip()
        if path.name == "cfg_services":
            _check(state == "down")
        elif path.name == "state":
            _check(value in {"up", "down"})
        else:
            raise OSError(errno.EACCES, "")
        write(path, value)

    def _store(self, path: Path, value: str) -> None:
        write(path, value)


def _check(condition: bool) -> None:
    if not condition:
        raise OSError(errno.EINVAL, "")


def _refusal(path: str, number: int) -> HardwareError:
    return HardwareError(f"{path}: {os.strerror(number)}", number)

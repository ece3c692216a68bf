# SPDX-License-Identifier: Apache-2.0
"""Fake hardware: a sysfs tree with the kernel's own layout.

`SysfsTree(tmp_path / "sys")` is an empty host; `add_function(card)` plugs a
card in, and the real reader (`cyborg.hardware.pci`) reads it.  Functions
live below `devices/pciDDDD:BB/<root port>/`, and `bus/pci/devices` holds
links to them, as on a real host.
"""

from __future__ import annotations

import collections
import functools
import shutil
from pathlib import Path

from cyborg.drivers.testing import drawing
from cyborg.drivers.testing import identity
from cyborg.drivers.testing.cards import Card
from cyborg.drivers.testing.drawing import link
from cyborg.drivers.testing.drawing import write
from cyborg.hardware.pci import Address
from cyborg.hardware.pci import parse_address

PORT = "8086:2030"
"""A root port, class 0604."""


class SysfsTree:
    """A host's sysfs below `root`, empty at first but for its PCI bus.

    `proc` lies beside it, as `/proc` beside `/sys`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._groups = 0
        self.bus.mkdir(parents=True)

    @functools.cached_property
    def cards(self) -> dict[str, Card]:
        """The facts of each function that is there, by address."""
        return {}

    @functools.cached_property
    def _counters(self) -> collections.Counter[str]:
        return collections.Counter()

    @property
    def bus(self) -> Path:
        return self.root / "bus" / "pci" / "devices"

    @property
    def proc(self) -> Path:
        return self.root.parent / "proc"

    def write_proc(self, name: str, text: str) -> Path:
        """A file below `proc`, as it is given."""
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def path(self, address: str) -> Path:
        """The directory of a function."""
        return (self.bus / address).resolve()

    def next_number(self, kind: str) -> int:
        """The number of the next `kind` (nvme, accel, …) of the host."""
        number = self._counters[kind]
        self._counters[kind] += 1
        return number

    # Plugging ----------------------------------------------------------

    def add_function(self, card: Card, parent: Path | None = None) -> Path:
        """The directory of a function with all files of `card`.

        `parent` is the directory of the bridge above; made where not given.
        """
        if parent is None:
            parent = self._port_above(parse_address(card.address))
        path = parent / card.address
        path.mkdir(parents=True)
        for name, text in (
            *identity.files(card).items(),
            *identity.sriov_files(card).items(),
            *card.files,
        ):
            write(path / name, text)
        if card.reset_method is not None:
            drawing.write_only(path / "reset")
        drawing.write_only(path / "remove")
        link(path / "subsystem", self.root / "bus" / "pci")
        self._add_to_iommu_group(path)
        self.cards[card.address] = card
        if card.driver is not None:
            self.bind(card, path, card.driver)
        link(self.bus / card.address, path)
        return path

    def add_virtual_functions(self, card: Card, count: int) -> list[Path]:
        """Enable `count` virtual functions of a card that is there."""
        parent = self.path(card.address)
        if count:
            write(parent / "sriov_numvfs", str(count))
        made = []
        for number in range(count):
            path = self.add_function(
                card.virtual_function(number), parent.parent
            )
            link(parent / f"virtfn{number}", path)
            link(path / "physfn", parent)
            made.append(path)
        return made

    def remove_virtual_functions(self, address: str) -> None:
        """Take all virtual functions of a function away."""
        parent = self.path(address)
        for place in sorted(parent.glob("virtfn*")):
            other = place.resolve().name
            place.unlink()
            self.unplug(other)
        write(parent / "sriov_numvfs", "0")

    def unplug(self, address: str) -> None:
        """Remove a function as the kernel does."""
        path = self.path(address)
        self.unbind(address)
        (self.bus / address).unlink()
        self.cards.pop(address, None)
        group = (path / "iommu_group").resolve()
        (group / "devices" / address).unlink(missing_ok=True)
        shutil.rmtree(path)

    # Drivers -----------------------------------------------------------

    def bind(self, card: Card, path: Path, driver: str) -> None:
        """What a function shows once a driver of the kernel has it."""
        directory = self.root / "bus" / "pci" / "drivers" / driver
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("bind", "unbind", "new_id"):
            if not (directory / name).exists():
                drawing.write_only(directory / name)
        link(path / "driver", directory)
        link(directory / path.name, path)
        write(path / "uevent", identity.uevent(card, driver))
        if driver == "vfio-pci":
            number = self.next_number("vfio")
            (path / "vfio-dev" / f"vfio{number}").mkdir(parents=True)
        elif driver == card.driver:
            self.draw(card, path)

    def unbind(self, address: str) -> None:
        """Take a function from its driver, and what that made with it."""
        path = self.path(address)
        if not (path / "driver").is_symlink():
            return
        driver = (path / "driver").resolve()
        (driver / address).unlink(missing_ok=True)
        (path / "driver").unlink()
        for name in self.parts_of(self.cards.get(address)):
            shutil.rmtree(path / name, ignore_errors=True)
        self._drop_dangling()
        card = self.cards.get(address)
        if card is not None:
            write(path / "uevent", identity.uevent(card, None))

    def driver(self, address: str) -> str:
        """The name of the driver that has a function; empty without."""
        place = self.path(address) / "driver"
        return place.resolve().name if place.is_symlink() else ""

    def parts_of(self, card: Card | None) -> tuple[str, ...]:
        """The directories that go when the function's driver goes."""
        return ("vfio-dev", "net", "nvme", "mdev_supported_types", "nvidia")

    def draw(self, card: Card, path: Path) -> None:
        """What the card's own driver shows of it."""
        for name in card.interfaces:
            drawing.interface(
                self.root, path, name, self.next_number("interface")
            )
        most = 1 if card.physical else None
        drawing.mdev_types(self.root, path, card.mdev_types, most)
        if card.vgpu_types and card.physical:
            drawing.vgpu_types(path, card.vgpu_types)
        if card.model:
            drawing.nvme(self.root, path, card.model, self.next_number("nvme"))

    # Mediated devices --------------------------------------------------

    def add_mdev(self, address: str, mdev_type: str, identity: str) -> Path:
        """Create a mediated device on a card that offers its type."""
        parent = self.path(address)
        kind = parent / "mdev_supported_types" / mdev_type
        path = parent / identity
        path.mkdir()
        link(path / "mdev_type", kind)
        drawing.write_only(path / "remove")
        self._add_to_iommu_group(path)
        link(kind / "devices" / identity, path)
        link(self.root / "bus" / "mdev" / "devices" / identity, path)
        self._count_instances(address)
        return path

    def remove_mdev(self, identity: str) -> None:
        """Remove a mediated device, wherever it is."""
        place = self.root / "bus" / "mdev" / "devices" / identity
        path = place.resolve()
        place.unlink()
        (path / "mdev_type" / "devices" / identity).unlink()
        group = (path / "iommu_group").resolve()
        (group / "devices" / identity).unlink()
        shutil.rmtree(path)
        self._count_instances(path.parent.name)

    def _count_instances(self, address: str) -> None:
        """`available_instances` of the whole card: one type at a time."""
        neighbours = self._functions_of_card(address)
        made = collections.Counter(
            kind for neighbour in neighbours for kind in self._mdevs(neighbour)
        )
        for neighbour in neighbours:
            here = collections.Counter(self._mdevs(neighbour))
            for text in self.cards[neighbour].mdev_types:
                kind, _, most = text.split(":")
                free = int(most) - made[kind]
                if self.cards[neighbour].physical:
                    free = min(free, 1 - here.total())
                if made and kind not in made:
                    free = 0
                write(
                    self.path(neighbour)
                    / "mdev_supported_types"
                    / kind
                    / "available_instances",
                    str(max(free, 0)),
                )

    def _functions_of_card(self, address: str) -> list[str]:
        """The function, or all virtual functions of its physical one."""
        physical = self.cards[address].physical
        if physical is None:
            return [address]
        return [
            other
            for other, card in self.cards.items()
            if card.physical == physical
            and (self.path(other) / "mdev_supported_types").is_dir()
        ]

    def _mdevs(self, address: str) -> list[str]:
        """The type of each mediated device of a function."""
        return [
            place.parent.parent.name
            for place in self.path(address).glob(
                "mdev_supported_types/*/devices/*"
            )
        ]

    # Parts -------------------------------------------------------------

    def add_partition(self, disk: str, number: int = 1) -> Path:
        """A partition of a block device such as `nvme0n1`."""
        parent = (self.root / "class" / "block" / disk).resolve()
        path = parent / f"{disk}p{number}"
        major, _, minor = (parent / "dev").read_text().strip().partition(":")
        write(path / "partition", str(number))
        write(path / "dev", f"{major}:{int(minor) + number}")
        write(path / "size", "1048576")
        (path / "holders").mkdir()
        link(self.root / "class" / "block" / path.name, path)
        return path

    def _port_above(self, address: Address) -> Path:
        """The root port whose bus the address is on; none for bus 0."""
        bridge = self.root / "devices" / f"pci{address.domain:04x}:00"
        if address.bus == 0:
            return bridge
        device, function = divmod(address.bus, 8)
        port = bridge / str(Address(address.domain, 0, device, function))
        if not port.exists():
            self.add_port(port)
        return port

    def add_port(self, path: Path) -> None:
        """A bridge at `path`, whose last part is its address."""
        self.add_function(
            Card(path.name, PORT, "060400", "pcieport"), path.parent
        )

    def _add_to_iommu_group(self, path: Path) -> None:
        group = self.root / "kernel" / "iommu_groups" / str(self._groups)
        self._groups += 1
        (group / "devices").mkdir(parents=True)
        link(path / "iommu_group", group)
        link(group / "devices" / path.name, path)

    def _drop_dangling(self) -> None:
        """Links below `class` whose device is gone."""
        for place in (self.root / "class").glob("*/*"):
            if place.is_symlink() and not place.exists():
                place.unlink()

# SPDX-License-Identifier: Apache-2.0
"""Fake hardware: a sysfs tree with the kernel's own layout.

`SysfsTree(tmp_path)` is an empty host; `add_<vendor>_<card>` plugs a card
in, and the real reader (`cyborg.hardware.pci`) reads it.  Functions live
below `devices/pciDDDD:BB/<root port>/`, and `bus/pci/devices` holds links to
them, as on a real host.  A new card is a line of facts in `CARDS`, or a
method where it has virtual functions or several parts.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from cyborg.hardware.pci import Address
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import parse_address
from tests.cards import CARDS
from tests.cards import Card


class SysfsTree:
    """A host's sysfs below `root`, empty at first but for its PCI bus."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._groups = 0
        (root / "bus" / "pci" / "devices").mkdir(parents=True)

    # Cards -------------------------------------------------------------

    def add(
        self, card: str, address: str | None = None, *, vfs: int = 0
    ) -> Path:
        """Plug in a card of `CARDS` with `vfs` active virtual functions."""
        facts = CARDS[card]
        if address is not None:
            facts = dataclasses.replace(facts, address=address)
        path = self.add_function(facts)
        self.add_virtual_functions(facts, vfs)
        return path

    def add_nvidia_t4(self, address: str = "0000:af:00.0") -> Path:
        return self.add("nvidia_t4", address)

    def add_nvidia_a100(
        self, address: str = "0000:41:00.0", vfs: int = 16
    ) -> Path:
        return self.add("nvidia_a100", address, vfs=vfs)

    def add_amd_mi300x(
        self, address: str = "0000:85:00.0", vfs: int = 0
    ) -> Path:
        return self.add("amd_mi300x", address, vfs=vfs)

    def add_intel_pac_arria10(
        self, address: str = "0000:5e:00.0", vfs: int = 0
    ) -> Path:
        return self.add("intel_pac_arria10", address, vfs=vfs)

    def add_intel_c62x(
        self, address: str = "0000:3d:00.0", vfs: int = 0
    ) -> Path:
        return self.add("intel_c62x", address, vfs=vfs)

    def add_intel_x710(self, vfs: int = 0) -> list[Path]:
        """Two ports, eth2 and eth3, with `vfs` virtual functions each."""
        return [
            self.add("intel_x710", vfs=vfs),
            self.add("intel_x710_second", vfs=vfs),
        ]

    def add_intel_p4510(self, address: str = "0000:5f:00.0") -> Path:
        return self.add("intel_p4510", address)

    def add_xilinx_u250(self, address: str = "0000:3b:00.0") -> list[Path]:
        """The management function and, one after it, the user function."""
        user = _after(address, 1)
        return [
            self.add_function(Card(number, ids, "120000", driver, "10ee:000e"))
            for number, ids, driver in (
                (address, "10ee:5004", "xclmgmt"),
                (user, "10ee:5005", "xocl"),
            )
        ]

    def add_mellanox_bluefield2(self) -> list[Path]:
        """Two ports and the management function, which is no NIC."""
        return [
            self.add_function(
                Card(
                    f"0000:06:00.{number}",
                    ids,
                    class_code,
                    "mlx5_core",
                    total_vfs=16 if number < 2 else None,
                    interfaces=interfaces,
                )
            )
            for number, (ids, class_code, interfaces) in enumerate(
                (
                    ("15b3:a2d6", "020000", ("p0", "pf0hpf")),
                    ("15b3:a2d6", "020000", ("p1", "pf1hpf")),
                    ("15b3:c2d3", "080100", ()),
                )
            )
        ]

    def add_nvme_behind_vmd(self) -> Path:
        """An NVMe whose PCI domain has five digits."""
        controller = self.add_function(
            Card("0000:5d:05.5", "8086:28c0", "010400", "vmd")
        )
        port = controller / "pci10000:00" / "10000:00:02.0"
        self._add_port(port)
        facts = dataclasses.replace(
            CARDS["intel_p4510"], address="10000:01:00.0"
        )
        return self.add_function(facts, port)

    def add_unknown(self, address: str = "0000:02:00.0") -> Path:
        return self.add("unknown", address)

    def add_host_display(self, address: str = "0000:03:00.0") -> Path:
        return self.add("host_display", address)

    def add_every_card(self) -> None:
        """One of each, none at another's address."""
        for number, card in enumerate(sorted(CARDS)):
            if not card.startswith("intel_x710"):
                self.add(card, f"0000:{0x10 + number:02x}:00.0")
        self.add_intel_x710(vfs=2)
        self.add_nvidia_a100("0000:c1:00.0")
        self.add_xilinx_u250("0000:d8:00.0")
        self.add_mellanox_bluefield2()
        self.add_nvme_behind_vmd()

    # Parts of a tree -----------------------------------------------------

    def add_function(self, card: Card, parent: Path | None = None) -> Path:
        """The directory of a function with all files of `card`.

        `parent` is the directory of the bridge above; made where not given.
        """
        if parent is None:
            parent = self._port_above(parse_address(card.address))
        path = parent / card.address
        path.mkdir(parents=True)
        self._write_identity(path, card)
        if card.reset_method is not None:
            _write(path / "reset_method", card.reset_method)
        if card.boot_vga is not None:
            _write(path / "boot_vga", str(card.boot_vga))
        if card.total_vfs is not None:
            _write(path / "sriov_totalvfs", str(card.total_vfs))
            _write(path / "sriov_numvfs", "0")
        if card.driver is not None:
            self._bind(path, card.driver)
        for interface in card.interfaces:
            self._add_interface(path, interface)
        for mdev_type in card.mdev_types:
            self._add_mdev_type(path, mdev_type)
        self._add_to_iommu_group(path)
        _link(self.root / "bus" / "pci" / "devices" / card.address, path)
        return path

    def add_virtual_functions(self, card: Card, count: int) -> list[Path]:
        """Enable `count` virtual functions of a card that is there."""
        parent = self.path(card.address)
        if count:
            _write(parent / "sriov_numvfs", str(count))
        made = []
        for number in range(count):
            address = _after(card.address, card.first + number * card.stride)
            vendor = card.ids.partition(":")[0]
            path = self.add_function(
                Card(
                    address,
                    f"{vendor}:{card.vf}",
                    card.class_code,
                    card.vf_driver,
                    card.subsystem,
                    card.revision,
                ),
                parent.parent,
            )
            _link(parent / f"virtfn{number}", path)
            _link(path / "physfn", parent)
            made.append(path)
        return made

    def add_mdev(self, address: str, mdev_type: str, identity: str) -> None:
        """Create a mediated device on a card that offers its type."""
        path = self.path(address)
        (path / identity).mkdir()
        devices = path / "mdev_supported_types" / mdev_type / "devices"
        _link(devices / identity, path / identity)

    def path(self, address: str) -> Path:
        """The directory of a function."""
        return (self.root / "bus" / "pci" / "devices" / address).resolve()

    def unplug(self, address: str) -> None:
        """Remove a function as the kernel does."""
        path = self.path(address)
        (self.root / "bus" / "pci" / "devices" / address).unlink()
        shutil.rmtree(path)

    def _port_above(self, address: Address) -> Path:
        """The root port whose bus the address is on; none for bus 0."""
        bridge = self.root / "devices" / f"pci{address.domain:04x}:00"
        if address.bus == 0:
            return bridge
        device, function = divmod(address.bus, 8)
        port = bridge / str(Address(address.domain, 0, device, function))
        if not port.exists():
            self._add_port(port)
        return port

    def _add_port(self, path: Path) -> None:
        self.add_function(
            Card(path.name, "8086:2030", "060400", "pcieport"), path.parent
        )

    def _write_identity(self, path: Path, card: Card) -> None:
        vendor, device = card.ids.split(":")
        sub_vendor, sub_device = card.subsystem.split(":")
        files = {
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "subsystem_vendor": f"0x{sub_vendor}",
            "subsystem_device": f"0x{sub_device}",
            "class": f"0x{card.class_code}",
            "revision": f"0x{card.revision}",
            "numa_node": "0",
            "local_cpulist": "0-15,32-47",
            "enable": "1",
            "driver_override": "(null)",
            "uevent": "\n".join(
                (
                    *([f"DRIVER={card.driver}"] if card.driver else []),
                    f"PCI_CLASS={int(card.class_code, 16):X}",
                    f"PCI_ID={card.ids.upper()}",
                    f"PCI_SUBSYS_ID={card.subsystem.upper()}",
                    f"PCI_SLOT_NAME={card.address}",
                )
            ),
        }
        for name, text in files.items():
            _write(path / name, text)

    def _bind(self, path: Path, driver: str) -> None:
        directory = self.root / "bus" / "pci" / "drivers" / driver
        directory.mkdir(parents=True, exist_ok=True)
        _link(path / "driver", directory)
        _link(directory / path.name, path)

    def _add_interface(self, path: Path, interface: str) -> None:
        directory = path / "net" / interface
        directory.mkdir(parents=True)
        _write(directory / "operstate", "up")
        _link(directory / "device", path)
        _link(self.root / "class" / "net" / interface, directory)

    def _add_mdev_type(self, path: Path, mdev_type: str) -> None:
        identity, name, instances = mdev_type.split(":")
        directory = path / "mdev_supported_types" / identity
        (directory / "devices").mkdir(parents=True)
        _write(directory / "name", name)
        _write(directory / "available_instances", instances)
        _write(directory / "device_api", "vfio-pci")

    def _add_to_iommu_group(self, path: Path) -> None:
        group = self.root / "kernel" / "iommu_groups" / str(self._groups)
        self._groups += 1
        (group / "devices").mkdir(parents=True)
        _link(path / "iommu_group", group)
        _link(group / "devices" / path.name, path)


def addresses(functions: Iterable[PciFunction]) -> list[str]:
    """The addresses of functions that are no bridges, for short asserts."""
    return [
        function.address
        for function in functions
        if not function.class_code.startswith("06")
    ]


def _after(address: str, places: int) -> str:
    """The address `places` functions after one, over the bus's end."""
    first = parse_address(address)
    number = (first.bus << 8 | first.device << 3 | first.function) + places
    return str(
        Address(first.domain, number >> 8, number >> 3 & 0x1F, number & 7)
    )


def _write(path: Path, text: str) -> None:
    path.write_text(f"{text}\n")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))

# SPDX-License-Identifier: Apache-2.0
"""Fake hosts with real cards: the kit's tree, and every card by name.

A new card is a line of facts in `tests/cards.py`, or a method here where it
has several parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from cyborg.drivers.testing.cards import after
from cyborg.drivers.testing.tree import SysfsTree as Tree
from cyborg.hardware.pci import PciFunction
from tests import layouts
from tests.cards import CARDS
from tests.cards import Card

PLACES = {
    "huawei_ascend_310": "0000:0e:00.0",
    "intel_d5005": "0000:b2:00.0",
    "intel_pac_arria10_old": "0000:60:00.0",
    "amd_mi300x": "0000:87:00.0",
    "xilinx_u250": "0000:d8:00.0",
}
"""Where cards are on a host that has every card: those whose own address
is another's."""


class SysfsTree(Tree):
    """A host's sysfs below `root`, empty at first but for its PCI bus."""

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

    def draw(self, card: Card, path: Path) -> None:
        super().draw(card, path)
        layouts.draw(self, card, path)

    def parts_of(self, card: Card | None) -> tuple[str, ...]:
        return (*super().parts_of(card), "fpga", "fpga_region", "accel")

    # NVIDIA --------------------------------------------------------------

    def add_nvidia_t4(self, address: str = "0000:af:00.0") -> Path:
        return self.add("nvidia_t4", address)

    def add_nvidia_v100(self, address: str = "0000:3b:00.0") -> Path:
        return self.add("nvidia_v100", address)

    def add_nvidia_a100(
        self, address: str = "0000:41:00.0", vfs: int = 16
    ) -> Path:
        """Each virtual function has the types 468 to 471, one of each."""
        return self.add("nvidia_a100", address, vfs=vfs)

    def add_nvidia_a100_mig(
        self,
        address: str = "0000:c1:00.0",
        instances: Iterable[int] = (7, 8),
        vfs: int = 0,
    ) -> Path:
        """An SXM card that is carved into MIG instances of these numbers."""
        path = self.add("nvidia_a100_sxm", address, vfs=vfs)
        layouts.mig(self, address, instances)
        return path

    def add_nvidia_h100(
        self, address: str = "0000:1b:00.0", vfs: int = 0
    ) -> Path:
        return self.add("nvidia_h100", address, vfs=vfs)

    def add_nvidia_h100_pcie(self, address: str = "0000:61:00.0") -> Path:
        """Bound to vfio-pci."""
        return self.add("nvidia_h100_pcie", address)

    def add_nvidia_h200(
        self, address: str = "0000:9d:00.0", vfs: int = 0
    ) -> Path:
        return self.add("nvidia_h200", address, vfs=vfs)

    def add_nvidia_l40s(
        self, address: str = "0000:82:00.0", vfs: int = 4
    ) -> Path:
        """Its virtual functions have vGPUs the vendor's own way."""
        return self.add("nvidia_l40s", address, vfs=vfs)

    def add_nvidia_l4(
        self, address: str = "0000:26:00.0", vfs: int = 0
    ) -> Path:
        return self.add("nvidia_l4", address, vfs=vfs)

    def add_nvidia_m60(
        self, addresses: Iterable[str] = ("0000:84:00.0", "0000:85:00.0")
    ) -> list[Path]:
        """A board of two devices, each with an address of its own."""
        return [self.add("nvidia_m60", address) for address in addresses]

    # Other GPUs ----------------------------------------------------------

    def add_amd_mi210(self, address: str = "0000:c3:00.0") -> Path:
        return self.add("amd_mi210", address)

    def add_amd_mi300x(
        self, address: str = "0000:85:00.0", vfs: int = 0
    ) -> Path:
        return self.add("amd_mi300x", address, vfs=vfs)

    def add_intel_flex_170(
        self, address: str = "0000:4d:00.0", vfs: int = 0
    ) -> Path:
        return self.add("intel_flex_170", address, vfs=vfs)

    def add_intel_max_1100(
        self, address: str = "0000:29:00.0", vfs: int = 0
    ) -> Path:
        return self.add("intel_max_1100", address, vfs=vfs)

    # FPGA ----------------------------------------------------------------

    def add_intel_pac_arria10(
        self, address: str = "0000:5e:00.0", vfs: int = 0
    ) -> Path:
        """As the mainline kernel (DFL) shows it."""
        return self.add("intel_pac_arria10", address, vfs=vfs)

    def add_intel_pac_arria10_old(
        self, address: str = "0000:5e:00.0", vfs: int = 1
    ) -> Path:
        """As the older out-of-tree driver shows it."""
        return self.add("intel_pac_arria10_old", address, vfs=vfs)

    def add_intel_d5005(
        self, address: str = "0000:af:00.0", vfs: int = 0
    ) -> Path:
        return self.add("intel_d5005", address, vfs=vfs)

    def add_intel_n6001(
        self, address: str = "0000:b1:00.0", vfs: int = 0
    ) -> list[Path]:
        """The function with the management engine, and a second one."""
        return [
            self.add("intel_n6001", address, vfs=vfs),
            self.add("intel_n6001_second", after(address, 1)),
        ]

    def add_xilinx_u250(self, address: str = "0000:3b:00.0") -> list[Path]:
        """The management function and, one after it, the user function."""
        return [
            self.add("xilinx_u250", address),
            self.add("xilinx_u250_user", after(address, 1)),
        ]

    def add_inspur_f10a(self, address: str = "0000:86:00.0") -> Path:
        return self.add("inspur_f10a", address)

    # QAT -----------------------------------------------------------------

    def add_intel_c62x(
        self, address: str = "0000:3d:00.0", vfs: int = 0
    ) -> Path:
        return self.add("intel_c62x", address, vfs=vfs)

    def add_intel_c62x_chipset(self, vfs: int = 0) -> list[Path]:
        """The three endpoints of a chipset; the first has `vfs`."""
        return [
            self.add("intel_c62x", "0000:3d:00.0", vfs=vfs),
            self.add("intel_c62x", "0000:3f:00.0"),
            self.add("intel_c62x", "0000:da:00.0"),
        ]

    def add_intel_4xxx(
        self, address: str = "0000:6b:00.0", vfs: int = 0
    ) -> Path:
        return self.add("intel_4xxx", address, vfs=vfs)

    # NICs ----------------------------------------------------------------

    def add_intel_x710(self, vfs: int = 0) -> list[Path]:
        """Two ports, eth2 and eth3, with `vfs` virtual functions each."""
        return [
            self.add("intel_x710", vfs=vfs),
            self.add("intel_x710_second", vfs=vfs),
        ]

    def add_intel_e810(
        self, address: str = "0000:17:00.0", vfs: int = 0
    ) -> Path:
        return self.add("intel_e810", address, vfs=vfs)

    def add_mellanox_bluefield2(self, vfs: int = 0) -> list[Path]:
        """Two ports and the management function, which is no NIC."""
        return [
            self.add("mellanox_bluefield2", vfs=vfs),
            self.add("mellanox_bluefield2_second", vfs=vfs),
            self.add("mellanox_bluefield2_management"),
        ]

    # NVMe ----------------------------------------------------------------

    def add_intel_p4510(self, address: str = "0000:5f:00.0") -> Path:
        return self.add("intel_p4510", address)

    def add_inspur_ns8500(self, address: str = "0000:65:00.0") -> Path:
        return self.add("inspur_ns8500", address)

    def add_nvme_behind_vmd(self) -> Path:
        """An NVMe whose PCI domain has five digits."""
        controller = self.add_function(
            Card("0000:5d:05.5", "8086:28c0", "010400", "vmd")
        )
        port = controller / "pci10000:00" / "10000:00:02.0"
        self.add_port(port)
        facts = dataclasses.replace(
            CARDS["intel_p4510"], address="10000:01:00.0"
        )
        return self.add_function(facts, port)

    # AI chips and others -------------------------------------------------

    def add_huawei_ascend_310(self, address: str = "0000:0c:00.0") -> Path:
        return self.add("huawei_ascend_310", address)

    def add_huawei_ascend_310p(self, address: str = "0000:0d:00.0") -> Path:
        return self.add("huawei_ascend_310p", address)

    def add_huawei_ascend_910(self, address: str = "0000:81:00.0") -> Path:
        return self.add("huawei_ascend_910", address)

    def add_huawei_ascend_910b(self, address: str = "0000:83:00.0") -> Path:
        return self.add("huawei_ascend_910b", address)

    def add_habana_gaudi2(self, address: str = "0000:19:00.0") -> Path:
        return self.add("habana_gaudi2", address)

    def add_unknown(self, address: str = "0000:02:00.0") -> Path:
        return self.add("unknown", address)

    def add_host_display(self, address: str = "0000:03:00.0") -> Path:
        return self.add("host_display", address)

    def add_every_card(self) -> None:
        """One of each, none at another's address (`PLACES`), and those
        with virtual functions besides those without."""
        several = (
            "nvidia_a100",
            "nvidia_a100_sxm",
            "nvidia_l40s",
            "nvidia_m60",
            "amd_mi300x",
            "intel_pac_arria10_old",
            "intel_n6001",
            "xilinx_u250",
            "intel_c62x",
            "intel_x710",
            "mellanox_bluefield2",
        )
        for card in CARDS:
            if not card.startswith(several):
                self.add(card, PLACES.get(card))
        self.add_nvidia_a100()
        self.add_nvidia_a100_mig()
        self.add_nvidia_l40s()
        self.add_nvidia_m60()
        self.add_amd_mi300x(PLACES["amd_mi300x"], vfs=1)
        self.add_intel_pac_arria10_old(PLACES["intel_pac_arria10_old"])
        self.add_intel_n6001()
        self.add_xilinx_u250(PLACES["xilinx_u250"])
        self.add_intel_c62x_chipset(vfs=16)
        self.add_intel_4xxx("0000:70:00.0", vfs=16)
        self.add_intel_x710(vfs=2)
        self.add_mellanox_bluefield2()
        self.add_nvme_behind_vmd()


def addresses(functions: Iterable[PciFunction]) -> list[str]:
    """The addresses of functions that are no bridges, for short asserts."""
    return [
        function.address
        for function in functions
        if not function.class_code.startswith("06")
    ]

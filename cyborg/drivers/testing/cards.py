# SPDX-License-Identifier: Apache-2.0
"""What is known of a card, as data for a fake tree."""

from __future__ import annotations

import dataclasses

from cyborg.hardware.pci import Address
from cyborg.hardware.pci import parse_address


@dataclasses.dataclass(frozen=True)
class Card:
    """The facts of one PCI function.

    `total_vfs` is None for a function that is no physical function; `vf` is
    the product id of its virtual functions, `first` and `stride` where they
    come, in places after it.  `boot_vga` counts for class 0300 alone, as
    only that has the file.

    `mdev_types` and `vf_mdev_types` are `type:name:most instances of the
    card`; on a virtual function each has one.  `vgpu_types` are
    `id:name:most` of NVIDIA's vendor-specific virtual functions.  `model`
    is an NVMe's.  `parts` names what else the card shows, for a tree that
    knows how to draw it; `files` are (path below the function, text).
    """

    address: str
    ids: str
    class_code: str
    driver: str | None = None
    subsystem: str = "0000:0000"
    revision: str = "00"
    reset_method: str | None = "flr bus"
    total_vfs: int | None = None
    vf: str = ""
    vf_driver: str | None = None
    first: int = 1
    stride: int = 1
    boot_vga: int = 0
    interfaces: tuple[str, ...] = ()
    mdev_types: tuple[str, ...] = ()
    vf_mdev_types: tuple[str, ...] = ()
    vgpu_types: tuple[str, ...] = ()
    model: str = ""
    parts: str = ""
    files: tuple[tuple[str, str], ...] = ()
    numa_node: int = 0
    physical: str | None = None
    """The address of the physical function of a virtual one."""

    @property
    def vendor(self) -> str:
        return self.ids.partition(":")[0]

    def virtual_function(self, number: int) -> Card:
        """The facts of one of its virtual functions."""
        return Card(
            after(self.address, self.first + number * self.stride),
            f"{self.vendor}:{self.vf}",
            self.class_code,
            self.vf_driver,
            self.subsystem,
            self.revision,
            reset_method="flr",
            mdev_types=self.vf_mdev_types,
            vgpu_types=self.vgpu_types,
            numa_node=self.numa_node,
            physical=self.address,
        )


def after(address: str, places: int) -> str:
    """The address `places` functions after one, over the bus's end."""
    first = parse_address(address)
    number = (first.bus << 8 | first.device << 3 | first.function) + places
    return str(
        Address(first.domain, number >> 8, number >> 3 & 0x1F, number & 7)
    )

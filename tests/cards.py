# SPDX-License-Identifier: Apache-2.0
"""Facts of real cards, for fake trees (`tests/sysfs.py`)."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Card:
    """The facts of one PCI function.

    `total_vfs` is None for a function that is no physical function; `vf` is
    the product id of its virtual functions, `first` and `stride` where they
    come, in places after it.
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
    boot_vga: int | None = None
    interfaces: tuple[str, ...] = ()
    mdev_types: tuple[str, ...] = ()


CARDS = {
    "nvidia_t4": Card(
        "0000:af:00.0",
        "10de:1eb8",
        "030200",
        "nvidia",
        "10de:12a2",
        "a1",
        total_vfs=16,
        mdev_types=("nvidia-222:GRID T4-1B:16", "nvidia-223:GRID T4-2B:8"),
    ),
    "nvidia_v100": Card(
        "0000:3b:00.0", "10de:1db4", "030200", "nvidia", reset_method="bus"
    ),
    "nvidia_a100": Card(
        "0000:41:00.0",
        "10de:20f1",
        "030200",
        "nvidia",
        total_vfs=16,
        vf="20f1",
        vf_driver="nvidia",
        first=4,
    ),
    "nvidia_h100": Card(
        "0000:1b:00.0",
        "10de:2330",
        "030200",
        "nvidia",
        "10de:16c1",
        total_vfs=32,
        vf="2330",
        first=4,
    ),
    "nvidia_h100_pcie": Card(
        "0000:61:00.0", "10de:2331", "030200", "vfio-pci"
    ),
    "nvidia_l4": Card(
        "0000:26:00.0", "10de:27b8", "030200", "nvidia", total_vfs=32
    ),
    "amd_mi210": Card(
        "0000:c3:00.0", "1002:740f", "038000", "amdgpu", total_vfs=16
    ),
    "amd_mi300x": Card(
        "0000:85:00.0",
        "1002:74a1",
        "120000",
        "gim",
        "1002:74a1",
        total_vfs=1,
        vf="74b5",
        vf_driver="vfio-pci",
        first=16,
    ),
    "intel_flex_170": Card(
        "0000:4d:00.0",
        "8086:56c0",
        "038000",
        "i915",
        "8086:4905",
        total_vfs=31,
    ),
    "intel_max_1100": Card(
        "0000:29:00.0", "8086:0bda", "038000", "xe", total_vfs=63
    ),
    "intel_pac_arria10": Card(
        "0000:5e:00.0",
        "8086:09c4",
        "120000",
        "dfl-pci",
        total_vfs=1,
        vf="09c5",
        vf_driver="vfio-pci",
    ),
    "intel_d5005": Card(
        "0000:af:00.0", "8086:0b2b", "120000", "dfl-pci", total_vfs=1
    ),
    "inspur_f10a": Card("0000:86:00.0", "1bd4:0911", "120000"),
    "intel_c62x": Card(
        "0000:3d:00.0",
        "8086:37c8",
        "0b4000",
        "c6xx",
        total_vfs=16,
        vf="37c9",
        vf_driver="c6xxvf",
        first=8,
    ),
    "intel_4xxx": Card(
        "0000:6b:00.0",
        "8086:4940",
        "0b4000",
        "4xxx",
        total_vfs=16,
        vf="4941",
        vf_driver="vfio-pci",
    ),
    "intel_x710": Card(
        "0000:05:00.0",
        "8086:1572",
        "020000",
        "i40e",
        total_vfs=64,
        vf="154c",
        vf_driver="iavf",
        first=16,
        interfaces=("eth2",),
    ),
    "intel_x710_second": Card(
        "0000:05:00.1",
        "8086:1572",
        "020000",
        "i40e",
        total_vfs=64,
        vf="154c",
        vf_driver="iavf",
        first=79,
        interfaces=("eth3",),
    ),
    "intel_e810": Card(
        "0000:17:00.0", "8086:159b", "020000", "ice", total_vfs=128, vf="1889"
    ),
    "intel_p4510": Card(
        "0000:5f:00.0", "8086:0a54", "010802", "nvme", "8086:4712"
    ),
    "inspur_ns8500": Card("0000:65:00.0", "1bd4:1003", "010802", "nvme"),
    "huawei_ascend_310": Card(
        "0000:0c:00.0",
        "19e5:d100",
        "120000",
        revision="20",
        reset_method="bus",
    ),
    "huawei_ascend_910": Card("0000:81:00.0", "19e5:d801", "120000"),
    "habana_gaudi2": Card(
        "0000:19:00.0", "1da3:1020", "120000", "habanalabs", revision="01"
    ),
    "unknown": Card("0000:02:00.0", "1234:abcd", "ff0000", reset_method=None),
    "host_display": Card(
        "0000:03:00.0", "1a03:2000", "030000", "ast", boot_vga=1
    ),
}
"""Single functions by the name of the card."""

# SPDX-License-Identifier: Apache-2.0
"""Facts of real cards, for fake trees (`tests/sysfs.py`)."""

from __future__ import annotations

from cyborg.drivers.testing.cards import Card

__all__ = ("CARDS", "Card")

_T4_TYPES = (
    "nvidia-222:GRID T4-1B:16",
    "nvidia-223:GRID T4-2B:8",
    "nvidia-224:GRID T4-2B4:8",
    "nvidia-225:GRID T4-1A:16",
    "nvidia-226:GRID T4-2A:8",
    "nvidia-227:GRID T4-4A:4",
    "nvidia-228:GRID T4-8A:2",
    "nvidia-229:GRID T4-16A:1",
    "nvidia-230:GRID T4-1Q:16",
    "nvidia-231:GRID T4-2Q:8",
    "nvidia-232:GRID T4-4Q:4",
    "nvidia-233:GRID T4-8Q:2",
    "nvidia-234:GRID T4-16Q:1",
    "nvidia-252:GRID T4-1B4:16",
    "nvidia-319:GRID T4-4C:4",
    "nvidia-320:GRID T4-8C:2",
    "nvidia-321:GRID T4-16C:1",
)
_V100_TYPES = (
    "nvidia-109:GRID V100-16Q:1",
    "nvidia-112:GRID V100-4A:4",
    "nvidia-113:GRID V100-8A:2",
    "nvidia-114:GRID V100-16A:1",
    "nvidia-115:GRID V100-1B:16",
    "nvidia-163:GRID V100-2B:8",
    "nvidia-217:GRID V100-2B4:8",
    "nvidia-247:GRID V100-1B4:16",
    "nvidia-299:GRID V100-4C:4",
    "nvidia-300:GRID V100-8C:2",
    "nvidia-301:GRID V100-16C:1",
)
_A100_TYPES = (
    "nvidia-468:GRID A100-4C:10",
    "nvidia-469:GRID A100-5C:8",
    "nvidia-470:GRID A100-8C:5",
    "nvidia-471:GRID A100-10C:4",
)
_M60_TYPES = ("nvidia-11:GRID M60-0B:16", "nvidia-18:GRID M60-2Q:4")
_L40S_TYPES = (
    "1147:NVIDIA L40S-1Q:32",
    "1148:NVIDIA L40S-2Q:24",
    "1155:NVIDIA L40S-24Q:2",
)
_H200_TYPES = ("1414:NVIDIA H200X-1-18C:7", "1428:NVIDIA H200X-141C:1")
_QAT_FILES = (
    ("qat/state", "up"),
    ("qat/cfg_services", "sym;asym"),
    ("qat/num_rps", "64"),
    ("qat/pm_idle_enabled", "0"),
    ("qat/rp2srv", "0"),
    ("qat/auto_reset", "off"),
    ("qat_ras/errors_correctable", "0"),
    ("qat_ras/errors_nonfatal", "0"),
    ("qat_ras/errors_fatal", "0"),
)
_GAUDI_FILES = (
    ("status", "operational"),
    ("pci_addr", "0000:19:00.0"),
    ("device_type", "GAUDI2"),
)

_NVIDIA = {
    "nvidia_t4": Card(
        "0000:af:00.0",
        "10de:1eb8",
        "030200",
        "nvidia",
        "10de:12a2",
        "a1",
        total_vfs=16,
        vf="1eb8",
        first=4,
        mdev_types=_T4_TYPES,
    ),
    "nvidia_v100": Card(
        "0000:3b:00.0",
        "10de:1db4",
        "030200",
        "nvidia",
        revision="a1",
        reset_method="bus",
        mdev_types=_V100_TYPES,
    ),
    "nvidia_a100": Card(
        "0000:41:00.0",
        "10de:20f1",
        "030200",
        "nvidia",
        revision="a1",
        total_vfs=16,
        vf="20f1",
        vf_driver="nvidia",
        first=4,
        vf_mdev_types=_A100_TYPES,
    ),
    "nvidia_a100_sxm": Card(
        "0000:c1:00.0",
        "10de:20b2",
        "030200",
        "nvidia",
        revision="a1",
        total_vfs=16,
        vf="20b2",
        vf_driver="nvidia",
        first=4,
    ),
    "nvidia_h100": Card(
        "0000:1b:00.0",
        "10de:2330",
        "030200",
        "nvidia",
        "10de:16c1",
        "a1",
        total_vfs=32,
        vf="2330",
        vf_driver="nvidia",
        first=4,
    ),
    "nvidia_h100_pcie": Card(
        "0000:61:00.0", "10de:2331", "030200", "vfio-pci", revision="a1"
    ),
    "nvidia_h200": Card(
        "0000:9d:00.0",
        "10de:2335",
        "030200",
        "nvidia",
        revision="a1",
        total_vfs=32,
        vf="2335",
        vf_driver="nvidia",
        first=4,
        vgpu_types=_H200_TYPES,
    ),
    "nvidia_l40s": Card(
        "0000:82:00.0",
        "10de:26b9",
        "030200",
        "nvidia",
        "10de:1851",
        "a1",
        total_vfs=32,
        vf="26b9",
        vf_driver="nvidia",
        first=4,
        vgpu_types=_L40S_TYPES,
    ),
    "nvidia_l4": Card(
        "0000:26:00.0",
        "10de:27b8",
        "030200",
        "nvidia",
        revision="a1",
        total_vfs=32,
        vf="27b8",
        vf_driver="nvidia",
        first=4,
    ),
    "nvidia_m60": Card(
        "0000:84:00.0",
        "10de:13f2",
        "030000",
        "nvidia",
        "10de:115e",
        "a1",
        mdev_types=_M60_TYPES,
    ),
}

_OTHER_GPUS = {
    "amd_mi210": Card(
        "0000:c3:00.0",
        "1002:740f",
        "038000",
        "amdgpu",
        total_vfs=16,
        vf="7410",
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
        vf="56c0",
        vf_driver="i915",
    ),
    "intel_max_1100": Card(
        *("0000:29:00.0", "8086:0bda", "038000", "xe"),
        total_vfs=63,
        vf="0bda",
        vf_driver="xe",
    ),
}

_FPGAS = {
    "intel_pac_arria10": Card(
        "0000:5e:00.0",
        "8086:09c4",
        "120000",
        "dfl-pci",
        total_vfs=1,
        vf="09c5",
        vf_driver="dfl-pci",
        parts="dfl",
    ),
    "intel_pac_arria10_old": Card(
        "0000:5e:00.0",
        "8086:09c4",
        "120000",
        "intel-fpga-pci",
        total_vfs=1,
        vf="09c5",
        vf_driver="vfio-pci",
        parts="intel-fpga",
    ),
    "intel_d5005": Card(
        "0000:af:00.0",
        "8086:0b2b",
        "120000",
        "dfl-pci",
        total_vfs=1,
        vf="0b2c",
        vf_driver="vfio-pci",
        parts="dfl",
    ),
    "intel_n6001": Card(
        "0000:b1:00.0",
        "8086:bcce",
        "120000",
        "dfl-pci",
        "8086:1771",
        total_vfs=3,
        vf="bccf",
        vf_driver="vfio-pci",
        first=5,
        parts="dfl",
    ),
    "intel_n6001_second": Card(
        "0000:b1:00.1", "8086:bcce", "120000", None, "8086:1771"
    ),
    "xilinx_u250": Card(
        "0000:3b:00.0", "10ee:5004", "120000", "xclmgmt", "10ee:000e"
    ),
    "xilinx_u250_user": Card(
        "0000:3b:00.1", "10ee:5005", "120000", "xocl", "10ee:000e"
    ),
    "inspur_f10a": Card("0000:86:00.0", "1bd4:0911", "120000"),
}

_QAT = {
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
        files=_QAT_FILES,
    ),
}

_NICS = {
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
        "0000:17:00.0",
        "8086:159b",
        "020000",
        "ice",
        total_vfs=128,
        vf="1889",
        vf_driver="iavf",
        first=8,
        interfaces=("ens1",),
    ),
    "mellanox_bluefield2": Card(
        "0000:06:00.0",
        "15b3:a2d6",
        "020000",
        "mlx5_core",
        total_vfs=16,
        vf="101e",
        vf_driver="mlx5_core",
        first=3,
        interfaces=("p0", "pf0hpf"),
    ),
    "mellanox_bluefield2_second": Card(
        "0000:06:00.1",
        "15b3:a2d6",
        "020000",
        "mlx5_core",
        total_vfs=16,
        vf="101e",
        vf_driver="mlx5_core",
        first=18,
        interfaces=("p1", "pf1hpf"),
    ),
    "mellanox_bluefield2_management": Card(
        "0000:06:00.2", "15b3:c2d3", "080100", "mlx5_core"
    ),
}

_NVME = {
    "intel_p4510": Card(
        *("0000:5f:00.0", "8086:0a54", "010802", "nvme", "8086:4712"),
        model="INTEL SSDPE2KX010T8",
    ),
    "inspur_ns8500": Card(
        "0000:65:00.0",
        "1bd4:1003",
        "010802",
        "nvme",
        model="INSPUR NS8500G2U192",
    ),
}

_OTHERS = {
    "huawei_ascend_310": Card(
        "0000:0c:00.0",
        "19e5:d100",
        "120000",
        revision="20",
        reset_method="bus",
    ),
    "huawei_ascend_310p": Card(
        "0000:0d:00.0", "19e5:d500", "120000", reset_method="bus"
    ),
    "huawei_ascend_910": Card("0000:81:00.0", "19e5:d801", "120000"),
    "huawei_ascend_910b": Card("0000:83:00.0", "19e5:d802", "120000"),
    "habana_gaudi2": Card(
        "0000:19:00.0",
        "1da3:1020",
        "120000",
        "habanalabs",
        revision="01",
        parts="accel",
        files=_GAUDI_FILES,
    ),
    "unknown": Card("0000:02:00.0", "1234:abcd", "ff0000", reset_method=None),
    "host_display": Card(
        "0000:03:00.0", "1a03:2000", "030000", "ast", boot_vga=1
    ),
}

CARDS = _NVIDIA | _OTHER_GPUS | _FPGAS | _QAT | _NICS | _NVME | _OTHERS
"""Single functions by the name of the card."""

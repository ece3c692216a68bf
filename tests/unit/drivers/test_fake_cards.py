# SPDX-License-Identifier: Apache-2.0
"""Fake cards show what the kernel and the vendors' drivers show."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cyborg.hardware.pci import Sysfs
from tests.cards import CARDS
from tests.sysfs import SysfsTree
from tests.sysfs import addresses


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _text(path: Path) -> str:
    return path.read_text()


def test_a_function_has_the_kernels_files_and_spelling(
    tree: SysfsTree,
) -> None:
    path = tree.add_nvidia_t4()

    assert _text(path / "uevent") == (
        "DRIVER=nvidia\n"
        "PCI_CLASS=30200\n"
        "PCI_ID=10DE:1EB8\n"
        "PCI_SUBSYS_ID=10DE:12A2\n"
        "PCI_SLOT_NAME=0000:af:00.0\n"
        "MODALIAS=pci:v000010DEd00001EB8sv000010DEsd000012A2bc03sc02i00\n"
    )
    assert _text(path / "sriov_vf_device") == "1eb8\n"
    assert _text(path / "local_cpulist") == "0-15,32-47\n"
    assert (path / "reset").stat().st_mode & 0o777 == 0o200
    assert not (path / "boot_vga").exists()
    assert _text(path / "aer_dev_fatal").endswith("TOTAL_ERR_FATAL 0\n")


def test_only_a_vga_device_says_whether_the_host_boots_by_it(
    tree: SysfsTree,
) -> None:
    tree.add_every_card()

    said = {
        path.name: _text(path / "boot_vga").strip()
        for path in tree.bus.iterdir()
        if (path / "boot_vga").exists()
    }

    assert said == {
        "0000:03:00.0": "1",
        "0000:84:00.0": "0",
        "0000:85:00.0": "0",
    }


def test_a_virtual_function_has_no_files_of_a_physical_one(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_a100()

    path = tree.path("0000:41:02.3")
    assert not list(path.glob("sriov_*"))
    assert (path / "physfn").resolve() == tree.path("0000:41:00.0")
    kinds = {place.name for place in path.glob("mdev_supported_types/*")}
    assert kinds == {f"nvidia-{number}" for number in range(468, 472)}
    assert not (tree.path("0000:41:00.0") / "mdev_supported_types").exists()


def test_every_type_of_a_t4_is_there_with_its_name_and_number(
    tree: SysfsTree,
) -> None:
    types = tree.add_nvidia_t4() / "mdev_supported_types"

    assert len(list(types.iterdir())) == 17
    assert _text(types / "nvidia-223" / "name") == "GRID T4-2B\n"
    assert _text(types / "nvidia-223" / "available_instances") == "8\n"
    assert not list((types / "nvidia-223" / "devices").iterdir())


def test_an_nvme_shows_padded_words_and_its_namespace(
    tree: SysfsTree,
) -> None:
    path = tree.add_intel_p4510()

    assert _text(path / "nvme/nvme0/model") == (
        "INTEL SSDPE2KX010T8" + " " * 21 + "\n"
    )
    disk = tree.root / "class/block/nvme0n1"
    assert _text(disk / "dev") == "259:0\n"
    tree.add_partition("nvme0n1")
    part = tree.root / "class/block/nvme0n1p1"
    assert _text(part / "partition") == "1\n"
    assert _text(part / "dev") == "259:1\n"
    assert part.resolve().parent == disk.resolve()


def test_fpgas_come_in_both_layouts(tree: SysfsTree) -> None:
    new = tree.add_intel_pac_arria10()
    old = tree.add_intel_pac_arria10_old("0000:60:00.0")

    (region,) = new.glob("fpga_region/region*")
    with pytest.raises(FileNotFoundError) as caught:
        (region / "compat_id").read_text()
    assert caught.value.errno == errno.ENOENT
    assert "compat_id" in [one.name for one in region.iterdir()]
    (inner,) = region.glob("dfl-fme.*/dfl-fme-region.*/fpga_region/region*")
    assert _text(inner / "compat_id") == "69528db6eb31577a8c3668f9faa081f6\n"
    assert list(region.glob("dfl-port.*/afu_id"))
    assert list(old.glob("fpga/intel-fpga-dev.0/*-port.0/afu_id"))
    assert list(old.glob("fpga/intel-fpga-dev.0/*-fme.0/pr/interface_id"))
    classes = tree.root / "class"
    assert len(list((classes / "fpga_region").iterdir())) == 2
    assert (classes / "fpga/intel-fpga-dev.0/device").resolve() == old


def test_mig_is_in_proc_under_the_cards_own_number(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()
    tree.add_nvidia_a100_mig(instances=(7, 8))

    nvidia = tree.proc / "driver/nvidia"
    information = _text(nvidia / "gpus/0000:c1:00.0/information")
    assert "Device Minor: \t 1\n" in information
    names = sorted(
        path.name for path in (nvidia / "capabilities/gpu1/mig").iterdir()
    )
    assert names == ["gi7", "gi8"]
    access = nvidia / "capabilities/gpu1/mig/gi7/ci0/access"
    assert _text(access).startswith("DeviceFileMinor: 5\n")


def test_a_card_that_is_pulled_out_leaves_nothing_behind(
    tree: SysfsTree,
) -> None:
    tree.add_intel_p4510()
    tree.add_habana_gaudi2()
    tree.add_intel_x710(vfs=1)
    tree.add_intel_pac_arria10_old()
    tree.remove_virtual_functions("0000:05:00.0")

    for address in addresses(Sysfs(tree.root).functions()):
        tree.unplug(address)

    dangling = [
        path
        for path in tree.root.rglob("*")
        if path.is_symlink() and not path.exists()
    ]
    assert dangling == []
    assert addresses(Sysfs(tree.root).functions()) == []


def test_every_card_is_on_the_host_that_has_every_card(
    tree: SysfsTree,
) -> None:
    tree.add_every_card()

    found = {
        f"{function.vendor}:{function.device}"
        for function in Sysfs(tree.root).functions()
    }
    assert {card.ids for card in CARDS.values()} <= found
    assert "10000:01:00.0" in addresses(Sysfs(tree.root).functions())

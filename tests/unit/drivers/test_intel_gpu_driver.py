# SPDX-License-Identifier: Apache-2.0
"""`intel_gpu_driver` on fake hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cyborg import inventory
from cyborg.drivers.intel_gpu import IntelGpuDriver
from tests.cards import Card
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.sysfs import SysfsTree

FLEX = "0000:4d:00.0"
MAX = "0000:29:00.0"
PRODUCTS = (
    *("56c0", "56c1", "56c2"),
    *("0bd0", "0bd4", "0bd5", "0bd6", "0bd7", "0bd8", "0bd9", "0bda"),
    *("0bdb", "0b69", "0b6e", "0be0", "0be1", "0be5"),
)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _driver(tree: SysfsTree) -> IntelGpuDriver:
    return IntelGpuDriver(driver_host(tree.root, writer=Kernel(tree)))


def _devices(tree: SysfsTree) -> dict[str, inventory.Device]:
    return {
        device.deployables[0].name.removeprefix("compute-1_"): device
        for device in _driver(tree).discover()
    }


def _traits(device: inventory.Device) -> frozenset[str]:
    (deployable,) = device.deployables
    return inventory.traits(deployable.attributes) - {"OWNER_CYBORG"}


def test_a_flex_170_is_reported_wholly(tree: SysfsTree) -> None:
    tree.add_intel_flex_170()

    (device,) = _driver(tree).discover()

    address = (
        '{"bus": "4d", "device": "00", "domain": "0000", "function": "0"}'
    )
    assert device == inventory.Device(
        controlpath=address,
        type=inventory.DeviceType.GPU,
        vendor="8086",
        model="8086:56c0",
        driver="intel_gpu_driver",
        std_board_info=(
            '{"class": "038000", "product_id": "56c0", "revision": "00",'
            ' "subsystem": "8086:4905"}'
        ),
        deployables=(
            inventory.Deployable(
                name="compute-1_0000:4d:00.0",
                num_accelerators=1,
                driver_name="intel",
                attributes=(
                    ("trait0", "CUSTOM_GPU_INTEL"),
                    ("trait1", "CUSTOM_GPU_PRODUCT_ID_56C0"),
                    ("rc", "PGPU"),
                    ("numa_node", "0"),
                    ("pcie_root", "pci0000:00/0000:00:09.5"),
                    ("iommu_group", "1"),
                ),
                attach_handles=(
                    inventory.AttachHandle(inventory.AttachType.PCI, address),
                ),
            ),
        ),
    )


def test_every_data_center_gpu_is_known_and_nothing_else_of_intel(
    tree: SysfsTree,
) -> None:
    for number, product in enumerate(PRODUCTS):
        tree.add_function(
            Card(f"0000:{0x40 + number:02x}:00.0", f"8086:{product}", "038000")
        )
    tree.add_function(Card("0000:00:02.0", "8086:4680", "030000", "i915"))
    tree.add_intel_c62x()
    tree.add_intel_x710()

    devices = _devices(tree)

    assert [
        trait
        for device in devices.values()
        for trait in _traits(device)
        if "PRODUCT" in trait
    ] == [f"CUSTOM_GPU_PRODUCT_ID_{product.upper()}" for product in PRODUCTS]


def test_a_carved_gpu_is_offered_by_its_virtual_functions(
    tree: SysfsTree,
) -> None:
    tree.add_intel_max_1100()
    tree.add_intel_flex_170(vfs=2)

    devices = _devices(tree)

    assert sorted(devices) == [MAX, FLEX, "0000:4d:00.1", "0000:4d:00.2"]
    assert "2 virtual functions" in devices[FLEX].fault
    assert devices[MAX].fault == ""
    for address in ("0000:4d:00.1", "0000:4d:00.2"):
        assert devices[address].fault == ""
        (deployable,) = devices[address].deployables
        assert deployable.num_accelerators == 1
        assert inventory.resource_class(deployable.attributes) == "PGPU"
        assert "CUSTOM_VF" in _traits(devices[address])
    assert "CUSTOM_VF" not in _traits(devices[FLEX])


def test_a_gpu_is_carved_by_the_kernels_own_way(tree: SysfsTree) -> None:
    tree.add_intel_flex_170()
    driver = _driver(tree)
    (function,) = filter(driver.claims, driver.host.sysfs.functions())

    driver.carve(function, 31, 5)

    assert len(_devices(tree)) == 32

# SPDX-License-Identifier: Apache-2.0
"""`amd_gpu_driver` on fake hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import amd
from cyborg.drivers import base
from cyborg.drivers.amd import AmdGpuDriver
from tests.cards import Card
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.sysfs import SysfsTree

MI300X = "0000:85:00.0"
MI300X_VF = "0000:85:02.0"
MI210 = "0000:c3:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _driver(tree: SysfsTree, **options: object) -> AmdGpuDriver:
    return AmdGpuDriver(
        driver_host(tree.root, {"amd_gpu": options}, writer=Kernel(tree))
    )


def _devices(
    tree: SysfsTree, **options: object
) -> dict[str, inventory.Device]:
    return {
        device.deployables[0].name.removeprefix("compute-1_"): device
        for device in _driver(tree, **options).discover()
    }


def _traits(device: inventory.Device) -> frozenset[str]:
    (deployable,) = device.deployables
    return inventory.traits(deployable.attributes) - {"OWNER_CYBORG"}


def test_an_mi210_is_reported_wholly(tree: SysfsTree) -> None:
    tree.add_amd_mi210()

    (device,) = _driver(tree).discover()

    address = (
        '{"bus": "c3", "device": "00", "domain": "0000", "function": "0"}'
    )
    assert device == inventory.Device(
        controlpath=address,
        type=inventory.DeviceType.GPU,
        vendor="1002",
        model="1002:740f",
        driver="amd_gpu_driver",
        std_board_info=(
            '{"class": "038000", "product_id": "740f", "revision": "00",'
            ' "subsystem": "0000:0000"}'
        ),
        deployables=(
            inventory.Deployable(
                name="compute-1_0000:c3:00.0",
                num_accelerators=1,
                driver_name="AMD",
                attributes=(
                    ("trait0", "CUSTOM_GPU_AMD"),
                    ("trait1", "CUSTOM_GPU_PRODUCT_ID_740F"),
                    ("trait2", "CUSTOM_AMD_740F"),
                    ("rc", "PGPU"),
                    ("numa_node", "0"),
                    ("pcie_root", "pci0000:00/0000:00:18.3"),
                    ("iommu_group", "1"),
                ),
                attach_handles=(
                    inventory.AttachHandle(inventory.AttachType.PCI, address),
                ),
            ),
        ),
    )


@pytest.mark.parametrize("code", ["030000", "038000", "120000"])
def test_gpus_of_each_class_are_offered(tree: SysfsTree, code: str) -> None:
    tree.add_function(Card(MI300X, "1002:74a1", code, "amdgpu"))

    assert _devices(tree)[MI300X].fault == ""


def test_nothing_else_of_amd_and_nobody_elses_accelerator_is_reported(
    tree: SysfsTree,
) -> None:
    tree.add_function(Card("0000:c3:00.1", "1002:ab28", "040300"))
    tree.add_function(Card("0000:c4:00.0", "1022:1480", "060000"))
    tree.add_every_card()

    devices = _devices(tree)

    assert {device.vendor for device in devices.values()} == {"1002"}
    assert len(devices) == 2


def test_the_boot_display_is_never_offered(tree: SysfsTree) -> None:
    tree.add_function(
        Card("0000:03:00.0", "1002:73a1", "030000", "amdgpu", boot_vga=1)
    )

    assert _devices(tree)["0000:03:00.0"].fault == "the host's boot display"


@pytest.mark.parametrize("product", ["1304", "164e", "15bf", "13c0"])
def test_graphics_of_a_processor_are_never_offered(
    tree: SysfsTree, product: str
) -> None:
    tree.add_function(
        Card("0000:0b:00.0", f"1002:{product}", "030000", "amdgpu")
    )

    assert "processor" in _devices(tree)["0000:0b:00.0"].fault


def test_no_table_takes_a_card_for_another() -> None:
    cards = {"738c", "740f", "7408", "74a0", "74a1", "75a0", "73a1", "6929"}

    assert not amd.INTEGRATED & (cards | amd.VIRTUAL)
    assert all(len(product) == 4 for product in amd.INTEGRATED)


def test_virtual_functions_are_left_out_unless_asked_for(
    tree: SysfsTree,
) -> None:
    tree.add_amd_mi300x(vfs=1)

    devices = _devices(tree)

    assert list(devices) == [MI300X]
    assert "1 virtual functions" in devices[MI300X].fault


def test_virtual_functions_are_offered_where_asked_for(
    tree: SysfsTree,
) -> None:
    tree.add_amd_mi300x(vfs=1)

    devices = _devices(tree, virtual_functions=True)

    assert list(devices) == [MI300X, MI300X_VF]
    assert devices[MI300X].fault
    assert devices[MI300X_VF].fault == ""
    assert _traits(devices[MI300X_VF]) == {
        "CUSTOM_GPU_AMD",
        "CUSTOM_GPU_PRODUCT_ID_74B5",
        "CUSTOM_AMD_74B5",
        "CUSTOM_VF",
    }


def test_a_virtual_function_that_a_guest_got_is_one_all_the_same(
    tree: SysfsTree,
) -> None:
    tree.add_function(Card("0000:00:05.0", "1002:74b5", "120000"))

    assert _devices(tree) == {}
    (device,) = _devices(tree, virtual_functions=True).values()
    assert "CUSTOM_VF" in _traits(device)


def test_an_option_that_is_not_a_truth_stops_the_driver(
    tree: SysfsTree,
) -> None:
    with pytest.raises(base.OptionError, match="virtual_functions"):
        _driver(tree, virtual_functions="perhaps")


def test_cards_are_cleaned_where_the_operator_asks(tree: SysfsTree) -> None:
    tree.add_amd_mi210()
    kernel = Kernel(tree)
    driver = AmdGpuDriver(
        driver_host(
            tree.root, {"agent": {"clean_on_release": True}}, writer=kernel
        )
    )
    (device,) = driver.discover()
    (unit,) = device.deployables[0].attach_handles

    driver.clean(unit, device.controlpath, 5, lambda _: None)

    assert device.clean_seconds == 120
    assert kernel.resets == [(MI210, "flr")]


def test_a_card_without_gim_says_what_makes_its_virtual_functions(
    tree: SysfsTree,
) -> None:
    tree.add_amd_mi210()
    driver = _driver(tree)
    (function,) = filter(driver.claims, driver.host.sysfs.functions())

    with pytest.raises(exception.DeviceFailed, match=r"amdgpu .*gim"):
        driver.carve(function, 4, 5)

    with pytest.raises(exception.Invalid):
        driver.carve(function, 17, 5)

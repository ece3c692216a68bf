# SPDX-License-Identifier: Apache-2.0
"""`inspur_fpga_driver` on fake hosts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers.inspur_fpga import InspurFpgaDriver
from tests.cards import CARDS
from tests.driver_host import driver_host
from tests.sysfs import SysfsTree


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def test_a_card_is_reported_wholly(tree: SysfsTree) -> None:
    tree.add_every_card()

    (device,) = InspurFpgaDriver(driver_host(tree.root)).discover()

    address = device.controlpath
    assert device.type is inventory.DeviceType.FPGA
    assert (device.vendor, device.fault) == ("1bd4", "")
    (deployable,) = device.deployables
    assert deployable.driver_name == "INSPUR"
    assert deployable.num_accelerators == 1
    assert deployable.attributes[:3] == (
        ("trait0", "CUSTOM_FPGA_INSPUR"),
        ("trait1", "CUSTOM_FPGA_PRODUCT_ID_0911"),
        ("rc", "FPGA"),
    )
    assert deployable.attach_handles == (
        inventory.AttachHandle(inventory.AttachType.PCI, address),
    )


def test_any_product_of_the_class_is_one_and_no_disk_is(
    tree: SysfsTree,
) -> None:
    card = CARDS["inspur_f10a"]
    tree.add_function(dataclasses.replace(card, ids="1bd4:beef"))
    tree.add("inspur_ns8500")

    (device,) = InspurFpgaDriver(driver_host(tree.root)).discover()

    assert ("trait1", "CUSTOM_FPGA_PRODUCT_ID_BEEF") in (
        device.deployables[0].attributes
    )


def test_a_card_with_active_virtual_functions_is_listed_and_not_offered(
    tree: SysfsTree,
) -> None:
    card = dataclasses.replace(
        CARDS["inspur_f10a"], total_vfs=4, vf="0912", vf_driver="vfio-pci"
    )
    tree.add_function(card)
    tree.add_virtual_functions(card, 2)

    (device,) = InspurFpgaDriver(driver_host(tree.root)).discover()

    assert device.controlpath == inventory.pci_json("0000:86:00.0")
    assert device.fault == "2 virtual functions of it are active"


def test_it_cannot_be_programmed(tree: SysfsTree) -> None:
    driver = InspurFpgaDriver(driver_host(tree.root))

    assert isinstance(driver, base.Driver)
    assert not isinstance(driver, base.Programmable)

# SPDX-License-Identifier: Apache-2.0
"""`huawei_ascend_driver` on fake hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers.huawei import AscendDriver
from cyborg.hardware.pciids import PciNames
from tests.cards import Card
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.sysfs import SysfsTree

CLEANING = {"agent": {"clean_on_release": True}}


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def test_a_chip_is_reported_wholly(tree: SysfsTree) -> None:
    tree.add_huawei_ascend_310()

    (device,) = AscendDriver(driver_host(tree.root)).discover()

    address = (
        '{"bus": "0c", "device": "00", "domain": "0000", "function": "0"}'
    )
    assert device == inventory.Device(
        controlpath=address,
        type=inventory.DeviceType.AICHIP,
        vendor="19e5",
        model="Ascend 310",
        driver="huawei_ascend_driver",
        std_board_info=(
            '{"class": "120000", "product_id": "d100", "revision": "20",'
            ' "subsystem": "0000:0000"}'
        ),
        deployables=(
            inventory.Deployable(
                name="compute-1_0000:0c:00.0",
                num_accelerators=1,
                driver_name="huawei",
                attributes=(
                    ("trait0", "CUSTOM_NPU_HUAWEI_D100"),
                    ("rc", "CUSTOM_NPU"),
                    ("numa_node", "0"),
                    ("pcie_root", "pci0000:00/0000:00:01.4"),
                    ("iommu_group", "1"),
                ),
                attach_handles=(
                    inventory.AttachHandle(inventory.AttachType.PCI, address),
                ),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("d100", "Ascend 310"),
        ("d500", "Ascend 310P"),
        ("d801", "Ascend 910"),
        ("d802", "Ascend 910B"),
        ("d803", "Ascend 910_93"),
    ],
)
def test_a_model_is_the_products_name_whatever_the_host_calls_it(
    tree: SysfsTree, tmp_path: Path, product: str, model: str
) -> None:
    path = tmp_path / "pci.ids"
    path.write_text(f"19e5  Huawei\n\t{product}  Something else\n")
    tree.add_function(Card("0000:81:00.0", f"19e5:{product}", "120000"))
    host = driver_host(tree.root, names=PciNames((path,)))

    (device,) = AscendDriver(host).discover()

    assert device.model == model
    (deployable,) = device.deployables
    assert f"CUSTOM_NPU_HUAWEI_{product.upper()}" in inventory.traits(
        deployable.attributes
    )


@pytest.mark.parametrize(
    ("ids", "class_code"),
    [
        ("19e5:0200", "020000"),  # a network card
        ("19e5:3714", "010802"),  # a disk
        ("19e5:1711", "030000"),  # the management controller's display
        ("19e5:a250", "120000"),  # a compression engine
        ("19e5:d801", "020000"),
        ("1234:d801", "120000"),
    ],
)
def test_the_vendors_other_functions_are_no_chips(
    tree: SysfsTree, ids: str, class_code: str
) -> None:
    tree.add_function(Card("0000:81:00.0", ids, class_code))

    assert list(AscendDriver(driver_host(tree.root)).discover()) == []


def test_two_hosts_with_the_same_chip_do_not_collide(tree: SysfsTree) -> None:
    tree.add_huawei_ascend_310()

    names = {
        device.deployables[0].name
        for host in ("compute-1", "compute-2")
        for device in AscendDriver(
            driver_host(tree.root, name=host)
        ).discover()
    }

    assert names == {"compute-1_0000:0c:00.0", "compute-2_0000:0c:00.0"}


@pytest.mark.parametrize(
    ("product", "methods", "seconds"),
    [
        ("d801", "flr bus", 120),
        ("d802", "af_flr", 120),
        ("d801", "bus", None),
        ("d100", "bus", None),
        ("d500", "bus", None),
        ("d500", "flr", None),
        ("d500", "af_flr bus", None),
    ],
)
def test_a_chip_is_reset_by_itself_alone_and_a_310p_never(
    tree: SysfsTree, product: str, methods: str, seconds: int | None
) -> None:
    tree.add_function(
        Card(
            "0000:81:00.0",
            f"19e5:{product}",
            "120000",
            reset_method=methods,
        )
    )
    kernel = Kernel(tree)
    driver = AscendDriver(driver_host(tree.root, CLEANING, writer=kernel))

    (device,) = driver.discover()

    assert device.clean_seconds == seconds
    (unit,) = device.deployables[0].attach_handles
    if seconds is None:
        with pytest.raises(exception.DeviceFailed, match="cannot be reset"):
            driver.clean(unit, device.controlpath, 10, lambda percent: None)
        assert kernel.writes == []
    else:
        driver.clean(unit, device.controlpath, 10, lambda percent: None)
        assert [address for address, _ in kernel.resets] == ["0000:81:00.0"]


def test_nothing_is_reset_unless_an_operator_wants_it(
    tree: SysfsTree,
) -> None:
    tree.add_huawei_ascend_910()

    (device,) = AscendDriver(driver_host(tree.root)).discover()

    assert device.clean_seconds is None

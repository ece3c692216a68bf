# SPDX-License-Identifier: Apache-2.0
"""`inspur_nvme_ssd_driver` on fake hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers.inspur_ssd import InspurSsdDriver
from cyborg.drivers.nvme_cleaning import Cleaner
from tests.driver_host import driver_host
from tests.nvme_disk import NvmeDisk
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

ADDRESS = "0000:65:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path / "sys")
    tree.add("inspur_ns8500", ADDRESS)
    return tree


def test_a_disk_is_reported_wholly(tree: SysfsTree) -> None:
    tools = RecordedTools()

    (device,) = InspurSsdDriver(driver_host(tree.root, tools=tools)).discover()

    assert device.type is inventory.DeviceType.SSD
    assert (device.vendor, device.model) == ("1bd4", "1bd4:1003")
    assert device.driver == "inspur_nvme_ssd_driver"
    assert device.fault == ""
    assert device.clean_seconds == 900
    (unit,) = device.deployables
    assert unit.name == f"compute-1_{ADDRESS}"
    assert (unit.num_accelerators, unit.driver_name) == (1, "INSPUR")
    assert inventory.resource_class(unit.attributes) == "CUSTOM_SSD"
    assert inventory.traits(unit.attributes) == {
        "CUSTOM_SSD_INSPUR",
        "CUSTOM_SSD_PRODUCT_ID_1003",
        "OWNER_CYBORG",
    }
    (handle,) = unit.attach_handles
    assert handle.attach_type is inventory.AttachType.PCI
    assert handle.attach_info == device.controlpath
    assert tools.commands == []


def test_only_inspurs_disks_are_offered(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    tree.add("inspur_f10a")

    devices = InspurSsdDriver(driver_host(tree.root)).discover()

    assert [device.model for device in devices] == ["1bd4:1003"]


def test_a_disk_whose_controller_is_dead_is_listed_alone(
    tree: SysfsTree,
) -> None:
    (tree.path(ADDRESS) / "nvme/nvme0/state").write_text("dead\n")

    (device,) = InspurSsdDriver(driver_host(tree.root)).discover()

    assert device.fault == "its NVMe controller is dead"


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"nvme": {"cleanup_timeout": 60}}, 60),
        ({"agent": {"clean_on_release": False}}, None),
        (
            {"agent": {"clean_timeouts": {"inspur_nvme_ssd_driver": "61"}}},
            61,
        ),
    ],
)
def test_disks_are_cleaned_unless_an_operator_wants_none_cleaned(
    tree: SysfsTree,
    options: dict[str, dict[str, object]],
    seconds: int | None,
) -> None:
    (device,) = InspurSsdDriver(driver_host(tree.root, options)).discover()

    assert device.clean_seconds == seconds


def test_a_disk_is_cleaned_by_the_best_that_it_can(tree: SysfsTree) -> None:
    tools = RecordedTools()
    serial = (tree.path(ADDRESS) / "nvme/nvme0/serial").read_text().strip()
    disk = NvmeDisk(serial, sanicap=0b10, oacs=0b10)
    tools.answer("nvme", disk)
    host = driver_host(tree.root, tools=tools)
    pauses: list[float] = []
    driver = InspurSsdDriver(host, Cleaner(host, pause=pauses.append))
    (device,) = driver.discover()
    progress: list[int] = []

    driver.clean(
        device.deployables[0].attach_handles[0],
        device.controlpath,
        900,
        progress.append,
    )

    assert disk.is_clean
    assert progress == [0, 50]
    assert pauses == [1, 2]


def test_a_disk_that_cannot_be_erased_is_said_to_fail(
    tree: SysfsTree,
) -> None:
    tools = RecordedTools()
    serial = (tree.path(ADDRESS) / "nvme/nvme0/serial").read_text().strip()
    tools.answer("nvme", NvmeDisk(serial))
    driver = InspurSsdDriver(driver_host(tree.root, tools=tools))
    (device,) = driver.discover()

    with pytest.raises(exception.DeviceFailed, match="neither sanitize nor"):
        driver.clean(
            device.deployables[0].attach_handles[0],
            device.controlpath,
            900,
            lambda _: None,
        )

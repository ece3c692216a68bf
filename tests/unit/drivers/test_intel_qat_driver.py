# SPDX-License-Identifier: Apache-2.0
"""`intel_qat_driver` on fake hosts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers.intel_qat import VIRTUAL_BY_PHYSICAL
from cyborg.drivers.intel_qat import IntelQatDriver
from cyborg.hardware.pci import PciFunction
from tests.cards import Card
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.sysfs import SysfsTree

CLEANING = {"agent": {"clean_on_release": True}}


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _devices(
    tree: SysfsTree, options: dict[str, dict[str, object]] | None = None
) -> list[inventory.Device]:
    return list(IntelQatDriver(driver_host(tree.root, options)).discover())


def _function(tree: SysfsTree, address: str) -> PciFunction:
    function = driver_host(tree.root).sysfs.function(address)
    assert function is not None
    return function


def test_a_card_without_virtual_functions_is_handed_out_itself(
    tree: SysfsTree,
) -> None:
    tree.add_intel_c62x()

    (device,) = _devices(tree)

    address = (
        '{"bus": "3d", "device": "00", "domain": "0000", "function": "0"}'
    )
    assert device == inventory.Device(
        controlpath=address,
        type=inventory.DeviceType.QAT,
        vendor="8086",
        model="8086:37c8",
        driver="intel_qat_driver",
        std_board_info=(
            '{"class": "0b4000", "product_id": "37c8", "revision": "00",'
            ' "subsystem": "0000:0000"}'
        ),
        deployables=(
            inventory.Deployable(
                name="compute-1_0000:3d:00.0",
                num_accelerators=1,
                driver_name="intel",
                attributes=(
                    ("trait0", "CUSTOM_QAT_INTEL"),
                    ("trait1", "CUSTOM_QAT_PRODUCT_ID_37C8"),
                    ("rc", "CUSTOM_QAT"),
                    ("numa_node", "0"),
                    ("pcie_root", "pci0000:00/0000:00:07.5"),
                    ("iommu_group", "1"),
                ),
                attach_handles=(
                    inventory.AttachHandle(inventory.AttachType.PCI, address),
                ),
            ),
        ),
    )


def test_each_virtual_function_is_a_provider_of_its_own(
    tree: SysfsTree,
) -> None:
    tree.add_intel_c62x(vfs=16)

    (device,) = _devices(tree)

    assert device.controlpath == inventory.pci_json("0000:3d:00.0")
    assert device.model == "8086:37c8"
    assert device.fault == ""
    assert len(device.deployables) == 16
    assert device.deployables[0].name == "compute-1_0000:3d:01.0"
    assert device.deployables[15].name == "compute-1_0000:3d:02.7"
    for deployable in device.deployables:
        address = deployable.name.removeprefix("compute-1_")
        assert deployable.num_accelerators == 1
        assert deployable.fault == ""
        assert deployable.attach_handles == (
            inventory.AttachHandle(
                inventory.AttachType.PCI, inventory.pci_json(address)
            ),
        )
        assert inventory.resource_class(deployable.attributes) == "CUSTOM_QAT"
        assert inventory.traits(deployable.attributes) == {
            "CUSTOM_QAT_INTEL",
            "CUSTOM_QAT_PRODUCT_ID_37C9",
            "OWNER_CYBORG",
        }


def test_the_endpoints_of_a_chipset_are_cards_of_their_own(
    tree: SysfsTree,
) -> None:
    tree.add_intel_c62x_chipset(vfs=16)

    devices = _devices(tree)

    assert [len(device.deployables) for device in devices] == [16, 1, 1]
    assert not any(device.fault for device in devices)


@pytest.mark.parametrize(("physical", "virtual"), VIRTUAL_BY_PHYSICAL.items())
def test_every_family_is_known_with_its_virtual_functions(
    tree: SysfsTree, physical: str, virtual: str
) -> None:
    card = Card(
        "0000:3d:00.0",
        f"8086:{physical}",
        "0b4000",
        total_vfs=2,
        vf=virtual,
    )
    tree.add_function(card)
    (whole,) = _devices(tree)
    tree.add_virtual_functions(card, 2)
    (parts,) = _devices(tree)

    assert whole.deployables[0].name == "compute-1_0000:3d:00.0"
    assert [one.name for one in parts.deployables] == [
        "compute-1_0000:3d:00.1",
        "compute-1_0000:3d:00.2",
    ]


def test_a_network_card_of_the_same_vendor_is_none_of_them(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=2)
    tree.add_intel_p4510()

    assert _devices(tree) == []


def test_a_virtual_function_in_a_guest_that_is_the_host_is_a_device(
    tree: SysfsTree,
) -> None:
    tree.add_function(Card("0000:00:05.0", "8086:37c9", "0b4000", "c6xxvf"))

    (device,) = _devices(tree)

    assert device.controlpath == inventory.pci_json("0000:00:05.0")
    assert device.model == "8086:37c9"
    assert device.fault == ""
    assert device.deployables[0].name == "compute-1_0000:00:05.0"


def test_the_parts_of_a_card_that_cannot_be_read_are_no_cards(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_intel_c62x(vfs=16)
    tree.add_intel_4xxx()
    (tree.path("0000:3d:00.0") / "vendor").write_text("none\n")

    (device,) = _devices(tree)

    assert device.model == "8086:4940"
    assert caplog.text.count("0000:3d:00.0/vendor") == 1


def test_one_unreadable_virtual_function_takes_no_other_with_it(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_intel_c62x(vfs=16)
    (tree.path("0000:3d:01.3") / "class").unlink()

    (device,) = _devices(tree)

    names = {deployable.name for deployable in device.deployables}
    assert len(names) == 15
    assert "compute-1_0000:3d:01.3" not in names
    assert caplog.text.count("0000:3d:01.3/class") == 1


def test_a_card_whose_virtual_functions_are_all_hidden_is_not_offered(
    tree: SysfsTree,
) -> None:
    tree.add_intel_4xxx(vfs=2)
    for address in ("0000:6b:00.1", "0000:6b:00.2"):
        (tree.path(address) / "class").unlink()

    (device,) = _devices(tree)

    assert device.fault == "2 virtual functions of it are active"


def test_a_virtual_function_that_cannot_be_attached_is_listed_alone(
    tree: SysfsTree,
) -> None:
    path = tree.add_intel_4xxx(vfs=3)
    group = (path.parent / "0000:6b:00.2/iommu_group").resolve() / "devices"
    stranger = tree.add_intel_p4510()
    (group / stranger.name).symlink_to(stranger)
    (stranger / "iommu_group").unlink()
    (stranger / "iommu_group").symlink_to(group.parent)

    (device,) = _devices(tree)

    assert device.fault == ""
    faults = {one.name[-4:]: one.fault for one in device.deployables}
    assert faults["00.2"] != ""
    assert faults["00.1"] == faults["00.3"] == ""


def test_virtual_functions_do_not_work_while_their_card_is_down(
    tree: SysfsTree,
) -> None:
    path = tree.add_intel_4xxx(vfs=16)
    (path / "qat" / "state").write_text("down\n")

    (down,) = _devices(tree)
    (path / "qat" / "state").write_text("up\n")
    (up,) = _devices(tree)

    assert down.fault == "the device is down"
    assert len(down.deployables) == 16
    assert up.fault == ""


def test_a_whole_card_that_is_down_is_started_anew_by_its_guest(
    tree: SysfsTree,
) -> None:
    path = tree.add_intel_4xxx()
    (path / "qat" / "state").write_text("down\n")

    (device,) = _devices(tree)

    assert device.fault == ""


def test_errors_since_boot_change_nothing(tree: SysfsTree) -> None:
    path = tree.add_intel_4xxx(vfs=16)
    before = _devices(tree)
    (path / "qat_ras").mkdir(exist_ok=True)
    for name in ("errors_correctable", "errors_nonfatal", "errors_fatal"):
        (path / "qat_ras" / name).write_text("7\n")

    assert _devices(tree) == before


@pytest.mark.parametrize("content", [None, "", "sideways\n"])
def test_a_card_whose_state_is_unreadable_is_left_out_with_one_warning(
    tree: SysfsTree,
    caplog: pytest.LogCaptureFixture,
    content: str | None,
) -> None:
    state = tree.add_intel_4xxx(vfs=16) / "qat" / "state"
    tree.add_intel_c62x()
    state.unlink()
    if content is None:
        state.mkdir()
    else:
        state.write_text(content)
    driver = IntelQatDriver(driver_host(tree.root))

    first = list(driver.discover())
    second = list(driver.discover())

    assert [device.model for device in first] == ["8086:37c8"]
    assert first == second
    assert caplog.text.count("0000:6b:00.0/qat/state") == 1


def test_a_card_without_a_driver_has_no_state(tree: SysfsTree) -> None:
    path = tree.add_intel_4xxx(vfs=16)
    shutil.rmtree(path / "qat")

    (device,) = _devices(tree)

    assert device.fault == ""


def test_all_virtual_functions_are_carved_or_none(tree: SysfsTree) -> None:
    tree.add_intel_c62x()
    kernel = Kernel(tree)
    driver = IntelQatDriver(driver_host(tree.root, writer=kernel))
    function = _function(tree, "0000:3d:00.0")

    for count in (0, 1, 15, 17):
        with pytest.raises(exception.Invalid, match="all 16 of them or none"):
            driver.carve(function, count, 10)
    assert kernel.writes == []
    driver.carve(function, 16, 10)

    (device,) = driver.discover()
    assert len(device.deployables) == 16


def test_a_virtual_function_cannot_be_carved(tree: SysfsTree) -> None:
    tree.add_intel_c62x(vfs=16)
    driver = IntelQatDriver(driver_host(tree.root, writer=Kernel(tree)))

    with pytest.raises(exception.Invalid, match="it can have 0"):
        driver.carve(_function(tree, "0000:3d:01.0"), 16, 10)


def test_virtual_functions_are_reset_where_an_operator_wants_it(
    tree: SysfsTree,
) -> None:
    tree.add_intel_c62x(vfs=16)
    kernel = Kernel(tree)
    driver = IntelQatDriver(driver_host(tree.root, CLEANING, writer=kernel))

    (device,) = driver.discover()
    (unit,) = device.deployables[3].attach_handles
    driver.clean(unit, device.controlpath, 10, lambda percent: None)

    assert _devices(tree)[0].clean_seconds is None
    assert device.clean_seconds == 120
    assert ("bus/pci/devices/0000:3d:01.3/reset", "1") in kernel.writes
    assert kernel.resets == [("0000:3d:01.3", "flr")]


def test_no_unit_escapes_cleaning_because_another_cannot_be_cleaned(
    tree: SysfsTree,
) -> None:
    tree.add_intel_4xxx(vfs=2)
    (tree.path("0000:6b:00.1") / "reset_method").write_text("bus\n")
    kernel = Kernel(tree)
    driver = IntelQatDriver(driver_host(tree.root, CLEANING, writer=kernel))

    (device,) = driver.discover()

    assert device.clean_seconds == 120
    (unit,) = device.deployables[0].attach_handles
    with pytest.raises(exception.DeviceFailed, match="no reset of its own"):
        driver.clean(unit, device.controlpath, 10, lambda percent: None)
    assert kernel.writes == []


def test_the_driver_cleans_and_carves_and_programs_nothing(
    tree: SysfsTree,
) -> None:
    driver = IntelQatDriver(driver_host(tree.root))

    assert isinstance(driver, base.Driver)
    assert isinstance(driver, base.Cleanable)
    assert isinstance(driver, base.Carving)
    assert not isinstance(driver, base.Programmable)
    assert not isinstance(driver, base.Mediated)


def test_the_same_hardware_gives_the_same_report(tree: SysfsTree) -> None:
    tree.add_every_card()

    reports = [_devices(tree) for _ in range(2)]

    assert reports[0] == reports[1]
    assert len(reports[0]) >= 3
    for device in reports[0]:
        for deployable in device.deployables:
            for handle in deployable.attach_handles:
                assert set(json.loads(handle.attach_info)) == {
                    "domain",
                    "bus",
                    "device",
                    "function",
                }

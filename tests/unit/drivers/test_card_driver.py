# SPDX-License-Identifier: Apache-2.0
"""Cards declared as data, and what their drivers are put together from."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers import card
from cyborg.hardware import files
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.sysfs import SysfsTree

CLEANING = {"agent": {"clean_on_release": True}}


class CardDriver(card.PciCardDriver):
    """A driver as an out-of-tree package would declare it."""

    name = "example_gpu_driver"
    driver_name = "NVIDIA"
    type = inventory.DeviceType.GPU
    resource_class = "PGPU"
    vendor = "10de"
    classes = ("0300", "0302")
    traits = ("GPU_NVIDIA", "GPU_PRODUCT_ID_{product}", "NVIDIA_{product}")


class NetworkDriver(card.PciCardDriver):
    """One that takes certain products and their virtual functions."""

    name = "example_nic_driver"
    driver_name = "intel"
    type = inventory.DeviceType.NIC
    resource_class = "CUSTOM_NIC"
    vendor = "8086"
    products = frozenset({"1572", "154c"})
    virtual_functions = True


class FirmwareDriver(CardDriver):
    """One that reads a file of its own, which not every card has."""

    before: Callable[[PciFunction], None] = staticmethod(lambda function: None)

    def device(self, function: PciFunction) -> inventory.Device:
        self.before(function)
        files.text(f"{function.path}/firmware")
        return super().device(function)


class StubbornDriver(CardDriver):
    """One whose cards are not to be reset."""

    resets = False


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _function(tree: SysfsTree, address: str) -> PciFunction:
    function = driver_host(tree.root).sysfs.function(address)
    assert function is not None
    return function


def _unit(address: str) -> inventory.AttachHandle:
    return inventory.AttachHandle(
        inventory.AttachType.PCI, inventory.pci_json(address)
    )


def _clean(driver: card.FunctionDriver, address: str) -> None:
    driver.clean(
        _unit(address),
        inventory.pci_json(address),
        10,
        lambda percent: None,
    )


# Reporting -----------------------------------------------------------------


def test_a_declared_driver_reports_its_cards_with_their_traits(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    tree.add_nvidia_v100()
    tree.add_xilinx_u250("0000:d8:00.0")
    tree.add_host_display()

    devices = list(CardDriver(driver_host(tree.root)).discover())

    assert [device.model for device in devices] == ["10de:1db4", "10de:1eb8"]
    t4 = devices[1]
    assert t4.type is inventory.DeviceType.GPU
    assert t4.driver == "example_gpu_driver"
    assert t4.fault == ""
    assert t4.clean_seconds is None
    (deployable,) = t4.deployables
    assert deployable.driver_name == "NVIDIA"
    assert inventory.resource_class(deployable.attributes) == "PGPU"
    assert inventory.traits(deployable.attributes) == {
        "CUSTOM_GPU_NVIDIA",
        "CUSTOM_GPU_PRODUCT_ID_1EB8",
        "CUSTOM_NVIDIA_1EB8",
        "OWNER_CYBORG",
    }


def test_virtual_functions_are_no_whole_cards(tree: SysfsTree) -> None:
    tree.add_nvidia_a100(vfs=16)

    (device,) = CardDriver(driver_host(tree.root)).discover()

    assert device.controlpath == inventory.pci_json("0000:41:00.0")
    assert device.fault == "16 virtual functions of it are active"


def test_virtual_functions_are_reported_where_a_driver_wants_them(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=2)

    devices = list(NetworkDriver(driver_host(tree.root)).discover())

    offered = [device for device in devices if not device.fault]
    assert len(devices) == 6
    assert [device.model for device in offered] == ["8086:154c"] * 4


def test_a_card_with_mediated_devices_is_not_offered(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()
    tree.add_mdev("0000:af:00.0", "nvidia-222", "an-identity")

    (device,) = CardDriver(driver_host(tree.root)).discover()

    assert device.fault == "1 mediated devices exist on it"


# One bad card --------------------------------------------------------------


def test_a_card_with_an_unreadable_file_is_left_out_and_the_rest_is_not(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    good = tree.add_nvidia_t4()
    bad = tree.add_nvidia_v100()
    (good / "firmware").write_text("1.0\n")
    driver = FirmwareDriver(driver_host(tree.root))

    for _ in range(3):
        (device,) = driver.discover()
        assert device.model == "10de:1eb8"
    assert caplog.text.count("0000:3b:00.0/firmware") == 1

    (bad / "firmware").write_text("1.0\n")
    assert len(list(driver.discover())) == 2
    (bad / "firmware").unlink()
    assert len(list(driver.discover())) == 1
    assert caplog.text.count("0000:3b:00.0/firmware") == 2


def test_a_card_that_vanishes_while_it_is_read_is_left_out_silently(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    good = tree.add_nvidia_t4()
    tree.add_nvidia_v100()
    (good / "firmware").write_text("1.0\n")
    driver = FirmwareDriver(driver_host(tree.root))

    def unplug(function: PciFunction) -> None:
        if function.device == "1db4":
            tree.unplug(function.address)

    driver.before = unplug  # type: ignore[method-assign]
    (device,) = driver.discover()

    assert device.model == "10de:1eb8"
    assert caplog.text == ""


def test_a_card_that_cannot_be_read_at_all_is_not_taken_for_vanished(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    path = tree.add_nvidia_t4()
    driver = FirmwareDriver(driver_host(tree.root))

    def spoil(function: PciFunction) -> None:
        (path / "vendor").write_text("nonsense\n")

    driver.before = spoil  # type: ignore[method-assign]

    assert list(driver.discover()) == []
    assert "0000:af:00.0/firmware" in caplog.text


def test_a_function_may_turn_out_to_be_nothing_to_report(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    host = driver_host(tree.root)

    assert (
        card.each(host, "x", host.sysfs.functions(), lambda function: None)
        == []
    )


def test_a_host_whose_use_cannot_be_told_is_not_one_without_cards(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    block = tree.root / "class" / "block"
    block.parent.mkdir(parents=True, exist_ok=True)
    block.symlink_to("block")
    driver = CardDriver(driver_host(tree.root))

    with pytest.raises(HardwareError, match="class/block"):
        list(driver.discover())


# Cleaning ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, None),
        ({"clean_on_release": False}, None),
        ({"clean_on_release": True}, 120),
        ({"clean_on_release": True, "clean_timeout": 7}, 7),
        (
            {
                "clean_on_release": True,
                "clean_timeouts": {"example_gpu_driver": "9", "other": "3"},
            },
            9,
        ),
        (
            {"clean_on_release": True, "clean_timeouts": {"other": "x"}},
            120,
        ),
    ],
)
def test_how_long_cleaning_may_take_is_an_operators_business(
    tree: SysfsTree, options: dict[str, object], seconds: int | None
) -> None:
    tree.add_nvidia_t4()
    host = driver_host(tree.root, {"agent": options})

    (device,) = CardDriver(host).discover()

    assert device.clean_seconds == seconds
    stubborn = StubbornDriver(host).discover()
    assert [device.clean_seconds for device in stubborn] == [None]


@pytest.mark.parametrize(
    "text", ["9" * 5000, "", "0", "-1", "1.5", "soon", "86401"]
)
def test_a_wrong_time_is_an_error_that_names_the_option(
    tree: SysfsTree, text: str
) -> None:
    options = {"clean_timeouts": {"x": text}, "clean_on_release": True}
    host = driver_host(tree.root, {"agent": options})

    with pytest.raises(base.OptionError, match="clean_timeouts: x: "):
        card.clean_seconds(host, "x", default=False)


def test_a_wrong_time_is_found_when_the_driver_is_built(
    tree: SysfsTree,
) -> None:
    options = {"clean_timeouts": {"example_gpu_driver": "soon"}}
    host = driver_host(tree.root, {"agent": options})

    with pytest.raises(base.OptionError, match=r"^\[agent\] clean_timeouts"):
        CardDriver(host)
    NetworkDriver(host)


def test_what_a_driver_cleans_by_default_can_be_switched_off(
    tree: SysfsTree,
) -> None:
    off = driver_host(tree.root, {"agent": {"clean_on_release": False}})

    assert card.clean_seconds(driver_host(tree.root), "x", default=True) == 120
    assert card.clean_seconds(off, "x", default=True) is None


def test_cleaning_resets_the_function_and_nothing_else(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    kernel = Kernel(tree)

    _clean(CardDriver(driver_host(tree.root, writer=kernel)), "0000:af:00.0")

    assert kernel.resets == [("0000:af:00.0", "flr")]


@pytest.mark.parametrize("methods", ["bus", "pm bus", "", None])
def test_a_card_that_cannot_be_reset_alone_is_not_reset(
    tree: SysfsTree, methods: str | None
) -> None:
    path = tree.add_nvidia_t4()
    if methods is None:
        (path / "reset_method").unlink()
    else:
        (path / "reset_method").write_text(f"{methods}\n")
    kernel = Kernel(tree)
    driver = CardDriver(driver_host(tree.root, CLEANING, writer=kernel))

    (device,) = driver.discover()

    assert device.clean_seconds is None
    with pytest.raises(exception.DeviceFailed, match="no reset of its own"):
        _clean(driver, "0000:af:00.0")
    assert kernel.writes == []


def test_a_card_that_others_use_by_now_is_not_reset(tree: SysfsTree) -> None:
    tree.add_nvidia_a100(vfs=16)
    tree.add_nvidia_t4()
    tree.add_mdev("0000:af:00.0", "nvidia-222", "an-identity")
    kernel = Kernel(tree)
    driver = CardDriver(driver_host(tree.root, writer=kernel))

    with pytest.raises(exception.DeviceFailed, match="16 virtual functions"):
        _clean(driver, "0000:41:00.0")
    with pytest.raises(exception.DeviceFailed, match="1 mediated devices"):
        _clean(driver, "0000:af:00.0")
    assert kernel.writes == []


def test_a_reset_that_the_kernel_refuses_fails_with_its_reason(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    kernel = Kernel(tree)
    driver = CardDriver(driver_host(tree.root, writer=kernel))

    kernel.fail("*/reset", errno.ENOTTY)
    with pytest.raises(exception.DeviceFailed, match="Inappropriate ioctl"):
        _clean(driver, "0000:af:00.0")
    kernel.heal()
    kernel.hang("*/reset")
    with pytest.raises(exception.DeviceFailed, match="not written within"):
        _clean(driver, "0000:af:00.0")


def test_a_unit_that_is_gone_or_unreadable_is_not_clean(
    tree: SysfsTree,
) -> None:
    path = tree.add_nvidia_t4()
    driver = CardDriver(driver_host(tree.root, writer=Kernel(tree)))

    (path / "vendor").unlink()
    with pytest.raises(exception.DeviceFailed, match="vendor"):
        _clean(driver, "0000:af:00.0")
    tree.unplug("0000:af:00.0")
    with pytest.raises(exception.DeviceFailed, match="there is no PCI"):
        _clean(driver, "0000:af:00.0")


@pytest.mark.parametrize(
    "info",
    [
        "",
        "null",
        "[]",
        "{}",
        '"0000:af:00.0"',
        '{"domain": "0000", "bus": "af", "device": "00"}',
        '{"domain": "..", "bus": "af", "device": "00", "function": "0"}',
        '{"domain": null, "bus": "af", "device": "00", "function": "0"}',
    ],
)
def test_a_unit_without_an_address_is_no_unit(info: str) -> None:
    unit = inventory.AttachHandle(inventory.AttachType.PCI, info)

    with pytest.raises(exception.DeviceFailed, match="no PCI address"):
        card.unit_address(unit)


def test_a_units_address_is_written_as_the_kernel_does() -> None:
    text = '{"domain": "0000", "bus": "AF", "device": "00", "function": "0"}'

    assert (
        card.unit_address(
            inventory.AttachHandle(inventory.AttachType.PCI, text)
        )
        == "0000:af:00.0"
    )


# Carving -------------------------------------------------------------------


def test_a_card_is_carved_by_the_kernel(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    driver = NetworkDriver(driver_host(tree.root, writer=Kernel(tree)))

    driver.carve(_function(tree, "0000:05:00.0"), 3, 10)

    assert len(list(driver.discover())) == 5


@pytest.mark.parametrize("count", [-1, 0, 65])
def test_a_number_that_a_card_cannot_have_is_refused(
    tree: SysfsTree, count: int
) -> None:
    tree.add_intel_x710()
    kernel = Kernel(tree)
    driver = NetworkDriver(driver_host(tree.root, writer=kernel))

    with pytest.raises(exception.Invalid, match=f"{count} .* can have 64"):
        driver.carve(_function(tree, "0000:05:00.0"), count, 10)
    assert kernel.writes == []


def test_a_card_without_virtual_functions_cannot_have_any(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_v100()
    driver = CardDriver(driver_host(tree.root, writer=Kernel(tree)))

    with pytest.raises(exception.Invalid, match="it can have 0"):
        driver.carve(_function(tree, "0000:3b:00.0"), 1, 10)


def test_a_card_that_does_not_say_what_it_can_have_is_an_error(
    tree: SysfsTree,
) -> None:
    path = tree.add_intel_x710()[0]
    driver = NetworkDriver(driver_host(tree.root, writer=Kernel(tree)))
    function = _function(tree, "0000:05:00.0")

    (path / "sriov_totalvfs").write_text("many\n")
    with pytest.raises(exception.DeviceFailed, match="sriov_totalvfs"):
        driver.carve(function, 1, 10)
    tree.unplug("0000:05:00.0")
    with pytest.raises(exception.DeviceFailed, match="sriov_totalvfs"):
        driver.carve(function, 1, 10)


def test_carving_that_the_kernel_refuses_fails_with_its_reason(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()
    kernel = Kernel(tree)
    kernel.fail("*/sriov_numvfs", errno.ENOENT)
    driver = NetworkDriver(driver_host(tree.root, writer=kernel))

    with pytest.raises(exception.DeviceFailed, match="driver i40e cannot"):
        driver.carve(_function(tree, "0000:05:00.0"), 4, 10)


def test_a_card_whose_driver_leaves_it_while_it_is_read_is_reported(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    """A guest gets it just then."""
    tree.add_nvidia_t4()
    host = driver_host(tree.root)
    driver = CardDriver(host)
    tried: list[PciFunction] = []

    def device(function: PciFunction) -> inventory.Device:
        tried.append(function)
        if len(tried) == 1:
            tree.unbind(function.address)
            raise UnreadableError("nvme0/model", "No such file or directory")
        return driver.device(function)

    functions = filter(driver.claims, host.sysfs.functions())
    (found,) = card.each(host, "example", functions, device)

    assert found.fault == ""
    assert [one.driver for one in tried] == ["nvidia", None]
    assert not caplog.records

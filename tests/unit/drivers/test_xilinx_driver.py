# SPDX-License-Identifier: Apache-2.0
"""`xilinx_fpga_driver` on fake hosts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg import profile
from cyborg.conductor import report_check
from cyborg.drivers import base
from cyborg.drivers.xilinx import XilinxFpgaDriver
from cyborg.hardware.tools import ToolError
from tests.cards import CARDS
from tests.cards import Card
from tests.driver_host import driver_host
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

CONTROLPATH = (
    '{"bus": "3b", "device": "00", "domain": "0000", "function": "0"}'
)
USER = '{"bus": "3b", "device": "00", "domain": "0000", "function": "1"}'
NAME = "compute-1_0000:3b:00.0"
BOOT = "sys/kernel/random/boot_id"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    result = SysfsTree(tmp_path / "sys")
    result.write_proc(BOOT, "11111111-1111-1111-1111-111111111111\n")
    return result


@pytest.fixture
def tools() -> RecordedTools:
    result = RecordedTools()
    result.answer("xbmgmt", "")
    return result


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "images" / "image-x1"
    path.parent.mkdir()
    path.write_bytes(b"xclbin2")
    return path


def _driver(
    tree: SysfsTree,
    tools: RecordedTools | None = None,
    state: Path | None = None,
    name: str = "compute-1",
) -> XilinxFpgaDriver:
    """`state` is where its agent keeps its state; nowhere by default."""
    host = driver_host(tree.root, tools=tools, name=name)
    host.conf.set_override("state_path", str(state) if state else None)
    return XilinxFpgaDriver(host)


def _handles(device: inventory.Device) -> list[str]:
    return [one.attach_info for one in device.deployables[0].attach_handles]


def _bind(tree: SysfsTree, address: str, driver: str | None) -> None:
    tree.unbind(address)
    if driver:
        tree.bind(tree.cards[address], tree.path(address), driver)


def test_a_board_is_one_device_with_both_functions(tree: SysfsTree) -> None:
    tree.add_xilinx_u250()

    (device,) = _driver(tree).discover()

    assert device == inventory.Device(
        controlpath=CONTROLPATH,
        type=inventory.DeviceType.FPGA,
        vendor="10ee",
        model="10ee:5004",
        driver="xilinx_fpga_driver",
        std_board_info=(
            '{"class": "120000", "product_id": "5004", "revision": "00",'
            ' "subsystem": "10ee:000e"}'
        ),
        deployables=(
            inventory.Deployable(
                name=NAME,
                num_accelerators=1,
                driver_name="XILINX",
                attributes=(
                    ("trait0", "CUSTOM_FPGA_XILINX"),
                    ("trait1", "CUSTOM_FPGA_PRODUCT_ID_5004"),
                    ("trait2", "CUSTOM_FPGA_PRODUCT_ID_5005"),
                    ("rc", "FPGA"),
                    ("numa_node", "0"),
                    ("pcie_root", "pci0000:00/0000:00:07.3"),
                    ("iommu_group", "1"),
                ),
                attach_handles=(
                    inventory.AttachHandle(
                        inventory.AttachType.PCI, CONTROLPATH
                    ),
                    inventory.AttachHandle(inventory.AttachType.PCI, USER),
                ),
            ),
        ),
    )


def test_a_profile_of_one_board_gets_as_many_requests_as_it_has_handles(
    tree: SysfsTree,
) -> None:
    tree.add_xilinx_u250()
    devices = tuple(_driver(tree).discover())

    report = inventory.HostReport("compute-1", "compute-1", None, devices)
    group = {"resources:FPGA": "1", "trait:CUSTOM_FPGA_XILINX": "required"}

    assert report_check.check(report) == ([*devices], {})
    assert profile.accelerator_count(group) == len(_handles(devices[0]))


@pytest.mark.parametrize(
    "drivers",
    [
        ("vfio-pci", "vfio-pci"),
        (None, None),
        ("xclmgmt", None),
        ("xclmgmt", "vfio-pci"),
        (None, "xocl"),
        ("vfio-pci", "xocl"),
    ],
)
def test_a_board_stays_the_same_whatever_its_functions_are_bound_to(
    tree: SysfsTree, drivers: tuple[str | None, str | None]
) -> None:
    tree.add_xilinx_u250()
    driver = _driver(tree)
    before = list(driver.discover())

    for number, name in enumerate(drivers):
        _bind(tree, f"0000:3b:00.{number}", name)

    assert list(driver.discover()) == before


def test_the_management_function_is_known_by_its_driver(
    tree: SysfsTree,
) -> None:
    tree.add_xilinx_u250()
    _bind(tree, "0000:3b:00.0", "xocl")
    _bind(tree, "0000:3b:00.1", "xclmgmt")

    (device,) = _driver(tree).discover()

    assert device.controlpath == USER
    assert _handles(device) == [USER, CONTROLPATH]


def test_a_third_function_of_a_board_is_not_handed_over(
    tree: SysfsTree,
) -> None:
    tree.add_xilinx_u250()
    tree.add_function(
        Card("0000:3b:00.2", "10ee:5006", "120000", None, "10ee:000e")
    )

    (device,) = _driver(tree).discover()

    assert _handles(device) == [CONTROLPATH, USER]


def test_boards_in_different_slots_are_different_devices(
    tree: SysfsTree,
) -> None:
    tree.add_xilinx_u250()
    tree.add_xilinx_u250("0000:3b:01.0")
    tree.add_xilinx_u250("0001:3b:00.0")

    assert [one.controlpath for one in _driver(tree).discover()] == [
        inventory.pci_json(address)
        for address in ("0000:3b:00.0", "0000:3b:01.0", "0001:3b:00.0")
    ]


def test_other_cards_are_no_boards(tree: SysfsTree) -> None:
    card = CARDS["xilinx_u250"]
    tree.add("inspur_f10a")
    tree.add_intel_pac_arria10()
    tree.add_function(dataclasses.replace(card, class_code="020000"))

    assert list(_driver(tree).discover()) == []


def test_a_board_with_its_golden_image_is_listed_and_not_offered(
    tree: SysfsTree,
) -> None:
    tree.add_function(
        Card("0000:3b:00.0", "10ee:d004", "120000", "xclmgmt", "10ee:000e")
    )

    (device,) = _driver(tree).discover()

    assert device.fault == ""
    (deployable,) = device.deployables
    assert "needs a shell" in deployable.fault
    assert _handles(device) == [CONTROLPATH]


@pytest.mark.parametrize("number", [0, 1])
def test_a_board_of_which_one_function_cannot_be_had_is_not_offered(
    tree: SysfsTree, number: int
) -> None:
    address = f"0000:3b:00.{number}"
    tree.add_xilinx_u250()
    devices = tree.path(address) / "mdev_supported_types" / "x-1" / "devices"
    (devices / "some-uuid").mkdir(parents=True)

    (device,) = _driver(tree).discover()

    assert device.fault == f"{address}: 1 mediated devices exist on it"
    assert _handles(device) == [CONTROLPATH, USER]


def _put_together(tree: SysfsTree, *addresses: str) -> None:
    """In the IOMMU group of the first."""
    group = (tree.path(addresses[0]) / "iommu_group").resolve()
    for address in addresses[1:]:
        path = tree.path(address)
        (path / "iommu_group").unlink()
        (path / "iommu_group").symlink_to(group)
        (group / "devices" / address).symlink_to(path)


def test_both_functions_in_one_iommu_group_are_no_strangers(
    tree: SysfsTree,
) -> None:
    tree.add_xilinx_u250()
    _put_together(tree, "0000:3b:00.0", "0000:3b:00.1")

    (device,) = _driver(tree).discover()

    assert device.fault == ""


def test_a_board_with_a_stranger_in_its_iommu_group_is_not_offered(
    tree: SysfsTree,
) -> None:
    tree.add_xilinx_u250()
    tree.add_intel_p4510()
    _put_together(tree, "0000:3b:00.0", "0000:3b:00.1", "0000:5f:00.0")

    (device,) = _driver(tree).discover()

    assert device.fault.startswith("0000:3b:00.0: 0000:5f:00.0, which shares")


def test_a_board_one_function_of_which_cannot_be_read_is_not_offered(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_xilinx_u250()
    tree.add_xilinx_u250("0000:5e:00.0")
    (tree.path("0000:3b:00.1") / "vendor").unlink()

    first, second = _driver(tree).discover()

    assert first.controlpath == CONTROLPATH
    assert first.deployables[0].fault
    assert second.deployables[0].fault == ""
    assert "0000:3b:00.1/vendor" in caplog.text


def test_the_same_host_gives_the_same_report(tree: SysfsTree) -> None:
    tree.add_every_card()

    first = list(_driver(tree).discover())

    assert first
    assert list(_driver(tree).discover()) == first


def test_it_can_program(tree: SysfsTree) -> None:
    driver = _driver(tree)

    assert isinstance(driver, base.Driver)
    assert isinstance(driver, base.Programmable)


def test_a_bitstream_is_loaded_through_the_management_function(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_xilinx_u250()
    contents = []

    def xbmgmt(command: list[str]) -> str:
        contents.append(Path(command[5]).read_bytes())
        return ""

    tools.answer("xbmgmt", xbmgmt)
    _driver(tree, tools).program(NAME, CONTROLPATH, image, {}, 10)

    assert tools.commands == [
        [
            *("xbmgmt", "program", "--device", "0000:3b:00.0"),
            *("--user", f"{image}.xclbin", "--force"),
        ]
    ]
    assert contents == [b"xclbin2"]
    assert list(image.parent.iterdir()) == [image]


def test_an_image_that_is_called_right_is_given_as_it_is(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_xilinx_u250()
    called = image.rename(image.with_name("kernel.xclbin"))

    _driver(tree, tools).program(NAME, CONTROLPATH, called, {}, 10)

    assert tools.commands[0][4:] == ["--user", str(called), "--force"]
    assert called.exists()


@pytest.mark.parametrize("kind", ["firmware", " Firmware "])
def test_an_image_of_kind_firmware_is_written_as_the_boards_shell(
    tree: SysfsTree, tools: RecordedTools, image: Path, kind: str
) -> None:
    tree.add_xilinx_u250()

    _driver(tree, tools).program(
        NAME, CONTROLPATH, image, {"kind": kind, "name": "x"}, 10
    )

    assert tools.commands == [
        [
            *("xbmgmt", "program", "--device", "0000:3b:00.0", "--base"),
            *("--image", f"{image}.xsabin", "--force"),
        ]
    ]


def test_a_golden_board_takes_a_shell(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_function(
        Card("0000:3b:00.0", "10ee:d004", "120000", "xclmgmt", "10ee:000e")
    )

    _driver(tree, tools).program(
        NAME, CONTROLPATH, image, {"kind": "firmware"}, 10
    )

    assert "--base" in tools.commands[0]


def test_an_image_of_another_kind_is_refused(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_xilinx_u250()

    with pytest.raises(exception.DeviceFailed, match="'layout'"):
        _driver(tree, tools).program(
            NAME, CONTROLPATH, image, {"kind": "layout"}, 10
        )

    assert tools.commands == []


@pytest.mark.parametrize(
    ("driver", "words"),
    [("vfio-pci", "bound to vfio-pci"), (None, "bound to no driver")],
)
def test_a_board_that_the_host_does_not_have_is_not_programmed(
    tree: SysfsTree,
    tools: RecordedTools,
    image: Path,
    driver: str | None,
    words: str,
) -> None:
    tree.add_xilinx_u250()
    _bind(tree, "0000:3b:00.0", driver)

    with pytest.raises(exception.DeviceFailed) as failure:
        _driver(tree, tools).program(NAME, CONTROLPATH, image, {}, 10)

    assert "0000:3b:00.0" in failure.value.message
    assert words in failure.value.message
    assert "xclmgmt" in failure.value.message
    assert tools.commands == []


def test_the_tool_always_gets_the_management_function(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_xilinx_u250()

    _driver(tree, tools).program(NAME, USER, image, {}, 10)

    assert tools.commands[0][3] == "0000:3b:00.0"


def test_a_board_that_is_gone_or_another_card_is_not_programmed(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add("inspur_f10a", "0000:5e:00.0")
    driver = _driver(tree, tools)

    with pytest.raises(exception.DeviceFailed, match="no PCI function"):
        driver.program(NAME, CONTROLPATH, image, {}, 10)
    with pytest.raises(exception.DeviceFailed, match="no Xilinx FPGA"):
        driver.program("x", inventory.pci_json("0000:5e:00.0"), image, {}, 10)

    assert tools.commands == []


def test_a_failure_tells_the_tools_reason_and_no_path(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_xilinx_u250()
    tools.answer(
        "xbmgmt", ToolError(f"xbmgmt: {image}.xclbin: shell mismatch", 1)
    )

    with pytest.raises(exception.DeviceFailed) as failure:
        _driver(tree, tools).program(NAME, CONTROLPATH, image, {}, 10)

    assert failure.value.message == "xbmgmt: the image: shell mismatch"
    assert list(image.parent.iterdir()) == [image]


def test_an_image_that_is_empty_or_gone_never_reaches_the_board(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_xilinx_u250()
    driver = _driver(tree, tools)
    image.write_bytes(b"")

    with pytest.raises(exception.DeviceFailed, match="the image is empty"):
        driver.program(NAME, CONTROLPATH, image, {}, 10)
    image.unlink()
    with pytest.raises(exception.DeviceFailed, match="the image cannot be"):
        driver.program(NAME, CONTROLPATH, image, {}, 10)

    assert tools.commands == []


def _shell(driver: XilinxFpgaDriver, image: Path) -> None:
    driver.program(NAME, CONTROLPATH, image, {"kind": "firmware"}, 10)


def _waits(driver: XilinxFpgaDriver) -> list[bool]:
    """Whether each board is said to wait for a cold reboot."""
    deployables = [one.deployables[0] for one in driver.discover()]
    waits = [
        ("needs_cold_reboot", "true") in one.attributes for one in deployables
    ]
    assert waits == ["cold reboot" in one.fault for one in deployables]
    return waits


def test_a_board_with_a_new_shell_is_not_offered_before_a_reboot(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_xilinx_u250()
    tree.add_xilinx_u250("0000:5e:00.0")
    driver = _driver(tree, tools)
    before = list(driver.discover())

    _shell(driver, image)
    assert _waits(driver) == [True, False]

    tree.write_proc(BOOT, "22222222-2222-2222-2222-222222222222\n")
    assert list(driver.discover()) == before


def test_a_bitstream_or_a_failure_needs_no_reboot(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_xilinx_u250()
    driver = _driver(tree, tools)

    driver.program(NAME, CONTROLPATH, image, {"kind": "bitstream"}, 10)
    tools.answer("xbmgmt", ToolError("xbmgmt: failed", 1))
    with pytest.raises(exception.DeviceFailed):
        _shell(driver, image)

    assert _waits(driver) == [False]


def test_an_agent_that_is_restarted_still_knows_of_the_new_shell(
    tree: SysfsTree, tools: RecordedTools, image: Path, tmp_path: Path
) -> None:
    tree.add_xilinx_u250()
    _shell(_driver(tree, tools, tmp_path), image)

    assert _waits(_driver(tree, state=tmp_path)) == [True]
    assert _waits(_driver(tree, state=tmp_path, name="another")) == [False]

    tree.write_proc(BOOT, "22222222-2222-2222-2222-222222222222\n")
    assert _waits(_driver(tree, state=tmp_path)) == [False]


def test_what_an_earlier_boot_wrote_does_not_come_back(
    tree: SysfsTree, tools: RecordedTools, image: Path, tmp_path: Path
) -> None:
    tree.add_xilinx_u250()
    tree.add_xilinx_u250("0000:5e:00.0")
    _shell(_driver(tree, tools, tmp_path), image)
    tree.write_proc(BOOT, "22222222-2222-2222-2222-222222222222\n")

    _driver(tree, tools, tmp_path).program(
        "x",
        inventory.pci_json("0000:5e:00.0"),
        image,
        {"kind": "firmware"},
        10,
    )

    assert _waits(_driver(tree, state=tmp_path)) == [False, True]


def test_a_shell_is_remembered_where_no_state_can_be_kept(
    tree: SysfsTree,
    tools: RecordedTools,
    image: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree.add_xilinx_u250()
    driver = _driver(tree, tools, tmp_path / "missing")

    _shell(driver, image)

    assert _waits(driver) == [True]
    assert "cannot be written" in caplog.text
    assert not (tmp_path / "missing").exists()


def test_a_shell_is_remembered_on_a_host_that_does_not_name_its_boots(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_xilinx_u250()
    (tree.proc / BOOT).unlink()
    driver = _driver(tree, tools)

    _shell(driver, image)

    assert _waits(driver) == [True]


@pytest.mark.parametrize("text", ["{", "[]", "\xff", ""])
def test_a_state_file_that_makes_no_sense_stops_nothing(
    tree: SysfsTree,
    tools: RecordedTools,
    image: Path,
    tmp_path: Path,
    text: str,
) -> None:
    tree.add_xilinx_u250()
    state = tmp_path / "xilinx-shells-compute-1.json"
    state.write_text(text, encoding="latin-1")
    driver = _driver(tree, tools, tmp_path)

    assert _waits(driver) == [False]
    _shell(driver, image)
    assert _waits(_driver(tree, state=tmp_path)) == [True]

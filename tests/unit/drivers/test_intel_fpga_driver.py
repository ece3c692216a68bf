# SPDX-License-Identifier: Apache-2.0
"""`intel_fpga_driver` on fake hosts."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg import privsep
from cyborg.drivers import base
from cyborg.drivers.intel_fpga import IntelFpgaDriver
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.tools import ToolError
from cyborg.hardware.tools import Tools
from tests.cards import CARDS
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

AFU = "d8424dc4a4a3c413f89e433683f9040b"
INTERFACE = "69528db6eb31577a8c3668f9faa081f6"
OTHER_AFU = "c000c9660d824272959aa1c84b9ca7f2"
CONTROLPATH = (
    '{"bus": "5e", "device": "00", "domain": "0000", "function": "0"}'
)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


@pytest.fixture
def tools() -> RecordedTools:
    result = RecordedTools()
    result.answer("fpgaconf", "")
    return result


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image-x1"
    path.write_bytes(b"XeonFPGA")
    return path


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], None]]:
    """Installs an fpgaconf that does what a script says; it runs as a real
    process, with the rights of the tests."""
    directory = tmp_path / "bin"
    directory.mkdir(mode=0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")

    def write(script: str) -> None:
        path = directory / "fpgaconf"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    privsep.agent_privileged.set_client_mode(False)
    yield write
    privsep.agent_privileged.set_client_mode(True)


def _driver(
    tree: SysfsTree, tools: Tools | None = None, **agent: object
) -> IntelFpgaDriver:
    return IntelFpgaDriver(
        driver_host(tree.root, {"agent": agent}, tools=tools)
    )


def _traits(device: inventory.Device) -> list[str]:
    return [
        value
        for key, value in device.deployables[0].attributes
        if key.startswith("trait")
    ]


def _handles(device: inventory.Device) -> list[str]:
    return [one.attach_info for one in device.deployables[0].attach_handles]


def _give_to_guest(tree: SysfsTree, address: str) -> None:
    """What the host sees while an instance has the function."""
    tree.unbind(address)
    for name in ("fpga_region", "fpga"):
        shutil.rmtree(tree.path(address) / name, ignore_errors=True)
    tree.bind(tree.cards[address], tree.path(address), "vfio-pci")


def test_a_card_without_virtual_functions_is_reported_wholly(
    tree: SysfsTree,
) -> None:
    tree.add_intel_pac_arria10()

    (device,) = _driver(tree).discover()

    assert device == inventory.Device(
        controlpath=CONTROLPATH,
        type=inventory.DeviceType.FPGA,
        vendor="8086",
        model="8086:09c4",
        driver="intel_fpga_driver",
        std_board_info=(
            '{"class": "120000", "product_id": "09c4", "revision": "00",'
            ' "subsystem": "0000:0000"}'
        ),
        deployables=(
            inventory.Deployable(
                name="compute-1_0000:5e:00.0",
                num_accelerators=1,
                driver_name="intel",
                attributes=(
                    ("trait0", "CUSTOM_FPGA_INTEL"),
                    ("trait1", "CUSTOM_FPGA_INTEL_PAC_ARRIA10"),
                    (
                        "trait2",
                        f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{AFU.upper()}",
                    ),
                    (
                        "trait3",
                        f"CUSTOM_FPGA_REGION_INTEL_{INTERFACE.upper()}",
                    ),
                    ("rc", "FPGA"),
                    ("numa_node", "0"),
                    ("pcie_root", "pci0000:00/0000:00:0b.6"),
                    ("iommu_group", "1"),
                    ("fpga_layout", "dfl"),
                ),
                attach_handles=(
                    inventory.AttachHandle(
                        inventory.AttachType.PCI, CONTROLPATH
                    ),
                ),
            ),
        ),
    )


def test_a_card_with_virtual_functions_is_one_deployable_of_them(
    tree: SysfsTree,
) -> None:
    tree.add_intel_pac_arria10_old(vfs=1)

    (device,) = _driver(tree).discover()

    assert device.controlpath == CONTROLPATH
    assert device.fault == ""
    (deployable,) = device.deployables
    assert deployable.fault == ""
    assert deployable.name == "compute-1_0000:5e:00.0"
    assert deployable.num_accelerators == 1
    assert _handles(device) == [inventory.pci_json("0000:5e:00.1")]
    assert _traits(device) == [
        "CUSTOM_FPGA_INTEL",
        "CUSTOM_FPGA_INTEL_PAC_ARRIA10",
        f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{AFU.upper()}",
        f"CUSTOM_FPGA_REGION_INTEL_{INTERFACE.upper()}",
    ]
    assert ("fpga_layout", "intel-fpga") in deployable.attributes


def test_every_virtual_function_is_a_handle_in_its_order(
    tree: SysfsTree,
) -> None:
    tree.add_intel_n6001(vfs=3)

    (device,) = _driver(tree).discover()

    assert device.deployables[0].num_accelerators == 3
    assert _handles(device) == [
        inventory.pci_json(f"0000:b1:00.{number}") for number in (5, 6, 7)
    ]


def test_virtual_functions_that_nobody_can_have_are_left_out(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_intel_n6001(vfs=3)
    devices = tree.path("0000:b1:00.6") / "mdev_supported_types/x-1/devices"
    (devices / "some-uuid").mkdir(parents=True)

    (device,) = _driver(tree).discover()

    assert device.fault == ""
    assert device.deployables[0].fault == ""
    assert device.deployables[0].num_accelerators == 2
    assert _handles(device) == [
        inventory.pci_json(f"0000:b1:00.{number}") for number in (5, 7)
    ]
    assert caplog.text.count("0000:b1:00.6 is left out") == 1


def test_a_card_of_which_no_virtual_function_is_left_is_listed(
    tree: SysfsTree,
) -> None:
    tree.add_intel_pac_arria10_old(vfs=1)
    (tree.path("0000:5e:00.1") / "vendor").unlink()

    (device,) = _driver(tree).discover()

    (deployable,) = device.deployables
    assert deployable.num_accelerators == 0
    assert deployable.attach_handles == ()
    assert deployable.fault == (
        "none of its virtual functions can be attached; 0000:5e:00.1: it"
        " cannot be read"
    )


@pytest.mark.parametrize(
    ("ids", "subsystem", "word"),
    [
        ("8086:09c4", "8086:0000", "PAC_ARRIA10"),
        ("8086:0b2b", "8086:0000", "PAC_D5005"),
        ("8086:0b30", "8086:0000", "PAC_N3000"),
        ("8086:bcce", "8086:1770", "N6000"),
        ("8086:bcce", "8086:1771", "N6001"),
        ("8086:bcce", "8086:17d4", "C6100"),
        ("8086:bcce", "8086:138d", "PAC_D5005"),
        ("8086:bcce", "0000:0000", "OFS"),
        ("8086:bcbd", "8086:0000", "INTEGRATED"),
        ("8086:bcc0", "8086:0000", "INTEGRATED"),
    ],
)
def test_each_product_has_a_trait_of_its_own(
    tree: SysfsTree, ids: str, subsystem: str, word: str
) -> None:
    card = dataclasses.replace(
        CARDS["intel_pac_arria10"], ids=ids, subsystem=subsystem
    )
    tree.add_function(card)

    (device,) = _driver(tree).discover()

    assert _traits(device)[:2] == [
        "CUSTOM_FPGA_INTEL",
        f"CUSTOM_FPGA_INTEL_{word}",
    ]


@pytest.mark.parametrize(
    "product", ["09c5", "0b2c", "0b31", "bccf", "bcbf", "bcc1", "37c8", "56c0"]
)
def test_virtual_functions_and_other_cards_are_no_devices(
    tree: SysfsTree, product: str
) -> None:
    card = dataclasses.replace(
        CARDS["intel_pac_arria10"], ids=f"8086:{product}"
    )
    tree.add_function(card)

    assert list(_driver(tree).discover()) == []


def test_no_other_vendors_card_is_claimed(tree: SysfsTree) -> None:
    card = dataclasses.replace(CARDS["intel_pac_arria10"], ids="10ee:09c4")
    tree.add_function(card)

    assert list(_driver(tree).discover()) == []


def test_a_card_that_no_fpga_driver_shows_is_listed_and_never_offered(
    tree: SysfsTree,
) -> None:
    shutil.rmtree(tree.add_intel_pac_arria10() / "fpga_region")
    tree.add("intel_d5005")

    stub, other = _driver(tree).discover()

    assert stub.controlpath == CONTROLPATH
    assert stub.fault.startswith("a stub: ")
    assert "bound to dfl-pci" in stub.fault
    assert _traits(stub) == [
        "CUSTOM_FPGA_INTEL",
        "CUSTOM_FPGA_INTEL_PAC_ARRIA10",
    ]
    assert other.fault == ""


def test_a_card_with_several_physical_functions_is_one_device(
    tree: SysfsTree,
) -> None:
    tree.add_intel_n6001()
    tree.add_function(
        dataclasses.replace(
            CARDS["intel_n6001_second"],
            address="0000:b1:00.2",
            ids="1af4:1000",
        )
    )

    (device,) = _driver(tree).discover()

    assert device.controlpath == inventory.pci_json("0000:b1:00.0")
    assert device.fault == ""
    assert _handles(device) == [inventory.pci_json("0000:b1:00.0")]


def test_the_card_is_the_function_with_the_management_engine(
    tree: SysfsTree,
) -> None:
    card = CARDS["intel_n6001"]
    tree.add_function(
        dataclasses.replace(card, address="0000:b1:00.0", parts="")
    )
    shutil.rmtree(
        tree.path("0000:b1:00.0") / "fpga_region", ignore_errors=True
    )
    tree.add_function(dataclasses.replace(card, address="0000:b1:00.4"))

    (device,) = _driver(tree).discover()

    assert device.controlpath == inventory.pci_json("0000:b1:00.4")
    assert device.fault == ""


def test_two_cards_are_two_devices(tree: SysfsTree) -> None:
    tree.add_intel_pac_arria10()
    tree.add_intel_pac_arria10("0000:5f:00.0")

    assert [one.controlpath for one in _driver(tree).discover()] == [
        CONTROLPATH,
        inventory.pci_json("0000:5f:00.0"),
    ]


def test_a_card_stays_as_it_was_while_a_guest_has_it(tree: SysfsTree) -> None:
    tree.add_intel_n6001()
    driver = _driver(tree)
    before = list(driver.discover())

    _give_to_guest(tree, "0000:b1:00.0")

    assert list(driver.discover()) == before
    assert list(driver.discover()) == before


def test_what_a_guest_had_before_the_agent_came_is_not_offered(
    tree: SysfsTree,
) -> None:
    tree.add_intel_pac_arria10()
    _give_to_guest(tree, "0000:5e:00.0")

    (device,) = _driver(tree).discover()

    assert "bound to vfio-pci" in device.fault


def test_a_card_that_lost_its_driver_is_not_remembered(
    tree: SysfsTree,
) -> None:
    path = tree.add_intel_pac_arria10()
    driver = _driver(tree)
    assert [one.fault for one in driver.discover()] == [""]

    tree.unbind("0000:5e:00.0")
    shutil.rmtree(path / "fpga_region", ignore_errors=True)

    (device,) = driver.discover()
    assert "bound to no driver" in device.fault


def test_a_virtual_function_tells_its_own_function(tree: SysfsTree) -> None:
    tree.add_intel_pac_arria10(vfs=1)
    (port,) = tree.path("0000:5e:00.1").glob("fpga_region/*/dfl-port.*")
    (port / "afu_id").write_text(f"{OTHER_AFU}\n")

    (device,) = _driver(tree).discover()

    assert f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{OTHER_AFU.upper()}" in _traits(
        device
    )
    assert f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{AFU.upper()}" not in _traits(
        device
    )


def test_a_function_that_not_every_unit_has_is_not_promised(
    tree: SysfsTree,
) -> None:
    card = dataclasses.replace(CARDS["intel_n6001"], vf_driver="dfl-pci")
    tree.add_function(card)
    _, second = tree.add_virtual_functions(card, 2)
    (port,) = second.glob("fpga_region/*/dfl-port.*")
    (port / "afu_id").write_text(f"{OTHER_AFU}\n")

    (device,) = _driver(tree).discover()

    assert device.deployables[0].num_accelerators == 2
    assert _traits(device) == [
        "CUSTOM_FPGA_INTEL",
        "CUSTOM_FPGA_INTEL_N6001",
        f"CUSTOM_FPGA_REGION_INTEL_{INTERFACE.upper()}",
    ]


def test_a_card_with_a_malformed_file_is_left_out_with_one_warning(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    path = tree.add_intel_pac_arria10()
    tree.add("intel_d5005")
    (file,) = path.glob("fpga_region/*/dfl-port.*/afu_id")
    file.write_text("garbage\n")
    driver = _driver(tree)

    for _ in range(2):
        (device,) = driver.discover()

    assert device.controlpath == inventory.pci_json("0000:af:00.0")
    (record,) = caplog.records
    assert file.name in record.getMessage()
    assert "0000:5e:00.0" in record.getMessage()

    file.write_text(f"{AFU}\n")
    assert len(list(driver.discover())) == 2


def test_errors_of_a_port_are_shown(tree: SysfsTree) -> None:
    path = tree.add_intel_pac_arria10()
    (file,) = path.glob("fpga_region/*/dfl-port.*/errors/errors")
    file.write_text("0x4\n")

    (device,) = _driver(tree).discover()

    assert ("port_errors", "0x4") in device.deployables[0].attributes


def test_a_function_level_reset_is_offered_where_it_is_asked_for(
    tree: SysfsTree,
) -> None:
    tree.add_intel_pac_arria10()
    tree.add_intel_n6001(vfs=2)

    assert [one.clean_seconds for one in _driver(tree).discover()] == [
        None,
        None,
    ]
    driver = _driver(tree, clean_on_release=True)
    assert [one.clean_seconds for one in driver.discover()] == [120, 120]


def test_virtual_functions_that_are_made_are_the_units(
    tree: SysfsTree,
) -> None:
    tree.add_intel_pac_arria10_old(vfs=0)
    driver = _carving(tree, Kernel(tree))

    driver.carve(_function(driver), 1, 10)

    (device,) = driver.discover()
    assert _handles(device) == [inventory.pci_json("0000:5e:00.1")]


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.EINVAL, True), (errno.EIO, False)]
)
def test_a_card_whose_ports_are_not_released_says_what_to_do(
    tree: SysfsTree, number: int, hint: bool
) -> None:
    tree.add_intel_pac_arria10()
    kernel = Kernel(tree)
    kernel.fail("*sriov_numvfs", number)
    driver = _carving(tree, kernel)

    with pytest.raises(exception.DeviceFailed) as failure:
        driver.carve(_function(driver), 1, 10)

    assert ("pci_device 0000:5e:00.0 vf 1" in str(failure.value)) is hint


def _carving(tree: SysfsTree, kernel: Kernel) -> IntelFpgaDriver:
    return IntelFpgaDriver(driver_host(tree.root, writer=kernel))


def _function(driver: IntelFpgaDriver) -> PciFunction:
    function = driver.host.sysfs.function("0000:5e:00.0")
    assert function is not None
    return function


def test_the_same_host_gives_the_same_report(tree: SysfsTree) -> None:
    tree.add_every_card()
    driver = _driver(tree)

    first = list(driver.discover())

    assert first
    assert list(driver.discover()) == first
    assert list(_driver(tree).discover()) == first


def test_it_can_program_and_clean() -> None:
    assert issubclass(IntelFpgaDriver, base.Programmable)
    assert issubclass(IntelFpgaDriver, base.Cleanable)


def test_fpgaconf_is_told_the_whole_address_in_words_of_their_own(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_intel_pac_arria10()

    _driver(tree, tools).program(
        "compute-1_0000:5e:00.0", CONTROLPATH, image, {}, 10
    )

    assert tools.commands == [
        [
            "fpgaconf",
            "--segment",
            "0x0000",
            "--bus",
            "0x5e",
            "--device",
            "0x00",
            "--function",
            "0x0",
            str(image),
        ]
    ]


def test_a_card_of_another_domain_is_programmed_at_its_own_address(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_intel_pac_arria10("0001:a0:1f.3")

    _driver(tree, tools).program(
        "x", inventory.pci_json("0001:a0:1f.3"), image, {}, 10
    )

    assert tools.commands[0][1:9] == [
        *("--segment", "0x0001"),
        *("--bus", "0xa0"),
        *("--device", "0x1f"),
        *("--function", "0x3"),
    ]


def test_a_card_with_virtual_functions_is_programmed_by_its_physical_one(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_intel_pac_arria10_old(vfs=1)

    _driver(tree, tools).program(
        "x", inventory.pci_json("0000:5e:00.1"), image, {}, 10
    )

    assert tools.commands[0][7:9] == ["--function", "0x0"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (1, "does not take this command"),
        (2, "is not a bitstream"),
        (3, "cannot look for FPGAs"),
        (4, "another interface id"),
        (5, "in use, or programming it failed"),
        (6, "too little memory"),
        (7, "does not take the card's address"),
        (8, "cannot read the card's properties"),
    ],
)
def test_what_fpgaconf_means_by_its_exit_code_is_said(
    tree: SysfsTree,
    tools: RecordedTools,
    image: Path,
    status: int,
    words: str,
) -> None:
    tree.add_intel_pac_arria10()
    error = ToolError("fpgaconf: no suitable slots", status)
    tools.answer("fpgaconf", error)

    with pytest.raises(exception.DeviceFailed) as failure:
        _driver(tree, tools).program("x", CONTROLPATH, image, {}, 10)

    assert words in failure.value.message
    assert "no suitable slots" in failure.value.message


@pytest.mark.parametrize(
    "reason",
    ["fpgaconf is not installed", "fpgaconf took longer than 10 s"],
)
def test_a_tool_that_is_missing_or_too_slow_is_a_failure_with_its_reason(
    tree: SysfsTree, tools: RecordedTools, image: Path, reason: str
) -> None:
    tree.add_intel_pac_arria10()
    tools.answer("fpgaconf", ToolError(reason))

    with pytest.raises(exception.DeviceFailed) as failure:
        _driver(tree, tools).program("x", CONTROLPATH, image, {}, 10)

    assert failure.value.message == reason


def test_no_path_of_the_host_is_in_a_failure(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_intel_pac_arria10()
    tools.answer("fpgaconf", ToolError(f"fpgaconf: cannot read {image}", 2))

    with pytest.raises(exception.DeviceFailed) as failure:
        _driver(tree, tools).program("x", CONTROLPATH, image, {}, 10)

    assert str(image) not in failure.value.message
    assert "cannot read the image" in failure.value.message


def test_an_image_that_is_empty_or_gone_never_reaches_the_card(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_intel_pac_arria10()
    driver = _driver(tree, tools)
    image.write_bytes(b"")

    with pytest.raises(exception.DeviceFailed, match="empty"):
        driver.program("x", CONTROLPATH, image, {}, 10)
    image.unlink()
    with pytest.raises(exception.DeviceFailed, match="cannot be read"):
        driver.program("x", CONTROLPATH, image, {}, 10)

    assert tools.commands == []


def test_a_card_that_is_gone_cannot_be_programmed(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    with pytest.raises(exception.DeviceFailed, match=r"0000:5e:00\.0"):
        _driver(tree, tools).program("x", CONTROLPATH, image, {}, 10)

    assert tools.commands == []


def test_a_programmed_card_shows_its_new_function(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    path = tree.add_intel_pac_arria10()
    (file,) = path.glob("fpga_region/*/dfl-port.*/afu_id")

    def fpgaconf(command: list[str]) -> str:
        file.write_text(f"{OTHER_AFU}\n")
        return ""

    tools.answer("fpgaconf", fpgaconf)
    driver = _driver(tree, tools)
    driver.program("x", CONTROLPATH, image, {}, 10)

    (device,) = driver.discover()
    assert f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{OTHER_AFU.upper()}" in _traits(
        device
    )


def test_what_a_unit_ran_before_it_was_programmed_is_forgotten(
    tree: SysfsTree, tools: RecordedTools, image: Path
) -> None:
    tree.add_intel_pac_arria10(vfs=1)
    tree.add_intel_pac_arria10("0000:60:00.0")
    (port,) = tree.path("0000:5e:00.0").glob("fpga_region/*/dfl-port.*")
    shutil.rmtree(port)
    driver = _driver(tree, tools)
    assert len(_traits(next(iter(driver.discover())))) == 4
    _give_to_guest(tree, "0000:5e:00.1")
    _give_to_guest(tree, "0000:60:00.0")
    carved, other = driver.discover()
    assert len(_traits(carved)) == 4

    driver.program("x", CONTROLPATH, image, {}, 10)

    carved, still = driver.discover()
    assert len(_traits(carved)) == 3
    assert still == other


def test_a_real_tool_gets_exactly_these_words(
    tree: SysfsTree,
    install: Callable[[str], None],
    image: Path,
    tmp_path: Path,
) -> None:
    tree.add_intel_pac_arria10()
    install(f'printf "%s\\n" "$@" > {tmp_path}/words')

    _driver(tree, Tools()).program("x", CONTROLPATH, image, {}, 10)

    assert (tmp_path / "words").read_text().splitlines() == [
        *("--segment", "0x0000", "--bus", "0x5e"),
        *("--device", "0x00", "--function", "0x0"),
        str(image),
    ]


def test_a_real_tool_that_fails_says_why(
    tree: SysfsTree, install: Callable[[str], None], image: Path
) -> None:
    tree.add_intel_pac_arria10()
    install('echo "no suitable slots" >&2; exit 4')

    with pytest.raises(exception.DeviceFailed) as failure:
        _driver(tree, Tools()).program("x", CONTROLPATH, image, {}, 10)

    assert "another interface id" in failure.value.message
    assert "no suitable slots" in failure.value.message


def test_a_real_tool_that_hangs_is_given_up(
    tree: SysfsTree, install: Callable[[str], None], image: Path
) -> None:
    tree.add_intel_pac_arria10()
    install("exec sleep 60")

    with pytest.raises(exception.DeviceFailed, match=r"longer than 0\.2 s"):
        _driver(tree, Tools()).program("x", CONTROLPATH, image, {}, 0.2)

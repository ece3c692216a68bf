# SPDX-License-Identifier: Apache-2.0
"""`nvme_driver` on fake hosts."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers.nvme import ASKING_SECONDS
from cyborg.drivers.nvme import Disks
from cyborg.drivers.nvme import NvmeDriver
from cyborg.drivers.nvme import parse
from cyborg.drivers.nvme_erasure import Action
from cyborg.drivers.nvme_erasure import Strategy
from cyborg.drivers.nvme_erasure import Wish
from cyborg.hardware.tools import ToolError
from tests.driver_host import driver_host
from tests.nvme_disk import NvmeDisk
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

ADDRESS = "0000:5f:00.0"
ALL = {"address": "*"}


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _driver(
    tree: SysfsTree,
    *specs: object,
    tools: RecordedTools | None = None,
    agent: dict[str, object] | None = None,
) -> NvmeDriver:
    options: dict[str, dict[str, object]] = {
        "nvme": {"device_spec": [json.dumps(spec) for spec in specs]},
        "agent": agent or {},
    }
    tools = tools or RecordedTools()
    return NvmeDriver(driver_host(tree.root, options, tools=tools))


def _faults(tree: SysfsTree, *specs: object, **more: Any) -> dict[str, str]:
    """Why each disk cannot be offered, by address."""
    return {
        device.deployables[0].name.removeprefix("compute-1_"): device.fault
        for device in _driver(tree, *specs, **more).discover()
    }


def _traits(device: inventory.Device) -> frozenset[str]:
    return inventory.traits(device.deployables[0].attributes)


def test_a_disk_is_reported_wholly(tree: SysfsTree) -> None:
    tree.add_intel_p4510(ADDRESS)
    (tree.path(ADDRESS) / "nvme/nvme0/serial").write_text("PHLJ1" + " " * 15)
    tools = RecordedTools()
    tools.answer("nvme", NvmeDisk(sanicap=0b11, oncs=0b1000))

    (device,) = _driver(tree, ALL, tools=tools).discover()

    address = (
        '{"bus": "5f", "device": "00", "domain": "0000", "function": "0"}'
    )
    assert device.controlpath == address
    assert device.type is inventory.DeviceType.NVME
    assert (device.vendor, device.model) == ("8086", "8086:0a54")
    assert device.driver == "nvme_driver"
    assert device.fault == ""
    assert device.clean_seconds == 900
    (unit,) = device.deployables
    assert unit.name == f"compute-1_{ADDRESS}"
    assert unit.num_accelerators == 1
    assert unit.driver_name == "INTEL"
    assert inventory.resource_class(unit.attributes) == "CUSTOM_NVME"
    assert _traits(device) == {
        "CUSTOM_NVME_INTEL",
        "CUSTOM_NVME_PRODUCT_ID_0A54",
        "HW_NVME_CES",
        "HW_NVME_BES",
        "HW_NVME_WZS",
        "OWNER_CYBORG",
    }
    plain = dict(unit.attributes)
    assert plain["numa_node"] == "0"
    assert plain["controller_model"] == "INTEL SSDPE2KX010T8"
    assert plain["serial"] == "PHLJ1"
    assert plain["firmware"] == "VDV10131"
    assert unit.attach_handles == (
        inventory.AttachHandle(inventory.AttachType.PCI, address),
    )


# Which disks -----------------------------------------------------------------


def test_only_nvme_disks_that_are_named_are_offered(tree: SysfsTree) -> None:
    tree.add_every_card()
    named = {"vendor_id": "1BD4"}, {"address": "0000:5d:05.5"}

    assert list(_faults(tree, *named)) == [
        function.address
        for function in driver_host(tree.root).sysfs.functions()
        if (function.vendor, function.class_code) == ("1bd4", "010802")
    ]
    every = _faults(tree, ALL)
    assert len(every) == 3
    assert all(
        driver_host(tree.root).sysfs.function(address).class_code  # type: ignore[union-attr]
        == "010802"
        for address in every
    )


def test_without_a_spec_nothing_is_offered_and_said_so(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_intel_p4510()

    assert _faults(tree) == {}
    assert "[nvme] device_spec is empty" in caplog.text


def test_the_first_spec_that_fits_says_how_a_disk_is_cleaned() -> None:
    specs = parse(
        [
            '{"address": "0000:5f:00.0", "clear_action": "zero"}',
            '[{"vendor_id": "8086", "clear_strategy": "block"},'
            ' {"vendor_id": "1bd4", "clear_action": "sanitize",'
            '  "clear_strategy": "crypto"}]',
            '{"address": {"bus": "0[0-9]"}, "clear_action": "auto"}',
        ]
    )

    assert [spec.wish for spec in specs] == [
        Wish(Action.ZERO, Strategy.AUTO),
        Wish(Action.AUTO, Strategy.BLOCK),
        Wish(Action.SANITIZE, Strategy.CRYPTO),
        Wish(Action.AUTO, Strategy.AUTO),
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{", "is not JSON"),
        ('{"vendor_id": "8086", "vendor_id": "144d"}', "'vendor_id' comes"),
        ("5", "must be an object"),
        ("{}", "names no device"),
        ('{"clear_action": "zero"}', "names no device"),
        ('{"vendor_id": 32902}', "vendor_id must be a text"),
        ('{"product_id": "0a5"}', "product_id '0a5' is not four hex digits"),
        ('{"address": "5f:zz.0"}', "address: "),
        (
            '{"address": "*", "clear_action": "format"}',
            "clear_action 'format' is none of auto, sanitize, zero",
        ),
        (
            '{"address": "*", "clear_action": true}',
            "clear_action 'true' is none of",
        ),
        ('{"address": "*", "clear_action": null}', "clear_action"),
        (
            '{"address": "*", "clear_strategy": "overwrite"}',
            "clear_strategy 'overwrite' is none of auto, crypto, block",
        ),
        (
            '{"address": "*", "clear_action": "zero",'
            ' "clear_strategy": "block"}',
            "clear_strategy means nothing with clear_action zero",
        ),
        ('{"address": "*", "clear_acton": "zero"}', "key 'clear_acton'"),
        ('{"devname": "eth0"}', "unknown key 'devname'"),
        ('{"address": "*", "traits": ["A"]}', "unknown key 'traits'"),
        (
            '{"address": "*", "resource_class": "CUSTOM_A", "b": 1}',
            "unknown key 'resource_class', 'b'",
        ),
    ],
)
def test_a_wrong_spec_names_the_option_the_value_and_what_is_wrong(
    tree: SysfsTree, value: str, reason: str
) -> None:
    good = '{"vendor_id": "144d"}'
    options = {"nvme": {"device_spec": [good, value]}}

    with pytest.raises(base.OptionError) as caught:
        NvmeDriver(driver_host(tree.root, options))

    assert str(caught.value).startswith("[nvme] device_spec: value 2")
    assert reason in str(caught.value)
    assert value[:80] in str(caught.value)


# Faults ----------------------------------------------------------------------


def test_a_disk_that_a_guest_may_get_is_offered_without_its_driver(
    tree: SysfsTree,
) -> None:
    tree.add_intel_p4510(ADDRESS)
    tree.unbind(ADDRESS)
    tree.bind(tree.cards[ADDRESS], tree.path(ADDRESS), "vfio-pci")

    assert _faults(tree, ALL) == {ADDRESS: ""}


@pytest.mark.parametrize("state", ["dead", "resetting", "deleting"])
def test_a_disk_whose_controller_is_not_live_is_listed_alone(
    tree: SysfsTree, state: str
) -> None:
    tree.add_intel_p4510(ADDRESS)
    (tree.path(ADDRESS) / "nvme/nvme0/state").write_text(f"{state}\n")

    assert _faults(tree, ALL)[ADDRESS].startswith(
        f"its NVMe controller is {state}"
    )


def test_a_disk_behind_vmd_is_listed_with_novas_reason(
    tree: SysfsTree,
) -> None:
    tree.add_nvme_behind_vmd()

    (fault,) = _faults(tree, ALL).values()

    assert "more than four digits" in fault


def test_a_disk_that_the_host_uses_is_listed_alone(tree: SysfsTree) -> None:
    tree.add_intel_p4510(ADDRESS)
    device = tree.path(ADDRESS) / "nvme/nvme0/nvme0n1/dev"
    for process in ("1", "self"):
        tree.write_proc(
            f"{process}/mountinfo",
            f"36 35 {device.read_text().strip()} / /srv rw - ext4 x rw\n",
        )

    assert "/srv" in _faults(tree, ALL)[ADDRESS]


def test_a_disk_that_could_not_be_cleaned_as_wanted_is_listed_alone(
    tree: SysfsTree,
) -> None:
    tree.add_intel_p4510(ADDRESS)
    tools = RecordedTools()
    tools.answer("nvme", NvmeDisk(sanicap=0b10))
    crypto = {**ALL, "clear_strategy": "crypto"}

    fault = _faults(tree, crypto, tools=tools)[ADDRESS]

    assert fault.startswith("it could not be cleaned: [nvme] device_spec")
    off: dict[str, object] = {"clean_on_release": False}
    assert _faults(tree, crypto, tools=tools, agent=off) == {ADDRESS: ""}


def test_a_controller_that_shares_its_disk_is_listed_alone(
    tree: SysfsTree,
) -> None:
    for address in (ADDRESS, "0000:60:00.0"):
        tree.add_intel_p4510(address)
    for path in (tree.root / "class" / "nvme").glob("*/subsysnqn"):
        path.write_text("nqn.same\n")

    assert _faults(tree, ALL) == {
        ADDRESS: "it is one disk with the NVMe controller nvme1 and cannot be"
        " cleaned alone",
        "0000:60:00.0": "it is one disk with the NVMe controller nvme0 and"
        " cannot be cleaned alone",
    }
    off: dict[str, object] = {"clean_on_release": False}
    assert set(_faults(tree, ALL, agent=off).values()) == {""}


def test_a_virtual_function_is_not_cleaned_and_so_not_offered(
    tree: SysfsTree,
) -> None:
    tree.add_intel_p4510(ADDRESS)
    tree.add_unknown("0000:5f:00.1")
    other = tree.path("0000:5f:00.1")
    (other / "class").write_text("0x010802\n")
    (other / "physfn").symlink_to(tree.path(ADDRESS))
    (tree.path(ADDRESS) / "virtfn0").symlink_to(other)

    faults = _faults(tree, {"address": ADDRESS})

    assert "virtual functions" in faults[ADDRESS]
    assert "virtual function cannot be cleaned" in faults["0000:5f:00.1"]
    off: dict[str, object] = {"clean_on_release": False}
    faults = _faults(tree, {"address": ADDRESS}, agent=off)
    assert faults["0000:5f:00.1"] == ""


@pytest.mark.parametrize("name", ["model", "serial", "firmware_rev", "state"])
def test_a_disk_of_which_a_file_is_missing_is_left_out_with_one_warning(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for address in (ADDRESS, "0000:60:00.0"):
        tree.add_intel_p4510(address)
    (tree.path(ADDRESS) / "nvme" / "nvme0" / name).unlink()
    driver = _driver(tree, ALL)

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            (device,) = driver.discover()

    assert device.deployables[0].name.endswith("0000:60:00.0")
    (said,) = [one for one in caplog.messages if "is left out" in one]
    assert f"nvme0/{name}" in said


# What a disk can do ----------------------------------------------------------


@pytest.mark.parametrize(
    ("sanicap", "oncs", "traits"),
    [
        (0b01, 0, {"HW_NVME_CES"}),
        (0b10, 0, {"HW_NVME_BES"}),
        (0b100, 0, set()),
        (0, 0b1000, {"HW_NVME_WZS"}),
        (0, 0b10111, set()),
    ],
)
def test_standard_traits_say_what_os_traits_means(
    tree: SysfsTree, sanicap: int, oncs: int, traits: set[str]
) -> None:
    tree.add_intel_p4510(ADDRESS)
    tools = RecordedTools()
    tools.answer("nvme", NvmeDisk(sanicap=sanicap, oncs=oncs, oacs=0b10))

    (device,) = _driver(tree, ALL, tools=tools).discover()

    assert {
        name for name in _traits(device) if name.startswith("HW_")
    } == traits


def test_a_disk_is_asked_once_also_if_it_does_not_answer(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    for address in (ADDRESS, "0000:60:00.0"):
        tree.add_intel_p4510(address)
    tools = RecordedTools()
    tools.answer("nvme", ToolError("nvme was not run: no helper"))
    driver = _driver(tree, ALL, tools=tools)

    with caplog.at_level(logging.INFO):
        first = list(driver.discover())
        assert list(driver.discover()) == first

    assert [command[2] for command in tools.commands] == [
        "/dev/nvme0",
        "/dev/nvme1",
    ]
    assert all(not device.fault for device in first)
    said = [one for one in caplog.messages if "no helper" in one]
    assert len(said) == 1


def test_a_report_is_the_same_while_a_guest_has_the_disk(
    tree: SysfsTree,
) -> None:
    tree.add_intel_p4510(ADDRESS)
    tools = RecordedTools()
    tools.answer("nvme", NvmeDisk(sanicap=0b11))
    driver = _driver(tree, ALL, tools=tools)
    before = list(driver.discover())

    tree.unbind(ADDRESS)
    tree.bind(tree.cards[ADDRESS], tree.path(ADDRESS), "vfio-pci")

    assert list(driver.discover()) == before
    assert len(tools.commands) == 1


def test_another_disk_or_firmware_is_asked_anew(tree: SysfsTree) -> None:
    tree.add_intel_p4510(ADDRESS)
    tools = RecordedTools()
    tools.answer("nvme", NvmeDisk(sanicap=0b01))
    driver = _driver(tree, ALL, tools=tools)
    list(driver.discover())

    tools.answer("nvme", NvmeDisk(sanicap=0b10))
    (tree.path(ADDRESS) / "nvme/nvme0/firmware_rev").write_text("NEW\n")
    (device,) = driver.discover()

    assert dict(device.deployables[0].attributes)["firmware"] == "NEW"
    assert "HW_NVME_BES" in _traits(device)
    assert "HW_NVME_CES" not in _traits(device)


def test_a_controller_that_is_not_live_is_asked_once_it_is(
    tree: SysfsTree,
) -> None:
    tree.add_intel_p4510(ADDRESS)
    state = tree.path(ADDRESS) / "nvme/nvme0/state"
    state.write_text("connecting\n")
    tools = RecordedTools()
    tools.answer("nvme", NvmeDisk(sanicap=0b01))
    driver = _driver(tree, ALL, tools=tools)
    list(driver.discover())
    assert tools.commands == []

    state.write_text("live\n")
    (device,) = driver.discover()

    assert "HW_NVME_CES" in _traits(device)


def test_disks_that_answer_slowly_do_not_take_all_of_a_look(
    tree: SysfsTree,
) -> None:
    for number in range(5):
        tree.add_intel_p4510(f"0000:6{number}:00.0")
    tools = RecordedTools()
    host = driver_host(tree.root, tools=tools)
    now = [0.0]
    disks = Disks(host, clock=lambda: now[0])
    disk = NvmeDisk(sanicap=1)

    def slow(command: list[str]) -> str:
        now[0] += 6
        return disk(command)

    tools.answer("nvme", slow)
    functions = [one for one in host.sysfs.functions() if one.vendor == "8086"]
    functions = [one for one in functions if one.class_code == "010802"]

    asked = []
    for _ in range(4):
        disks.begin()
        for function in functions:
            disks.look(function)
        asked.append(len(tools.commands))

    assert ASKING_SECONDS == 10
    # Two in a look of ten seconds; in the end all, and none twice.
    assert asked == [2, 4, 5, 5]


# Cleaning --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "seconds"),
    [
        ({}, 900),
        ({"clean_on_release": True}, 900),
        ({"clean_on_release": False}, None),
        ({"clean_timeout": 5}, 900),
        ({"clean_timeouts": {"nvme_driver": "7200"}}, 7200),
        ({"clean_timeouts": {"pci_driver": "7200"}}, 900),
    ],
)
def test_disks_are_cleaned_unless_an_operator_wants_none_cleaned(
    tree: SysfsTree, agent: dict[str, object], seconds: int | None
) -> None:
    tree.add_intel_p4510(ADDRESS)

    (device,) = _driver(tree, ALL, agent=agent).discover()

    assert device.clean_seconds == seconds


def test_a_wrong_time_limit_is_an_error_that_names_its_option(
    tree: SysfsTree,
) -> None:
    agent: dict[str, object] = {"clean_timeouts": {"nvme_driver": "1h"}}

    with pytest.raises(base.OptionError, match=r"\[agent\] clean_timeouts"):
        _driver(tree, ALL, agent=agent)


def test_a_unit_is_cleaned_as_the_spec_of_its_disk_says(
    tree: SysfsTree,
) -> None:
    for address in (ADDRESS, "0000:60:00.0"):
        tree.add_intel_p4510(address)
    tools = RecordedTools()
    serial = tree.path(ADDRESS) / "nvme/nvme0/serial"
    disk = NvmeDisk(serial.read_text().strip(), sanicap=0b11)
    disk.steps = []
    tools.answer("nvme", disk)
    driver = _driver(
        tree,
        {"address": ADDRESS, "clear_strategy": "block"},
        ALL,
        tools=tools,
    )
    device = next(iter(driver.discover()))

    assert isinstance(driver, base.Cleanable)
    driver.clean(
        device.deployables[0].attach_handles[0],
        device.controlpath,
        60,
        lambda _: None,
    )

    assert ["nvme", "sanitize", "/dev/nvme0", "-a", "2", "--ause"] in (
        tools.commands
    )
    assert disk.is_clean


def test_a_unit_that_is_gone_cannot_be_cleaned(tree: SysfsTree) -> None:
    tree.add_intel_p4510(ADDRESS)
    driver = _driver(tree, ALL)
    (device,) = driver.discover()
    tree.unplug(ADDRESS)

    with pytest.raises(exception.DeviceFailed, match=ADDRESS):
        driver.clean(
            device.deployables[0].attach_handles[0],
            device.controlpath,
            60,
            lambda _: None,
        )


def test_an_agent_that_stops_does_not_wait_for_disks(tree: SysfsTree) -> None:
    tree.add_intel_p4510(ADDRESS)
    tools = RecordedTools()
    serial = tree.path(ADDRESS) / "nvme/nvme0/serial"
    disk = NvmeDisk(serial.read_text().strip(), sanicap=0b11)
    tools.answer("nvme", disk)
    driver = _driver(tree, ALL, tools=tools)
    (device,) = driver.discover()

    assert isinstance(driver, base.Cancellable)
    driver.cancel()
    with pytest.raises(exception.Unavailable):
        driver.clean(
            device.deployables[0].attach_handles[0],
            device.controlpath,
            60,
            lambda _: None,
        )

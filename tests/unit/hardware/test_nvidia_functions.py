# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's driver shows, and its tool, on fake hosts."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cyborg.hardware import nvidia
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.tools import ToolError
from cyborg.hardware.writes import Writer
from tests.kernel import Kernel
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

L40S = "0000:82:00.0"
FIRST_VF = "0000:82:00.4"
SECOND_VF = "0000:82:00.5"
A100 = "0000:c1:00.0"
TYPES = {
    1147: "NVIDIA L40S-1Q",
    1148: "NVIDIA L40S-2Q",
    1155: "NVIDIA L40S-24Q",
}


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _function(tree: SysfsTree, address: str) -> PciFunction:
    function = Sysfs(tree.root).function(address)
    assert function is not None
    return function


def _vgpu_file(tree: SysfsTree, name: str) -> Path:
    return tree.path(FIRST_VF) / "nvidia" / name


# Vendor-specific vGPUs ---------------------------------------------------


def test_a_vendor_specific_vf_shows_what_it_could_be(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=2)

    found = nvidia.vendor_vgpu(_function(tree, FIRST_VF))

    assert found == nvidia.VendorVgpu(current=0, creatable=TYPES)


def test_no_other_function_is_one(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=1)
    tree.add_nvidia_a100(vfs=1)
    tree.add_nvidia_t4()

    for address in (L40S, "0000:41:00.0", "0000:41:00.4", "0000:af:00.0"):
        assert nvidia.vendor_vgpu(_function(tree, address)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID    : vGPU Name\n", {}),
        ("", {}),
        ("ID : vGPU Name\n1147:NVIDIA L40S-1Q", {1147: "NVIDIA L40S-1Q"}),
        ("\n  12  :  A : B \n\n", {12: "A : B"}),
        ("ID:\n7 :\n", {7: ""}),
    ],
)
def test_the_list_of_types_is_read_however_wide_its_columns_are(
    tree: SysfsTree, text: str, expected: dict[int, str]
) -> None:
    tree.add_nvidia_l40s(vfs=1)
    _vgpu_file(tree, "creatable_vgpu_types").write_text(text)

    found = nvidia.vendor_vgpu(_function(tree, FIRST_VF))

    assert found is not None
    assert found.creatable == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("creatable_vgpu_types", "ID : vGPU Name\nnothing\n"),
        ("creatable_vgpu_types", "x : y\n"),
        ("creatable_vgpu_types", ": y\n"),
        ("current_vgpu_type", ""),
        ("current_vgpu_type", "-1\n"),
        ("current_vgpu_type", "9" * 5000),
    ],
)
def test_a_malformed_file_is_an_error_that_names_it(
    tree: SysfsTree, name: str, text: str
) -> None:
    tree.add_nvidia_l40s(vfs=1)
    _vgpu_file(tree, name).write_text(text)

    with pytest.raises(UnreadableError, match=f"nvidia/{name}"):
        nvidia.vendor_vgpu(_function(tree, FIRST_VF))


def test_a_type_is_given_by_its_number_and_taken_by_0(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=2)
    kernel = Kernel(tree)
    function = _function(tree, FIRST_VF)

    nvidia.make_vgpu(kernel, function, 1155, 1)
    nvidia.make_vgpu(kernel, function, 1155, 1)

    path = f"bus/pci/devices/{FIRST_VF}/nvidia/current_vgpu_type"
    assert kernel.writes == [(path, "1155")]
    assert nvidia.vendor_vgpu(function) == nvidia.VendorVgpu(1155, {})

    nvidia.unmake_vgpu(kernel, function, 1155, 1)
    nvidia.unmake_vgpu(kernel, function, 1155, 1)

    assert kernel.writes == [(path, "1155"), (path, "0")]
    assert nvidia.vendor_vgpu(function) == nvidia.VendorVgpu(0, TYPES)


def test_a_function_with_another_type_is_left_alone(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=1)
    _vgpu_file(tree, "current_vgpu_type").write_text("1147\n")
    kernel = Kernel(tree)
    function = _function(tree, FIRST_VF)

    with pytest.raises(HardwareError, match="type 1147 already"):
        nvidia.make_vgpu(kernel, function, 1155, 1)
    nvidia.unmake_vgpu(kernel, function, 1155, 1)

    assert kernel.writes == []


def test_a_vgpu_that_a_guest_has_is_said_to_be_in_use(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=1)
    kernel = Kernel(tree)
    function = _function(tree, FIRST_VF)
    nvidia.make_vgpu(kernel, function, 1155, 1)
    kernel.fail("*/current_vgpu_type", errno.EBUSY)

    with pytest.raises(HardwareError, match="still in use by a guest"):
        nvidia.unmake_vgpu(kernel, function, 1155, 1)

    kernel.heal()
    kernel.fail("*/current_vgpu_type", errno.EIO)
    with pytest.raises(HardwareError) as raised:
        nvidia.unmake_vgpu(kernel, function, 1155, 1)
    assert raised.value.errno == errno.EIO


@pytest.mark.parametrize("number", [0, -1])
def test_what_is_no_type_is_never_written(
    tree: SysfsTree, number: int
) -> None:
    tree.add_nvidia_l40s(vfs=1)
    kernel = Kernel(tree)
    _vgpu_file(tree, "current_vgpu_type").write_text("1147\n")

    with pytest.raises(HardwareError, match="no vGPU type"):
        nvidia.make_vgpu(kernel, _function(tree, FIRST_VF), number, 1)

    assert kernel.writes == []


def test_a_type_for_which_there_is_no_room_is_refused(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=2)
    kernel = Kernel(tree)
    nvidia.make_vgpu(kernel, _function(tree, FIRST_VF), 1155, 1)

    with pytest.raises(HardwareError) as raised:
        nvidia.make_vgpu(kernel, _function(tree, SECOND_VF), 1147, 1)

    assert raised.value.errno == errno.EINVAL


def test_a_write_that_changed_nothing_is_an_error(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=1)

    class Deaf(Writer):
        def write(self, path: str, value: str, timeout: float = 10.0) -> None:
            """Says that it did it."""

    with pytest.raises(HardwareError, match="is 0 after 1155 was written"):
        nvidia.make_vgpu(Deaf(), _function(tree, FIRST_VF), 1155, 1)


def test_nobody_can_tell_once_the_functions_driver_has_left_it(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=1)
    tree.unbind(FIRST_VF)

    with pytest.raises(UnreadableError, match="current_vgpu_type"):
        nvidia.unmake_vgpu(Kernel(tree), _function(tree, FIRST_VF), 1155, 1)


# MIG ---------------------------------------------------------------------


def test_the_instances_of_mig_are_counted_for_each_card(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_h100()
    tree.add_nvidia_a100_mig(instances=(7, 8, 13))
    tree.write_proc("driver/nvidia/capabilities/mig/config/access", "x\n")
    sysfs = Sysfs(tree.root)

    cut = nvidia.mig_instances(sysfs, _function(tree, A100))
    whole = nvidia.mig_instances(sysfs, _function(tree, "0000:1b:00.0"))

    assert cut == nvidia.MigInstances(gpu=3, compute=3)
    assert whole == nvidia.MigInstances(gpu=0, compute=0)


def test_a_card_that_is_not_its_drivers_has_no_instances(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_h100_pcie()

    found = nvidia.mig_instances(
        Sysfs(tree.root), _function(tree, "0000:61:00.0")
    )

    assert found == nvidia.MigInstances()


def test_an_older_driver_that_gives_no_number_has_no_instances(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_h100()
    tree.write_proc(
        "driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t H100\n"
    )

    found = nvidia.mig_instances(
        Sysfs(tree.root), _function(tree, "0000:1b:00.0")
    )

    assert found == nvidia.MigInstances()


def test_a_malformed_number_of_a_card_is_an_error_that_names_the_file(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_h100()
    tree.write_proc(
        "driver/nvidia/gpus/0000:1b:00.0/information",
        "Device Minor: \t ../../x\n",
    )

    with pytest.raises(UnreadableError, match=r"1b:00\.0/information"):
        nvidia.mig_instances(Sysfs(tree.root), _function(tree, "0000:1b:00.0"))


# Virtual functions -------------------------------------------------------


def test_the_addresses_of_virtual_functions_are_known_before_they_are_there(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_a100(vfs=0)
    before = _function(tree, "0000:41:00.0")

    possible = nvidia.possible_virtual_functions(before)

    tree.add_virtual_functions(tree.cards["0000:41:00.0"], 16)
    after = _function(tree, "0000:41:00.0")
    assert possible == frozenset(after.virtual_functions)
    assert {"0000:41:00.4", "0000:41:02.3"} <= possible


def test_a_function_without_the_capability_can_have_none(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_v100()
    function = _function(tree, "0000:3b:00.0")

    assert nvidia.possible_virtual_functions(function) == frozenset()


def test_a_malformed_capability_is_an_error_that_names_the_file(
    tree: SysfsTree,
) -> None:
    path = tree.add_nvidia_a100(vfs=0) / "sriov_offset"
    path.write_text("x\n")

    with pytest.raises(UnreadableError, match="sriov_offset"):
        nvidia.possible_virtual_functions(_function(tree, "0000:41:00.0"))


def test_virtual_functions_are_made_by_nvidias_tool(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=0)
    tools = RecordedTools()
    tools.answer("sriov-manage", Kernel(tree).sriov_manage)

    count = nvidia.enable_virtual_functions(Sysfs(tree.root), tools, L40S, 5)

    assert tools.commands == [["sriov-manage", "-e", L40S]]
    assert count == 32


def test_virtual_functions_that_are_there_are_left_as_they_are(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=4)
    tools = RecordedTools()

    count = nvidia.enable_virtual_functions(Sysfs(tree.root), tools, L40S, 5)

    assert count == 4
    assert tools.commands == []


LOCKED = "Enabling VFs on 0000:82:00.0\nCannot obtain unbindLock\n"


@pytest.mark.parametrize("locked", [LOCKED, ToolError(f"failed: {LOCKED}")])
def test_a_card_that_another_client_has_is_tried_again(
    tree: SysfsTree, locked: str | Exception
) -> None:
    tree.add_nvidia_l40s(vfs=0)
    tools = RecordedTools()
    tools.answer("sriov-manage", locked, locked, Kernel(tree).sriov_manage)

    count = nvidia.enable_virtual_functions(
        Sysfs(tree.root), tools, L40S, 30, pause=0
    )

    assert len(tools.commands) == 3
    assert count == 32


def test_a_card_that_another_client_keeps_is_an_error(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=0)
    tools = RecordedTools()
    tools.answer("sriov-manage", LOCKED)

    with pytest.raises(HardwareError, match=r"another client.*unbindLock"):
        nvidia.enable_virtual_functions(Sysfs(tree.root), tools, L40S, 0.5)

    assert len(tools.commands) == 1


def test_a_tool_that_made_nothing_is_an_error_with_its_words(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=0)
    tools = RecordedTools()
    tools.answer("sriov-manage", "line\nGPU is in use\n")

    with pytest.raises(HardwareError, match=r"no virtual function.*in use"):
        nvidia.enable_virtual_functions(Sysfs(tree.root), tools, L40S, 5)


def test_a_missing_tool_is_an_error_that_names_it(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=0)

    with pytest.raises(HardwareError, match="sriov-manage is not installed"):
        nvidia.enable_virtual_functions(
            Sysfs(tree.root), RecordedTools(), L40S, 5
        )

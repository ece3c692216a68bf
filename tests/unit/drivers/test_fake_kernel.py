# SPDX-License-Identifier: Apache-2.0
"""The fake kernel refuses and does what the real one would."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.tools import ToolError
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

T4 = "0000:af:00.0"
ONE = "11111111-1111-1111-1111-111111111111"
TWO = "22222222-2222-2222-2222-222222222222"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


@pytest.fixture
def kernel(tree: SysfsTree) -> Kernel:
    return Kernel(tree)


def _available(tree: SysfsTree, address: str) -> dict[str, int]:
    return {
        place.parent.name: int(place.read_text())
        for place in tree.path(address).glob(
            "mdev_supported_types/*/available_instances"
        )
    }


def _create(tree: SysfsTree, address: str, kind: str) -> str:
    return f"{tree.bus}/{address}/mdev_supported_types/{kind}/create"


def _refused(kernel: Kernel, path: str, value: str) -> int | None:
    with pytest.raises(HardwareError, match=Path(path).name) as caught:
        kernel.write(path, value)
    return caught.value.errno


def test_a_mediated_device_is_made_and_removed(
    tree: SysfsTree, kernel: Kernel
) -> None:
    tree.add_nvidia_t4()
    before = _available(tree, T4)

    kernel.write(_create(tree, T4, "nvidia-222"), ONE)

    made = tree.root / "bus/mdev/devices" / ONE
    assert (made / "mdev_type").resolve().name == "nvidia-222"
    assert (made / "remove").exists()
    function = Sysfs(tree.root).function(T4)
    assert function is not None
    assert function.mediated == (ONE,)
    left = _available(tree, T4)
    assert left.pop("nvidia-222") == before["nvidia-222"] - 1
    assert set(left.values()) == {0}

    kernel.write(f"{made}/remove", "1\n")

    assert not made.exists()
    assert _available(tree, T4) == before
    assert kernel.writes == [
        (
            f"bus/pci/devices/{T4}/mdev_supported_types/nvidia-222/create",
            ONE,
        ),
        (f"bus/mdev/devices/{ONE}/remove", "1\n"),
    ]


def test_the_kernel_refuses_bad_mediated_devices(
    tree: SysfsTree, kernel: Kernel
) -> None:
    tree.add_nvidia_t4()
    tree.add_nvidia_v100()
    path = _create(tree, T4, "nvidia-229")

    assert _refused(kernel, path, "short") == errno.EINVAL
    assert _refused(kernel, path, "x" * 36) == errno.EINVAL
    kernel.write(path, ONE)
    other = _create(tree, "0000:3b:00.0", "nvidia-109")
    assert _refused(kernel, other, ONE) == errno.EEXIST
    assert _refused(kernel, path, TWO) == errno.EUSERS
    missing = _create(tree, T4, "nvidia-1")
    assert _refused(kernel, missing, TWO) == errno.ENOENT


def test_a_card_has_one_type_over_all_its_virtual_functions(
    tree: SysfsTree, kernel: Kernel
) -> None:
    tree.add_nvidia_a100(vfs=16)
    assert set(_available(tree, "0000:41:00.4").values()) == {1}

    kernel.write(_create(tree, "0000:41:00.4", "nvidia-471"), ONE)

    assert set(_available(tree, "0000:41:00.4").values()) == {0}
    assert _available(tree, "0000:41:00.5") == {
        "nvidia-468": 0,
        "nvidia-469": 0,
        "nvidia-470": 0,
        "nvidia-471": 1,
    }


def test_a_vendors_vgpu_is_set_and_taken_back(
    tree: SysfsTree, kernel: Kernel
) -> None:
    tree.add_nvidia_l40s(vfs=3)
    first, second, third = (
        f"{tree.bus}/0000:82:00.{number}/nvidia" for number in (4, 5, 6)
    )

    def creatable(place: str) -> list[str]:
        return (
            Path(f"{place}/creatable_vgpu_types").read_text().splitlines()[1:]
        )

    everything = creatable(first)
    assert everything[0] == "1147  : NVIDIA L40S-1Q"
    assert _refused(kernel, f"{first}/current_vgpu_type", "9") == errno.EINVAL

    kernel.write(f"{first}/current_vgpu_type", "1155")
    assert creatable(first) == []
    assert creatable(second) == ["1155  : NVIDIA L40S-24Q"]
    kernel.write(f"{second}/current_vgpu_type", "1155")
    assert creatable(third) == []

    kernel.write(f"{first}/current_vgpu_type", "0")
    kernel.write(f"{second}/current_vgpu_type", "0")
    assert creatable(third) == everything


def test_virtual_functions_are_made_and_taken_away(
    tree: SysfsTree, kernel: Kernel
) -> None:
    tree.add_intel_x710(vfs=0)
    path = f"{tree.bus}/0000:05:00.0/sriov_numvfs"

    assert _refused(kernel, path, "65") == errno.ERANGE
    assert _refused(kernel, path, "many") == errno.EINVAL
    kernel.write(path, "2")
    function = Sysfs(tree.root).function("0000:05:02.1")
    assert function is not None
    assert function.physical_function == "0000:05:00.0"
    assert function.driver == "iavf"
    assert _refused(kernel, path, "4") == errno.EBUSY
    kernel.write(path, "0")
    assert Sysfs(tree.root).function("0000:05:02.1") is None


def test_virtual_functions_need_a_driver_that_makes_them(
    tree: SysfsTree, kernel: Kernel
) -> None:
    tree.add_nvidia_a100(vfs=0)
    tree.add_intel_c62x()
    tree.add("intel_flex_170")
    tree.unbind("0000:4d:00.0")

    for address in ("0000:41:00.0", "0000:4d:00.0"):
        path = f"{tree.bus}/{address}/sriov_numvfs"
        assert _refused(kernel, path, "1") == errno.ENOENT
    kernel.write(f"{tree.bus}/0000:3d:00.0/sriov_numvfs", "3")
    assert len(list(tree.path("0000:3d:00.0").glob("virtfn*"))) == 16


def test_nvidias_tool_makes_virtual_functions(
    tree: SysfsTree, kernel: Kernel
) -> None:
    tree.add_nvidia_l40s(vfs=0)
    tools = RecordedTools()
    tools.answer("sriov-manage", kernel.sriov_manage)
    command = ["/usr/lib/nvidia/sriov-manage", "-e", "0000:82:00.0"]

    for _ in range(2):
        assert tools.run(command, 10) == ""

    assert tools.commands == [command, command]
    assert len(list(tree.path("0000:82:00.0").glob("virtfn*"))) == 32
    tools.run([command[0], "-d", command[2]], 10)
    assert not list(tree.path("0000:82:00.0").glob("virtfn*"))


def test_a_reset_is_by_the_first_method_that_is_left(
    tree: SysfsTree, kernel: Kernel
) -> None:
    path = tree.add_nvidia_t4()

    kernel.write(f"{path}/reset", "1")
    kernel.write(f"{path}/reset_method", "bus")
    kernel.write(f"{path}/reset", "1")
    kernel.write(f"{path}/reset_method", "")
    assert _refused(kernel, f"{path}/reset", "1") == errno.ENOTTY
    kernel.write(f"{path}/reset_method", "default")
    assert _refused(kernel, f"{path}/reset", "0") == errno.EINVAL
    assert _refused(kernel, f"{path}/reset_method", "pm") == errno.EINVAL

    assert kernel.resets == [(T4, "flr"), (T4, "bus")]
    assert (path / "reset_method").read_text() == "flr bus\n"
    unknown = tree.add_unknown()
    assert _refused(kernel, f"{unknown}/reset", "1") == errno.ENOENT


def test_a_function_changes_its_driver(
    tree: SysfsTree, kernel: Kernel
) -> None:
    path = tree.add_intel_p4510()
    address = path.name
    (tree.root / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (tree.root / "bus/pci/drivers/vfio-pci/bind").touch()
    bind = f"{tree.root}/bus/pci/drivers/vfio-pci/bind"

    assert _refused(kernel, bind, address) == errno.EBUSY
    kernel.write(f"{path}/driver/unbind", address)
    assert not (path / "nvme").exists()
    assert not (tree.root / "class/nvme/nvme0").is_symlink()
    assert "DRIVER=" not in (path / "uevent").read_text()
    kernel.write(f"{path}/driver_override", "vfio-pci")
    kernel.write(bind, address)
    assert tree.driver(address) == "vfio-pci"
    assert list((path / "vfio-dev").iterdir())
    kernel.write(f"{path}/driver/unbind", address)
    nvme = f"{tree.root}/bus/pci/drivers/nvme/bind"
    assert _refused(kernel, nvme, address) == errno.ENODEV
    kernel.write(f"{path}/driver_override", "")
    kernel.write(nvme, address)
    assert list((path / "nvme").iterdir())


def test_qat_services_change_while_it_is_down(
    tree: SysfsTree, kernel: Kernel
) -> None:
    path = tree.add_intel_4xxx()

    services = f"{path}/qat/cfg_services"
    assert _refused(kernel, services, "dc") == errno.EINVAL
    kernel.write(f"{path}/qat/state", "down")
    kernel.write(services, "dc")
    assert (path / "qat/cfg_services").read_text() == "dc\n"


def test_writes_fail_or_hang_as_they_are_told(
    tree: SysfsTree, kernel: Kernel
) -> None:
    path = tree.add_nvidia_t4()
    kernel.fail("*/reset", errno.EIO)
    kernel.hang("*/reset_method")

    assert _refused(kernel, f"{path}/reset", "1") == errno.EIO
    assert _refused(kernel, f"{path}/reset_method", "flr") is None
    kernel.heal()
    kernel.write(f"{path}/reset", "1")
    assert kernel.resets == [(T4, "flr")]


def test_what_nobody_can_write_is_refused(
    tree: SysfsTree, kernel: Kernel
) -> None:
    path = tree.add_nvidia_t4()

    assert _refused(kernel, f"{path}/vendor", "0x1234") == errno.EACCES
    kernel.write(f"{path}/remove", "1")
    assert _refused(kernel, f"{path}/reset", "1") == errno.ENOENT


def test_a_tool_answers_in_turn_and_others_are_not_installed() -> None:
    tools = RecordedTools()
    tools.answer("nvme id-ctrl", "first", "then")
    tools.answer("nvme", ToolError("no"))

    assert tools.run(["/usr/sbin/nvme", "id-ctrl", "x"], 1) == "first"
    assert tools.run(["nvme", "id-ctrl", "x"], 1) == "then"
    assert tools.run(["nvme", "id-ctrl", "x"], 1) == "then"
    with pytest.raises(ToolError, match="no"):
        tools.run(["nvme", "list"], 1)
    with pytest.raises(ToolError, match="fpgaconf is not installed"):
        tools.run(["fpgaconf"], 1)


def test_options_of_a_group_that_nobody_knows_yet_reach_its_driver(
    tmp_path: Path,
) -> None:
    host = driver_host(
        tmp_path,
        {
            "nic_devices": {"enabled_nic_types": ["static"]},
            "static": {"device_addresses": ["a", "b"]},
        },
    )

    host.conf.register_opts([cfg.ListOpt("device_addresses")], "static")

    assert host.option("static", "device_addresses") == ["a", "b"]
    assert host.option("nic_devices", "enabled_nic_types") == ["static"]

# SPDX-License-Identifier: Apache-2.0
"""Virtual functions are made where there are none, and never changed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cyborg.drivers.testing.kernel import Kernel
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.sriov import enable
from cyborg.hardware.writes import Writer
from tests.privileged import privileged_here
from tests.sysfs import SysfsTree

X710 = "0000:05:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _function(tree: SysfsTree, address: str = X710) -> PciFunction:
    function = Sysfs(tree.root).function(address)
    assert function is not None
    return function


def _counted(tree: SysfsTree, address: str = X710) -> int:
    return len(_function(tree, address).virtual_functions)


@pytest.mark.parametrize("count", [1, 7, 64])
def test_a_function_without_them_gets_as_many_as_asked(
    tree: SysfsTree, count: int
) -> None:
    tree.add_intel_x710()
    kernel = Kernel(tree)

    enable(kernel, _function(tree), count, 10.0)

    assert _counted(tree) == count
    assert [value for _, value in kernel.writes] == [str(count)]


def test_a_function_that_has_them_is_left_alone(tree: SysfsTree) -> None:
    tree.add_intel_x710(vfs=4)
    kernel = Kernel(tree)

    enable(kernel, _function(tree), 4, 10.0)

    assert kernel.writes == []


@pytest.mark.parametrize("count", [2, 8])
def test_another_number_is_never_changed(tree: SysfsTree, count: int) -> None:
    tree.add_intel_x710(vfs=4)
    kernel = Kernel(tree)

    with pytest.raises(HardwareError, match=f"has 4 .* not {count}"):
        enable(kernel, _function(tree), count, 10.0)

    assert kernel.writes == []
    assert _counted(tree) == 4


def test_those_that_came_meanwhile_count(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    function = _function(tree)
    kernel = Kernel(tree)
    tree.add_virtual_functions(tree.cards[X710], 2)

    enable(kernel, function, 2, 10.0)
    with pytest.raises(HardwareError, match="has 2 virtual functions"):
        enable(kernel, function, 3, 10.0)

    assert kernel.writes == []


@pytest.mark.parametrize("count", [-1, 65, 1000])
def test_a_number_that_it_cannot_have_is_refused(
    tree: SysfsTree, count: int
) -> None:
    tree.add_intel_x710()
    kernel = Kernel(tree)

    with pytest.raises(HardwareError, match=f"1 to 64 .* not {count}"):
        enable(kernel, _function(tree), count, 10.0)

    assert kernel.writes == []


def test_a_function_without_sriov_is_refused(tree: SysfsTree) -> None:
    tree.add_unknown()

    with pytest.raises(HardwareError, match="no physical function"):
        enable(Kernel(tree), _function(tree, "0000:02:00.0"), 1, 10.0)


def test_a_total_that_cannot_be_read_is_named(tree: SysfsTree) -> None:
    path = tree.add_intel_x710()[0]
    (path / "sriov_totalvfs").write_text("many\n")

    with pytest.raises(HardwareError, match="sriov_totalvfs"):
        enable(Kernel(tree), _function(tree), 1, 10.0)


def test_a_function_without_a_driver_is_refused(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    tree.unbind(X710)

    with pytest.raises(HardwareError, match="has no driver"):
        enable(Kernel(tree), _function(tree), 1, 10.0)


def test_a_driver_that_cannot_make_them_is_named(tree: SysfsTree) -> None:
    """The kernel says "No such file or directory"."""
    tree.add_nvidia_h100()

    with pytest.raises(HardwareError, match="driver nvidia cannot") as caught:
        enable(Kernel(tree), _function(tree, "0000:1b:00.0"), 4, 10.0)

    assert caught.value.errno == errno.ENOENT


def test_the_kernels_other_refusals_pass(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    kernel = Kernel(tree)
    kernel.fail("*/sriov_numvfs", errno.ENOMEM)

    with pytest.raises(HardwareError) as caught:
        enable(kernel, _function(tree), 4, 10.0)

    assert caught.value.errno == errno.ENOMEM


class _MakesTwo(Kernel):
    def write(self, path: str, value: str, timeout: float = 10.0) -> None:
        super().write(path, "2", timeout)


def test_those_that_did_not_appear_are_missed(tree: SysfsTree) -> None:
    tree.add_intel_x710()

    with pytest.raises(HardwareError, match=r"has 2 .* though 4 were made"):
        enable(_MakesTwo(tree), _function(tree), 4, 10.0)


def test_a_driver_that_makes_all_of_them_may(tree: SysfsTree) -> None:
    tree.add_intel_c62x()

    enable(Kernel(tree), _function(tree, "0000:3d:00.0"), 4, 10.0)

    assert _counted(tree, "0000:3d:00.0") == 16


def test_a_function_that_is_gone_is_an_error(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    function = _function(tree)
    tree.unplug(X710)

    with pytest.raises(HardwareError, match=X710):
        enable(Kernel(tree), function, 4, 10.0)


def test_the_file_that_blocks_its_readers_is_never_read(
    tree: SysfsTree,
) -> None:
    """A pipe stands for it; the real writer is refused by nobody."""
    path = tree.add_intel_x710()[0] / "sriov_numvfs"
    path.unlink()
    os.mkfifo(path)

    with (
        privileged_here(tree.root),
        pytest.raises(HardwareError, match=r"not written within 0\.2 s"),
    ):
        enable(Writer(), _function(tree), 4, 0.2)

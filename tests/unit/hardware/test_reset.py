# SPDX-License-Identifier: Apache-2.0
"""A function is reset by itself alone, or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cyborg.drivers.testing.kernel import Kernel
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.reset import can_reset
from cyborg.hardware.reset import reset
from cyborg.hardware.writes import Writer
from tests.cards import Card
from tests.privileged import privileged_here
from tests.sysfs import SysfsTree

ADDRESS = "0000:02:00.0"
PLACE = "devices/pci0000:00/0000:00:00.2/0000:02:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _function(tree: SysfsTree, methods: str | None) -> PciFunction:
    tree.add_function(
        Card(ADDRESS, "1234:abcd", "ff0000", reset_method=methods)
    )
    function = Sysfs(tree.root).function(ADDRESS)
    assert function is not None
    return function


def _writes(kernel: Kernel) -> list[tuple[str, str]]:
    """Names of files and values, all of one function."""
    assert {Path(path).parent.name for path, _ in kernel.writes} <= {ADDRESS}
    return [(Path(path).name, value) for path, value in kernel.writes]


@pytest.mark.parametrize(
    ("methods", "possible"),
    [
        ("flr bus", True),
        ("bus flr", True),
        ("af_flr pm", True),
        ("device_specific acpi pm bus cxl_bus", False),
        ("bus", False),
        ("", False),
        (None, False),
    ],
)
def test_only_a_reset_of_the_function_alone_counts(
    tree: SysfsTree, methods: str | None, possible: bool
) -> None:
    assert can_reset(_function(tree, methods)) is possible


@pytest.mark.parametrize("methods", ["flr bus", "flr", "af_flr bus"])
def test_a_function_that_is_reset_so_anyway_is_just_reset(
    tree: SysfsTree, methods: str
) -> None:
    kernel = Kernel(tree)

    reset(kernel, _function(tree, methods), 10.0)

    assert _writes(kernel) == [("reset", "1")]
    assert kernel.resets == [(ADDRESS, methods.split(maxsplit=1)[0])]


@pytest.mark.parametrize(
    ("methods", "wanted"),
    [("bus flr", "flr"), ("pm bus af_flr", "af_flr")],
)
def test_another_first_method_is_put_back_afterwards(
    tree: SysfsTree, methods: str, wanted: str
) -> None:
    kernel = Kernel(tree)

    reset(kernel, _function(tree, methods), 10.0)

    assert kernel.resets == [(ADDRESS, wanted)]
    assert _writes(kernel) == [
        ("reset_method", wanted),
        ("reset", "1"),
        ("reset_method", methods),
    ]
    path = tree.path(ADDRESS) / "reset_method"
    assert path.read_text() == f"{methods}\n"


@pytest.mark.parametrize("methods", ["bus", "", None])
def test_a_function_that_cannot_be_reset_alone_is_not_touched(
    tree: SysfsTree, methods: str | None
) -> None:
    kernel = Kernel(tree)

    with pytest.raises(HardwareError, match="cannot be reset alone"):
        reset(kernel, _function(tree, methods), 10.0)

    assert kernel.writes == []


def test_the_methods_are_put_back_after_a_failure(tree: SysfsTree) -> None:
    kernel = Kernel(tree)
    function = _function(tree, "bus flr")
    kernel.fail("*/reset", errno.ENOTTY)

    with pytest.raises(HardwareError) as caught:
        reset(kernel, function, 10.0)

    assert caught.value.errno == errno.ENOTTY
    assert _writes(kernel)[-1] == ("reset_method", "bus flr")


def test_a_reset_that_hangs_is_a_failure(tree: SysfsTree) -> None:
    kernel = Kernel(tree)
    function = _function(tree, "flr")
    kernel.hang("*/reset")

    with pytest.raises(HardwareError, match="not written within 3 s"):
        reset(kernel, function, 3.0)


def test_methods_that_cannot_be_chosen_are_a_failure_without_a_reset(
    tree: SysfsTree,
) -> None:
    kernel = Kernel(tree)
    function = _function(tree, "bus flr")
    kernel.fail("*/reset_method", errno.EINVAL)

    with pytest.raises(HardwareError, match="reset_method"):
        reset(kernel, function, 10.0)

    assert kernel.resets == []


class _FailsToRestore(Kernel):
    def write(self, path: str, value: str, timeout: float = 10.0) -> None:
        if value == "bus flr":
            raise HardwareError(f"{path}: not now", errno.EBUSY)
        super().write(path, value, timeout)


def test_methods_that_cannot_be_put_back_are_warned_of(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    """The function was reset all the same."""
    kernel = _FailsToRestore(tree)

    reset(kernel, _function(tree, "bus flr"), 10.0)

    assert kernel.resets == [(ADDRESS, "flr")]
    assert "Reset methods are not bus flr again" in caplog.text


def test_the_real_writer_may_do_all_of_it(tree: SysfsTree) -> None:
    function = _function(tree, "bus flr")

    with privileged_here(tree.root):
        reset(Writer(), function, 30.0)

    path = tree.path(ADDRESS)
    assert (path / "reset").read_text() == "1\n"
    assert (path / "reset_method").read_text() == "bus flr\n"

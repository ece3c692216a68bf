# SPDX-License-Identifier: Apache-2.0
"""What drivers get when a write to sysfs does, or does not, succeed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cyborg.hardware.pci import HardwareError
from cyborg.hardware.writes import Writer
from tests.privileged import privileged_here
from tests.sysfs import SysfsTree


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def test_a_value_is_written(tree: SysfsTree) -> None:
    path = tree.add_nvidia_t4() / "reset_method"

    with privileged_here(tree.root):
        Writer().write(str(path), "flr")

    assert path.read_text() == "flr\n"


def test_the_kernels_refusal_names_the_path_and_the_reason(
    tree: SysfsTree,
) -> None:
    path = tree.add_nvidia_t4() / "reset"
    path.unlink()

    with privileged_here(tree.root), pytest.raises(HardwareError) as caught:
        Writer().write(str(path), "1")

    assert str(caught.value) == f"{path}: No such file or directory"
    assert caught.value.errno == errno.ENOENT


def test_a_file_that_may_not_be_written_is_named(
    tree: SysfsTree, tmp_path: Path
) -> None:
    path = tree.add_nvidia_t4() / "remove"

    with privileged_here(tree.root), pytest.raises(HardwareError) as caught:
        Writer().write(str(path), "1")
    assert str(caught.value) == f"{path}: is no file that may be written"
    assert caught.value.errno == errno.EACCES

    with (
        privileged_here(tmp_path / "elsewhere"),
        pytest.raises(HardwareError, match=r"is not below .*elsewhere"),
    ):
        Writer().write(str(path), "1")


def test_a_write_that_does_not_end_has_no_errno(tree: SysfsTree) -> None:
    path = tree.add_nvidia_t4() / "reset"
    path.unlink()
    os.mkfifo(path)

    with privileged_here(tree.root), pytest.raises(HardwareError) as caught:
        Writer().write(str(path), "1", timeout=0.1)

    assert str(caught.value) == f"{path}: not written within 0.1 s"
    assert caught.value.errno is None

# SPDX-License-Identifier: Apache-2.0
"""Mediated devices on fake hosts."""

from __future__ import annotations

import errno
import threading
import uuid
from pathlib import Path

import pytest

from cyborg.hardware import mdev
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.writes import Writer
from tests.kernel import Kernel
from tests.sysfs import SysfsTree

T4 = "0000:af:00.0"
M60 = ("0000:84:00.0", "0000:85:00.0")
FIRST = str(uuid.UUID(int=1))
SECOND = str(uuid.UUID(int=2))


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path / "sys")
    tree.add_nvidia_t4()
    return tree


def _function(tree: SysfsTree, address: str = T4) -> PciFunction:
    function = Sysfs(tree.root).function(address)
    assert function is not None
    return function


def _type_file(tree: SysfsTree, name: str, kind: str = "nvidia-222") -> Path:
    return tree.path(T4) / "mdev_supported_types" / kind / name


def _create(
    tree: SysfsTree,
    writer: Writer,
    kind: str = "nvidia-222",
    identity: str = FIRST,
    address: str = T4,
) -> None:
    mdev.create(
        Sysfs(tree.root),
        writer,
        _function(tree, address),
        type_id=kind,
        identity=identity,
        timeout=1,
    )


def _remove(
    tree: SysfsTree, writer: Writer, identity: str = FIRST, timeout: float = 1
) -> None:
    mdev.remove(Sysfs(tree.root), writer, identity, timeout)


# Reading -----------------------------------------------------------------


def test_a_type_is_read_with_what_exists_of_it(tree: SysfsTree) -> None:
    tree.add_mdev(T4, "nvidia-222", SECOND)
    tree.add_mdev(T4, "nvidia-222", FIRST)

    found = mdev.find(_function(tree), "nvidia-222")

    assert found == mdev.MdevType(
        id="nvidia-222",
        name="GRID T4-1B",
        description=(
            "num_heads=4, frl_config=45, framebuffer=1024M,"
            " max_resolution=5120x2880, max_instance=16"
        ),
        available_instances=14,
        existing=(FIRST, SECOND),
    )
    assert found.total == 16


def test_a_type_that_the_function_does_not_offer_is_none(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_h100()

    assert mdev.find(_function(tree), "nvidia-9999") is None
    assert mdev.find(_function(tree, "0000:1b:00.0"), "nvidia-222") is None
    assert mdev.type_ids(_function(tree, "0000:1b:00.0")) == ()


def test_a_type_without_a_name_is_called_by_its_id(tree: SysfsTree) -> None:
    _type_file(tree, "name").unlink()
    _type_file(tree, "description").unlink()
    _type_file(tree, "name", "nvidia-223").write_text("\n")

    first = mdev.find(_function(tree), "nvidia-222")
    second = mdev.find(_function(tree), "nvidia-223")

    assert first is not None
    assert (first.name, first.description) == ("nvidia-222", "")
    assert second is not None
    assert second.name == "nvidia-223"


@pytest.mark.parametrize(
    "text", ["", "many", "-1", "1.5", "1e3", "4097", "9" * 5000, "²", "٣"]
)
def test_a_count_that_is_none_is_an_error_that_names_the_file(
    tree: SysfsTree, text: str
) -> None:
    path = _type_file(tree, "available_instances")
    path.write_text(f"{text}\n")

    with pytest.raises(UnreadableError, match="available_instances") as raised:
        mdev.find(_function(tree), "nvidia-222")

    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("name", ["available_instances", "name"])
def test_an_unreadable_file_of_the_type_is_an_error_that_names_it(
    tree: SysfsTree, name: str
) -> None:
    _type_file(tree, name).unlink()
    _type_file(tree, name).mkdir()

    with pytest.raises(UnreadableError, match=f"nvidia-222/{name}"):
        mdev.find(_function(tree), "nvidia-222")


def test_broken_files_of_other_types_do_not_matter(tree: SysfsTree) -> None:
    _type_file(tree, "available_instances", "nvidia-223").write_text("x")

    assert mdev.find(_function(tree), "nvidia-222") is not None


def test_a_type_that_is_no_directory_is_an_error_that_names_it(
    tree: SysfsTree,
) -> None:
    (tree.path(T4) / "mdev_supported_types" / "odd").write_text("")

    with pytest.raises(UnreadableError, match="mdev_supported_types/odd"):
        mdev.find(_function(tree), "odd")


# Making ------------------------------------------------------------------


def test_a_device_is_made_by_writing_its_uuid(tree: SysfsTree) -> None:
    kernel = Kernel(tree)

    _create(tree, kernel)

    assert kernel.writes == [
        (
            f"bus/pci/devices/{T4}/mdev_supported_types/nvidia-222/create",
            FIRST,
        )
    ]
    assert mdev.existing(_function(tree), "nvidia-222") == (FIRST,)


def test_a_device_that_is_there_already_is_not_made_again(
    tree: SysfsTree,
) -> None:
    kernel = Kernel(tree)
    _create(tree, kernel)

    _create(tree, kernel)

    assert len(kernel.writes) == 1


def test_a_uuid_of_another_type_is_an_error(tree: SysfsTree) -> None:
    tree.add_mdev(T4, "nvidia-222", FIRST)
    kernel = Kernel(tree)

    with pytest.raises(HardwareError, match="exists already") as raised:
        _create(tree, kernel, "nvidia-223")

    assert raised.value.errno == errno.EEXIST
    assert kernel.writes == []


def test_a_uuid_on_another_parent_is_an_error(tree: SysfsTree) -> None:
    tree.add_nvidia_m60()
    tree.add_mdev(M60[0], "nvidia-11", FIRST)

    with pytest.raises(HardwareError, match="on another parent"):
        _create(tree, Kernel(tree), "nvidia-11", address=M60[1])


def test_a_uuid_that_the_kernel_alone_knows_of_is_an_error(
    tree: SysfsTree,
) -> None:
    kernel = Kernel(tree)
    kernel.fail("*/create", errno.EEXIST)

    with pytest.raises(HardwareError, match="exists already"):
        _create(tree, kernel)


def test_one_that_somebody_else_made_meanwhile_is_taken(
    tree: SysfsTree,
) -> None:
    class Overtaken(Writer):
        def write(self, path: str, value: str, timeout: float = 10.0) -> None:
            tree.add_mdev(T4, "nvidia-222", value)
            raise HardwareError(f"{path}: File exists", errno.EEXIST)

    _create(tree, Overtaken())

    assert mdev.existing(_function(tree), "nvidia-222") == (FIRST,)


def test_a_full_card_says_what_cannot_be_made_and_where(
    tree: SysfsTree,
) -> None:
    kernel = Kernel(tree)
    _create(tree, kernel, "nvidia-321")

    with pytest.raises(
        HardwareError, match=f"no nvidia-321 can be made on {T4}"
    ) as raised:
        _create(tree, kernel, "nvidia-321", SECOND)

    assert raised.value.errno == errno.EUSERS


@pytest.mark.parametrize(
    "kind", ["nvidia-9999", "..", ".", "", "nvidia-222/devices", "../../x"]
)
def test_a_type_that_the_parent_does_not_offer_is_never_written_to(
    tree: SysfsTree, kind: str
) -> None:
    kernel = Kernel(tree)

    with pytest.raises(HardwareError, match="offers no"):
        _create(tree, kernel, kind)

    assert kernel.writes == []


@pytest.mark.parametrize(
    "identity",
    ["", "x", "../x", FIRST.replace("-", ""), f"{{{FIRST}}}", f"{FIRST}\n"],
)
def test_what_is_no_uuid_is_never_written(
    tree: SysfsTree, identity: str
) -> None:
    kernel = Kernel(tree)

    with pytest.raises(HardwareError, match="not a uuid"):
        _create(tree, kernel, identity=identity)
    with pytest.raises(HardwareError, match="not a uuid"):
        _remove(tree, kernel, identity)

    assert kernel.writes == []


# Removing ----------------------------------------------------------------


def test_a_device_is_removed_by_writing_1(tree: SysfsTree) -> None:
    tree.add_mdev(T4, "nvidia-222", FIRST)
    tree.add_mdev(T4, "nvidia-222", SECOND)
    kernel = Kernel(tree)

    _remove(tree, kernel)

    assert kernel.writes == [(f"bus/mdev/devices/{FIRST}/remove", "1")]
    assert mdev.existing(_function(tree), "nvidia-222") == (SECOND,)


def test_a_device_that_is_gone_already_is_no_error(tree: SysfsTree) -> None:
    kernel = Kernel(tree)

    _remove(tree, kernel)

    assert kernel.writes == []


def test_a_device_that_a_guest_holds_is_said_to_be_in_use(
    tree: SysfsTree,
) -> None:
    tree.add_mdev(T4, "nvidia-222", FIRST)
    kernel = Kernel(tree)
    kernel.hang("*/remove")

    with pytest.raises(HardwareError, match="still in use by a guest"):
        _remove(tree, kernel)

    kernel.heal()
    kernel.fail("*/remove", errno.EBUSY)
    with pytest.raises(HardwareError, match="still in use by a guest"):
        _remove(tree, kernel)

    assert mdev.existing(_function(tree), "nvidia-222") == (FIRST,)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENODEV])
def test_one_that_another_process_removes_is_waited_for(
    tree: SysfsTree, number: int
) -> None:
    tree.add_mdev(T4, "nvidia-222", FIRST)

    class Second(Writer):
        def write(self, path: str, value: str, timeout: float = 10.0) -> None:
            remover.start()
            raise HardwareError(f"{path}: refused", number)

    remover = threading.Timer(0.02, tree.remove_mdev, (FIRST,))

    _remove(tree, Second(), timeout=30)

    remover.join()
    assert mdev.existing(_function(tree), "nvidia-222") == ()


def test_one_that_another_process_removes_and_does_not_go_is_an_error(
    tree: SysfsTree,
) -> None:
    tree.add_mdev(T4, "nvidia-222", FIRST)
    kernel = Kernel(tree)
    kernel.fail("*/remove", errno.EAGAIN)

    with pytest.raises(HardwareError, match="does not go"):
        _remove(tree, kernel, timeout=0)


@pytest.mark.parametrize("number", [None, errno.ENOENT, errno.EIO])
def test_an_error_of_a_removal_that_succeeded_is_none(
    tree: SysfsTree, number: int | None
) -> None:
    tree.add_mdev(T4, "nvidia-222", FIRST)

    class Late(Writer):
        def write(self, path: str, value: str, timeout: float = 10.0) -> None:
            tree.remove_mdev(FIRST)
            raise HardwareError(f"{path}: failed", number)

    _remove(tree, Late())

    assert mdev.existing(_function(tree), "nvidia-222") == ()


def test_any_other_refusal_is_passed_on(tree: SysfsTree) -> None:
    tree.add_mdev(T4, "nvidia-222", FIRST)
    kernel = Kernel(tree)
    kernel.fail("*/remove", errno.EIO)

    with pytest.raises(HardwareError) as raised:
        _remove(tree, kernel)

    assert raised.value.errno == errno.EIO

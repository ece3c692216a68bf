# SPDX-License-Identifier: Apache-2.0
"""The FPGA reader on the layouts of both drivers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cyborg.hardware import files
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.fpga import Fpga
from cyborg.hardware.fpga import read_fpga
from tests.sysfs import SysfsTree

AFU = "d8424dc4a4a3c413f89e433683f9040b"
INTERFACE = "69528db6eb31577a8c3668f9faa081f6"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _old(path: Path) -> Path:
    """The older driver's directory of the device, with one port."""
    device = path / "fpga" / "intel-fpga-dev.3"
    _write(device / "intel-fpga-port.7" / "afu_id", AFU)
    return device


def _dfl(path: Path) -> Path:
    """A base region with a management engine and a port, all numbers
    different."""
    base = path / "fpga_region" / "region12"
    engine = base / "dfl-fme.4"
    _write(engine / "ports_num", "1")
    _write(
        engine / "dfl-fme-region.9/fpga_region/region10/compat_id", INTERFACE
    )
    (base / "compat_id").symlink_to("no-such-file")
    _write(base / "dfl-port.5" / "afu_id", AFU)
    return base


def test_a_card_of_the_kernels_driver_shows_what_it_takes_and_runs(
    tmp_path: Path,
) -> None:
    tree = SysfsTree(tmp_path / "sys")

    found = read_fpga(str(tree.add_intel_pac_arria10()))

    assert found == Fpga("dfl", True, (INTERFACE,), (AFU,))


def test_a_card_of_the_older_driver_shows_the_same(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")

    found = read_fpga(str(tree.add_intel_pac_arria10_old()))

    assert found == Fpga("intel-fpga", True, (INTERFACE,), (AFU,))


def test_no_number_of_a_path_has_to_be_that_of_another(tmp_path: Path) -> None:
    _dfl(tmp_path)

    assert read_fpga(str(tmp_path)) == Fpga("dfl", True, (INTERFACE,), (AFU,))


def test_a_function_that_no_fpga_driver_has_shows_nothing(
    tmp_path: Path,
) -> None:
    tree = SysfsTree(tmp_path / "sys")
    (tmp_path / "empty" / "fpga_region").mkdir(parents=True)

    assert read_fpga(str(tree.add_nvidia_t4())) is None
    assert read_fpga(str(tmp_path / "empty")) is None
    assert read_fpga(str(tmp_path / "no-such-function")) is None


def test_a_virtual_function_has_a_port_and_no_engine(tmp_path: Path) -> None:
    _write(tmp_path / "fpga_region/region2/dfl-port.1/afu_id", AFU)

    assert read_fpga(str(tmp_path)) == Fpga("dfl", False, (), (AFU,))


def test_a_card_whose_port_was_given_away_has_an_engine_and_no_port(
    tmp_path: Path,
) -> None:
    base = _dfl(tmp_path)
    (base / "dfl-port.5" / "afu_id").unlink()
    (base / "dfl-port.5").rmdir()

    assert read_fpga(str(tmp_path)) == Fpga("dfl", True, (INTERFACE,), ())


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EBUSY])
def test_an_id_that_the_kernel_does_not_say_now_is_unknown(
    tmp_path: Path, number: int
) -> None:
    _dfl(tmp_path)

    def read(path: str) -> str:
        if path.endswith("afu_id"):
            raise _refused(path, number)
        return files.text(path)

    assert read_fpga(str(tmp_path), read) == Fpga("dfl", True, (INTERFACE,))


def test_an_id_whose_file_is_there_and_says_enoent_is_unknown(
    tmp_path: Path,
) -> None:
    base = _dfl(tmp_path)
    identity = base / "dfl-fme.4/dfl-fme-region.9/fpga_region/region10"
    (identity / "compat_id").unlink()
    (identity / "compat_id").symlink_to("no-such-file")

    assert read_fpga(str(tmp_path)) == Fpga("dfl", True, (), (AFU,))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENODEV])
def test_any_other_refusal_is_an_error_that_names_the_file(
    tmp_path: Path, number: int
) -> None:
    _dfl(tmp_path)

    def read(path: str) -> str:
        if path.endswith("compat_id"):
            raise _refused(path, number)
        return files.text(path)

    with pytest.raises(UnreadableError, match=r"region10/compat_id"):
        read_fpga(str(tmp_path), read)


@pytest.mark.parametrize(
    "text",
    [
        AFU.upper(),
        f"0x{AFU}",
        "d8424dc4-a4a3-c413-f89e-433683f9040b",
        "0XD8424DC4-A4A3-C413-F89E-433683F9040B",
    ],
)
def test_an_id_is_spelled_in_one_way_however_it_is_written(
    tmp_path: Path, text: str
) -> None:
    _write(_old(tmp_path) / "intel-fpga-port.7" / "afu_id", text)

    assert read_fpga(str(tmp_path)) == Fpga("intel-fpga", False, (), (AFU,))


@pytest.mark.parametrize("text", [AFU[1:], f"{AFU}0", "none", "g" * 32, "-"])
def test_what_is_no_id_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    _write(_old(tmp_path) / "intel-fpga-port.7" / "afu_id", text)

    with pytest.raises(
        UnreadableError, match=r"intel-fpga-port\.7/afu_id.*32 hex digits"
    ):
        read_fpga(str(tmp_path))


def test_ids_come_in_one_order_and_once_whatever_the_numbers(
    tmp_path: Path,
) -> None:
    device = _old(tmp_path)
    for port, afu in ((1, "b" * 32), (2, "a" * 32), (11, "b" * 32)):
        _write(device / f"intel-fpga-port.{port}" / "afu_id", afu)

    found = read_fpga(str(tmp_path))

    assert found is not None
    assert found.afu_ids == ("a" * 32, "b" * 32, AFU)


def test_errors_of_ports_are_told_and_a_register_of_zero_is_none(
    tmp_path: Path,
) -> None:
    base = _dfl(tmp_path)
    _write(base / "dfl-port.5" / "errors" / "errors", "0x0")
    _write(base / "dfl-port.6" / "errors" / "errors", "0x4")

    found = read_fpga(str(tmp_path))

    assert found is not None
    assert found.port_errors == ("0x4",)


def test_other_entries_of_the_directories_are_no_fpga(tmp_path: Path) -> None:
    _write(tmp_path / "fpga" / "intel-fpga-dev.0" / "uevent", "")
    _write(tmp_path / "fpga" / "power" / "afu_id", AFU)

    assert read_fpga(str(tmp_path)) == Fpga("intel-fpga")


def _refused(path: str, number: int) -> UnreadableError:
    error = UnreadableError(path, os.strerror(number))
    error.__cause__ = OSError(number, os.strerror(number))
    return error

# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with a file is one error that names its path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cyborg.hardware import files
from cyborg.hardware.files import Directory
from cyborg.hardware.files import UnreadableError


def _missing(path: Path) -> None:
    assert not path.exists()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\n")


Make = Callable[[Path], object]


def _fails(read: Callable[[str], object], path: Path) -> UnreadableError:
    with pytest.raises(UnreadableError) as caught:
        read(str(path))
    assert caught.value.path == str(path)
    assert str(caught.value) == f"{path}: {caught.value.reason}"
    return caught.value


# Text ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("live\n", "live"),
        ("INTEL SSD   \n", "INTEL SSD"),
        ("two\nlines\n", "two\nlines"),
        ("", ""),
        ("größe\n", "größe"),
    ],
)
def test_a_file_is_read_without_its_margins(
    tmp_path: Path, content: str, found: str
) -> None:
    path = tmp_path / "file"
    path.write_text(content, "utf-8")

    assert files.text(str(path)) == found


@pytest.mark.parametrize("make", [_missing, Path.mkdir, _loop, _binary])
def test_what_cannot_be_read_is_named(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "file"
    make(path)

    assert _fails(files.text, path).reason


def test_a_pipe_does_not_keep_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    assert files.text(str(path)) == ""
    assert files.lines(str(path)) == []


def test_of_a_large_file_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x" * 2 * files.FILE_LIMIT)

    assert len(files.text(str(path))) == files.FILE_LIMIT


# Lines ---------------------------------------------------------------------


def test_a_table_of_any_length_is_read_wholly(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_text("a line of a table\n" * 50_000)

    assert files.lines(str(path)) == ["a line of a table"] * 50_000


def test_a_table_that_is_missing_is_empty(tmp_path: Path) -> None:
    assert files.lines(str(tmp_path / "table")) == []


def test_a_table_may_hold_names_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"/mnt/re\xe9 rw\n")

    assert files.lines(str(path)) == ["/mnt/re\N{REPLACEMENT CHARACTER} rw"]


@pytest.mark.parametrize("make", [Path.mkdir, _loop])
def test_a_table_that_cannot_be_read_is_named(
    tmp_path: Path, make: Make
) -> None:
    path = tmp_path / "table"
    make(path)

    assert _fails(files.lines, path).reason


# Names and links -----------------------------------------------------------


def test_the_names_in_a_directory_are_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()

    assert files.children(str(tmp_path)) == ("a", "b", "c")


def test_what_is_no_directory_has_no_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert files.children(str(tmp_path / "missing")) == ()
    assert files.children(str(tmp_path / "file")) == ()


def test_a_directory_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "loop"
    _loop(path)

    assert "symbolic links" in _fails(files.children, path).reason


def test_of_a_link_the_last_part_counts_though_it_leads_nowhere(
    tmp_path: Path,
) -> None:
    (tmp_path / "driver").symlink_to("../../../bus/pci/drivers/nvidia")

    assert files.target(str(tmp_path / "driver")) == "nvidia"
    assert files.target(str(tmp_path / "missing")) is None


def test_a_link_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()

    assert "Invalid" in _fails(files.target, tmp_path / "driver").reason


# A directory ---------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    for name, text in {
        "vendor": "0x10de\n",
        "bare": "10de\n",
        "long": "0x10de0\n",
        "capitals": "0x10DE\n",
        "node": "3\n",
        "no_node": "-1\n",
        "word": "many\n",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "driver").symlink_to("../drivers/nvidia")
    (tmp_path / "net" / "eth0").mkdir(parents=True)
    return Directory(str(tmp_path))


def test_hexadecimal_files_have_their_number_of_digits(
    directory: Directory,
) -> None:
    assert directory.hexadecimal("vendor", 4) == "10de"
    assert directory.hexadecimal("missing", 4, "0000") == "0000"
    for name in ("bare", "long", "capitals", "word", "missing"):
        _fails(
            lambda path: directory.hexadecimal(path.rpartition("/")[2], 4),
            Path(directory.path) / name,
        )


def test_a_number_is_none_where_it_is_not_known(
    directory: Directory,
) -> None:
    assert directory.number("node") == 3
    assert directory.number("no_node") is None
    assert directory.number("missing") is None
    _fails(
        lambda path: directory.number(path.rpartition("/")[2]),
        Path(directory.path) / "word",
    )


def test_what_is_there_and_what_is_not(directory: Directory) -> None:
    assert directory.optional("node") == "3"
    assert directory.optional("missing") is None
    assert directory.target("driver") == "nvidia"
    assert directory.target("missing") is None
    assert directory.children("net") == ("eth0",)
    assert directory.children("net", "eth0") == ()
    assert directory.children("missing") == ()


def test_a_directory_that_is_gone_is_an_error_of_the_system(
    tmp_path: Path,
) -> None:
    with pytest.raises(FileNotFoundError):
        Directory(str(tmp_path / "missing"))

# SPDX-License-Identifier: Apache-2.0
"""Hardware that misbehaves: every way in which a path can be wrong.

Tests may run as root, whom no permission stops; a link that leads to
itself stands for what cannot be read.
"""

from __future__ import annotations

import builtins
import contextlib
import glob
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOO_LONG = 70_000


def _nothing(path: Path) -> None:
    """Missing."""


def _text(content: bytes) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.write_bytes(content)

    return put


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _dangling(path: Path) -> None:
    path.symlink_to("no-such-file")


WAYS: dict[str, Callable[[Path], None]] = {
    "missing": _nothing,
    "empty": _text(b""),
    "malformed": _text(b"rubbish\n"),
    "negative": _text(b"-2\n"),
    "binary": _text(b"\xff\x00\xfe\n"),
    "endless": _text(b"7" * TOO_LONG),
    "a directory": Path.mkdir,
    "a loop of links": _loop,
    "a dangling link": _dangling,
    "a pipe": os.mkfifo,
}
"""By what is there instead of what should be."""

OF_WHAT_NOBODY_READS = frozenset({"missing", "a loop of links"})
"""The ways that may still matter to who never opened the file."""


def places(directory: Path) -> list[Path]:
    """Every file, directory and link of a function, in one order."""
    return sorted(
        Path(above) / name
        for above, names, files in os.walk(directory)
        for name in (*names, *files)
    )


def opened(look: Callable[[], object]) -> set[Path]:
    """The files that `look` opens."""
    found: set[str] = set()

    def spy(real: Callable[..., Any]) -> Callable[..., Any]:
        def open_it(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | os.PathLike):
                found.add(os.path.realpath(path))
            return real(path, *args, **kwargs)

        return open_it

    with pytest.MonkeyPatch.context() as patch:
        for module in (builtins, io, os):
            patch.setattr(module, "open", spy(module.open))
        look()
    return {Path(path) for path in found}


@contextlib.contextmanager
def broken(path: Path, way: str, aside: Path) -> Iterator[None]:
    """Meanwhile `path` is wrong in that way of `WAYS`.

    `aside` is a directory on the same file system that nobody reads.
    """
    with tempfile.TemporaryDirectory(dir=aside) as shelf:
        kept = Path(shelf) / "kept"
        path.rename(kept)
        try:
            WAYS[way](path)
            yield
        finally:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            kept.rename(path)


@contextlib.contextmanager
def listed(backwards: bool) -> Iterator[None]:
    """Meanwhile every directory lists its names in alphabetical order, or
    the other way round: a file system may do either."""
    list_directory, scan_directory = os.listdir, os.scandir

    def names(path: Any = ".") -> list[Any]:
        return sorted(list_directory(path), reverse=backwards)

    def entries(path: Any = ".") -> _Entries:
        with scan_directory(path) as found:
            return _Entries(
                sorted(found, key=lambda one: one.name, reverse=backwards)
            )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", names)
        patch.setattr(os, "scandir", entries)
        for kind in vars(glob).values():
            # Path.glob keeps its own since Python 3.13.
            if getattr(kind, "scandir", None) is scan_directory:
                patch.setattr(kind, "scandir", staticmethod(entries))
        yield


class _Entries(contextlib.closing["_Entries"]):
    """What `os.scandir` returns, from a list."""

    def __init__(self, entries: list[os.DirEntry[Any]]) -> None:
        super().__init__(self)
        self._left = iter(entries)

    def __iter__(self) -> Iterator[os.DirEntry[Any]]:
        return self._left

    def __next__(self) -> os.DirEntry[Any]:
        return next(self._left)

    def close(self) -> None:
        """Nothing is open."""

# SPDX-License-Identifier: Apache-2.0
"""Small kernel files (sysfs, proc) read safely.

Whatever is wrong with a file is one error that names its path.  What the
files mean is the business of the modules beside this one.
"""

# ruff: noqa: PTH115, PTH208 - a scan is thousands of small reads and must be
# cheap: paths stay text here.

from __future__ import annotations

import os
import re

FILE_LIMIT = 65_536

_WITHOUT_WAITING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe or a device left in a fake tree must not block."""

_HEX = {
    digits: re.compile(rf"0x([0-9a-f]{{{digits}}})") for digits in (2, 4, 6)
}


class UnreadableError(Exception):
    """A file that is missing, unreadable or malformed; names its path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def text(path: str) -> str:
    """What a file holds, stripped.  Raises UnreadableError."""
    try:
        descriptor = os.open(path, _WITHOUT_WAITING)
        try:
            return os.read(descriptor, FILE_LIMIT).decode("utf-8").strip()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableError(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise UnreadableError(path, "not text") from error


def lines(path: str) -> list[str]:
    """The lines of a file of any length, none where there is no such file.

    For tables of proc, which may be longer than one read brings.  Raises
    UnreadableError.
    """
    try:
        descriptor = os.open(path, _WITHOUT_WAITING)
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnreadableError(path, error.strerror or str(error)) from error


def children(path: str) -> tuple[str, ...]:
    """The sorted names in a directory; none where there is none.

    Raises UnreadableError.
    """
    try:
        return tuple(sorted(os.listdir(path)))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise UnreadableError(path, error.strerror or str(error)) from error


def target(path: str) -> str | None:
    """The last part of what a link points to, None without the link.

    Raises UnreadableError.
    """
    try:
        return os.readlink(path).rpartition("/")[2]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(path, error.strerror or str(error)) from error


class Directory:
    """A directory of such files; its names are listed once.

    Raises OSError where it cannot be listed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.names = frozenset(os.listdir(path))

    def text(self, name: str) -> str:
        """What the file holds, stripped.  Raises UnreadableError."""
        return text(f"{self.path}/{name}")

    def optional(self, name: str) -> str | None:
        """`text`, None where there is no such file."""
        return self.text(name) if name in self.names else None

    def hexadecimal(self, name: str, digits: int, missing: str = "") -> str:
        """The digits of a file such as `0x10de`; `missing` if there is no
        such file and it is not one that every kernel has."""
        if missing and name not in self.names:
            return missing
        found = self.text(name)
        match = _HEX[digits].fullmatch(found)
        if match is None:
            raise UnreadableError(
                f"{self.path}/{name}",
                f"{found[:40]!r} is not 0x and {digits} hex digits",
            )
        return match.group(1)

    def number(self, name: str) -> int | None:
        """A whole number, None where the file is missing or says -1."""
        if name not in self.names:
            return None
        found = self.text(name)
        try:
            number = int(found)
        except ValueError:
            raise UnreadableError(
                f"{self.path}/{name}", f"{found[:40]!r} is not a number"
            ) from None
        return number if number >= 0 else None

    def target(self, name: str) -> str | None:
        """The last part of what a link points to, None without the link."""
        return target(f"{self.path}/{name}") if name in self.names else None

    def children(self, *names: str) -> tuple[str, ...]:
        """The sorted names in a directory below; none where it is not."""
        return children("/".join((self.path, *names)))

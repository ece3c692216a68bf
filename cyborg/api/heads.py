# SPDX-License-Identifier: Apache-2.0
"""The fields of a request's head, read strictly.

Where a server and the proxy in front of it read a head differently, one
client's body can be taken for another's request.  What can be read in two
ways is refused here.
"""

from __future__ import annotations

import itertools
import re
from typing import Protocol

from cheroot import errors
from cheroot import server

MAX_FIELDS = 100

_FIELD = re.compile(
    rb"([!#$%&'*+.^`|~0-9A-Za-z_-]+):[ \t]*"
    rb"([\t\x20-\x7e\x80-\xff]*?)[ \t]*\r\n"
)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_LENGTH_NAME = b"Content-Length"
_CODING_NAME = b"Transfer-Encoding"
_ONCE = frozenset(
    {
        _LENGTH_NAME,
        _CODING_NAME,
        b"Authorization",
        b"Content-Type",
        b"Host",
        b"X-Auth-Token",
        b"X-Service-Token",
    }
)
"""What must not be said twice."""


class Lines(Protocol):
    """What is used of a stream."""

    def readline(self) -> bytes:
        """A line with its end."""


class FieldReader(server.HeaderReader):
    """In place of cheroot's, which guesses what was meant."""

    def __call__(
        self, lines: Lines, fields: dict[bytes, bytes] | None = None
    ) -> dict[bytes, bytes]:
        """The fields up to the empty line.

        Raises ValueError where they are not HTTP, MaxSizeExceeded where
        there are too many.  Names with underscores, which a WSGI
        application cannot tell from those with hyphens, are left out.
        """
        found = {} if fields is None else fields
        for number in itertools.count():
            line = lines.readline()
            if line == b"\r\n":
                break
            if number >= MAX_FIELDS:
                raise errors.MaxSizeExceeded
            name, value = _field(line)
            if b"_" not in name:
                _add(found, name, value)
        _check_body(found)
        return found


def _field(line: bytes) -> tuple[bytes, bytes]:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise ValueError("not a field of a head")
    return match[1].title(), match[2]


def _add(found: dict[bytes, bytes], name: bytes, value: bytes) -> None:
    if name in found:
        if name in _ONCE:
            raise ValueError("a field is given twice")
        value = found[name] + b", " + value
    found[name] = value


def _check_body(found: dict[bytes, bytes]) -> None:
    """Raises ValueError where the end of the body can be seen in two ways."""
    length = found.get(_LENGTH_NAME)
    if length is not None:
        if _CODING_NAME in found:
            raise ValueError("both a length and a coding")
        if not _LENGTH.fullmatch(length):
            raise ValueError("the length is not a number")
    if found.get(_CODING_NAME, b"").lower().count(b"chunked") > 1:
        raise ValueError("chunked twice")

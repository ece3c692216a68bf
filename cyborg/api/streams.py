# SPDX-License-Identifier: Apache-2.0
"""What cheroot reads requests from and writes answers to.

In place of its own, which are made of Python's slow `_pyio`; these know
nothing but what it calls.
"""

from __future__ import annotations

import io
import re
import select
from typing import Any
from typing import Protocol

BLOCK = 65536
MAX_CHUNK_LINE = 1024
MAX_TRAILER = 16
"""How many fields may come after the last chunk."""

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")


class Connection(Protocol):
    """What is used of a socket."""

    def recv(self, size: int, /) -> bytes:
        """Some bytes, none at the end."""

    def send(self, data: memoryview, /) -> int:
        """Send some of the bytes; how many."""

    def fileno(self) -> int:
        """For the kernel."""


class Reader:
    """The bytes that a client sends."""

    def __init__(self, connection: Connection) -> None:
        self._socket = connection
        self._data = bytearray()
        self.closed = False  # a stopping server cuts off who is not

    def read(self, size: int) -> bytes:
        """So many bytes, less where the client has no more."""
        while len(self._data) < size and self._receive():
            pass
        return self._take(size)

    def readline(self, limit: int | None = None) -> bytes:
        """A line with its end, no more than `limit` bytes of it."""
        most = BLOCK if limit is None else limit
        searched = 0
        while (end := self._data.find(b"\n", searched)) < 0:
            searched = len(self._data)
            if searched >= most or not self._receive():
                return self._take(most)
        return self._take(min(end + 1, most))

    def has_data(self) -> bool:
        """Whether something came that is not read yet."""
        if self._data:
            return True
        pending = getattr(self._socket, "pending", None)  # of TLS alone
        return pending is not None and bool(pending())

    def waits(self, milliseconds: int) -> bool:
        """Whether something comes within that time."""
        if self.has_data():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def close(self) -> None:
        """Forget what is not read; the socket is its owner's to close."""
        self._data.clear()
        self.closed = True

    def _receive(self) -> bool:
        part = self._socket.recv(BLOCK)
        self._data += part
        return bool(part)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken


class Chunks(io.RawIOBase):
    """A body that comes in chunks, of which no more is held than asked for.

    Reading raises ValueError where it is not chunked as it should be.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._left = 0
        self._ended = False

    def readable(self) -> bool:
        """For `io.BufferedReader`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of the buffer; how much, 0 at the end."""
        if not self._left:
            self._begin()
        size = min(len(buffer), self._left)
        data = self._reader.read(size)
        if len(data) < size:
            raise ValueError("the body breaks off")
        buffer[:size] = data
        self._left -= size
        if size and not self._left and self._reader.read(2) != b"\r\n":
            raise ValueError("a chunk is longer than it says")
        return size

    def _begin(self) -> None:
        """Go on to the next chunk; after the last, to the end."""
        if self._ended:
            return
        match = _CHUNK.fullmatch(self._reader.readline(MAX_CHUNK_LINE))
        if match is None:
            raise ValueError("not the size of a chunk")
        self._left = int(match[1], 16)
        if not self._left:
            self._end()

    def _end(self) -> None:
        """Pass over the fields after the last chunk."""
        for _ in range(MAX_TRAILER):
            line = self._reader.readline(MAX_CHUNK_LINE)
            if line == b"\r\n":
                self._ended = True
                return
            if not line.endswith(b"\r\n"):
                break
        raise ValueError("no end after the last chunk")


class Writer:
    """The bytes that go to a client, at once or together at the end."""

    def __init__(self, connection: Connection) -> None:
        self._socket = connection
        self._held: list[bytes] | None = None

    def hold(self) -> None:
        """Keep what is written until `release`."""
        self._held = []

    def release(self) -> None:
        """Send what was kept."""
        held, self._held = self._held, None
        self.write(b"".join(held or ()))

    def write(self, data: bytes) -> int:
        """Send, each part within the time that the socket allows."""
        if self._held is not None:
            self._held.append(data)
            return len(data)
        left = memoryview(data)
        while left:
            left = left[self._socket.send(left) :]
        return len(data)

# SPDX-License-Identifier: Apache-2.0
"""A body in chunks, under uwsgi.

There `wsgi.input` has nothing of it: uwsgi hands the chunks out by a function
of its own.  Every other server puts them together itself.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from _typeshed.wsgi import WSGIApplication
    from _typeshed.wsgi import WSGIEnvironment

Read = Callable[[], bytes]
"""The next chunk, and nothing after the last; raises OSError where the
client breaks off."""


class Body(io.RawIOBase):
    """The chunks that `read_chunk` gives, one after the other."""

    def __init__(self, read_chunk: Read) -> None:
        self._read_chunk = read_chunk
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """As a file does.  Raises OSError."""
        self._left = self._left or self._read_chunk()
        taken = self._left[: len(buffer)]
        self._left = self._left[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)


def put_together(application: WSGIApplication) -> WSGIApplication:
    """The application, which finds such a body in `wsgi.input`."""
    try:
        # There is one in uwsgi's own processes alone.
        read_chunk: Read = importlib.import_module("uwsgi").chunked_read
    except (ImportError, AttributeError):
        return application

    def with_input(
        environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        coding = str(environ.get("HTTP_TRANSFER_ENCODING", ""))
        if "chunked" in coding.lower():
            environ["wsgi.input"] = Body(read_chunk)
        return application(environ, start_response)

    return with_input

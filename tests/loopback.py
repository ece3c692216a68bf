# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server on a free loopback port, for stand-ins of services."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import socket
import sys
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from types import TracebackType
from typing import Any


@dataclasses.dataclass(frozen=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is its own business."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Loopback:
    """Serves until `close`; a subclass's `respond` answers.

    `failure`: a status that every request gets instead, or "never": the
    connection is held open without a word until `close` or `failure = None`.
    `failures`: how many requests fail so (None: all).
    `pause`: seconds from a request to its answer.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.failure: int | str | None = None
        self.failures: int | None = None
        self.pause = 0.0
        self._connections: set[socket.socket] = set()
        self._released = threading.Event()
        self._lock = threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def setup(self) -> None:
                super().setup()
                with outer._lock:
                    outer._connections.add(self.connection)

            def finish(self) -> None:
                with outer._lock:
                    outer._connections.discard(self.connection)
                with contextlib.suppress(OSError):  # its client is gone
                    super().finish()

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                request = Request(
                    self.command,
                    self.path,
                    dict(self.headers),
                    self.rfile.read(length),
                )
                if len(request.body) < length:  # its client is gone
                    self.close_connection = True
                    return
                with outer._lock:
                    outer.requests.append(request)
                outer._released.wait(outer.pause)
                if not outer._failed(self):
                    outer.respond(request, self)

            do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

        self._handler = Handler
        self._listen(0)

    def _listen(self, port: int) -> None:
        self._server = _Server(("127.0.0.1", port), self._handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def respond(
        self, request: Request, handler: http.server.BaseHTTPRequestHandler
    ) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Stop; afterwards the port refuses connections."""
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Nobody listens on the port meanwhile, and what was open breaks."""
        port = int(self._server.server_address[1])
        self.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # closed by its client
                    connection.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            self._released.clear()
            self._listen(port)

    def _failed(self, handler: http.server.BaseHTTPRequestHandler) -> bool:
        with self._lock:
            failure = self.failure
            if failure is None or self.failures == 0:
                return False
            if self.failures is not None:
                self.failures -= 1
        if failure == "never":
            self._released.wait(60)
            handler.close_connection = True
        else:
            send(handler, int(failure), {"error": {"message": "told to"}})
        return True


def send(
    handler: http.server.BaseHTTPRequestHandler,
    status: int,
    body: object = None,
) -> None:
    """Answer with a status and JSON."""
    content = b"" if body is None else json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)

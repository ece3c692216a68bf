# SPDX-License-Identifier: Apache-2.0
"""As much of memcached as keystonemiddleware's cache of tokens asks for."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator


class Memcached(socketserver.ThreadingTCPServer):
    """Serves `get` and `set` on a loopback port; forgets at the end."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.kept: dict[bytes, tuple[bytes, bytes]] = {}
        """Key -> flags and value, as they came."""
        self.hits = 0
        super().__init__(("127.0.0.1", 0), _Connection)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Connection(socketserver.StreamRequestHandler):
    server: Memcached

    def handle(self) -> None:
        for line in self.rfile:
            command, *words = line.split()
            if command == b"set":
                value = self.rfile.read(int(words[3]) + 2)[:-2]
                self.server.kept[words[0]] = (words[1], value)
                self.wfile.write(b"STORED\r\n")
            elif command in (b"get", b"gets"):
                for key in words:
                    self._find(key)
                self.wfile.write(b"END\r\n")
            else:
                self.wfile.write(b"ERROR\r\n")

    def _find(self, key: bytes) -> None:
        if key in self.server.kept:
            flags, value = self.server.kept[key]
            self.server.hits += 1
            self.wfile.write(
                b"VALUE %s %s %d\r\n%s\r\n" % (key, flags, len(value), value)
            )


@contextlib.contextmanager
def running() -> Iterator[Memcached]:
    """An empty one, in threads of this process."""
    with Memcached() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()

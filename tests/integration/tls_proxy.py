# SPDX-License-Identifier: Apache-2.0
"""TLS before a server of the test that speaks none."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

from tests.integration import certificates


class TlsProxy:
    """Takes TLS on a port of its own, and hands on what is in it."""

    def __init__(self, pair: certificates.Pair, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.handshakes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(
                    target=self._serve, args=(connection,), daemon=True
                ).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(connection):
            outer = self._context.wrap_socket(connection, server_side=True)
            self.handshakes += 1
            with socket.create_connection(self._target) as inner:
                back = threading.Thread(
                    target=_copy, args=(inner, outer), daemon=True
                )
                back.start()
                _copy(outer, inner)
                back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            sink.sendall(part)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def before(pair: certificates.Pair, port: int) -> Iterator[TlsProxy]:
    """A proxy before the server on this loopback port."""
    proxy = TlsProxy(pair, port)
    try:
        yield proxy
    finally:
        proxy.close()

# SPDX-License-Identifier: Apache-2.0
"""An RPC server that comes up with the broker and goes without losing calls.

Knows nothing of what is served; a service starts `listen` in a thread of
its own, since a broker that is away can hold it for ever.
"""

from __future__ import annotations

import logging
import threading

import oslo_messaging

from cyborg.rpc import transport as rpc_transport

LOG = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
"""Seconds between two tries to listen, at most."""


class Listener:
    """Serves the exposed methods of `endpoint` at `target`.

    `what` names it for people: "The conductor".
    """

    def __init__(
        self,
        transport: oslo_messaging.RPCTransport,
        target: oslo_messaging.Target,
        endpoint: object,
        what: str,
    ) -> None:
        self._transport = transport
        self._target = target
        self._endpoint = endpoint
        self._what = what
        self._stopped = threading.Event()
        self._server: oslo_messaging.MessageHandlingServer | None = None

    def listen(self) -> None:
        """Try until the broker takes the server, or `stop` is called."""
        pause = 1.0
        while not (self._stopped.is_set() or self._listens()):
            self._stopped.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def stop(self) -> None:
        """Try no more."""
        self._stopped.set()

    def close(self) -> None:
        """Take nothing new, answer what has come; may block with no broker.

        While oslo.messaging closes a listener it acknowledges what the
        broker still delivers, and leaves it unread: those callers would
        wait in vain, so that it is answered here.
        """
        server = self._server
        if server is None:
            return
        server.stop()
        server.wait()
        listener = getattr(server.listener, "_poll_style_listener", None)
        left = getattr(listener, "incoming", [])
        while left:
            server._process_incoming([left.pop(0)])  # noqa: SLF001

    def _listens(self) -> bool:
        """Start the RPC server; blocks while there is no broker."""
        try:
            server = rpc_transport.get_server(
                self._transport, self._target, [self._endpoint]
            )
            server.start()
        except Exception:
            # Outermost loop: what is wrong with a broker now may pass.
            LOG.exception("%s cannot listen; it tries again", self._what)
            return False
        self._server = server
        if self._stopped.is_set():
            server.stop()
        return True

# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy on loopback between one process and one service, to break.

What is sent to it is forwarded, until a test makes the network fail: for
all its connections, those there are and those to come.
"""

from __future__ import annotations

import collections
import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from collections.abc import Iterator

CHUNK = 65536
CONNECT_SECONDS = 5
TO_SERVICE, TO_CLIENT = "to service", "to client"
DIRECTIONS = (TO_SERVICE, TO_CLIENT)

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset, as a dead host's peer would get."""


class Filter:
    """What becomes of the bytes of one direction of one connection."""

    def pass_on(self, data: bytes) -> bytes:
        """What is forwarded now."""
        return data


class Proxy:
    """Listens on `port` and forwards to `target`.

    One thread reads each direction of a connection.  A direction that is
    stopped is not read: what is sent waits, as in a partitioned network,
    and arrives when it is healed.
    """

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self.target = target
        self._changed = threading.Condition()
        self._stopped: frozenset[str] = frozenset()
        self._delay = 0.0
        self._left: int | None = None
        self._then: Callable[[], object] | None = None
        self._pairs: set[_Pair] = set()
        self._listener: socket.socket | None = None
        self._closed = False
        self.accepted = 0
        self.port = port
        self._listen()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # -- faults

    def cut(self) -> int:
        """Reset every connection there is; how many."""
        with self._changed:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()
        return len(pairs)

    def refuse(self) -> None:
        """Let nobody in, and cut who is in."""
        self._unlisten()
        self.cut()

    def stop(self, *directions: str) -> None:
        """Forward nothing (that way), though connections stay."""
        with self._changed:
            self._stopped = frozenset(directions or DIRECTIONS)

    def forget(self) -> None:
        """Never forward anything again of the connections there are, and
        tell nobody; new ones work."""
        with self._changed:
            for pair in self._pairs:
                pair.forgotten = True

    def slow(self, seconds: float) -> None:
        """Let everything arrive so much later."""
        with self._changed:
            self._delay = seconds

    def cut_after(
        self, count: int, then: Callable[[], object] | None = None
    ) -> None:
        """Cut all connections once so many bytes have gone either way.

        `then` is done just before: with the last byte underway, and none
        after it.
        """
        with self._changed:
            self._left = count
            self._then = then

    def heal(self) -> None:
        """Work again."""
        with self._changed:
            self._stopped = frozenset()
            self._delay = 0.0
            self._left = None
            self._changed.notify_all()
        if self._listener is None and not self._closed:
            self._listen()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Let nobody in meanwhile."""
        self.refuse()
        try:
            yield
        finally:
            self.heal()

    @contextlib.contextmanager
    def stopping(self, *directions: str) -> Iterator[None]:
        """Forward nothing (that way) meanwhile."""
        self.stop(*directions)
        try:
            yield
        finally:
            self.heal()

    def close(self) -> None:
        """End; the port refuses from now on."""
        self._closed = True
        self.heal()
        self.refuse()

    # -- forwarding

    def filters(self) -> tuple[Filter, Filter]:
        """A new connection's filters, to the service and to the client."""
        return Filter(), Filter()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(
            target=self._accept, args=(listener,), daemon=True
        ).start()

    def _unlisten(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(
                target=self._connect, args=(listener, client), daemon=True
            ).start()

    def _connect(self, listener: socket.socket, client: socket.socket) -> None:
        try:
            service = socket.create_connection(self.target, CONNECT_SECONDS)
        except OSError:
            client.close()
            return
        service.settimeout(None)
        for end in (client, service):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(client, service)
        with self._changed:
            self._pairs.add(pair)
        if self._listener is not listener:
            pair.reset()
        up, down = self.filters()
        threading.Thread(
            target=self._pump,
            args=(pair, client, service, TO_SERVICE, up),
            daemon=True,
        ).start()
        self._pump(pair, service, client, TO_CLIENT, down)

    def _pump(
        self,
        pair: _Pair,
        source: socket.socket,
        sink: socket.socket,
        direction: str,
        filter_: Filter,
    ) -> None:
        try:
            while data := source.recv(CHUNK):
                self._pass(direction)
                if pair.forgotten:
                    continue
                if data := filter_.pass_on(data):
                    sink.sendall(data[: self._allowed(len(data))])
        except OSError:
            pass
        finally:
            pair.close()
            with self._changed:
                self._pairs.discard(pair)

    def _pass(self, direction: str) -> None:
        """Wait while nothing passes that way, and as long as it takes."""
        with self._changed:
            self._changed.wait_for(lambda: direction not in self._stopped)
            if self._delay:
                self._changed.wait(self._delay)

    def _allowed(self, count: int) -> int:
        """How many of these bytes still pass."""
        with self._changed:
            if self._left is None:
                return count
            allowed = min(count, self._left)
            self._left -= allowed
            if self._left:
                return allowed
            self._left = None
            if self._then is not None:
                self._then()
        self.cut()
        raise ConnectionResetError


class _Pair:
    """The two sockets of one connection."""

    def __init__(self, client: socket.socket, service: socket.socket) -> None:
        self._sockets = (client, service)
        self.forgotten = False

    def reset(self) -> None:
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()

    def close(self) -> None:
        """Wakes who reads or writes; the sockets go with the last of them."""
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class _Statuses(Filter):
    """Counts the answers that go by."""

    def __init__(self, seen: collections.Counter[int]) -> None:
        self._seen = seen

    def pass_on(self, data: bytes) -> bytes:
        self._seen.update(map(int, _STATUS.findall(data)))
        return data


class Http(Proxy):
    """A proxy of an HTTP service; `answers` counts its answers by status."""

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self.answers: collections.Counter[int] = collections.Counter()
        super().__init__(target, port)

    def filters(self) -> tuple[Filter, Filter]:
        return Filter(), _Statuses(self.answers)


class Messages(Filter):
    """AMQP 0-9-1 by whole messages: some are lost, some come twice.

    A message is the frames of one basic.publish or basic.deliver: the
    method, its header, and its body; frames of other channels may come in
    between.
    """

    METHOD, HEADER, BODY = 1, 2, 3
    BASIC = 60
    CARRIERS = (40, 60)
    """publish, deliver"""
    PROTOCOL = 8
    """Bytes of a connection's first words, which are no frame."""

    def __init__(self, fault: MessageFault, starts: bool) -> None:
        self._fault = fault
        self._begun = not starts
        self._buffer = b""
        self._open: dict[int, list[bytes]] = {}
        self._sizes: dict[int, int] = {}

    def pass_on(self, data: bytes) -> bytes:
        self._buffer += data
        passed = []
        if not self._begun and len(self._buffer) >= self.PROTOCOL:
            self._begun = True
            passed.append(self._buffer[: self.PROTOCOL])
            self._buffer = self._buffer[self.PROTOCOL :]
        while self._begun and (frame := self._frame()):
            passed.append(self._message(frame))
        return b"".join(passed)

    def _frame(self) -> bytes:
        if len(self._buffer) < 7:
            return b""
        size = 8 + struct.unpack_from(">I", self._buffer, 3)[0]
        if len(self._buffer) < size:
            return b""
        frame, self._buffer = self._buffer[:size], self._buffer[size:]
        return frame

    def _message(self, frame: bytes) -> bytes:
        """What is forwarded for a frame: nothing till its message is
        whole."""
        kind, channel = struct.unpack_from(">BH", frame)
        if kind == self.METHOD:
            class_, method = struct.unpack_from(">HH", frame, 7)
            if class_ != self.BASIC or method not in self.CARRIERS:
                return frame
            self._open[channel] = [frame]
            return b""
        if kind not in (self.HEADER, self.BODY) or channel not in self._open:
            return frame
        self._open[channel].append(frame)
        if kind == self.HEADER:
            self._sizes[channel] = struct.unpack_from(">Q", frame, 11)[0]
        else:
            self._sizes[channel] -= len(frame) - 8
        if self._sizes[channel] > 0:
            return b""
        message = b"".join(self._open.pop(channel))
        return message * self._fault.copies(message)


class MessageFault:
    """Which messages are lost or doubled: those that hold `word`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._word = b""
        self._copies = 1
        self._left = 0
        self.seen = 0
        """How many messages have gone by in all."""
        self.met = 0

    def set(self, word: bytes, copies: int, count: int) -> None:
        """The next `count` messages with `word` in them come `copies`
        times."""
        with self._lock:
            self._word, self._copies, self._left = word, copies, count

    def copies(self, message: bytes) -> int:
        with self._lock:
            self.seen += 1
            if not self._left or self._word not in message:
                return 1
            self._left -= 1
            self.met += 1
            return self._copies


class Broker(Proxy):
    """A proxy of a broker that can lose and double messages as well.

    `sent`: what the process publishes; `delivered`: what it is given.
    """

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self.sent = MessageFault()
        self.delivered = MessageFault()
        super().__init__(target, port)

    def filters(self) -> tuple[Filter, Filter]:
        return Messages(self.sent, True), Messages(self.delivered, False)

# SPDX-License-Identifier: Apache-2.0
"""What is too large, too slow, too deep or ambiguous, sent over sockets to a
real cyborg-api: a clear answer, an end of the connection, and no more memory
than before.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import databases
from tests.functional.api import lab
from tests.integration import children
from tests.integration import deployment
from tests.integration import logs
from tests.integration import resources

CONFIGURATION = """\
[DEFAULT]
auth_strategy = noauth
transport_url = {broker}
state_path = {folder}
rpc_response_timeout = 5
[api]
port = {port}
[database]
connection = {database}
"""
LARGER = 100_000_000
"""Bytes by which the process may grow, whatever is sent."""


class Server:
    """A cyborg-api and its port."""

    def __init__(self, child: children.Child, port: int) -> None:
        self.child = child
        self.port = port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 60)

    def raw(self, *parts: bytes) -> list[tuple[int, bytes]]:
        """All answers, as status and body, until the server closes."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):
                for part in parts:
                    connection.sendall(part)
                connection.shutdown(socket.SHUT_WR)
            return _answers(connection)

    def resident(self) -> int:
        """Bytes of memory that it has."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


def _answers(connection: socket.socket) -> list[tuple[int, bytes]]:
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        size = int(length[1]) if length else 0
        found.append((int(head.split()[1]), rest[:size]))
        received = rest[size:]
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("limits")
    port = resources.free_port()
    with (
        databases.empty("mariadb", folder) as database,
        resources.vhost("limits") as vhost,
    ):
        file = folder / "cyborg.conf"
        file.write_text(
            CONFIGURATION.format(
                broker=vhost.url, folder=folder, port=port, database=database
            )
        )
        words = ["--config-file", str(file)]
        done = children.finish(
            [deployment.program("cyborg-dbsync"), *words, "upgrade"]
        )
        assert done.returncode == 0, done.stderr
        child = children.Child(
            [deployment.program("cyborg-api"), *words], folder / "api.log"
        )
        try:
            resources.wait_until(
                lambda: not child.running or resources.answers(port),
                deployment.READY_SECONDS,
                "the API serves",
            )
            yield Server(child, port)
            assert child.running, child.tail()
            text = child.output.read_text(errors="replace")
            assert logs.tracebacks(text) == []
        finally:
            child.stop()


HOST = b"Host: x\r\n"
GET = b"GET /v2/devices HTTP/1.1\r\n" + HOST
POST = (
    b"POST /v2/device_profiles HTTP/1.1\r\n"
    + HOST
    + b"Content-Type: application/json\r\n"
)
NEXT = GET + b"\r\n"
"""What a smuggler would have taken for a request of its own."""


def chunked(*chunks: bytes) -> bytes:
    return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)


def body(data: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%s" % (len(data), data)


HUGE = 10_000_000_000
LARGE = b"x" * 1_000_000
CASES: dict[str, tuple[bytes, int]] = {
    "long uri": (b"GET /" + LARGE + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    "long query": (
        b"GET /v2/devices?name=" + LARGE + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        414,
    ),
    "long field": (GET + b"X: " + LARGE + b"\r\n\r\n", 413),
    "many fields": (GET + b"X: y\r\n" * 200 + b"\r\n", 413),
    "many long fields": (GET + (b"X: " + b"y" * 5000 + b"\r\n") * 90, 413),
    "many parameters": (
        b"GET /v2/devices?%s HTTP/1.1\r\n" % b"&".join([b"a=b"] * 2000)
        + HOST
        + b"\r\n",
        400,
    ),
    "token of 50 kB": (GET + b"X-Auth-Token: %s\r\n\r\n" % LARGE[:50000], 200),
    "declared too large": (
        POST + b"Content-Length: %d\r\n\r\n" % HUGE + LARGE,
        413,
    ),
    "sent too large": (POST + body(b"[" + LARGE + b"]"), 413),
    "chunks too large": (
        POST + chunked(*[b"10000\r\n" + LARGE[:65536] + b"\r\n"] * 8),
        413,
    ),
    "one chunk too large": (POST + chunked(b"fffffff\r\n", LARGE), 413),
    "a chunk beyond all": (POST + chunked(b"f" * 15 + b"\r\n", LARGE), 413),
    "deep": (POST + body(b"[" * 50000 + b"]" * 50000), 400),
    "deep objects": (POST + body(b'{"a":' * 15000 + b"1" + b"}" * 15000), 400),
    "a long number": (POST + body(b'{"name":' + b"9" * 100_000 + b"}"), 400),
    "beyond numbers": (POST + body(b'{"name": 1e999}'), 400),
    "not a number": (POST + body(b'{"name": NaN}'), 400),
    "a long name": (
        POST + body(b'{"groups": [], "name": "' + LARGE[:100000] + b'"}'),
        400,
    ),
    "nul in a body": (POST + body(b'{"name": "\\u0000", "groups": []}'), 400),
    "nul raw in a body": (POST + body(b'{"name": "\0"}'), 400),
    "half a surrogate": (
        POST + body(b'{"name": "\\ud800", "groups": []}'),
        400,
    ),
    "not utf-8": (POST + body(b'{"name": "\xff\xfe"}'), 400),
    "utf-16": (POST + body('{"name": "x"}'.encode("utf-16")), 400),
    "nul in a query": (
        b"GET /v2/devices?name=%00 HTTP/1.1\r\n" + HOST + b"\r\n",
        400,
    ),
    "nul in a path": (b"GET /v2/%00 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "nul in a field": (GET + b"X: a\0b\r\n\r\n", 400),
    "cr in a field": (GET + b"X: a\rb\r\n\r\n", 400),
    "lf alone": (GET + b"X: a\nX-Auth-Token: b\r\n\r\n", 400),
    "folded field": (GET + b"X: a\r\n b\r\n\r\n", 400),
    "space before colon": (POST + b"Content-Length : 3\r\n\r\nGET", 400),
    "no name": (GET + b": a\r\n\r\n", 400),
    "length and coding": (
        POST + b"Content-Length: 5\r\n" + chunked(b"0\r\n\r\n", NEXT),
        400,
    ),
    "two lengths": (
        POST + b"Content-Length: 0\r\nContent-Length: 2\r\n\r\n[]" + NEXT,
        400,
    ),
    "a list of lengths": (
        POST + b"Content-Length: 2, 2\r\n\r\n[]" + NEXT,
        400,
    ),
    "signed length": (POST + b"Content-Length: +2\r\n\r\n[]" + NEXT, 400),
    "negative length": (POST + b"Content-Length: -2\r\n\r\n" + NEXT, 400),
    "length with a line": (POST + b"Content-Length: 1_0\r\n\r\n" + NEXT, 400),
    "two hosts": (GET + HOST + b"\r\n", 400),
    "two tokens": (GET + b"X-Auth-Token: a\r\n" * 2 + b"\r\n", 400),
    "chunked twice": (
        POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + NEXT,
        400,
    ),
    "two codings": (
        POST
        + b"Transfer-Encoding: identity\r\n"
        + chunked(b"0\r\n\r\n", NEXT),
        400,
    ),
    "unknown coding": (POST + b"Transfer-Encoding: xchunked\r\n\r\n", 501),
    "coding in 1.0": (
        POST.replace(b"1.1", b"1.0")
        + b"Connection: Keep-Alive\r\n"
        + chunked(b"0\r\n\r\n", NEXT),
        400,
    ),
    "chunk with a sign": (POST + chunked(b"+2\r\n[]\r\n0\r\n\r\n", NEXT), 400),
    "chunk with 0x": (POST + chunked(b"0x2\r\n[]\r\n0\r\n\r\n", NEXT), 400),
    "negative chunk": (POST + chunked(b"-1\r\n", NEXT), 400),
    "chunk too short": (POST + chunked(b"1\r\n[]\r\n0\r\n\r\n", NEXT), 400),
    "chunk ends in lf": (POST + chunked(b"2\n[]\r\n0\r\n\r\n", NEXT), 400),
    "long chunk extension": (POST + chunked(b"2;" + LARGE), 400),
    "endless trailer": (
        POST + chunked(b"2\r\n[]\r\n0\r\n" + b"X: y\r\n" * 1000),
        400,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_answer_and_an_end(name: str, server: Server) -> None:
    data, status = CASES[name]
    before = server.resident()
    answers = server.raw(data)
    assert [code for code, _ in answers] == [status]
    if status >= 400:
        lab.check_error(json.loads(answers[0][1]), status)
    assert server.resident() - before < LARGER


def test_a_body_in_chunks_that_is_none_too_large_is_taken(
    server: Server,
) -> None:
    data = b"[" + b" " * 60000 + b"]"
    halves = data[:30000], data[30000:]
    sent = b"".join(b"%x;a=b\r\n%s\r\n" % (len(d), d) for d in halves)
    ((status, said),) = server.raw(
        POST + chunked(sent, b"0\r\nX-Last: y\r\n\r\n")
    )
    assert status == 400
    assert b"body" in said, "an empty list is wrong, and was read"


def test_fields_that_wsgi_cannot_tell_apart_are_left_out(
    server: Server,
) -> None:
    (answer,) = server.raw(
        GET + b"X_Roles: reader\r\nConnection: close\r\n\r\n"
    )
    assert answer[0] == 200, "X_Roles would have been taken for X-Roles"
    (answer,) = server.raw(
        GET + b"X-Roles: reader\r\nConnection: close\r\n\r\n"
    )
    assert answer[0] == 403


def test_many_large_bodies_at_once_take_no_memory(server: Server) -> None:
    assert server.raw(GET + b"Connection: close\r\n\r\n")[0][0] == 200
    before = server.resident()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(40)]
        most = 0
        for client in clients:
            client.sendall(POST + chunked(b"fffffff\r\n"))
        for _ in range(6):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(LARGE)
            most = max(most, server.resident() - before)
        for client in clients:
            client.close()
    assert most < LARGER, f"{most} bytes more"
    assert server.raw(GET + b"Connection: close\r\n\r\n")[0][0] == 200


@pytest.mark.parametrize(
    ("begin", "more", "clients"),
    [
        (b"GET /v2/devices HTTP/1.1\r\n", b"X: y\r\n", 64),
        (POST + b"Content-Length: 100000\r\n\r\n", b" ", 28),
        (POST + chunked(), b"1\r\n \r\n", 28),
    ],
    ids=["head", "body", "chunks"],
)
def test_slow_clients_keep_nobody_else_out(
    begin: bytes, more: bytes, clients: int, server: Server
) -> None:
    with contextlib.ExitStack() as stack:
        slow: list[Any] = []
        for _ in range(clients):
            client = stack.enter_context(server.connect())
            client.sendall(begin)
            slow.append(client)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for client in slow:
                with contextlib.suppress(OSError):
                    client.sendall(more)
            time.sleep(0.2)
        # All of the server's threads may be waiting, each for a while.
        with server.connect() as client:
            client.settimeout(120)
            client.sendall(GET + b"Connection: close\r\n\r\n")
            assert [code for code, _ in _answers(client)] == [200]

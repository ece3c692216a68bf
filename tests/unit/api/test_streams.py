# SPDX-License-Identifier: Apache-2.0
"""Reading requests from a socket and writing answers to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from cyborg.api import streams


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's end of a connection, and the client's."""
    server, client = socket.socketpair()
    with server, client:
        server.settimeout(5)
        client.settimeout(5)
        yield server, client


Ends = tuple[socket.socket, socket.socket]


def test_lines_come_whole_whatever_the_pieces_they_were_sent_in(
    ends: Ends,
) -> None:
    server, client = ends
    reader = streams.Reader(server)
    client.sendall(b"one\r\ntwo")
    assert reader.readline() == b"one\r\n"
    client.sendall(b"\r\nthree")
    assert reader.readline(256) == b"two\r\n"
    client.shutdown(socket.SHUT_WR)
    assert reader.readline() == b"three"
    assert reader.readline() == b""


def test_a_long_line_comes_in_parts_of_the_limit(ends: Ends) -> None:
    server, client = ends
    reader = streams.Reader(server)
    client.sendall(b"abcdef\nrest")
    assert reader.readline(4) == b"abcd"
    assert reader.readline(4) == b"ef\n"
    assert reader.has_data()
    assert reader.read(4) == b"rest"
    assert not reader.has_data()


def test_reading_waits_for_all_that_is_asked_for(ends: Ends) -> None:
    server, client = ends
    reader = streams.Reader(server)
    size = 3 * streams.BLOCK
    sender = threading.Thread(target=client.sendall, args=(b"x" * size,))
    sender.start()
    assert reader.read(size) == b"x" * size
    sender.join()
    client.shutdown(socket.SHUT_WR)
    assert reader.read(1) == b""


def test_a_silent_client_times_out(ends: Ends) -> None:
    server, _client = ends
    server.settimeout(0.01)
    with pytest.raises(TimeoutError):
        streams.Reader(server).readline()


def test_waiting_tells_of_data_of_the_end_and_of_silence(ends: Ends) -> None:
    server, client = ends
    reader = streams.Reader(server)
    assert not reader.waits(0)
    client.sendall(b"two\nlines\n")
    assert reader.waits(1000)
    reader.readline()
    assert reader.waits(0)
    reader.readline()
    client.close()
    assert reader.waits(1000)
    assert reader.readline() == b""


def test_what_is_held_goes_out_in_one_piece(ends: Ends) -> None:
    server, client = ends
    writer = streams.Writer(server)
    writer.hold()
    assert writer.write(b"head ") == 5
    assert writer.write(b"body") == 4
    assert not streams.Reader(client).waits(0)
    writer.release()
    assert client.recv(100) == b"head body"
    writer.write(b"at once")
    assert client.recv(100) == b"at once"

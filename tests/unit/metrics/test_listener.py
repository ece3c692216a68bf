# SPDX-License-Identifier: Apache-2.0
"""Readers of metrics cost few threads, however many and slow they are."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

import pytest
from oslo_config import cfg

from cyborg import metrics_listener

SECONDS = 30


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), SECONDS).close()
    except ConnectionRefusedError:
        return False
    return True


Listen = Callable[..., int]


@pytest.fixture
def listen(conf: cfg.ConfigOpts) -> Iterator[Listen]:
    made = []

    def start(networks: list[str]) -> int:
        port = _free_port()
        conf.set_override("agent_port", port, "metrics")
        conf.set_override("allowed_networks", networks, "metrics")
        made.append(metrics_listener.MetricsListener(conf, "agent_port"))
        made[0].start()
        _until(lambda: _answers(port))
        return port

    yield start
    made[0].stop()


def readers() -> int:
    """Threads that answer."""
    names = [each.name for each in threading.enumerate()]
    return sum("process_request" in name for name in names)


def ask(port: int) -> bytes:
    """All that is answered; nothing where one is hung up on."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        try:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            with connection.makefile("rb") as answer:
                return answer.read()
        except ConnectionError:
            return b""


def test_a_listed_address_is_answered(
    listen: Listen,
) -> None:
    assert ask(listen(["127.0.0.1"])).startswith(b"HTTP/1.0 200")


def test_a_stranger_is_hung_up_on(listen: Listen) -> None:
    assert ask(listen(["192.0.2.1"])) == b""


def test_slow_readers_cost_a_bounded_number_of_threads_for_a_bounded_time(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_listener, "READERS", 3)
    monkeypatch.setattr(metrics_listener, "READER_SECONDS", 600)
    port = listen(["127.0.0.1"])
    _until(lambda: ask(port))
    _until(lambda: readers() == 0)
    slow = [
        socket.create_connection(("127.0.0.1", port), SECONDS)
        for _ in range(10)
    ]
    _until(lambda: readers() == 3)
    assert ask(port) == b""
    assert readers() == 3
    monkeypatch.setattr(metrics_listener, "READER_SECONDS", 0)
    _until(lambda: readers() == 0)
    monkeypatch.setattr(metrics_listener, "READER_SECONDS", 600)
    _until(lambda: ask(port))
    for one in slow:
        one.close()

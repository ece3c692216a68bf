# SPDX-License-Identifier: Apache-2.0
"""Kernel events become one look at the hardware."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import queue
import time
from pathlib import Path

import pytest

from cyborg.agent import hotplug

WAIT = 10
CARD = "/devices/pci0000:00/0000:00:02.0"


@dataclasses.dataclass
class Event:
    subsystem: str = "pci"
    device_path: str = CARD
    lost: int = 0


class Pipe:
    """A monitor whose events a test sends."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)

    def send(self, event: Event) -> None:
        data = json.dumps(dataclasses.asdict(event)).encode()
        os.write(self._writer, len(data).to_bytes(4, "big") + data)

    def fileno(self) -> int:
        return self._reader

    def poll(self, timeout: float | None = None) -> Event | None:
        try:
            size = int.from_bytes(os.read(self._reader, 4), "big")
        except BlockingIOError:
            return None
        event = Event(**json.loads(os.read(self._reader, size)))
        if event.lost:
            raise OSError(event.lost, "lost")
        return event


@pytest.fixture
def looks():
    return queue.SimpleQueue()


@pytest.fixture
def pipe():
    return Pipe()


@pytest.fixture
def listening(pipe, looks):
    plug = hotplug.HotPlug(
        lambda: looks.put(time.monotonic()), lambda: pipe, 0.1, 0.3
    )
    plug.start()
    yield plug
    plug.stop()


def silent(looks, seconds: float = 0.3) -> bool:
    try:
        looks.get(timeout=seconds)
    except queue.Empty:
        return True
    return False


def test_a_burst_of_events_is_one_look(listening, pipe, looks):
    for _ in range(20):
        pipe.send(Event())
    looks.get(timeout=WAIT)
    assert silent(looks)
    pipe.send(Event())
    looks.get(timeout=WAIT)


def test_events_without_end_do_not_put_the_look_off_for_ever(
    listening, pipe, looks
):
    start = time.monotonic()
    while looks.empty():
        pipe.send(Event())
        assert time.monotonic() < start + WAIT
    assert looks.get() - start < WAIT


def test_network_devices_of_guests_are_nothing_to_us(listening, pipe, looks):
    pipe.send(Event("net", "/devices/virtual/net/tap0"))
    assert silent(looks)
    pipe.send(Event("net", f"{CARD}/net/eth2"))
    looks.get(timeout=WAIT)


def test_events_that_were_lost_are_a_reason_to_look(listening, pipe, looks):
    pipe.send(Event(lost=errno.ENOBUFS))
    looks.get(timeout=WAIT)


def test_a_broken_source_ends_with_a_line_in_the_log(
    listening, pipe, looks, caplog
):
    pipe.send(Event(lost=errno.EBADF))
    listening._thread.join(WAIT)
    assert not listening._thread.is_alive()
    assert "events end here" in caplog.text


@pytest.mark.parametrize("error", [ImportError("no libudev"), OSError("no")])
def test_a_host_without_events_says_so_once_and_goes_on(looks, caplog, error):
    def refuse():
        raise error

    with caplog.at_level(logging.WARNING):
        plug = hotplug.HotPlug(looks.put, refuse)
        plug.start()
        plug.stop()
        plug.stop()
    assert len(caplog.records) == 1


def test_stop_ends_the_wait(listening):
    start = time.monotonic()
    listening.stop()
    assert not listening._thread.is_alive()
    assert time.monotonic() - start < 1


def test_an_event_of_the_kernel_itself_becomes_a_look(looks):
    functions = sorted(Path("/sys/bus/pci/devices").glob("*"))
    try:
        hotplug.open_monitor()
        if not os.access(functions[0] / "uevent", os.W_OK):
            raise PermissionError("no event can be made")
    except (ImportError, OSError, IndexError) as error:
        pytest.skip(f"no events of the kernel here: {error}")
    plug = hotplug.HotPlug(lambda: looks.put(True), quiet=0.05)
    plug.start()
    try:
        (functions[0] / "uevent").write_text("change")
        assert looks.get(timeout=WAIT)
    finally:
        plug.stop()
    assert not plug._thread.is_alive()

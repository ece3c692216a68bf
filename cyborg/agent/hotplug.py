# SPDX-License-Identifier: Apache-2.0
"""The kernel's word that hardware came or went.

An event is only a hint to look: nothing is read from it but whether it can
concern an accelerator.  The kernel's own messages are taken rather than
udevd's, since libudev falls silent where there is no udevd (in a container)
and because a look half a second later finds the device ready anyway.
"""

from __future__ import annotations

import errno
import importlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from oslo_log import log

LOG = log.getLogger(__name__)

SUBSYSTEMS = ("pci", "mdev", "nvme", "net")
QUIET_SECONDS = 0.5
"""How long no event may come before we look: one card makes many."""
LONGEST_SECONDS = 1.0
"""When we look even though events keep coming."""
VIRTUAL = "/devices/virtual/"


class Event(Protocol):
    """What we read of an event (a pyudev.Device)."""

    subsystem: str
    device_path: str


class Monitor(Protocol):
    """Where events come from (a pyudev.Monitor)."""

    def fileno(self) -> int:
        """Readable while an event waits."""

    def poll(self, timeout: float | None = None) -> Event | None:
        """The next event; ENOBUFS where some were lost."""


def open_monitor() -> Monitor:
    """The kernel's events; raises ImportError or OSError where this host
    or container has none."""
    pyudev = importlib.import_module("pyudev")
    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), "kernel")
    for subsystem in SUBSYSTEMS:
        monitor.filter_by(subsystem)
    monitor.start()
    found: Monitor = monitor
    return found


class HotPlug:
    """Calls `wake` once after each burst of events."""

    def __init__(
        self,
        wake: Callable[[], None],
        connect: Callable[[], Monitor] = open_monitor,
        quiet: float = QUIET_SECONDS,
        longest: float = LONGEST_SECONDS,
    ) -> None:
        self._wake = wake
        self._connect = connect
        self._quiet = quiet
        self._longest = longest
        self._thread: threading.Thread | None = None
        self._stop_reader, self._stop_writer = os.pipe()

    def start(self) -> None:
        """Listen, where there is something to listen to."""
        try:
            monitor = self._connect()
        except (ImportError, OSError) as error:
            LOG.warning(
                "No events of the kernel here (%s): hardware that comes or "
                "goes is seen at the next period",
                error,
            )
            return
        self._thread = threading.Thread(
            target=self._run, args=(monitor,), name="hotplug", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; at most a second call does nothing."""
        if self._stop_writer < 0:
            return
        os.close(self._stop_writer)
        self._stop_writer = -1
        if self._thread is not None:
            self._thread.join(1)
        os.close(self._stop_reader)

    def _run(self, monitor: Monitor) -> None:
        try:
            while self._burst(monitor):
                self._wake()
        except OSError as error:
            LOG.warning("The kernel's events end here: %s", error)

    def _burst(self, monitor: Monitor) -> bool:
        """Wait for events and for their end; False when told to stop."""
        poll = select.poll()
        poll.register(self._stop_reader, select.POLLIN)
        poll.register(monitor.fileno(), select.POLLIN)
        deadline: float | None = None
        while True:
            ready = dict(poll.poll(self._patience(deadline)))
            if self._stop_reader in ready:
                return False
            if not ready:
                return True
            if _drained(monitor) and deadline is None:
                deadline = time.monotonic() + self._longest
            if deadline is not None and time.monotonic() >= deadline:
                return True

    def _patience(self, deadline: float | None) -> float | None:
        """Milliseconds to wait for the next event, None: for ever."""
        if deadline is None:
            return None
        left = max(0.0, deadline - time.monotonic())
        return min(self._quiet, left) * 1000


def _drained(monitor: Monitor) -> bool:
    """Take every event that waits; True where one can concern us."""
    concerned = False
    while True:
        try:
            event = monitor.poll(timeout=0)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            return True
        if event is None:
            return concerned
        concerned = concerned or _concerns(event)


def _concerns(event: Event) -> bool:
    """A host of virtual machines makes network devices all the time; only
    those of a card count."""
    return event.subsystem != "net" or VIRTUAL not in event.device_path

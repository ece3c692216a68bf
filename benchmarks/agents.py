# SPDX-License-Identifier: Apache-2.0
"""Many agents in one process, as a conductor sees them.

Each reports its host once, then says each period that nothing has changed,
and now and then reports a device that broke or is well again.  They share a
few threads and one connection to the broker: what is measured is the
services, not the cost of simulating hosts.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from oslo_config import cfg

from cyborg import context
from cyborg import exception
from cyborg import inventory
from cyborg import service
from cyborg.rpc import conductor
from cyborg.rpc import transport

DEVICES = 8
ACCELERATORS = 8
THREADS = 8
FAULT = "too hot"


@dataclasses.dataclass
class Host:
    """A simulated host; `broken` is the number of its broken device."""

    name: str
    root: str
    broken: int | None = None
    acknowledged: str | None = None

    def report(self) -> inventory.HostReport:
        return inventory.HostReport(
            self.name,
            self.name,
            self.root,
            tuple(self._device(number) for number in range(DEVICES)),
            (),
        )

    def provider(self, number: int) -> str:
        """The uuid of a device's resource provider."""
        return inventory.provider_uuid(self._deployable(number))

    def _deployable(self, number: int) -> str:
        return f"{self.name}_{self._address(number)}0"

    @staticmethod
    def _address(number: int) -> str:
        return f"0000:{number + 0x10:02x}:00."

    def _device(self, number: int) -> inventory.Device:
        address = self._address(number)
        return inventory.Device(
            controlpath=inventory.pci_json(f"{address}0"),
            type=inventory.DeviceType.FPGA,
            vendor="0xABCD",
            model="simulated",
            driver="fake_driver",
            std_board_info=None,
            fault=FAULT if self.broken == number else "",
            deployables=(
                inventory.Deployable(
                    name=self._deployable(number),
                    num_accelerators=ACCELERATORS,
                    driver_name="fake",
                    attributes=(
                        ("trait0", "CUSTOM_FAKE_DEVICE"),
                        ("rc", "FPGA"),
                    ),
                    attach_handles=tuple(
                        inventory.AttachHandle(
                            inventory.AttachType.TEST_PCI,
                            inventory.pci_json(f"{address}{function}"),
                        )
                        for function in range(ACCELERATORS)
                    ),
                ),
            ),
        )


@dataclasses.dataclass(frozen=True)
class Counts:
    """What the agents did; `seconds` is how long each call took."""

    heartbeats: int
    reports: int
    failures: int
    seconds: Sequence[float]
    late: float
    """By how many seconds the latest was behind its time."""


class Agents:
    """The agents of these hosts, from `start` to `stop`.

    One in `change_every` of their periods reports a change.
    """

    def __init__(
        self,
        configuration: Path,
        hosts: Sequence[Host],
        period: float,
        change_every: int,
    ) -> None:
        conf = cfg.ConfigOpts()
        service.prepare(conf)
        conf(["--config-file", str(configuration)], project=service.PROJECT)
        self._transport = transport.get_transport(conf)
        self._conductor = conductor.ConductorClient(self._transport, conf)
        self.hosts = hosts
        self.period = period
        self._change_every = change_every
        self._random = random.Random(len(hosts))
        self._changed = threading.Condition()
        self._stopped = False
        now = time.monotonic()
        self._due = [
            (now + period * number / len(hosts), number)
            for number in range(len(hosts))
        ]
        self._clear()
        self._threads = [
            threading.Thread(target=self._run, name=f"agents-{number}")
            for number in range(THREADS)
        ]

    def _clear(self) -> None:
        self._heartbeats = self._reports = self._failures = 0
        self._seconds: list[float] = []
        self._late = 0.0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them; does nothing the second time."""
        with self._changed:
            if self._stopped:
                return
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._transport.cleanup()

    def counts(self) -> Counts:
        """What was done since this was asked last."""
        with self._changed:
            found = Counts(
                self._heartbeats,
                self._reports,
                self._failures,
                self._seconds,
                self._late,
            )
            self._clear()
        return found

    def change_all(self) -> None:
        """Have every host report a change next time."""
        for host in self.hosts:
            self._change(host)

    def _change(self, host: Host) -> None:
        host.broken = (
            self._random.randrange(DEVICES) if host.broken is None else None
        )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (
                    not self._due or self._due[0][0] > time.monotonic()
                ):
                    left = (
                        self._due[0][0] - time.monotonic()
                        if self._due
                        else self.period
                    )
                    self._changed.wait(max(left, 0))
                if self._stopped:
                    return
                due, number = heapq.heappop(self._due)
                self._late = max(self._late, time.monotonic() - due)
                if self._random.randrange(self._change_every) == 0:
                    self._change(self.hosts[number])
            self._speak(self.hosts[number])
            with self._changed:
                heapq.heappush(self._due, (due + self.period, number))
                self._changed.notify()

    def _speak(self, host: Host) -> None:
        report = host.report()
        digest = report.digest()
        before = time.perf_counter()
        heartbeats = reports = failures = 0
        try:
            unchanged = digest == host.acknowledged
            if unchanged:
                heartbeats = 1
                unchanged = self._conductor.heartbeat(
                    context.admin_context(), host.name, digest
                )
            if not unchanged:
                reports = 1
                self._conductor.report_host(context.admin_context(), report)
                host.acknowledged = digest
        except exception.CyborgError:
            failures = 1
        elapsed = time.perf_counter() - before
        with self._changed:
            self._heartbeats += heartbeats
            self._reports += reports
            self._failures += failures
            self._seconds.append(elapsed)

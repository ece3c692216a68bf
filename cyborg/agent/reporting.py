# SPDX-License-Identifier: Apache-2.0
"""Tells the conductor what the host has, when that is known to differ.

One loop: look, report, wait for the period or for a reason to look sooner.
What the conductor has acknowledged is known by its digest; as long as that
is the same, a heartbeat does.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Protocol

import oslo_messaging
from oslo_log import log

from cyborg import context
from cyborg import exception
from cyborg import inventory
from cyborg.agent import discovery
from cyborg.agent import provider

LOG = log.getLogger(__name__)

PROVIDER_WAIT = 2.0
"""Seconds that a report waits for the look-up of the root provider."""
FIRST_RETRY = 1.0

_random = random.SystemRandom()


class Conductor(Protocol):
    """What we need of the conductor."""

    def report_host(
        self, context: context.RequestContext, report: inventory.HostReport
    ) -> None:
        """Store the whole host."""

    def heartbeat(
        self, context: context.RequestContext, host: str, digest: str
    ) -> bool:
        """True where the conductor knows exactly this."""


class Reporter:
    """The report loop of one host."""

    def __init__(
        self,
        host: str,
        period: float,
        conductor: Conductor,
        found: discovery.Discovery,
    ) -> None:
        self._host = host
        self._period = period
        self._conductor = conductor
        self._discovery = found
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._acknowledged: str | None = None
        self._reported: inventory.HostReport | None = None
        self._failures = 0
        self.told_at: float | None = None
        """When (seconds since the epoch) a conductor last took a report."""
        self.findings: discovery.Findings | None = None
        """What the last look found."""

    @property
    def drivers(self) -> list[str]:
        """The names of the drivers that are asked."""
        return self._discovery.drivers

    def wake(self) -> None:
        """Look again at once."""
        self._woken.set()

    def stop(self) -> None:
        """End the loop after what it is doing now."""
        self._stopped.set()
        self._woken.set()

    def run(self, root: provider.RootProvider) -> None:
        """Report until stopped; survives whatever goes wrong in between."""
        pause = self._period * _random.uniform(0.5, 1)
        first = True
        while True:
            self._woken.clear()
            if self._stopped.is_set():
                return
            # Each report is a request of its own, with an id to follow.
            with context.acting(context.admin_context()):
                done = self._round(root, first)
            first = False
            self._woken.wait(pause if done else self._retry_pause())
            pause = self._period

    def _round(self, root: provider.RootProvider, first: bool) -> bool:
        """One look and what there is to say about it; False: say it again
        sooner than the period."""
        try:
            findings = self._discovery.look()
            if findings is None:
                return False
            self.findings = findings
            if first:
                root.settle(PROVIDER_WAIT)
            self._tell(root, findings)
            self.told_at = time.time()
        except (
            exception.CyborgError,
            oslo_messaging.MessagingException,
        ) as error:
            self._failed(error)
            return False
        except Exception:
            if not self._stopped.is_set():
                LOG.exception("The report failed; it is tried again")
            self._failures += 1
            return False
        if self._failures:
            LOG.info(
                "The conductor has the report of this host again, after "
                "%d tries in vain",
                self._failures,
            )
            self._failures = 0
        return True

    def _tell(
        self, root: provider.RootProvider, findings: discovery.Findings
    ) -> None:
        context_ = context.current()
        report = self._report(root, findings)
        digest = report.digest()
        if digest == self._acknowledged:
            if self._conductor.heartbeat(context_, self._host, digest):
                return
            self._acknowledged = None
            root.refresh(PROVIDER_WAIT)
            report = self._report(root, findings)
        self._conductor.report_host(context_, report)
        self._acknowledged = report.digest()
        self._say(report)

    def _say(self, report: inventory.HostReport) -> None:
        """What an operator may want to know of a report that got through."""
        if self._reported is not None:
            changes = inventory.diff(self._reported.devices, report.devices)
            for device in changes.added:
                LOG.info("%s appeared", _called(device))
            for device in changes.removed:
                LOG.info("%s is gone, or its driver at fault", _called(device))
        self._reported = report
        LOG.info(
            "Reported %d devices below provider %s (%s), %d drivers at fault",
            len(report.devices),
            report.provider_name,
            report.provider_uuid or "not in Placement yet",
            len(report.faults),
        )

    def _report(
        self, root: provider.RootProvider, findings: discovery.Findings
    ) -> inventory.HostReport:
        name, uuid = root.current
        return inventory.HostReport(
            host=self._host,
            provider_name=name,
            provider_uuid=uuid,
            devices=findings.devices,
            faults=findings.faults,
        )

    def _failed(self, error: Exception) -> None:
        if not self._failures:
            LOG.warning(
                "The conductor did not take the report of this host (%s); "
                "trying on",
                error,
            )
        self._failures += 1

    def _retry_pause(self) -> float:
        """1, 2, 4 ... seconds up to the period, and not all agents of a
        cloud in the same moment."""
        doubled: int = 2 ** min(max(0, self._failures - 1), 16)
        longest = min(self._period, FIRST_RETRY * doubled)
        return longest * _random.uniform(0.5, 1)


def _called(device: inventory.Device) -> str:
    return f"{device.type} {device.model} at {device.controlpath}"

# SPDX-License-Identifier: Apache-2.0
"""What this host's agent reported last, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import core

from cyborg.agent import reporting


class Gauges:
    """A collector of what a reporter knows."""

    def __init__(self, reporter: reporting.Reporter) -> None:
        self._reporter = reporter

    def collect(self) -> Iterator[core.Metric]:
        """The families of metrics."""
        yield core.GaugeMetricFamily(
            "cyborg_agent_last_report_timestamp_seconds",
            "When a conductor last took the report of this host; 0 where "
            "none has yet.",
            value=self._reporter.told_at or 0,
        )
        found = self._reporter.findings
        if found is None:
            return
        devices = core.GaugeMetricFamily(
            "cyborg_agent_devices",
            "Devices that the last look found.",
            labels=["driver"],
        )
        for driver, number in Counter(
            device.driver for device in found.devices
        ).items():
            devices.add_metric([driver], number)
        yield devices
        faults = core.GaugeMetricFamily(
            "cyborg_agent_driver_fault",
            "1 where a driver could not say what there is; the log says why.",
            labels=["driver"],
        )
        at_fault = {fault.driver for fault in found.faults}
        for driver in self._reporter.drivers:
            faults.add_metric([driver], driver in at_fault)
        yield faults

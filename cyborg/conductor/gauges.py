# SPDX-License-Identifier: Apache-2.0
"""What the database holds, counted when Prometheus asks.

Every conductor counts the same rows.  Asking often costs nothing more: what
was counted is kept for some seconds.  A database that does not answer in
time costs the reader only these numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import core
from sqlalchemy import orm

from cyborg import exception
from cyborg.db import clock
from cyborg.db import counts
from cyborg.db import engine

LOG = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that a reader waits for the database; Prometheus itself gives up
after ten."""


class _Found(NamedTuple):
    arqs: counts.Counts
    untold: int
    devices: counts.Counts
    handles: counts.Counts
    jobs: counts.Counts
    agents: counts.Counts
    owed: set[tuple[int, int]]


class Gauges:
    """A collector; `keep` is for how many seconds numbers are kept."""

    def __init__(
        self, database: engine.Database, down_time: float, keep: float
    ) -> None:
        self._database = database
        self._down_time = down_time
        self._keep = keep
        self._changed = threading.Condition()
        self._counting = False
        self._found: _Found | None = None
        self._found_at = float("-inf")
        self._owed_since: dict[tuple[int, int], float] = {}

    def collect(self) -> Iterator[core.Metric]:
        """The families of metrics."""
        found = self._fresh()
        yield core.GaugeMetricFamily(
            "cyborg_database_up",
            "Whether the database could be counted.",
            value=found is not None,
        )
        if found is not None:
            yield from _families(found)
            yield core.GaugeMetricFamily(
                "cyborg_reconcile_oldest_owed_seconds",
                "How long ago this conductor first saw what Placement has "
                "been owed for longest; 0 where nothing is owed.",
                value=self._oldest(),
            )

    def _fresh(self) -> _Found | None:
        """What was counted lately; None where that cannot be had now."""
        with self._changed:
            if time.monotonic() - self._found_at < self._keep:
                return self._found
            if not self._counting:
                self._counting = True
                threading.Thread(
                    target=self._count, name="gauges", daemon=True
                ).start()
            ended = self._changed.wait_for(
                lambda: not self._counting, PATIENCE
            )
            return self._found if ended else None

    def _count(self) -> None:
        found = None
        try:
            found = self._read()
        except exception.CyborgError as error:
            LOG.debug("Nothing was counted: %s", error)
        except Exception:
            # Outermost frame of the thread.
            LOG.exception("The rows could not be counted for the metrics.")
        with self._changed:
            self._found = found
            if found is not None:
                self._found_at = time.monotonic()
                self._remember(found.owed)
            self._counting = False
            self._changed.notify_all()

    def _read(self) -> _Found:
        with engine.translated(), self._database.reader() as session:
            return _found(session, clock.after(-self._down_time))

    def _remember(self, owed: set[tuple[int, int]]) -> None:
        now = time.monotonic()
        self._owed_since = {
            each: self._owed_since.get(each, now) for each in owed
        }

    def _oldest(self) -> float:
        with self._changed:
            since = min(self._owed_since.values(), default=None)
        return 0.0 if since is None else time.monotonic() - since


def _found(session: orm.Session, silent_before: clock.Moment) -> _Found:
    return _Found(
        counts.arqs(session),
        counts.arqs_untold(session),
        counts.devices(session),
        counts.handles(session),
        counts.jobs(session),
        counts.agents(session, silent_before),
        counts.owed(session),
    )


def _families(found: _Found) -> Iterator[core.Metric]:
    yield _family(
        "cyborg_arqs", "Accelerator requests.", ["state"], found.arqs
    )
    yield core.GaugeMetricFamily(
        "cyborg_arqs_untold",
        "Accelerator requests whose result Nova has not been told.",
        value=found.untold,
    )
    yield _family(
        "cyborg_devices",
        "Devices.",
        ["type", "status", "condition"],
        found.devices,
    )
    yield _family(
        "cyborg_attach_handles",
        "What instances can be given.",
        ["resource_class", "use"],
        found.handles,
    )
    yield _family(
        "cyborg_jobs", "Work on hosts.", ["kind", "state"], found.jobs
    )
    yield _family(
        "cyborg_agents", "Agents.", ["sign", "drivers"], found.agents
    )
    yield core.GaugeMetricFamily(
        "cyborg_reconcile_owed_hosts",
        "Hosts whose resource providers are not as they should be.",
        value=len(found.owed),
    )


def _family(
    name: str, text: str, labels: list[str], found: counts.Counts
) -> core.Metric:
    family = core.GaugeMetricFamily(name, text, labels=labels)
    for values, number in found.items():
        family.add_metric(values, number)
    return family

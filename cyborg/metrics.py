# SPDX-License-Identifier: Apache-2.0
"""What is counted and timed, for Prometheus.

Every label has few values, whatever clients send: a route and not a path, a
class of statuses and not a text.  Whoever measures calls the functions here;
a number that cannot be noted never fails what is measured.  What is only
known when somebody asks (rows of the database) is a collector that its owner
adds.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Protocol

import prometheus_client
from prometheus_client import core
from prometheus_client import multiprocess

from cyborg import metric_files

LOG = logging.getLogger(__name__)

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
OTHER = "other"
"""The one label of all that clients make up."""

METHODS = frozenset({"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"})

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_registry = prometheus_client.CollectorRegistry()
_collectors = prometheus_client.CollectorRegistry()

_api = prometheus_client.Histogram(
    "cyborg_api_request_duration_seconds",
    "Requests answered by the API, authentication included.",
    ("method", "route", "status"),
    buckets=FAST,
    registry=_registry,
)
_called = prometheus_client.Histogram(
    "cyborg_rpc_client_duration_seconds",
    "RPC calls made.",
    ("topic", "method", "outcome"),
    buckets=SLOW,
    registry=_registry,
)
_served = prometheus_client.Histogram(
    "cyborg_rpc_server_duration_seconds",
    "RPC calls served.",
    ("method", "outcome"),
    buckets=SLOW,
    registry=_registry,
)
_requested = prometheus_client.Histogram(
    "cyborg_service_request_duration_seconds",
    "Requests to Placement, Nova and Glance.",
    ("service", "method", "outcome"),
    buckets=SLOW,
    registry=_registry,
)
_discovered = prometheus_client.Histogram(
    "cyborg_agent_discovery_duration_seconds",
    "Looks of a driver at its hardware that ended.",
    ("driver",),
    buckets=SLOW,
    registry=_registry,
)
_passed = prometheus_client.Counter(
    "cyborg_conductor_passes_total",
    "Passes over work that is due.",
    ("work", "outcome"),
    registry=_registry,
)
_passed_at = prometheus_client.Gauge(
    "cyborg_conductor_last_pass_timestamp_seconds",
    "When such a pass last succeeded; 0 where none has yet.",
    ("work",),
    multiprocess_mode="max",
    registry=_registry,
)


class Collector(Protocol):
    """Something that counts when it is asked."""

    def collect(self) -> Iterable[core.Metric]:
        """The families of metrics."""


class Outcome:
    """How something that is timed ended; whoever does it says so."""

    def __init__(self) -> None:
        self.label = "ok"


@contextlib.contextmanager
def _timed(
    histogram: prometheus_client.Histogram, *labels: str
) -> Iterator[Outcome]:
    """Time what is done within; its outcome is the last label."""
    outcome = Outcome()
    began = time.perf_counter()
    try:
        yield outcome
    except BaseException:
        if outcome.label == "ok":
            outcome.label = "failed"
        raise
    finally:
        _observe(
            histogram, (*labels, outcome.label), time.perf_counter() - began
        )


def _observe(
    histogram: prometheus_client.Histogram,
    labels: tuple[str, ...],
    seconds: float,
) -> None:
    with _unfailing():
        histogram.labels(*labels).observe(seconds)


@contextlib.contextmanager
def _unfailing() -> Iterator[None]:
    """A full disk or a broken file costs numbers, and nothing else."""
    try:
        yield
    except Exception:
        # The library meets files that it could not open as TypeErrors.
        LOG.debug("A number was not noted.", exc_info=True)


def api_request(method: str, route: str, status: int, seconds: float) -> None:
    """Note a request that was answered."""
    if method not in METHODS:
        method = OTHER
    _observe(_api, (method, route, f"{status // 100}xx"), seconds)


def rpc_called(
    topic: str, method: str
) -> contextlib.AbstractContextManager[Outcome]:
    """Time a call to another service of ours."""
    return _timed(_called, topic, method)


def rpc_served(method: str) -> contextlib.AbstractContextManager[Outcome]:
    """Time the work that another service of ours called for."""
    return _timed(_served, method)


def requested(
    service: str, method: str
) -> contextlib.AbstractContextManager[Outcome]:
    """Time a request to another service of the cloud."""
    return _timed(_requested, service.lower(), method)


def discovered(driver: str, seconds: float) -> None:
    """Note that a driver has looked at its hardware."""
    _observe(_discovered, (driver,), seconds)


def passed(work: str, succeeded: bool) -> None:
    """Note that a conductor looked for what is due."""
    with _unfailing():
        _passed.labels(work, "ok" if succeeded else "failed").inc()
        at = _passed_at.labels(work)  # told as 0 until one has succeeded
        if succeeded:
            at.set(time.time())


def add(collector: Collector) -> None:
    """Ask this too from now on."""
    _collectors.register(collector)


def remove(collector: Collector) -> None:
    """Ask it no more."""
    with contextlib.suppress(KeyError):
        _collectors.unregister(collector)


class _Build:
    """What runs here, and whether the numbers are those of all workers."""

    def __init__(self, program: str, version: str, complete: bool) -> None:
        self._labels = (program, version, platform.python_version())
        self._complete = complete

    def collect(self) -> Iterator[core.Metric]:
        build = core.GaugeMetricFamily(
            "cyborg_build_info",
            "The service and its version.",
            labels=("program", "version", "python"),
        )
        build.add_metric(self._labels, 1)
        yield build
        yield core.GaugeMetricFamily(
            "cyborg_metrics_complete",
            "1 where these are the numbers of all workers, 0 where of one.",
            value=self._complete,
        )


class _Counting:
    """How this process counts, decided once."""

    def __init__(self) -> None:
        self.decided = False


_counting = _Counting()


def begin(
    program: str,
    version: str,
    state_path: str,
    *,
    workers: int = 1,
    unless_begun: bool = False,
) -> bool:
    """Decide how this process counts: alone, or (0: of a server that is not
    ours) with other `workers`.

    To be called before workers are started.  Whether it was decided now.
    """
    if _counting.decided and unless_begun:
        return False
    first, _counting.decided = not _counting.decided, True
    complete = True
    if workers == 1:
        metric_files.alone()
    else:
        try:
            metric_files.share(state_path, with_siblings=workers == 0)
        except OSError as error:
            complete = False
            LOG.warning(
                "[DEFAULT] state_path: metrics cannot be counted for all "
                "workers together (%s): each tells its own.",
                error,
            )
            metric_files.alone()
    if first:
        if workers == 1:
            prometheus_client.ProcessCollector(registry=_collectors)
        add(_Build(program, version, complete))
    return True


def own_numbers() -> Iterator[tuple[str, float]]:
    """What this process itself has counted, without the distributions."""
    for family in _registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                labels = ",".join(sample.labels.values())
                yield f"{sample.name} {labels}", sample.value


def text() -> bytes:
    """All that there is to tell, in Prometheus' text format."""
    registry = _registry
    shared = metric_files.folder()
    if shared is not None:
        registry = prometheus_client.CollectorRegistry()
        multiprocess.MultiProcessCollector(  # type: ignore[no-untyped-call]
            registry, str(shared)
        )
    return prometheus_client.generate_latest(
        _collectors
    ) + prometheus_client.generate_latest(registry)

# SPDX-License-Identifier: Apache-2.0
"""What tests of every kind share."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import TypeVar

import pytest
from oslo_config import cfg

from cyborg import metrics
from cyborg import service

_CONNECTIONS = "oslo_messaging._drivers.impl_rabbit"
STRICT = "CYBORG_TEST_REQUIRE_SERVICES"
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    """A configuration with every option at its default, read from no file."""
    result = cfg.ConfigOpts()
    service.prepare(result)
    result(
        args=[],
        project="cyborg",
        default_config_files=[],
        default_config_dirs=[],
    )
    return result


@pytest.fixture(autouse=True)
def _usual_level() -> None:
    """Warnings and worse, whatever a program of ours that an earlier test
    ran in this process has asked logging for."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def _earlier_tests_are_silent() -> Iterator[None]:
    """oslo.messaging tries for ever to reach the broker that a test took
    away: what its threads say is not heard in later tests."""
    earlier = {
        thread.ident
        for thread in threading.enumerate()
        if thread is not threading.current_thread()
    }

    def new(record: logging.LogRecord) -> bool:
        return record.thread not in earlier

    log = logging.getLogger(_CONNECTIONS)
    log.addFilter(new)
    yield
    log.removeFilter(new)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> pytest.TestReport:
    """A test that is skipped fails where nothing may be missing."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> pytest.CollectReport:
    """So does a module."""
    return _judged((yield))


def pytest_configure(config: pytest.Config) -> None:
    """Tests count in memory, whatever application one of them makes: what
    was counted before a directory is shared would be lost.

    A failure is named at once where a run takes long.
    """
    metrics.begin("cyborg-tests", service.version(), "")
    if os.environ.get(STRICT) == "1" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config))


class _Failures:
    """Says which test failed, and why in one line, as soon as it is known."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        lines = report.longreprtext.strip().splitlines() or [""]
        why = next((line for line in lines if line[:2] == "E "), lines[-1])
        terminal.write_line("")
        terminal.write_line(f"FAILED {report.nodeid}: {why[:300]}")


def _judged(report: Report) -> Report:
    if report.skipped and os.environ.get(STRICT) == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, though {STRICT}=1: {report.longreprtext}"
    return report

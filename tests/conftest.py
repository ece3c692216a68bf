# SPDX-License-Identifier: Apache-2.0
"""What tests of every kind share."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest
from oslo_config import cfg

from cyborg import service

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> pytest.TestReport:
    """A test that is skipped fails where nothing may be missing."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> pytest.CollectReport:
    """So does a module."""
    return _judged((yield))


def _judged(report: Report) -> Report:
    if report.skipped and os.environ.get(STRICT) == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, though {STRICT}=1: {report.longreprtext}"
    return report

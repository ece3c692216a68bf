# SPDX-License-Identifier: Apache-2.0
"""What a running process is doing, told on SIGUSR2 (oslo.reports).

Nothing is stopped or asked over the network for it, and no secret is told:
people send such reports to each other.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import sys
import threading
from typing import Any

from oslo_config import cfg
from oslo_reports import guru_meditation_report
from oslo_reports.generators import process
from oslo_reports.generators import version as package
from oslo_reports.models import threading as thread_models
from oslo_reports.models import with_default_views
from oslo_reports.views.text import generic

from cyborg import metrics

LOG = logging.getLogger(__name__)

HIDDEN = "***"
_SECRETIVE = re.compile(r"password|secret|passphrase|connection_parameters")
"""Names of options that hold a secret which their library has not declared
as one."""
_PASSWORD = re.compile(r"(//[^/@:\s]*:)[^/\s]+@")
"""Of a URL in an option that nobody has declared to be a secret."""


class _Version:
    """What oslo.reports asks of pbr."""

    def vendor_string(self) -> str:
        return "OpenStack"

    def product_string(self) -> str:
        return "Cyborg"

    def version_string_with_package(self) -> str:
        return importlib.metadata.version("openstack-cyborg")


class Report(guru_meditation_report.TextGuruMeditation):
    """The library's report with the configuration that this process has,
    names of threads, and what was counted."""

    conf: cfg.ConfigOpts | None = None

    def _readd_sections(self) -> None:
        del self.sections[self.start_section_index :]
        self.add_section(
            "Package", package.PackageReportGenerator(self.version_obj)
        )
        self.add_section("Threads", _threads)
        self.add_section("Processes", process.ProcessReportGenerator())
        self.add_section("Work", _work)
        self.add_section("Configuration", lambda: _configuration(self.conf))


def prepare(conf: cfg.ConfigOpts) -> None:
    """Report about `conf`, also when `[oslo_reports] file_event_handler`
    is touched."""
    Report.conf = conf
    if not conf.oslo_reports.file_event_handler:
        return
    try:
        Report.setup_autorun(
            _Version(), _author(conf), conf=conf, setup_signal=False
        )
    except OSError as error:
        LOG.warning("[oslo_reports] file_event_handler: %s", error)


def write(conf: cfg.ConfigOpts) -> None:
    """Tell on stderr, or in a new file of `[oslo_reports] log_dir`.

    Where neither takes it the log says so: whoever asks disturbs nothing.
    """
    try:
        Report.handle_signal(
            _Version(), _author(conf), conf.oslo_reports.log_dir, None
        )
        sys.stderr.flush()
    except (OSError, ValueError) as error:
        LOG.warning("A report could not be written: %s", error)


def _author(conf: cfg.ConfigOpts) -> str:
    """What names a report's file: workers that are asked together would
    else write the same one."""
    return f"{conf.prog}-{os.getpid()}"


def _threads() -> Any:
    names = {each.ident: each.name for each in threading.enumerate()}
    found: dict[int, Any] = {}
    for number, stack in sys._current_frames().items():  # noqa: SLF001
        found[number] = thread_models.ThreadModel(number, stack)
        name = names.get(number, "of a library")
        found[number]["thread_id"] = f"{number} ({name})"
    return with_default_views.ModelWithDefaultViews(
        found, text_view=generic.MultiView()
    )


def _work() -> Any:
    return with_default_views.ModelWithDefaultViews(
        dict(metrics.own_numbers()),
        text_view=generic.KeyValueView(key_sep=" "),
    )


def _configuration(conf: cfg.ConfigOpts | None) -> Any:
    """Every registered option; one that cannot be read is told as such."""
    groups: dict[str, Any] = {}
    if conf is not None:
        groups["default"] = _values(conf, conf._opts)  # noqa: SLF001
        for name, group in conf._groups.items():  # noqa: SLF001
            groups[name] = _values(conf[name], group._opts)  # noqa: SLF001
    return with_default_views.ModelWithDefaultViews(
        groups,
        text_view=generic.KeyValueView(dict_sep=": ", before_dict=""),
    )


def _values(section: Any, options: dict[str, Any]) -> dict[str, object]:
    return {
        name: HIDDEN
        if known["opt"].secret or _SECRETIVE.search(name)
        else _value(section, name)
        for name, known in options.items()
    }


def _value(section: Any, name: str) -> object:
    try:
        text = str(section[name])
    except (cfg.Error, ValueError):
        return "(cannot be read)"
    return _PASSWORD.sub(rf"\1{HIDDEN}@", text)

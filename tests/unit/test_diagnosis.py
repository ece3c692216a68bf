# SPDX-License-Identifier: Apache-2.0
"""A report tells what a process does and none of its secrets."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from keystonemiddleware import opts as middleware
from oslo_config import cfg
from oslo_messaging import opts as messaging

import cyborg.conf
from cyborg import diagnosis
from cyborg import metrics
from cyborg.conf import services

SECRET = "hunter2"


@pytest.fixture
def armed(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """A configuration with a secret wherever one may be."""
    for group, options in (
        *middleware.list_auth_token_opts(),
        *services.plugin_groups(),
    ):
        conf.register_opts(options, group=group)
    for group, options in cyborg.conf.list_opts():
        for option in options:
            if option.secret:
                name = getattr(group, "name", group) or "DEFAULT"
                if name in conf and option.dest in conf[name]:
                    conf.set_override(option.dest, SECRET, name)
    url = f"rabbit://user:{SECRET}@host:5672/"
    conf.set_override("transport_url", url)
    conf.set_override("transport_url", url, "oslo_messaging_notifications")
    conf.set_override(
        "connection", f"mysql+pymysql://cyborg:{SECRET}@db/x", "database"
    )
    conf.set_override("memcache_secret_key", SECRET, "keystone_authtoken")
    conf.set_override(
        "public_endpoint", f"https://user:{SECRET}@cloud.example/a", "api"
    )
    diagnosis.prepare(conf)
    return conf


def test_a_report_names_threads_options_and_numbers(
    armed: cfg.ConfigOpts, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics.passed("something", succeeded=True)
    diagnosis.write(armed)
    told = capfd.readouterr().err
    assert "(MainThread)" in told
    assert "test_a_report_names_threads" in told
    assert "periodic_interval = 60" in told
    assert "cyborg_conductor_passes_total something,ok" in told
    assert "OpenStack" in told


def test_a_report_holds_no_secret(
    armed: cfg.ConfigOpts, capfd: pytest.CaptureFixture[str]
) -> None:
    for group in ("placement", "nova", "keystone_authtoken"):
        armed.set_override("password", SECRET, group)
    diagnosis.write(armed)
    told = capfd.readouterr().err
    assert SECRET not in told
    assert "transport_url = ***" in told
    assert "connection = ***" in told
    assert "password = ***" in told
    assert "https://user:***@cloud.example/a" in told


def test_what_a_library_has_not_declared_a_secret_is_none_the_less(
    armed: cfg.ConfigOpts, capfd: pytest.CaptureFixture[str]
) -> None:
    for group, options in messaging.list_opts():
        armed.register_opts(options, group=group)
    armed.set_override(
        "ssl_client_key_password", SECRET, "oslo_messaging_kafka"
    )
    armed.set_override(
        "connection_parameters", f"password={SECRET}", "database"
    )
    armed.set_override(
        "public_endpoint", f"https://a:x@{SECRET}@h,b:{SECRET}@i/a", "api"
    )
    diagnosis.write(armed)
    told = capfd.readouterr().err
    assert SECRET not in told
    assert "ssl_client_key_password = ***" in told


@pytest.mark.parametrize("problem", ["full", "closed"])
def test_a_report_that_nobody_takes_is_a_line_in_the_log(
    armed: cfg.ConfigOpts,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as stream:
        if problem == "closed":
            stream.close()
        monkeypatch.setattr("sys.stderr", stream)
        diagnosis.write(armed)
    assert "A report could not be written" in caplog.text


def test_an_option_that_cannot_be_read_costs_only_itself(
    armed: cfg.ConfigOpts, capfd: pytest.CaptureFixture[str]
) -> None:
    armed.set_default("public_endpoint", "$nowhere", "api")
    armed.clear_override("public_endpoint", "api")
    diagnosis.write(armed)
    told = capfd.readouterr().err
    assert "public_endpoint = (cannot be read)" in told
    assert "port = 6666" in told


def test_a_report_goes_to_its_directory(
    armed: cfg.ConfigOpts,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    armed.set_override("log_dir", str(tmp_path), "oslo_reports")
    diagnosis.write(armed)
    (written,) = tmp_path.iterdir()
    assert f"-{os.getpid()}_gurumeditation_" in written.name
    assert "Guru Meditation" in written.read_text()
    assert "Guru Meditation" not in capfd.readouterr().err


def test_a_file_to_watch_that_is_not_there_stops_nothing(
    armed: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture
) -> None:
    armed.set_override(
        "file_event_handler", "/nonexistent/file", "oslo_reports"
    )
    diagnosis.prepare(armed)
    assert "[oslo_reports] file_event_handler" in caplog.text

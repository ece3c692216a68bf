# SPDX-License-Identifier: Apache-2.0
"""Processes start, obey signals and end, seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from oslo_config import cfg

from cyborg import service

PROGRAM = """
    import logging, os, signal, sys, threading
    from cyborg import service

    def say(text):
        # One write: lines of several workers must not mix.
        os.write(1, f"{text}\\n".encode())

    class Recorder:
        def start(self):
            if "fail" in sys.argv:
                raise service.Mistake("[api] port: is taken")
            if "wait" in sys.argv:
                say("waits")
                threading.Event().wait()
            say(f"started {os.getpid()}")

        def stop(self):
            if "stuck" in sys.argv:
                say("stuck")
                threading.Event().wait()
            say("stopped")

    conf = service.configure(["--config-file", sys.argv[1]], "cyborg-test")
    if "quick" in sys.argv:
        service.STOP_SECONDS = 0.5
    service.run(conf, lambda: [Recorder()], workers=int(sys.argv[2]))
    if "timer" in sys.argv:
        say(f"timer {signal.getitimer(signal.ITIMER_REAL)[0]}")
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "cyborg.conf"
    path.write_text("[DEFAULT]\ndebug = false\n")
    return path


@pytest.fixture
def start(config: Path, tmp_path: Path) -> Iterator[Start]:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, workers: int = 1) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", program, config, str(workers)]
            + list(words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def _line(stream: IO[str] | None, begin: str) -> str:
    """The next line that holds `begin`."""
    assert stream is not None
    for line in stream:
        if begin in line:
            return line.strip()
    raise AssertionError(f"ended without {begin!r}")


def test_one_worker_is_the_process_that_was_started(start: Start) -> None:
    process = start()
    assert _line(process.stdout, "started") == f"started {process.pid}"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert output == "stopped\n"
    assert process.returncode == 0


def test_a_service_that_does_not_stop_is_left_after_some_seconds(
    start: Start,
) -> None:
    process = start("stuck", "quick")
    _line(process.stdout, "started")
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=10)
    assert "left unfinished" in log
    assert process.returncode == 0


def test_a_second_signal_ends_a_process_at_once(start: Start) -> None:
    process = start("stuck")
    _line(process.stdout, "started")
    process.send_signal(signal.SIGTERM)
    _line(process.stdout, "stuck")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == 0


def test_a_process_that_still_starts_can_be_stopped(start: Start) -> None:
    process = start("wait")
    _line(process.stdout, "waits")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_at_start_is_one_line_and_exit_code_1(
    start: Start, workers: int
) -> None:
    process = start("fail", workers=workers)
    _, log = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "cyborg-test: [api] port: is taken" in log
    assert "Traceback" not in log


def test_sighup_reads_debug_again(start: Start, config: Path) -> None:
    process = start()
    _line(process.stdout, "started")
    config.write_text("[DEFAULT]\ndebug = maybe\n")
    process.send_signal(signal.SIGHUP)
    _line(process.stderr, "was not read again")
    config.write_text("[DEFAULT]\ndebug = true\n")
    process.send_signal(signal.SIGHUP)
    _line(process.stderr, "read again")
    assert process.poll() is None


def test_workers_end_with_the_process_that_was_started(start: Start) -> None:
    process = start(workers=2)
    pids = [_line(process.stdout, "started").split()[1] for _ in range(2)]
    assert str(process.pid) not in pids
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert output == "stopped\nstopped\n"
    assert process.returncode == 0


def test_no_alarm_is_left_where_the_workers_have_ended(start: Start) -> None:
    process = start("timer", workers=2)
    for _ in range(2):
        _line(process.stdout, "started")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert output.endswith("timer 0.0\n")


def test_workers_end_when_their_parent_is_killed(start: Start) -> None:
    process = start(workers=2)
    for _ in range(2):
        _line(process.stdout, "started")
    process.kill()
    # The pipe closes when the last of them has ended.
    output, _ = process.communicate(timeout=10)
    assert output.count("stopped") == 2


def test_a_worker_that_was_killed_is_replaced(start: Start) -> None:
    process = start(workers=2)
    first = int(_line(process.stdout, "started").split()[1])
    _line(process.stdout, "started")
    os.kill(first, signal.SIGKILL)
    assert int(_line(process.stdout, "started").split()[1]) != first


def _configured(tmp_path: Path, text: str) -> cfg.ConfigOpts:
    path = tmp_path / "cyborg.conf"
    path.write_text(text)
    return service.configure(["--config-file", str(path)], "cyborg-test")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[DEFAULT]\nauth_strategy = kerberos",
            "[DEFAULT] auth_strategy: must be keystone or noauth, not "
            "'kerberos'",
        ),
        ("[api]\nport = abc", "[api] port: invalid literal"),
        ("[api]\nport = 70000", "[api] port: Should be less than"),
        ("[database]\nmax_pool_size = x", "[database] max_pool_size: "),
        ("[agent]\ndriver_timeout = -1", "[agent] driver_timeout: "),
        ("[agent]\nclean_timeout = 0", "[agent] clean_timeout: "),
        ("[agent]\nclean_timeout =", "[agent] clean_timeout: must not be"),
        ("[agent]\nclean_on_release = x", "[agent] clean_on_release: "),
        ("[DEFAULT]\nhost = a b", "[DEFAULT] host: "),
        ("[oslo_messaging_rabbit]\nssl = x", "[oslo_messaging_rabbit] ssl: "),
        ("[upgrade_levels]\nagent = new", "[upgrade_levels] agent: "),
        ("[api]\nport =", "[api] port: must not be empty"),
        ("[DEFAULT]\nbind_timeout =", "[DEFAULT] bind_timeout: must not be"),
        ("[DEFAULT]\nbind_timeout = nan", "[DEFAULT] bind_timeout: must be"),
        ("[DEFAULT]\nbind_timeout = inf", "[DEFAULT] bind_timeout: "),
        ("[conductor]\nworkers =", "[conductor] workers: must not be empty"),
        (
            "[conductor]\nservice_down_time = 99999999999",
            "[conductor] service_down_time: Should be less than",
        ),
        ("[agent]\ndriver_timeout = nan", "[agent] driver_timeout: must be"),
        (
            "[database]\nconnection = mysql://u:pa$word@127.0.0.1/c",
            "[database] connection: a `$` stands before",
        ),
        ("[DEFAULT]\nlog_file = $nothing", "no such option nothing"),
        ("[DEFAULT]\nstate_path = $state_path", "[DEFAULT] state_path: "),
        ("[DEFAULT]\nauth_strategy = $nope.x", "[DEFAULT] auth_strategy: "),
        (
            "[DEFAULT]\ndefault_log_levels = a:b,=",
            "[DEFAULT] default_log_levels: ",
        ),
        ("[DEFAULT]\nrate_limit_burst =", "[DEFAULT] rate_limit_interval, "),
        ("nonsense", "Failed to parse"),
    ],
)
def test_a_bad_value_stops_the_process_by_the_options_name(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        _configured(tmp_path, text)
    assert str(caught.value).startswith(f"cyborg-test: {expected}")


@pytest.mark.parametrize(
    "text",
    [
        "[fake]\ndevices = many",
        "[fake]\ndevices =",
        "[fake]\nprogram_seconds = 1e400",
        "[gpu_devices]\nfilter_sriov_vfs = perhaps",
        "[nic_devices]\nenabled_nic_types = $nothing",
        "[nvme]\ncleanup_timeout = 5",
        "[pci]\npassthrough_whitelist = $nothing",
        "[agent]\nclean_timeouts = nvme_driver",
        "[agent]\nspdk_socket = $nothing",
        "[agent]\nvirtual_functions = $nothing",
    ],
)
def test_what_single_drivers_read_is_theirs_to_judge(
    tmp_path: Path, text: str
) -> None:
    conf = _configured(tmp_path, text)
    service.reload(conf)
    assert conf.agent.driver_timeout == 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "keystone"),
        ("auth_strategy =", "keystone"),
        ("auth_strategy = noauth", "noauth"),
    ],
)
def test_an_empty_auth_strategy_is_keystone(
    tmp_path: Path, text: str, expected: str
) -> None:
    conf = _configured(tmp_path, f"[DEFAULT]\n{text}\n")
    assert conf.auth_strategy == expected


def test_options_can_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OS_API__PORT", "7777")
    monkeypatch.setenv("OS_OSLO_MESSAGING_RABBIT__PROCESSNAME", "cyborg-api")
    conf = _configured(tmp_path, "")
    assert conf.api.port == 7777
    assert conf.oslo_messaging_rabbit.processname == "cyborg-api"


def test_a_missing_logging_file_is_a_warning(
    config: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "logging.conf"
    conf = service.configure(
        ["--config-file", str(config), "--log-config-append", str(missing)],
        "cyborg-test",
    )
    assert conf.log_config_append is None


def test_a_logging_directory_that_is_not_there_is_named(
    tmp_path: Path,
) -> None:
    with pytest.raises(SystemExit, match="log_file or log_dir"):
        service.configure(
            ["--log-file", str(tmp_path / "no" / "x.log")], "cyborg-test"
        )


def test_the_lazy_configuration_reads_the_files_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "one.conf", tmp_path / "two.conf"
    first.write_text("[api]\nport = 1111\n")
    second.write_text("[fake]\ndevices = 7\n")
    monkeypatch.setenv(service.FILES_VARIABLE, f"{first}; {second}")
    monkeypatch.setattr(service, "_process_configuration", None)
    conf = service.configuration()
    assert (conf.api.port, conf.fake.devices) == (1111, 7)
    assert service.configuration() is conf


def test_a_lock_path_is_made_where_it_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "var" / "lock"
    _configured(tmp_path, f"[oslo_concurrency]\nlock_path = {path}\n")
    assert path.is_dir()


def test_a_lock_path_that_cannot_be_made_stops_nobody(
    tmp_path: Path,
) -> None:
    conf = _configured(
        tmp_path, "[oslo_concurrency]\nlock_path = /proc/none/lock\n"
    )
    assert conf.oslo_concurrency.lock_path == "/proc/none/lock"

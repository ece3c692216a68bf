# SPDX-License-Identifier: Apache-2.0
"""Numbers of several processes, in processes of our own: the way of counting
is a process's, once and for all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

PREAMBLE = """
import os, sys, tempfile
from cyborg import metric_files, metrics

def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def ask():
    metrics.api_request("GET", "/v2", 200, 0.01)

def total():
    for line in metrics.text().decode().splitlines():
        if line.startswith("cyborg_api_request_duration_seconds_count"):
            return float(line.split()[-1])
    return 0.0

def files():
    return sorted(each.name for each in metric_files.folder().glob("h*.db"))
"""


def run(text: str, folder: Path, *words: str, **environment: str) -> str:
    """What a Python prints that runs the preamble and then the text."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PREAMBLE + textwrap.dedent(text),
            str(folder),
            *words,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(folder), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_workers_count_together_and_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    run(
        """
        metrics.begin("p", "1", sys.argv[1], workers=2)
        ask()
        for _ in range(5):
            child(lambda: (ask(), child(ask)))
        assert total() == 11, total()
        # The parent's slot, and those of a child and of its child.
        assert files() == [f"histogram_{n}.db" for n in range(3)], files()
        assert "cyborg_metrics_complete 1.0" in metrics.text().decode()
        """,
        tmp_path,
    )


def test_a_slot_is_nobodys_else_while_its_process_lives(
    tmp_path: Path,
) -> None:
    run(
        """
        metrics.begin("p", "1", sys.argv[1], workers=2)
        reader, writer = os.pipe()
        pids = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                os.close(writer)
                ask()
                os.read(reader, 1)
                os._exit(0)
            pids.append(pid)
        os.close(reader)
        while total() < 3:
            pass
        assert len(files()) == 4, files()
        os.close(writer)
        for pid in pids:
            os.waitpid(pid, 0)
        """,
        tmp_path,
    )


def test_what_nobody_uses_is_removed_and_what_somebody_uses_is_not(
    tmp_path: Path,
) -> None:
    begin = 'metrics.begin("p", "1", sys.argv[1], workers=2); ask()\n'
    run(begin, tmp_path)
    left = {path.name for path in (tmp_path / "metrics").glob("*-*")}
    assert len(left) == 1
    run(
        begin
        + """
        import subprocess
        one = metric_files.folder()
        subprocess.run(
            [sys.executable, "-c", sys.argv[2], sys.argv[1]], check=True
        )
        assert one.is_dir() and total() == 1
        """.replace("\n        ", "\n"),
        tmp_path,
        PREAMBLE + begin,
    )
    assert not left & {path.name for path in tmp_path.glob("metrics/*")}


def test_without_a_state_path_a_private_directory_does(
    tmp_path: Path,
) -> None:
    run(
        """
        metrics.begin("p", "1", sys.argv[1] + "/missing", workers=2)
        found = metric_files.folder()
        assert found.parent.name == f"cyborg-metrics-{os.geteuid()}", found
        assert found.stat().st_mode & 0o077 == 0
        assert found.parent.stat().st_mode & 0o077 == 0
        """,
        tmp_path,
    )


def test_a_directory_that_another_prepared_is_not_used(
    tmp_path: Path,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    (tmp_path / f"cyborg-metrics-{os.geteuid()}").symlink_to(elsewhere)
    told = run(
        """
        import logging
        logging.basicConfig(stream=sys.stdout)
        metrics.begin("p", "1", "/proc/missing", workers=2)
        ask()
        assert metric_files.folder() is None
        assert total() == 1
        assert "cyborg_metrics_complete 0.0" in metrics.text().decode()
        """,
        tmp_path,
    )
    assert "each tells its own" in told
    assert list(elsewhere.iterdir()) == []


def test_a_disk_that_takes_no_more_costs_the_sum_and_kills_nobody(
    tmp_path: Path,
) -> None:
    told = run(
        """
        import logging, resource
        logging.basicConfig(stream=sys.stdout)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        metrics.begin("p", "1", sys.argv[1], workers=2)
        ask()
        assert metric_files.folder() is None
        assert total() == 1
        """,
        tmp_path,
    )
    assert "each tells its own" in told


def test_files_that_cannot_be_opened_fail_nothing_that_is_counted(
    tmp_path: Path,
) -> None:
    run(
        """
        from prometheus_client import values
        metrics.begin("p", "1", sys.argv[1], workers=2)
        ask()

        def refuse(_name):
            raise OSError("too many open files")

        def work():
            opened, values.MmapedDict = values.MmapedDict, refuse
            ask()
            values.MmapedDict = opened
            ask()

        child(work)
        """,
        tmp_path,
    )


def test_alone_nothing_is_written_whatever_the_environment_says(
    tmp_path: Path,
) -> None:
    run(
        """
        metrics.begin("p", "1", sys.argv[1])
        ask()
        assert total() == 1
        assert b"process_resident_memory_bytes" in metrics.text()
        """,
        tmp_path,
        PROMETHEUS_MULTIPROC_DIR=str(tmp_path),
    )
    assert list(tmp_path.iterdir()) == []


def test_a_turn_passes_on_when_its_process_ends(tmp_path: Path) -> None:
    run(
        """
        metrics.begin("p", "1", sys.argv[1], workers=2)
        reader, writer = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(reader)
            metric_files.wait_for_turn()
            os.write(writer, b"1")
            import signal
            signal.pause()
        assert os.read(reader, 1) == b"1"
        second = os.fork()
        if second == 0:
            metric_files.wait_for_turn()
            os.write(writer, b"2")
            os._exit(0)
        import select
        assert not select.select([reader], [], [], 0.3)[0]
        os.kill(first, 9)
        assert os.read(reader, 1) == b"2"
        """,
        tmp_path,
    )

# SPDX-License-Identifier: Apache-2.0
"""Workers, in processes of our own."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_a_stop_while_workers_are_started_starts_no_more_of_them() -> None:
    """One that is started after the others were told would not be told."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import os, signal
                from cyborg import processes

                parent, fork = os.getpid(), os.fork

                def fork_and_stop():
                    child = fork()
                    if child:
                        print("one", flush=True)
                        os.kill(parent, signal.SIGTERM)
                    return child

                os.fork = fork_and_stop
                processes.supervise(3, signal.pause, 10)
                """
            ),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "one\n"

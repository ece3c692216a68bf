# SPDX-License-Identifier: Apache-2.0
"""Subprocesses that end with us and leave their output to read."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STOP_SECONDS = 60
ANSWER_SECONDS = 180


def finish(
    command: Sequence[str],
    seconds: float = 120,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the caller judges how it ended.

    `environment` replaces ours.
    """
    return subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment,
    )


class Child:
    """One subprocess, known by its pid; its output goes to a file."""

    def __init__(
        self,
        command: Sequence[str],
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.output = output
        # A test run that is killed must leave nothing behind.
        guard = (
            ["setpriv", "--pdeathsig", "KILL"]
            if shutil.which("setpriv")
            else []
        )
        with output.open("ab") as sink:
            self.process = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """End it by SIGTERM; its exit status.

        Raises subprocess.TimeoutExpired (and kills it) when it stays.
        """
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """End it as a crash would."""
        if self.running:
            self.process.kill()
        self.process.wait(STOP_SECONDS)

    def tail(self, lines: int = 40) -> str:
        """The last lines of its output; none where a test removed it."""
        if not self.output.exists():
            return ""
        text = self.output.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


class Dialogue:
    """A subprocess that answers each line of JSON with one; it ends when its
    standard input does.
    """

    def __init__(
        self,
        command: Sequence[str],
        errors: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._errors = errors
        with errors.open("ab") as sink:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=environment,
                text=True,
            )

    def ask(self, question: object) -> Any:
        """Its answer; AssertionError where there is none."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self.listen()

    def listen(self) -> Any:
        """What it says next."""
        said = self._process.stdout
        assert said is not None
        ready, _, _ = select.select([said], [], [], ANSWER_SECONDS)
        line = said.readline() if ready else ""
        assert line, self._errors.read_text(errors="replace")
        return json.loads(line)

    def close(self) -> None:
        try:
            self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise

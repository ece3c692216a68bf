# SPDX-License-Identifier: Apache-2.0
"""Several processes of one service below a process that watches them."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

LOG = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
PASSED_ON = (signal.SIGHUP, signal.SIGUSR2)

RESTART_PAUSE = 1.0
"""Seconds before a worker that died is replaced."""


def supervise(
    workers: int, work: Callable[[], None], stop_seconds: float
) -> None:
    """Keep `workers` processes at `work`; returns when all have ended.

    SIGTERM and SIGINT end them, SIGHUP and SIGUSR2 are passed on.  A
    worker that a signal killed is replaced; one that ends with an error by
    itself could not do its work, and ends the others and this process with
    that code.
    """
    _Supervisor(workers, work, stop_seconds).run()


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when `parent` ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(0)  # it ended before we could ask


class _Supervisor:
    def __init__(
        self, workers: int, work: Callable[[], None], stop_seconds: float
    ) -> None:
        self._workers = workers
        self._work = work
        self._stop_seconds = stop_seconds
        self._children: set[int] = set()
        self._stopping = False
        self._code = 0

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)
        for _ in range(self._workers):
            self._fork()
        while self._children:
            self._replace(*os.wait())
        # It would end this process once the interpreter has let go of it.
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._code:
            sys.exit(self._code)

    def _fork(self) -> None:
        parent = os.getpid()
        signals = {signal.SIGTERM, signal.SIGINT, *PASSED_ON}
        # A signal between the fork and the child's own handlers would run
        # ours in the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        if self._stopping:  # nobody would tell the new one
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            return
        child = os.fork()
        if child == 0:
            self._be_worker(parent, signals)
        self._children.add(child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    def _be_worker(
        self, parent: int, signals: set[signal.Signals]
    ) -> NoReturn:
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            # Until the worker listens, they must not end it.
            for number in PASSED_ON:
                signal.signal(number, lambda *_: None)
            die_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            self._work()
            code = 0
        except SystemExit as error:
            code = _exit_code(error)
        except Exception:
            # Outermost frame of the worker: nothing above could say it.
            LOG.exception("A worker failed.")
        finally:
            logging.shutdown()
            os._exit(code)

    def _replace(self, child: int, status: int) -> None:
        self._children.discard(child)
        code = os.waitstatus_to_exitcode(status)
        if self._stopping:
            return
        if code > 0:
            LOG.error("Worker %s ended with exit code %s.", child, code)
            self._code = code
            self._stop(signal.SIGTERM, None)
            return
        LOG.warning("Worker %s ended (%s); starting another.", child, code)
        time.sleep(RESTART_PAUSE)
        if not self._stopping:
            self._fork()

    def _signal_all(self, number: int) -> None:
        for child in tuple(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        self._signal_all(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, self._stop_seconds + 1)

    def _kill(self, number: int, frame: FrameType | None) -> None:
        self._signal_all(signal.SIGKILL)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._signal_all(number)


def _exit_code(error: SystemExit) -> int:
    """What the interpreter would make of it."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1

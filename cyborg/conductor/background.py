# SPDX-License-Identifier: Apache-2.0
"""What a conductor does when nobody waits for it: threads, bounded.

Nothing here knows what is done, and nothing that is done lives only here:
work that a process loses is found again in the database.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Hashable

from cyborg import context as cyborg_context
from cyborg import exception
from cyborg import metrics

LOG = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""When a pass that failed runs again, at the latest."""


class Pool:
    """A bounded number of threads for short-lived work."""

    def __init__(self, size: int, name: str) -> None:
        self._name = name
        self._executor = concurrent.futures.ThreadPoolExecutor(
            size, thread_name_prefix=name
        )
        self._lock = threading.Lock()
        self._running: set[concurrent.futures.Future[None]] = set()
        self._queued: set[Hashable] = set()
        self._closed = False
        self._given_up = False

    def submit(
        self, work: Callable[[], object], key: Hashable = None
    ) -> concurrent.futures.Future[None] | None:
        """Has the work done soon; None where it will be done anyway.

        Of works with the same key only one waits at a time: it will see
        all that was there before it began.
        """
        with self._lock:
            if self._closed or (key is not None and key in self._queued):
                return None
            if key is not None:
                self._queued.add(key)
            future = self._executor.submit(
                self._run, work, key, cyborg_context.current()
            )
            self._running.add(future)
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: concurrent.futures.Future[None]) -> None:
        with self._lock:
            self._running.discard(future)

    def _run(
        self,
        work: Callable[[], object],
        key: Hashable,
        for_whom: cyborg_context.RequestContext,
    ) -> None:
        if key is not None:
            with self._lock:
                self._queued.discard(key)
        with cyborg_context.acting(for_whom):
            self._do(work)

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except exception.Unavailable as error:
            LOG.warning("%s: put off: %s", self._name, error)
        except Exception as error:
            # Outermost frame of the work: nobody else would tell of it.
            if self._given_up:
                # What it works with is being closed beside it.
                LOG.warning("%s: cut off by the stop: %s", self._name, error)
            else:
                LOG.exception("%s: failed", self._name)

    def stop(self, seconds: float) -> bool:
        """Takes nothing new; whether what there was ended in that time.

        What did not is found in the database by the next who looks.
        """
        with self._lock:
            self._closed = True
            running = set(self._running)
        _, left = concurrent.futures.wait(running, seconds)
        self._given_up = bool(left)
        self._executor.shutdown(wait=not left, cancel_futures=True)
        return not left


class Pass:
    """Work that is done whenever it is due, at least once per interval.

    The work says in how many seconds it is due next, None where it does not
    know; `wake` brings that forward.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], float | None],
        interval: float,
        first: float = 0.0,
    ) -> None:
        self._name = name
        self._work = work
        self._interval = interval
        self._due = time.monotonic() + first
        self._changed = threading.Condition()
        self._stopped = False
        self._failing_since: float | None = None
        self._thread = threading.Thread(target=self._loop, name=name)

    def start(self) -> None:
        """Has it done when it is due from now on."""
        self._thread.start()

    def wake(self, delay: float = 0.0) -> None:
        """Has it done in `delay` seconds, if it is not due before."""
        with self._changed:
            self._due = min(self._due, time.monotonic() + delay)
            self._changed.notify()

    def stop(self, seconds: float) -> None:
        """Does it no more; waits that long for what runs."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _loop(self) -> None:
        while self._wait():
            with cyborg_context.acting(cyborg_context.admin_context()):
                delay = self._once()
            if delay is not None:
                self.wake(delay)

    def _wait(self) -> bool:
        """Whether it is due now; False once it is stopped."""
        with self._changed:
            while not self._stopped:
                left = self._due - time.monotonic()
                if left <= 0:
                    self._due = time.monotonic() + self._interval
                    return True
                self._changed.wait(left)
            return False

    def _once(self) -> float | None:
        try:
            delay = self._work()
        except exception.Unavailable as error:
            failing = self._failing_since is not None
            level = logging.DEBUG if failing else logging.WARNING
            LOG.log(level, "%s: put off: %s", self._name, error)
        except Exception:
            LOG.exception("%s: failed", self._name)
        else:
            self._say_if_again()
            metrics.passed(self._name, succeeded=True)
            return delay
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        metrics.passed(self._name, succeeded=False)
        return RETRY_SECONDS

    def _say_if_again(self) -> None:
        since, self._failing_since = self._failing_since, None
        if since is not None:
            LOG.info(
                "%s: works again, after %.0f s",
                self._name,
                time.monotonic() - since,
            )

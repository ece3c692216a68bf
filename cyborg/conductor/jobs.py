# SPDX-License-Identifier: Apache-2.0
"""Jobs: slow work on hosts, begun as rows.

This conductor runs those whose lease it holds, renews the lease while they
run, takes over those of a conductor that died, and ends those whose time is
up.  The agent joins orders of the same job, so that a second order is safe.

A bind waits in a thread for its host.  Cleaning may take hours, or its host
may be away for days: its jobs hold a thread only while an agent is asked,
and but a few of one host at a time, so that one that does not answer leaves
room for all others.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple
from typing import TypeAlias

from cyborg import exception
from cyborg.conductor import background
from cyborg.conductor import job_rows
from cyborg.conductor.job_kinds import KINDS
from cyborg.conductor.job_kinds import Agents
from cyborg.conductor.job_kinds import describe
from cyborg.conductor.settings import Settings
from cyborg.db import engine
from cyborg.db import jobs
from cyborg.db import models
from cyborg.db.job_ends import Ended

LOG = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two orders of a bind to an agent that does not answer."""
CLEANING_PAUSE = 10.0
"""Seconds between two questions for a unit that is being cleaned, at most:
a tenth of what it has taken so far."""
SILENCE_PAUSE = 30.0
"""Seconds for which a host that does not answer is not asked to clean, at
most: 2, 4, 8 ..."""
TOO_LATE = "the host did not finish in time"

Answer: TypeAlias = "concurrent.futures.Future[exception.CyborgError | None]"
"""Why a job failed, once it has ended; None where it did not, or where
another conductor ended it."""


class _Silence(NamedTuple):
    """A host that did not answer is not asked to clean for so many seconds,
    until then (monotonic)."""

    pause: float
    until: float


class Runner:
    """Runs jobs; `ended` is told what follows from each that ended.

    `threads` is how many wait for binds, and how many more for cleaning.
    """

    def __init__(
        self,
        database: engine.Database,
        agents: Agents,
        settings: Settings,
        *,
        threads: int,
        ended: Callable[[Iterable[jobs.Told], Iterable[int]], None],
        wake: Callable[[float], None],
    ) -> None:
        self._database = database
        self._agents = agents
        self._settings = settings
        self._pools = {
            False: background.Pool(threads, "job"),
            True: background.Pool(threads, "cleaning"),
        }
        self._threads = threads
        self._ended = ended
        self._wake = wake
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._running: dict[int, jobs.Claimed] = {}
        self._silent: dict[str, _Silence] = {}

    def start(self, job: jobs.Claimed) -> Answer:
        """Runs a job whose lease this conductor holds."""
        answer: Answer = concurrent.futures.Future()
        with self._lock:
            self._running[job.id] = job
        work = functools.partial(self._answer, job, answer)
        if self._pools[KINDS[job.kind].patient].submit(work) is None:
            self._forget(job)
            answer.set_result(exception.Unavailable("the service ends"))
        return answer

    def _answer(self, job: jobs.Claimed, answer: Answer) -> None:
        run = self._ask if KINDS[job.kind].patient else self._run
        try:
            answer.set_result(run(job))
        except BaseException as error:
            answer.set_exception(error)
            raise
        finally:
            self._forget(job)
            # What ended may have left something to be cleaned, or there is
            # more of that host than is asked for at once.
            self._wake(0.0)

    def _forget(self, job: jobs.Claimed) -> None:
        with self._lock:
            self._running.pop(job.id, None)

    def _run(self, job: jobs.Claimed) -> exception.CyborgError | None:
        """Waits for the end of a job."""
        while not self._stopped.is_set():
            left = job.ends_at - time.monotonic()
            if left <= 0:
                return self._fail(job, exception.Timeout(TOO_LATE))
            try:
                result = KINDS[job.kind].order(self._agents, job)
            except (exception.Unavailable, exception.Timeout) as error:
                self._stopped.wait(min(PAUSE, left))
                if self._has_ended(job):
                    return error
                LOG.info("Job %s is ordered again: %s", job.uuid, error)
            except exception.CyborgError as error:
                return self._fail(job, error)
            else:
                self._finish(job, result)
                return None
        return exception.Unavailable("the service ends")

    def _has_ended(self, job: jobs.Claimed) -> bool:
        """Whether nobody waits for a job any more."""
        try:
            state, _ = job_rows.outcome(self._database, job.id)
        except exception.Unavailable:
            return False
        return state not in jobs.ACTIVE

    def _ask(self, job: jobs.Claimed) -> exception.CyborgError | None:
        """Asks once how far a job is, and puts off what is not done."""
        try:
            result = KINDS[job.kind].order(self._agents, job)
        except exception.Unavailable as error:
            self._leave_alone(job, error)
            return error
        except exception.CyborgError as error:
            self._answers(job.hostname)
            return self._fail(job, error)
        self._answers(job.hostname)
        if result.done:
            self._finish(job, result)
            return None
        pause = min(CLEANING_PAUSE, max(1.0, (job.age or 0) / 10))
        left = job.ends_at - time.monotonic() - pause
        if left <= 0:
            return self._fail(job, exception.Timeout(TOO_LATE))
        percent = min(100, max(0, result.percent))
        self._put_off(job, jobs.Progress(jobs.RUNNING, percent, pause, left))
        return None

    def _answers(self, hostname: str) -> None:
        with self._lock:
            was_silent = self._silent.pop(hostname, None)
        if was_silent:
            LOG.info("Host %s answers again and cleans", hostname)

    def _leave_alone(
        self, job: jobs.Claimed, error: exception.CyborgError
    ) -> None:
        """Puts off all that a host which does not answer has to clean."""
        now = time.monotonic()
        with self._lock:
            known = self._silent.get(job.hostname, _Silence(0.0, now))
            pause = known.pause
            if known.until <= now:  # else it was asked for several at once
                pause = min(SILENCE_PAUSE, max(2.0, 2 * pause))
                self._silent[job.hostname] = _Silence(pause, now + pause)
        LOG.log(
            logging.DEBUG if known.pause else logging.WARNING,
            "Host %s: cleaning waits till its agent answers: %s",
            job.hostname,
            error,
        )
        self._put_off(
            job, jobs.Progress(jobs.QUEUED, None, pause, job.left), host=True
        )

    def _put_off(
        self, job: jobs.Claimed, progress: jobs.Progress, host: bool = False
    ) -> None:
        job_rows.postpone(
            self._database, job, self._settings.owner, progress, host
        )

    def _finish(self, job: jobs.Claimed, result: Any) -> None:
        ended = job_rows.finish(
            self._database, job, result, self._settings.grace
        )
        if ended is None:
            LOG.info("Job %s: its result came too late", job.uuid)
            return
        LOG.info("Job %s is done: %s", job.uuid, describe(job))
        self._follow(ended)

    def _fail(
        self, job: jobs.Claimed, error: exception.CyborgError
    ) -> exception.CyborgError:
        ended = job_rows.fail(
            self._database,
            job.id,
            job.kind,
            error.message,
            self._settings.grace,
        )
        if ended is None:
            return error
        LOG.warning(
            "Job %s failed: %s: %s", job.uuid, describe(job), error.message
        )
        if job.kind == jobs.CLEAN:
            LOG.warning(
                "Device %s is in error and what could not be cleaned is not"
                " offered: see to it, then enable the device (POST"
                " /v2/devices/%s/enable) to have it cleaned again",
                job.arguments.get("device_uuid"),
                job.arguments.get("device_uuid"),
            )
        self._follow(ended)
        return error

    def _follow(self, ended: Ended) -> None:
        self._ended(ended.told, ended.host_ids)

    def look(self) -> float | None:
        """Renews, takes over and ends jobs; seconds until the next look."""
        with self._lock:
            running = dict(self._running)
        overdue, taken, wait = job_rows.look(
            self._database,
            running,
            self._settings.new_lease(),
            functools.partial(self._crowded, running.values()),
        )
        for job_id, kind in overdue:
            ended = job_rows.fail(
                self._database, job_id, kind, TOO_LATE, self._settings.grace
            )
            if ended is not None:
                LOG.warning("Job %d failed: %s", job_id, TOO_LATE)
                self._follow(ended)
        for job in taken:
            if job.id in running:
                # We did not renew in time; the agent joins the two orders.
                continue
            if job.age is not None and not KINDS[job.kind].patient:
                LOG.info("Job %s is taken over: %s", job.uuid, describe(job))
            self.start(job)
        renewal = self._settings.lease / 3
        if wait is not None or overdue:
            wait = max(1.0, wait or 0.0)
        if running or taken:
            return renewal if wait is None else min(wait, renewal)
        return wait

    def _crowded(
        self,
        running: Iterable[jobs.Claimed],
        chosen: Iterable[models.Job] = (),
    ) -> Collection[str] | None:
        """Hosts of which no more may be asked to clean now; None: none at
        all may, for every thread is taken."""
        jobs_of_hosts: list[jobs.Claimed | models.Job] = [*running, *chosen]
        asked = collections.Counter(
            job.hostname for job in jobs_of_hosts if KINDS[job.kind].patient
        )
        if asked.total() >= self._threads:
            return None
        most = max(1, self._threads // 3)
        with self._lock:
            return {
                hostname
                for hostname, count in asked.items()
                if count >= (1 if hostname in self._silent else most)
            }

    def stop(self, seconds: float) -> None:
        """Lets what runs end; what does not is left to others."""
        end = time.monotonic() + seconds
        ended = [
            pool.stop(max(0.0, end - time.monotonic()))
            for pool in self._pools.values()
        ]
        if not all(ended):
            self._stopped.set()
            for pool in self._pools.values():
                pool.stop(0.5)
        try:
            job_rows.give_up(self._database, self._settings.owner)
        except exception.Unavailable as error:
            LOG.info("Jobs are left till their lease runs out: %s", error)

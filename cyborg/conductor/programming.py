# SPDX-License-Identifier: Apache-2.0
"""Jobs: slow work on a host, begun as a row.

This conductor runs those whose lease it holds, renews the lease while they
run, takes over those of a conductor that died, and ends those whose time is
up.  The agent joins orders of the same job, so that a second order is safe.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import Protocol
from typing import TypeAlias

from cyborg import context as cyborg_context
from cyborg import exception
from cyborg.conductor import background
from cyborg.conductor.binding import withhold
from cyborg.conductor.settings import Settings
from cyborg.db import bulk
from cyborg.db import engine
from cyborg.db import jobs
from cyborg.rpc.agent import ProgramOrder
from cyborg.rpc.agent import ProgramResult

LOG = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two orders to an agent that does not answer."""
TAKEN_AT_ONCE = 100
TOO_LATE = "the host did not finish in time"

Answer: TypeAlias = "concurrent.futures.Future[exception.CyborgError | None]"
"""Why a job failed, once it has ended; None where it did not, or where
another conductor ended it."""


class Agents(Protocol):
    """What we need of the agents' client."""

    def program(
        self,
        context: cyborg_context.RequestContext,
        host: str,
        order: ProgramOrder,
    ) -> ProgramResult:
        """Has a device programmed; returns when it is."""
        ...


class Programmer:
    """Runs jobs; `ended` is told of the ARQs and hosts of each that ended."""

    def __init__(
        self,
        database: engine.Database,
        agents: Agents,
        settings: Settings,
        pool: background.Pool,
        ended: Callable[[Iterable[jobs.Told], Iterable[int]], None],
    ) -> None:
        self._database = database
        self._agents = agents
        self._settings = settings
        self._pool = pool
        self._ended = ended
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._running: set[int] = set()

    def start(self, job: jobs.Claimed) -> Answer:
        """Runs a job whose lease this conductor holds."""
        answer: Answer = concurrent.futures.Future()
        with self._lock:
            self._running.add(job.id)
        work = functools.partial(self._answer, job, answer)
        if self._pool.submit(work) is None:
            with self._lock:
                self._running.discard(job.id)
            answer.set_result(exception.Unavailable("the service ends"))
        return answer

    def _answer(self, job: jobs.Claimed, answer: Answer) -> None:
        try:
            answer.set_result(self._run(job))
        except BaseException as error:
            answer.set_exception(error)
            raise
        finally:
            with self._lock:
                self._running.discard(job.id)

    def _run(self, job: jobs.Claimed) -> exception.CyborgError | None:
        while not self._stopped.is_set():
            left = job.ends_at - time.monotonic()
            if left <= 0:
                return self._fail(job, exception.Timeout(TOO_LATE))
            try:
                result = self._agents.program(
                    cyborg_context.admin_context(),
                    job.hostname,
                    _order(job, left),
                )
            except (exception.Unavailable, exception.Timeout) as error:
                LOG.info("Job %s is ordered again: %s", job.uuid, error)
                self._stopped.wait(min(PAUSE, left))
            except exception.CyborgError as error:
                return self._fail(job, error)
            else:
                self._finish(job, result)
                return None
        return exception.Unavailable("the service ends")

    def _finish(self, job: jobs.Claimed, result: ProgramResult) -> None:
        bitstream = result.bitstream_id or job.arguments.get("image_uuid")
        ended = _finish(self._database, job, bitstream, self._settings.grace)
        if ended is None:
            LOG.info("Job %s: its result came too late", job.uuid)
            return
        LOG.info("Job %s is done: %s", job.uuid, _name(job))
        self._ended(*ended)

    def _fail(
        self, job: jobs.Claimed, error: exception.CyborgError
    ) -> exception.CyborgError:
        ended = _fail(
            self._database, job.id, error.message, self._settings.grace
        )
        if ended is not None:
            LOG.warning(
                "Job %s failed: %s: %s", job.uuid, _name(job), error.message
            )
            self._ended(*ended)
        return error

    def look(self) -> float | None:
        """Renews, takes over and ends jobs; seconds until the next look."""
        with self._lock:
            running = set(self._running)
        lease = self._settings.new_lease()
        overdue, taken, wait = _look(self._database, running, lease)
        for job_id in overdue:
            ended = _fail(
                self._database, job_id, TOO_LATE, self._settings.grace
            )
            if ended is not None:
                LOG.warning("Job %d failed: %s", job_id, TOO_LATE)
                self._ended(*ended)
        for job in taken:
            if job.id in running:
                # We did not renew in time; the agent joins the two orders.
                continue
            LOG.info("Job %s is taken over: %s", job.uuid, _name(job))
            self.start(job)
        renewal = self._settings.lease / 3
        if wait is not None:
            wait = max(1.0, wait)
        if running or taken:
            return renewal if wait is None else min(wait, renewal)
        return wait

    def stop(self, seconds: float) -> None:
        """Lets what runs end; what does not is left to others."""
        if not self._pool.stop(seconds):
            self._stopped.set()
            self._pool.stop(0.5)
        try:
            _give_up(self._database, self._settings.owner)
        except exception.Unavailable as error:
            LOG.info("Jobs are left till their lease runs out: %s", error)


def _name(job: jobs.Claimed) -> str:
    return f"programming {job.arguments.get('deployable_name')}"


def _order(job: jobs.Claimed, left: float) -> ProgramOrder:
    return ProgramOrder(
        job_uuid=job.uuid,
        driver=job.arguments.get("driver") or "",
        controlpath=job.arguments.get("controlpath") or "",
        deployable_name=job.arguments.get("deployable_name") or "",
        image_uuid=job.arguments.get("image_uuid"),
        function_id=job.arguments.get("function_id"),
        timeout=left,
    )


Ended = tuple[list[jobs.Told], tuple[int, ...]]
"""ARQs of which Nova is to be told, hosts that Placement is to follow."""


@engine.retried
def _finish(
    database: engine.Database,
    job: jobs.Claimed,
    bitstream_id: str | None,
    grace: float,
) -> Ended | None:
    due_at = bulk.after(grace)
    with database.writer() as session:
        told = jobs.finish(session, job.id, bitstream_id, due_at)
        if told is None:
            return None
        return told, withhold(session, jobs.hosts_of(session, job.id), due_at)


@engine.retried
def _fail(
    database: engine.Database, job_id: int, reason: str, grace: float
) -> Ended | None:
    due_at = bulk.after(grace)
    with database.writer() as session:
        told = jobs.fail(session, job_id, reason, due_at)
        if told is None:
            return None
        return told, withhold(session, jobs.hosts_of(session, job_id), due_at)


@engine.retried
def _look(
    database: engine.Database, running: set[int], lease: jobs.Lease
) -> tuple[list[int], list[jobs.Claimed], float | None]:
    with database.writer() as session:
        now = jobs.clock(session)
        if running:
            jobs.renew(session, running, lease, now)
        overdue = jobs.overdue(session, now)
        taken = jobs.take_over(session, lease, TAKEN_AT_ONCE, now)
        return overdue, taken, jobs.next_due(session, now)


@engine.retried
def _give_up(database: engine.Database, owner: str) -> None:
    with database.writer() as session:
        jobs.give_up(session, owner)


@engine.retried
def outcome(database: engine.Database, job_id: int) -> tuple[str, str | None]:
    """The state and error of a job that another may have ended."""
    with database.reader() as session:
        return jobs.state(session, job_id)

# SPDX-License-Identifier: Apache-2.0
"""What becomes of jobs' rows; one transaction each."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from sqlalchemy import orm

from cyborg.conductor.job_kinds import KINDS
from cyborg.db import cleaning
from cyborg.db import clock
from cyborg.db import engine
from cyborg.db import jobs
from cyborg.db import models
from cyborg.db import query
from cyborg.db.job_ends import Ended

LIMIT = 100
"""How many jobs are taken at once."""


@engine.retried
def finish(
    database: engine.Database, job: jobs.Claimed, result: Any, grace: float
) -> Ended | None:
    """Ends a job well."""
    with database.writer() as session:
        return KINDS[job.kind].finish(session, job, result, clock.after(grace))


@engine.retried
def fail(
    database: engine.Database,
    job_id: int,
    kind: str,
    reason: str,
    grace: float,
) -> Ended | None:
    """Ends a job badly."""
    with database.writer() as session:
        return KINDS[kind].fail(
            session, job_id, query.storable_part(reason), clock.after(grace)
        )


@engine.retried
def postpone(
    database: engine.Database,
    job: jobs.Claimed,
    owner: str,
    progress: jobs.Progress,
    host: bool,
) -> None:
    """Has a job asked for later; with `host` all that its host cleans."""
    with database.writer() as session:
        if not jobs.postpone(session, job, owner, progress):
            return
        if host:
            jobs.postpone_cleaning(session, job.hostname, progress.pause)
            cleaning.follow_host(session, job)
        if progress.state != job.state:
            _show(session, [job])


def _show(session: orm.Session, asked: Iterable[jobs.Claimed]) -> None:
    found = cleaning.devices_of(session, {job.deployable_id for job in asked})
    cleaning.show_states(session, found)


Crowded = Callable[[Iterable[models.Job]], Collection[str] | None]
"""Hosts that may not be asked to clean more, besides these jobs; None: none
may."""


@engine.retried
def look(
    database: engine.Database,
    running: Mapping[int, jobs.Claimed],
    lease: jobs.Lease,
    crowded: Crowded,
) -> tuple[list[tuple[int, str]], list[jobs.Claimed], float | None]:
    """Jobs (id, kind) past their deadline, those that are this conductor's
    now, and the seconds until more is due."""
    with database.writer() as session:
        now = clock.now(session)
        if running:
            jobs.renew(session, running, lease, now)
        overdue = jobs.overdue(session, now)
        chosen: list[models.Job] = []
        for row in jobs.due(session, now, LIMIT, crowded(())):
            full = crowded(chosen) if KINDS[row.kind].patient else ()
            if full is not None and row.hostname not in full:
                chosen.append(row)
        taken = jobs.claim(session, chosen, lease, now)
        begun = [
            job for job in taken if KINDS[job.kind].patient and job.age is None
        ]
        if begun:
            _show(session, begun)
        return overdue, taken, jobs.next_due(session, now, crowded(chosen))


@engine.retried
def give_up(database: engine.Database, owner: str) -> None:
    """Lets others take the jobs of a conductor that ends."""
    with database.writer() as session:
        jobs.give_up(session, owner)


@engine.retried
def outcome(database: engine.Database, job_id: int) -> tuple[str, str | None]:
    """The state and error of a job that another may have ended."""
    with database.reader() as session:
        return jobs.state(session, job_id)

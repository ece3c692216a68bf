# SPDX-License-Identifier: Apache-2.0
"""Slow work on a host, as rows: the life of a job of any kind.

A job is inserted in the transaction that needs it.  Whoever ends it does so
by an UPDATE that holds only while it is active, so that one end counts: what
comes later changes nothing.  What an end means for accelerator requests,
devices and handles is in `job_ends` and `cleaning`.

One that prepares or programs is run by a conductor that waits for the host,
till its deadline.  One that cleans may take hours, of which nobody counts
those in which the host does not answer: it is asked for now and then, by
whoever finds it due, and `deadline` is as far behind `created_at` as its
host may yet say that it is not done.  All times are the database's.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import time
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg.db import bulk
from cyborg.db import clock
from cyborg.db import models

Job = models.Job
Arq = models.AcceleratorRequest
Handle = models.AttachHandle

PROGRAM = "program"
PREPARE = "prepare"
CLEAN = "clean"

QUEUED = "queued"
RUNNING = "running"
DONE = "done"
FAILED = "failed"
CANCELLED = "cancelled"
ACTIVE = (QUEUED, RUNNING)

_OURS = sa.and_(
    Job.state.in_(ACTIVE),
    sa.or_(
        Job.kind.in_((PROGRAM, PREPARE)),
        sa.and_(
            Job.kind == CLEAN,
            sa.select(Handle.id).where(Handle.job_id == Job.id).exists(),
        ),
    ),
)
"""Jobs to be looked after: those of a newer release are left to it, and
nothing is ever cleaned that does not wait for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """Which conductor runs a job, and for how many seconds from now it is
    believed to live."""

    owner: str
    seconds: float

    def until(self, now: dt.datetime) -> dt.datetime:
        """When it runs out, where it begins now."""
        return now + dt.timedelta(seconds=self.seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class New:
    """A job to be made; `seconds` is how long it may take."""

    kind: str
    deployable_id: int
    hostname: str
    arguments: Mapping[str, Any]
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Claimed:
    """A job that this conductor runs."""

    id: int
    uuid: str
    kind: str
    hostname: str
    deployable_id: int
    arguments: Mapping[str, Any]
    left: float
    """Seconds that it may yet take."""
    ends_at: float
    """When they are over, by this process's monotonic clock."""
    created_at: dt.datetime
    state: str
    age: float | None
    """Seconds since it was begun; None where that is now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """An ARQ whose bind ended, for Nova."""

    arq_uuid: str
    instance_uuid: str
    state: arq.State


def create(
    session: orm.Session, wanted: Sequence[New], lease: Lease | None
) -> list[Claimed]:
    """New jobs, in this order (3 statements).

    With a lease they run from now on; without one they wait for whoever
    looks next.
    """
    now = clock.now(session)
    rows = [_row(new, lease, now) for new in wanted]
    session.execute(sa.insert(Job), rows)
    stored = session.scalars(
        sa.select(Job).where(Job.uuid.in_([row["uuid"] for row in rows]))
    )
    by_uuid = {job.uuid: _claimed(job, now) for job in stored}
    return [by_uuid[row["uuid"]] for row in rows]


def _row(new: New, lease: Lease | None, now: dt.datetime) -> dict[str, Any]:
    return {
        "uuid": models.new_uuid(),
        "kind": new.kind,
        "state": QUEUED if lease is None else RUNNING,
        "hostname": new.hostname,
        "deployable_id": new.deployable_id,
        "arguments": json.dumps(new.arguments, sort_keys=True),
        "owner": None if lease is None else lease.owner,
        "lease_until": now if lease is None else lease.until(now),
        "created_at": now,
        "deadline": now + dt.timedelta(seconds=new.seconds),
        "percent": 0,
        "started_at": None if lease is None else now,
    }


def _claimed(
    job: models.Job, now: dt.datetime, state: str = RUNNING
) -> Claimed:
    since = job.created_at or now
    begun = job.started_at
    counted = since if job.kind == CLEAN else now
    left = (job.deadline - counted).total_seconds()
    return Claimed(
        id=job.id,
        uuid=job.uuid,
        kind=job.kind,
        hostname=job.hostname,
        deployable_id=job.deployable_id or 0,
        arguments=json.loads(job.arguments),
        left=left,
        ends_at=time.monotonic() + left,
        created_at=since,
        state=state,
        age=None if begun is None else (now - begun).total_seconds(),
    )


def renew(
    session: orm.Session,
    jobs: Collection[int],
    lease: Lease,
    now: dt.datetime,
) -> None:
    """Says that the conductor which runs these still lives."""
    session.execute(
        sa.update(Job)
        .where(
            Job.id.in_(jobs), Job.owner == lease.owner, Job.state.in_(ACTIVE)
        )
        .values(lease_until=lease.until(now))
        .execution_options(synchronize_session=False)
    )


def _is_askable(crowded: Collection[str] | None) -> sa.ColumnElement[bool]:
    if crowded is None:
        return Job.kind != CLEAN
    return sa.or_(Job.kind != CLEAN, Job.hostname.not_in(sorted(crowded)))


def due(
    session: orm.Session,
    now: dt.datetime,
    limit: int,
    crowded: Collection[str] | None = (),
) -> list[models.Job]:
    """Jobs that nobody runs now, the longest due first, locked.

    Of the `crowded` hosts none that cleans; None: of no host.
    """
    return list(
        session.scalars(
            sa.select(Job)
            .where(
                _OURS,
                sa.or_(Job.lease_until.is_(None), Job.lease_until <= now),
                sa.or_(Job.deadline > now, Job.kind == CLEAN),
                _is_askable(crowded),
            )
            .order_by(Job.lease_until, Job.id)
            .limit(limit)
            .with_for_update()
        )
    )


def claim(
    session: orm.Session,
    rows: Collection[models.Job],
    lease: Lease,
    now: dt.datetime,
) -> list[Claimed]:
    """Takes jobs that were due.

    One that cleans and was asked for before is as its host left it: who is
    asked may not answer.
    """
    if not rows:
        return []
    asked = {
        row.id
        for row in rows
        if row.kind == CLEAN and row.started_at is not None
    }
    session.execute(
        sa.update(Job)
        .where(Job.id.in_([row.id for row in rows]))
        .values(
            owner=lease.owner,
            lease_until=lease.until(now),
            state=sa.case((Job.id.in_(asked), Job.state), else_=RUNNING),
            started_at=sa.func.coalesce(Job.started_at, now),
        )
        .execution_options(synchronize_session=False)
    )
    return [
        _claimed(row, now, row.state if row.id in asked else RUNNING)
        for row in rows
    ]


def overdue(session: orm.Session, now: dt.datetime) -> list[tuple[int, str]]:
    """Jobs (id, kind) past their deadline."""
    rows = session.execute(
        sa.select(Job.id, Job.kind).where(
            _OURS, Job.deadline <= now, Job.kind != CLEAN
        )
    )
    return [(row.id, row.kind) for row in rows]


def next_due(
    session: orm.Session,
    now: dt.datetime,
    crowded: Collection[str] | None = (),
) -> float | None:
    """Seconds until the next lease or deadline of a job runs out."""
    row = session.execute(
        sa.select(
            sa.func.min(sa.case((_is_askable(crowded), Job.lease_until))),
            sa.func.min(sa.case((Job.kind != CLEAN, Job.deadline))),
        ).where(_OURS)
    ).one()
    return min(
        ((due - now).total_seconds() for due in row if due is not None),
        default=None,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is that is to be asked for again in `pause` seconds;
    `left`: for how many it may yet not be done."""

    state: str
    percent: int | None
    pause: float
    left: float


def postpone(
    session: orm.Session, job: Claimed, owner: str, progress: Progress
) -> bool:
    """Whether the job was still this conductor's, and waits now for anyone
    to ask again (2 statements)."""
    now = clock.now(session)
    until = now + dt.timedelta(seconds=progress.pause)
    result = session.execute(
        sa.update(Job)
        .where(Job.id == job.id, Job.owner == owner, Job.state.in_(ACTIVE))
        .values(
            owner=None,
            state=progress.state,
            percent=Job.percent
            if progress.percent is None
            else progress.percent,
            lease_until=until,
            deadline=job.created_at + dt.timedelta(seconds=progress.left),
        )
        .execution_options(synchronize_session=False)
    )
    return bulk.matched(result) == 1


def postpone_cleaning(
    session: orm.Session, hostname: str, pause: float
) -> None:
    """Leaves a host that does not answer alone for a while."""
    session.execute(
        sa.update(Job)
        .where(
            Job.state.in_(ACTIVE),
            Job.kind == CLEAN,
            Job.hostname == hostname,
            Job.owner.is_(None),
        )
        .values(lease_until=clock.now(session) + dt.timedelta(seconds=pause))
        .execution_options(synchronize_session=False)
    )


def state(session: orm.Session, job_id: int) -> tuple[str, str | None]:
    """A job's state and error."""
    row = session.execute(
        sa.select(Job.state, Job.error).where(Job.id == job_id)
    ).one_or_none()
    return (row.state, row.error) if row is not None else (FAILED, None)


def end(
    session: orm.Session, job_id: int, outcome: str, error: str | None = None
) -> bool:
    """Whether the job was active, and has ended so."""
    result = session.execute(ending(outcome, error).where(Job.id == job_id))
    return bulk.matched(result) == 1


def ending(outcome: str, error: str | None = None) -> sa.Update:
    """The UPDATE that ends those of the chosen jobs that are active."""
    return (
        sa.update(Job)
        .where(Job.state.in_(ACTIVE))
        .values(
            state=outcome,
            error=error,
            lease_until=None,
            finished_at=models.now(),
            percent=100 if outcome == DONE else Job.percent,
        )
        .execution_options(synchronize_session=False)
    )


def give_up(session: orm.Session, owner: str) -> None:
    """Lets others take the jobs of a conductor that ends."""
    session.execute(
        sa.update(Job)
        .where(Job.owner == owner, Job.state.in_(ACTIVE))
        .values(lease_until=clock.now(session))
        .execution_options(synchronize_session=False)
    )

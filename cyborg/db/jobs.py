# SPDX-License-Identifier: Apache-2.0
"""Slow work on a deployable, as rows.

A job is inserted in the transaction that needs it, with the lease of the
conductor that will run it.  Whoever ends it does so by an UPDATE that holds
only while it is active, so that one end counts: what comes later changes
nothing.

Leases and deadlines are kept and compared by the database's clock.  By their
own, a conductor whose clock is a minute ahead would end every job of the
others at once.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import time
from collections.abc import Collection
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg.db import arq_release
from cyborg.db import bulk
from cyborg.db import models

Job = models.Job
Arq = models.AcceleratorRequest
Deployable = models.Deployable
Handle = models.AttachHandle

PROGRAM = "program"

QUEUED = "queued"
RUNNING = "running"
DONE = "done"
FAILED = "failed"
ACTIVE = (QUEUED, RUNNING)


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
class Claimed:
    """A job that this conductor runs."""

    id: int
    uuid: str
    kind: str
    hostname: str
    deployable_id: int
    arguments: Mapping[str, str | None]
    ends_at: float
    """When its time is up, by this process's monotonic clock."""


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """An ARQ whose bind ended, for Nova."""

    arq_uuid: str
    instance_uuid: str
    state: arq.State


def clock(session: orm.Session) -> dt.datetime:
    """What time it is by the database's clock (1 statement).

    SQLite has none of its own, and nobody on another machine.
    """
    dialect = session.get_bind().dialect.name
    if dialect == "sqlite":
        return models.now()
    found = session.execute(sa.select(_CLOCKS[dialect])).scalar_one()
    now: dt.datetime = found.replace(microsecond=0)
    return now


_MYSQL_CLOCK = sa.func.utc_timestamp(type_=sa.DateTime)
_CLOCKS = {
    "mysql": _MYSQL_CLOCK,
    "mariadb": _MYSQL_CLOCK,
    "postgresql": sa.func.timezone(
        "utc", sa.func.clock_timestamp(), type_=sa.DateTime
    ),
}


def create(
    session: orm.Session,
    deployable_id: int,
    hostname: str,
    *,
    arguments: Mapping[str, str | None],
    lease: Lease,
    seconds: float,
) -> Claimed:
    """A job that runs from now on, for so long at most (2 statements)."""
    now = clock(session)
    job = Job(
        uuid=models.new_uuid(),
        kind=PROGRAM,
        state=RUNNING,
        hostname=hostname,
        deployable_id=deployable_id,
        arguments=json.dumps(arguments, sort_keys=True),
        owner=lease.owner,
        lease_until=lease.until(now),
        deadline=now + dt.timedelta(seconds=seconds),
        started_at=models.now(),
    )
    session.add(job)
    session.flush()
    return _claimed(job, now)


def _claimed(job: models.Job, now: dt.datetime) -> Claimed:
    return Claimed(
        id=job.id,
        uuid=job.uuid,
        kind=job.kind,
        hostname=job.hostname,
        deployable_id=job.deployable_id or 0,
        arguments=json.loads(job.arguments),
        ends_at=time.monotonic() + (job.deadline - now).total_seconds(),
    )


def take_deployable(
    session: orm.Session, deployable_id: int, job_id: int
) -> bool:
    """Whether no other job had the deployable."""
    result = session.execute(
        sa.update(Deployable)
        .where(Deployable.id == deployable_id, Deployable.job_id.is_(None))
        .values(job_id=job_id)
        .execution_options(synchronize_session=False)
    )
    return bulk.matched(result) == 1


def in_use(
    session: orm.Session, deployable_id: int, own: Collection[int]
) -> bool:
    """Whether anybody has a handle of the deployable that is not in `own`.

    Asked once the deployable is taken: who binds to it holds it meanwhile.
    """
    rows = session.scalars(
        sa.select(Handle.id)
        .where(
            Handle.deployable_id == deployable_id, Handle.in_use.is_(sa.true())
        )
        .with_for_update(read=True)
    )
    return any(row not in own for row in rows)


def controlpath(session: orm.Session, device_id: int) -> str:
    """The control path of a device; empty where it has none."""
    path = models.ControlpathID
    return (
        session.scalars(
            sa.select(path.cpid_info)
            .where(path.device_id == device_id)
            .order_by(path.id)
        ).first()
        or ""
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


def take_over(
    session: orm.Session, lease: Lease, limit: int, now: dt.datetime
) -> list[Claimed]:
    """Takes jobs whose conductor has died (2 statements, 1 when none)."""
    rows = session.scalars(
        sa.select(Job)
        .where(
            Job.state.in_(ACTIVE),
            sa.or_(Job.lease_until.is_(None), Job.lease_until <= now),
            Job.deadline > now,
        )
        .order_by(Job.id)
        .limit(limit)
        .with_for_update()
    ).all()
    if rows:
        session.execute(
            sa.update(Job)
            .where(Job.id.in_([row.id for row in rows]))
            .values(
                owner=lease.owner,
                lease_until=lease.until(now),
                state=RUNNING,
            )
            .execution_options(synchronize_session=False)
        )
    return [_claimed(row, now) for row in rows]


def overdue(session: orm.Session, now: dt.datetime) -> list[int]:
    """Jobs (ids) past their deadline."""
    return list(
        session.scalars(
            sa.select(Job.id).where(Job.state.in_(ACTIVE), Job.deadline <= now)
        )
    )


def next_due(session: orm.Session, now: dt.datetime) -> float | None:
    """Seconds until the next lease or deadline of a job runs out."""
    row = session.execute(
        sa.select(
            sa.func.min(Job.lease_until), sa.func.min(Job.deadline)
        ).where(Job.state.in_(ACTIVE))
    ).one()
    return min(
        ((due - now).total_seconds() for due in row if due is not None),
        default=None,
    )


def state(session: orm.Session, job_id: int) -> tuple[str, str | None]:
    """A job's state and error."""
    row = session.execute(
        sa.select(Job.state, Job.error).where(Job.id == job_id)
    ).one_or_none()
    return (row.state, row.error) if row is not None else (FAILED, None)


def finish(
    session: orm.Session,
    job_id: int,
    bitstream_id: str | None,
    event_due_at: dt.datetime,
) -> list[Told] | None:
    """Ends a job well: its ARQs are bound (4 statements).

    None where it had ended before.
    """
    if not _end(session, job_id, DONE, None):
        return None
    waiting = _waiting(session, job_id)
    transition = arq.TRANSITIONS[arq.Event.FINISH]
    if waiting:
        session.execute(
            sa.update(Arq)
            .where(
                Arq.id.in_([row.id for row in waiting]),
                Arq.state.in_(transition.sources),
            )
            .values(
                state=transition.target,
                job_id=None,
                event_due_at=event_due_at,
                event_attempts=0,
            )
            .execution_options(synchronize_session=False)
        )
    _release(session, job_id, bitstream_id)
    return [_told(row, transition.target) for row in waiting]


def fail(
    session: orm.Session,
    job_id: int,
    reason: str,
    event_due_at: dt.datetime,
) -> list[Told] | None:
    """Ends a job badly: its ARQs are not bound and hold nothing.

    What the card holds now is not known (5 statements).  None where it had
    ended before.
    """
    if not _end(session, job_id, FAILED, reason):
        return None
    waiting = _waiting(session, job_id)
    if waiting:
        arq_release.fail(
            session, [row.id for row in waiting], reason, event_due_at
        )
        arq_release.free(
            session,
            [
                row.attach_handle_id
                for row in waiting
                if row.attach_handle_id is not None
            ],
        )
    _release(session, job_id, None)
    return [_told(row, arq.State.BIND_FAILED) for row in waiting]


def _end(
    session: orm.Session, job_id: int, outcome: str, error: str | None
) -> bool:
    result = session.execute(
        sa.update(Job)
        .where(Job.id == job_id, Job.state.in_(ACTIVE))
        .values(
            state=outcome,
            error=error,
            lease_until=None,
            finished_at=models.now(),
            percent=100 if outcome == DONE else Job.percent,
        )
        .execution_options(synchronize_session=False)
    )
    return bulk.matched(result) == 1


def _waiting(
    session: orm.Session, job_id: int
) -> list[models.AcceleratorRequest]:
    return list(
        session.scalars(
            sa.select(Arq)
            .where(Arq.job_id == job_id, Arq.state == arq.State.BIND_STARTED)
            .with_for_update()
        )
    )


def _release(
    session: orm.Session, job_id: int, bitstream_id: str | None
) -> None:
    session.execute(
        sa.update(Deployable)
        .where(Deployable.job_id == job_id)
        .values(job_id=None, bitstream_id=bitstream_id)
        .execution_options(synchronize_session=False)
    )


def _told(row: models.AcceleratorRequest, state: arq.State) -> Told:
    return Told(row.uuid, row.instance_uuid or "", state)


def hosts_of(session: orm.Session, job_id: int) -> list[str]:
    """The name under which the job's deployable is known."""
    return list(
        session.scalars(
            sa.select(models.Device.hostname)
            .join(Deployable, Deployable.device_id == models.Device.id)
            .join(Job, Job.deployable_id == Deployable.id)
            .where(Job.id == job_id)
        )
    )


def functions(
    session: orm.Session, deployables: Collection[int]
) -> dict[int, str]:
    """The function that each deployable was last programmed with, where it
    was chosen by its function."""
    rows = session.execute(
        sa.select(Job.deployable_id, Job.arguments)
        .where(
            Job.deployable_id.in_(deployables),
            Job.kind == PROGRAM,
            Job.state == DONE,
        )
        .order_by(Job.id)
    )
    last = {row.deployable_id: json.loads(row.arguments) for row in rows}
    return {
        deployable_id: arguments["function_id"]
        for deployable_id, arguments in last.items()
        if deployable_id is not None and arguments.get("function_id")
    }


def forget_old(session: orm.Session, before: dt.datetime, limit: int) -> None:
    """Removes jobs that ended before that time, but for the last of each
    deployable (2 statements, 1 when there are none)."""
    last = sa.select(sa.func.max(Job.id)).group_by(Job.deployable_id)
    old = session.scalars(
        sa.select(Job.id)
        .where(
            Job.state.in_((DONE, FAILED)),
            Job.finished_at < before,
            Job.id.not_in(last),
        )
        .limit(limit)
    ).all()
    if old:
        session.execute(
            sa.delete(Job)
            .where(Job.id.in_(old))
            .execution_options(synchronize_session=False)
        )


def give_up(session: orm.Session, owner: str) -> None:
    """Lets others take the jobs of a conductor that ends."""
    session.execute(
        sa.update(Job)
        .where(Job.owner == owner, Job.state.in_(ACTIVE))
        .values(lease_until=clock(session))
        .execution_options(synchronize_session=False)
    )

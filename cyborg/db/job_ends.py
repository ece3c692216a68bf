# SPDX-License-Identifier: Apache-2.0
"""What the end of a job means for what waited for it, kind by kind.

Each function is a part of the caller's transaction; those that end a job give
None where it had ended before: then they change nothing.
"""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg.db import arq_release
from cyborg.db import cleaning
from cyborg.db import clock
from cyborg.db import hosts
from cyborg.db import jobs
from cyborg.db import models
from cyborg.db import notices
from cyborg.notification import Event

Job = models.Job
Arq = models.AcceleratorRequest
Deployable = models.Deployable
Handle = models.AttachHandle


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """What follows from the end of a job: ARQs of which Nova is to be told,
    and hosts that Placement is to follow."""

    told: tuple[jobs.Told, ...] = ()
    host_ids: tuple[int, ...] = ()


def program_done(
    session: orm.Session,
    job_id: int,
    bitstream_id: str | None,
    due_at: clock.Moment,
) -> Ended | None:
    """The card holds this now, and its ARQs are bound (6 statements)."""
    told = _bound(session, job_id, due_at)
    if told is None:
        return None
    return Ended(told, _release_card(session, job_id, bitstream_id, due_at))


def program_failed(
    session: orm.Session, job_id: int, reason: str, due_at: clock.Moment
) -> Ended | None:
    """What the card holds now is not known; its ARQs hold nothing."""
    ended = prepare_failed(session, job_id, reason, due_at)
    if ended is None:
        return None
    host_ids = _release_card(session, job_id, None, due_at)
    return Ended(ended.told, host_ids)


def prepare_done(
    session: orm.Session, job_id: int, due_at: clock.Moment
) -> Ended | None:
    """The units are there, and their ARQs are bound (3 statements)."""
    told = _bound(session, job_id, due_at)
    return None if told is None else Ended(told)


def prepare_failed(
    session: orm.Session, job_id: int, reason: str, due_at: clock.Moment
) -> Ended | None:
    """The ARQs are not bound and hold nothing.

    Units that the host may have made are cleaned first.
    """
    if not jobs.end(session, job_id, jobs.FAILED, reason):
        return None
    waiting = _waiting(session, job_id)
    host_ids: tuple[int, ...] = ()
    if waiting:
        host_ids = arq_release.fail(
            session,
            {row.id: row.attach_handle_id for row in waiting},
            reason,
            due_at,
        )
    return Ended(
        tuple(_told(row, arq.State.BIND_FAILED) for row in waiting), host_ids
    )


def clean_done(
    session: orm.Session, job_id: int, due_at: clock.Moment
) -> Ended | None:
    """Anybody may have the unit again (7 statements)."""
    if not jobs.end(session, job_id, jobs.DONE):
        return None
    devices = _cleaned_devices(session, job_id)
    host_ids = hosts.owe(session, set(devices.values()), due_at)
    session.execute(
        sa.update(Handle)
        .where(Handle.job_id == job_id)
        .values(in_use=False, job_id=None)
        .execution_options(synchronize_session=False)
    )
    cleaning.show_states(session, devices)
    return Ended(host_ids=host_ids)


def clean_failed(
    session: orm.Session, job_id: int, reason: str
) -> Ended | None:
    """The unit stays where it is, and its device is in error (4
    statements); Placement has it as it was."""
    if not jobs.end(session, job_id, jobs.FAILED, reason):
        return None
    devices = _cleaned_devices(session, job_id)
    cleaning.show_states(session, devices, reason)
    return Ended()


def _cleaned_devices(session: orm.Session, job_id: int) -> dict[int, str]:
    """The device (id -> name of its host) that a job cleans a unit of."""
    rows = session.execute(
        sa.select(models.Device.id, models.Device.hostname)
        .join(Deployable, Deployable.device_id == models.Device.id)
        .join(Handle, Handle.deployable_id == Deployable.id)
        .where(Handle.job_id == job_id)
    )
    return {row.id: row.hostname for row in rows}


def _bound(
    session: orm.Session, job_id: int, due_at: clock.Moment
) -> tuple[jobs.Told, ...] | None:
    if not jobs.end(session, job_id, jobs.DONE):
        return None
    waiting = _waiting(session, job_id)
    transition = arq.TRANSITIONS[arq.Event.FINISH]
    ids = [row.id for row in waiting]
    if waiting:
        session.execute(
            sa.update(Arq)
            .where(
                Arq.id.in_(ids),
                Arq.state.in_(transition.sources),
            )
            .values(
                state=transition.target,
                job_id=None,
                event_due_at=due_at,
                event_attempts=0,
            )
            .execution_options(synchronize_session=False)
        )
        notices.arqs(session, Event.BOUND, ids)
    return tuple(_told(row, transition.target) for row in waiting)


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


def _told(row: models.AcceleratorRequest, state: arq.State) -> jobs.Told:
    return jobs.Told(row.uuid, row.instance_uuid or "", state)


def _release_card(
    session: orm.Session,
    job_id: int,
    bitstream_id: str | None,
    due_at: clock.Moment,
) -> tuple[int, ...]:
    """Lets others have the deployable that a job programmed."""
    session.execute(
        sa.update(Deployable)
        .where(Deployable.job_id == job_id)
        .values(job_id=None, bitstream_id=bitstream_id)
        .execution_options(synchronize_session=False)
    )
    names = session.scalars(
        sa.select(models.Device.hostname)
        .join(Deployable, Deployable.device_id == models.Device.id)
        .join(Job, Job.deployable_id == Deployable.id)
        .where(Job.id == job_id)
    )
    return hosts.owe(session, set(names), due_at)


def forget_old(session: orm.Session, before: clock.Moment, limit: int) -> None:
    """Removes jobs that ended before that time, but for those that a handle
    refers to and the last that programmed each deployable (2 statements, 1
    when there are none)."""
    last = (
        sa.select(sa.func.max(Job.id))
        .where(Job.kind == jobs.PROGRAM)
        .group_by(Job.deployable_id)
    )
    referred = sa.select(Handle.id).where(Handle.job_id == Job.id).exists()
    old = session.scalars(
        sa.select(Job.id)
        .where(
            Job.state.not_in(jobs.ACTIVE),
            Job.finished_at < before,
            Job.id.not_in(last),
            ~referred,
        )
        .limit(limit)
    ).all()
    if old:
        session.execute(
            sa.delete(Job)
            .where(Job.id.in_(old))
            .execution_options(synchronize_session=False)
        )

# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests that give back what they hold.

Each function is one statement, or says how many, within the caller's
transaction.  What becomes of what is given back is in `cleaning`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg import notification
from cyborg.db import cleaning
from cyborg.db import clock
from cyborg.db import jobs
from cyborg.db import models
from cyborg.db import notices
from cyborg.notification import Event

Job = models.Job
Arq = models.AcceleratorRequest
Handle = models.AttachHandle
Deployable = models.Deployable
Device = models.Device

BY_INSTANCE = "FORCE INDEX (`extArqs_instance_uuid_idx`)"
"""For MariaDB and MySQL, which lock what they read: a scan of a small table
would wait for every other request that is being changed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """An ARQ whose row this transaction has locked."""

    id: int
    uuid: str
    state: arq.State
    attach_handle_id: int | None
    job_id: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class GivenBack:
    """What follows: hosts (names) that lost a device of which something was
    given back, and hosts (ids) that Placement is to follow."""

    lost_on: tuple[str, ...] = ()
    host_ids: tuple[int, ...] = ()
    cleaning: bool = False
    """Whether something is to be cleaned now."""


def lock(
    session: orm.Session,
    *,
    uuids: Collection[str] | None = None,
    instance: str | None = None,
    project_scope: str | None = None,
) -> list[Held]:
    """Locks and reads the ARQs of these uuids, or of that instance."""
    query = sa.select(
        Arq.id,
        Arq.uuid,
        Arq.state,
        Arq.attach_handle_id,
        Arq.job_id,
        Arq.instance_uuid,
        Arq.project_id,
    ).with_for_update()
    if uuids is not None:
        query = query.where(Arq.uuid.in_(uuids))
    else:
        query = (
            query.where(Arq.instance_uuid == instance)
            .with_hint(Arq, BY_INSTANCE, "mysql")
            .with_hint(Arq, BY_INSTANCE, "mariadb")
        )
    if project_scope is not None:
        query = query.where(Arq.project_id == project_scope)
    return [
        Held(
            row.id,
            row.uuid,
            arq.State(row.state),
            row.attach_handle_id,
            row.job_id,
        )
        for row in session.execute(query)
        if (uuids is not None or row.instance_uuid == instance)
        and (project_scope is None or row.project_id == project_scope)
    ]


def unbind(
    session: orm.Session, held: Sequence[Held], due_at: clock.Moment
) -> GivenBack:
    """Takes from locked ARQs all that they hold (3 statements, or as many
    more as it takes to clean)."""
    transition = arq.TRANSITIONS[arq.Event.UNBIND]
    ids = [row.id for row in held]
    notices.arqs(session, Event.UNBOUND, ids, notification.UNBOUND)
    session.execute(
        sa.update(Arq)
        .where(
            Arq.id.in_(ids),
            Arq.state.in_(transition.sources),
        )
        .values(
            state=transition.target,
            hostname=None,
            device_rp_uuid=None,
            instance_uuid=None,
            attach_handle_id=None,
            deployable_id=None,
            job_id=None,
            last_error=None,
            event_due_at=None,
            event_attempts=0,
        )
        .execution_options(synchronize_session=False)
    )
    return give_back(session, held, due_at)


def delete(
    session: orm.Session, held: Sequence[Held], due_at: clock.Moment
) -> GivenBack:
    """Removes locked ARQs, and gives back what they hold (3 statements, or
    as many more as it takes to clean)."""
    ids = [row.id for row in held]
    notices.arqs(session, Event.ARQ_DELETED, ids, notification.DELETED)
    session.execute(
        sa.delete(Arq)
        .where(Arq.id.in_(ids))
        .execution_options(synchronize_session=False)
    )
    return give_back(session, held, due_at)


def give_back(
    session: orm.Session, held: Sequence[Held], due_at: clock.Moment
) -> GivenBack:
    """Gives back what ARQs held that hold nothing now."""
    given = cleaning.given_up(
        session,
        [
            row.attach_handle_id
            for row in held
            if row.attach_handle_id is not None
        ],
    )
    host_ids = cleaning.give_back(session, given, due_at)
    job_ids = {row.job_id for row in held if row.job_id is not None}
    if job_ids:
        _cancel_unwanted(session, job_ids)
    return GivenBack(
        lost_on=tuple(
            sorted({unit.hostname for unit in given if unit.is_lost})
        ),
        host_ids=host_ids,
        cleaning=any(unit.is_cleaned for unit in given),
    )


def _cancel_unwanted(session: orm.Session, job_ids: Collection[int]) -> None:
    """Ends those of these jobs that prepare what no ARQ waits for any more
    (2 statements).

    The first makes two that give back what one job prepares come one after
    another, so that the second sees what the first did.
    """
    found = session.scalars(
        sa.select(Job.id)
        .where(Job.id.in_(sorted(job_ids)), Job.kind == jobs.PREPARE)
        .with_for_update()
    ).all()
    if found:
        waiting = sa.select(Arq.id).where(Arq.job_id == Job.id).exists()
        session.execute(
            jobs.ending(jobs.CANCELLED).where(Job.id.in_(found), ~waiting)
        )


def lock_deleting(session: orm.Session, limit: int) -> list[Held]:
    """ARQs whose deletion a service that is gone did not end.

    Those that hold a unit of which no agent has said yet whether it must be
    cleaned wait for that.
    """
    uncertain = (
        sa.select(Handle.id)
        .join(Deployable, Deployable.id == Handle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(
            Handle.id == Arq.attach_handle_id,
            Handle.lost_at.is_(None),
            Device.lost_at.is_(None),
            Device.driver.is_(None),
        )
    )
    rows = session.execute(
        sa.select(Arq.id, Arq.uuid, Arq.attach_handle_id, Arq.job_id)
        .where(Arq.state == arq.State.DELETING, ~uncertain.exists())
        .limit(limit)
        .with_for_update()
    )
    return [
        Held(
            row.id,
            row.uuid,
            arq.State.DELETING,
            row.attach_handle_id,
            row.job_id,
        )
        for row in rows
    ]


def fail_forsaken(
    session: orm.Session,
    before: clock.Moment,
    reason: str,
    event_due_at: clock.Moment,
    uuids: Collection[str] | None = None,
) -> tuple[int, tuple[int, ...]]:
    """Ends binds (of these ARQs alone, where `uuids` names any) that no job
    will end, begun before that time; how many, and the hosts (ids) that
    Placement is to follow.

    Ours always have a job; those of an adopted database have none.
    """
    named = [] if uuids is None else [Arq.uuid.in_(sorted(uuids))]
    rows = session.execute(
        sa.select(Arq.id, Arq.attach_handle_id)
        .outerjoin(Job, Job.id == Arq.job_id)
        .where(
            Arq.state == arq.State.BIND_STARTED,
            sa.func.coalesce(Arq.updated_at, Arq.created_at) < before,
            sa.or_(
                Job.id.is_(None),
                Job.state.not_in(("queued", "running")),
            ),
            *named,
        )
        .with_for_update(of=Arq)
    ).all()
    if not rows:
        return 0, ()
    arqs = {row.id: row.attach_handle_id for row in rows}
    return len(rows), fail(session, arqs, reason, event_due_at)


def fail(
    session: orm.Session,
    arqs: Mapping[int, int | None],
    reason: str,
    event_due_at: clock.Moment,
) -> tuple[int, ...]:
    """Moves ARQs (id -> handle) that are being bound to `BindFailed`; the
    hosts (ids) that Placement is to follow.

    What the host may have made for one of them is cleaned, all else is
    free: nobody has had it (3 statements, or as many more as it takes to
    clean).
    """
    transition = arq.TRANSITIONS[arq.Event.FAIL]
    session.execute(
        sa.update(Arq)
        .where(Arq.id.in_(sorted(arqs)), Arq.state.in_(transition.sources))
        .values(
            state=transition.target,
            attach_handle_id=None,
            deployable_id=None,
            job_id=None,
            last_error=reason,
            event_due_at=event_due_at,
            event_attempts=0,
        )
        .execution_options(synchronize_session=False)
    )
    notices.arqs(session, Event.BIND_FAILED, arqs)
    given = cleaning.given_up(
        session, [handle for handle in arqs.values() if handle is not None]
    )
    made = [unit for unit in given if unit.is_made]
    cleaning.free(session, [unit for unit in given if not unit.is_made])
    return cleaning.give_back(session, made, event_due_at)

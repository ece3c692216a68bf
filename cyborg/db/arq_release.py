# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests that give back what they hold.

Each function is one statement, or says how many, within the caller's
transaction.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg.db import models

Arq = models.AcceleratorRequest
Handle = models.AttachHandle

BY_INSTANCE = "FORCE INDEX (`extArqs_instance_uuid_idx`)"
"""For MariaDB and MySQL, which lock what they read: a scan of a small table
would wait for every other request that is being changed."""


def free(session: orm.Session, handles: Collection[int]) -> None:
    """Gives handles back."""
    if not handles:
        return
    session.execute(
        sa.update(Handle)
        .where(Handle.id.in_(sorted(handles)))
        .values(in_use=False)
        .execution_options(synchronize_session=False)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """An ARQ whose row this transaction has locked."""

    id: int
    uuid: str
    state: arq.State
    attach_handle_id: int | None
    deployable_id: int | None


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
        Arq.deployable_id,
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
            row.deployable_id,
        )
        for row in session.execute(query)
        if (uuids is not None or row.instance_uuid == instance)
        and (project_scope is None or row.project_id == project_scope)
    ]


def unbind(session: orm.Session, held: Sequence[Held]) -> None:
    """Takes from locked ARQs all that they hold (2 statements)."""
    transition = arq.TRANSITIONS[arq.Event.UNBIND]
    session.execute(
        sa.update(Arq)
        .where(
            Arq.id.in_([row.id for row in held]),
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
    free(session, handles_of(held))


def delete(session: orm.Session, held: Sequence[Held]) -> None:
    """Removes locked ARQs and frees what they hold (2 statements)."""
    session.execute(
        sa.delete(Arq)
        .where(Arq.id.in_([row.id for row in held]))
        .execution_options(synchronize_session=False)
    )
    free(session, handles_of(held))


def handles_of(held: Sequence[Held]) -> list[int]:
    """The handles (ids) that these ARQs have."""
    return [
        row.attach_handle_id
        for row in held
        if row.attach_handle_id is not None
    ]


def lock_deleting(session: orm.Session, limit: int) -> list[Held]:
    """ARQs whose deletion a service that is gone did not end."""
    rows = session.execute(
        sa.select(Arq.id, Arq.uuid, Arq.attach_handle_id, Arq.deployable_id)
        .where(Arq.state == arq.State.DELETING)
        .limit(limit)
        .with_for_update()
    )
    return [
        Held(
            row.id,
            row.uuid,
            arq.State.DELETING,
            row.attach_handle_id,
            row.deployable_id,
        )
        for row in rows
    ]


def fail_forsaken(
    session: orm.Session,
    before: dt.datetime,
    reason: str,
    event_due_at: dt.datetime,
) -> int:
    """Ends binds that no job will end, begun before that time; how many.

    Ours always have a job; those of an adopted database have none.  Up to 3
    statements.
    """
    rows = session.execute(
        sa.select(Arq.id, Arq.attach_handle_id)
        .outerjoin(models.Job, models.Job.id == Arq.job_id)
        .where(
            Arq.state == arq.State.BIND_STARTED,
            sa.func.coalesce(Arq.updated_at, Arq.created_at) < before,
            sa.or_(
                models.Job.id.is_(None),
                models.Job.state.not_in(("queued", "running")),
            ),
        )
        .with_for_update(of=Arq)
    ).all()
    if not rows:
        return 0
    fail(session, [row.id for row in rows], reason, event_due_at)
    free(
        session,
        [row[1] for row in rows if row[1] is not None],
    )
    return len(rows)


def fail(
    session: orm.Session,
    arqs: Collection[int],
    reason: str,
    event_due_at: dt.datetime,
) -> None:
    """Moves ARQs that are being bound to `BindFailed`."""
    transition = arq.TRANSITIONS[arq.Event.FAIL]
    session.execute(
        sa.update(Arq)
        .where(Arq.id.in_(arqs), Arq.state.in_(transition.sources))
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

# SPDX-License-Identifier: Apache-2.0
"""What Nova has yet to be told of accelerator requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg.db import clock
from cyborg.db import models

Arq = models.AcceleratorRequest


@dataclasses.dataclass(frozen=True, slots=True)
class Owed:
    """An ARQ of which Nova has yet to be told."""

    arq_uuid: str
    instance_uuid: str
    state: arq.State
    attempts: int


def take(session: orm.Session, until: clock.Moment, limit: int) -> list[Owed]:
    """Takes what is due, till `until` (2 statements, 1 when there is none)."""
    rows = session.execute(
        sa.select(
            Arq.id,
            Arq.uuid,
            Arq.instance_uuid,
            Arq.state,
            Arq.event_attempts,
        )
        .where(
            Arq.event_due_at <= clock.after(0), Arq.instance_uuid.is_not(None)
        )
        .order_by(Arq.event_due_at)
        .limit(limit)
        .with_for_update()
    ).all()
    if rows:
        session.execute(
            sa.update(Arq)
            .where(Arq.id.in_([row.id for row in rows]))
            .values(event_due_at=until)
            .execution_options(synchronize_session=False)
        )
    return [
        Owed(
            row.uuid,
            row.instance_uuid or "",
            arq.State(row.state),
            row.event_attempts,
        )
        for row in rows
    ]


def told(session: orm.Session, arqs: Collection[tuple[str, str]]) -> None:
    """Nova knows of these (ARQ, instance) pairs, or never will."""
    session.execute(
        sa.update(Arq)
        .where(
            Arq.uuid.in_([uuid for uuid, _ in arqs]),
            Arq.instance_uuid.in_({instance for _, instance in arqs}),
        )
        .values(event_due_at=None, event_attempts=0)
        .execution_options(synchronize_session=False)
    )


def postpone(
    session: orm.Session,
    arqs: Collection[tuple[str, str]],
    attempts: int,
    until: clock.Moment,
) -> None:
    """Tries these again at that time."""
    session.execute(
        sa.update(Arq)
        .where(
            Arq.uuid.in_([uuid for uuid, _ in arqs]),
            Arq.instance_uuid.in_({instance for _, instance in arqs}),
            Arq.event_due_at.is_not(None),
        )
        .values(event_due_at=until, event_attempts=attempts)
        .execution_options(synchronize_session=False)
    )


def seconds_left(session: orm.Session) -> float | None:
    """In how many seconds the next event is due."""
    row = session.execute(
        sa.select(sa.func.min(Arq.event_due_at), clock.after(0)).where(
            Arq.event_due_at.is_not(None), Arq.instance_uuid.is_not(None)
        )
    ).one()
    due, now = row
    return None if due is None else (due - now).total_seconds()

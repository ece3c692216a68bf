# SPDX-License-Identifier: Apache-2.0
"""How much there is of everything, by kind: one statement each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import clock
from cyborg.db import models

Arq = models.AcceleratorRequest
Deployable = models.Deployable
Device = models.Device
Handle = models.AttachHandle
Host = models.Host
Job = models.Job

Counts = dict[tuple[str, ...], int]
"""Values of the columns that are grouped by -> how many rows."""


def arqs(session: orm.Session) -> Counts:
    """By state."""
    return _grouped(session, Arq.id, [Arq.state])


def arqs_untold(session: orm.Session) -> int:
    """How many await that Nova is told of them."""
    return (
        session.scalar(
            sa.select(sa.func.count(Arq.id)).where(
                Arq.event_due_at.is_not(None)
            )
        )
        or 0
    )


def devices(session: orm.Session) -> Counts:
    """By type, status, and whether something is wrong: `lost`, `fault`,
    the state of its cleaning, or `ok`."""
    condition = sa.case(
        (Device.lost_at.is_not(None), "lost"),
        (Device.fault.is_not(None), "fault"),
        (Device.driver_fault.is_not(None), "fault"),
        (
            Device.device_state.in_(_CLEANED),
            sa.cast(Device.device_state, sa.String(32)),
        ),
        else_="ok",
    )
    return _grouped(
        session, Device.id, [Device.type, Device.status, condition]
    )


_CLEANED = ("pending_cleaning", "cleaning", "error")


def handles(session: orm.Session) -> Counts:
    """By the resource class of what they belong to (empty: none) and
    whether they are `used`, `cleaning` or `free`."""
    attribute = models.Attribute
    use = sa.case(
        (Handle.job_id.is_not(None), "cleaning"),
        (Handle.in_use.is_(True), "used"),
        else_="free",
    )
    classes = (
        sa.select(
            attribute.deployable_id,
            sa.func.min(sa.cast(attribute.value, sa.String(255))).label(
                "name"
            ),
        )
        .where(attribute.key == "rc")
        .group_by(attribute.deployable_id)
        .subquery()
    )
    name = sa.func.coalesce(classes.c.name, "")
    joined = sa.outerjoin(
        Handle, classes, classes.c.deployable_id == Handle.deployable_id
    )
    return _grouped(session, Handle.id, [name, use], joined)


def jobs(session: orm.Session) -> Counts:
    """By kind and state."""
    return _grouped(session, Job.id, [Job.kind, Job.state])


def agents(session: orm.Session, silent_before: clock.Moment) -> Counts:
    """By `alive` or `silent`, and `fault` or `ok` of their drivers."""
    sign = sa.case(
        (Host.last_seen_at >= silent_before, "alive"), else_="silent"
    )
    drivers = sa.case(
        (sa.func.coalesce(Host.faults, "[]").in_(("", "[]", "null")), "ok"),
        else_="fault",
    )
    return _grouped(session, Host.id, [sign, drivers])


def owed(session: orm.Session) -> set[tuple[int, int]]:
    """The hosts (id and synced revision) whose providers are not as their
    rows; what Nova has not made yet cannot be owed."""
    rows = session.execute(
        sa.select(Host.id, Host.synced_revision).where(
            Host.revision != Host.synced_revision,
            Host.provider_uuid.is_not(None),
        )
    )
    return {(host, revision) for host, revision in rows}


def _grouped(
    session: orm.Session,
    counted: Any,
    columns: Iterable[Any],
    source: Any = None,
) -> Counts:
    # Labels, since a second `case` would have parameters of its own, which
    # PostgreSQL takes for another expression.
    named = [
        column.label(f"by_{number}") for number, column in enumerate(columns)
    ]
    query = sa.select(*named, sa.func.count(counted))
    if source is not None:
        query = query.select_from(source)
    rows = session.execute(
        query.group_by(*(sa.literal_column(each.name) for each in named))
    )
    return {tuple(map(str, row[:-1])): int(row[-1]) for row in rows}

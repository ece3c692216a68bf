# SPDX-License-Identifier: Apache-2.0
"""Rows that may contradict each other, with what it takes to judge them.

Each function is one statement, however many rows there are.  What is wrong
is decided elsewhere, without SQL.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg.db import cleaning
from cyborg.db import jobs
from cyborg.db import models

Arq = models.AcceleratorRequest
Host = models.Host
Job = models.Job
Handle = models.AttachHandle
Deployable = models.Deployable
Device = models.Device


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """An accelerator request with what it refers to."""

    uuid: str
    state: str
    instance_uuid: str | None
    project_id: str | None
    hostname: str | None
    provider_uuid: str | None
    """`device_rp_uuid`: where Nova has allocated for it."""
    deployable_id: int | None
    handle_id: int | None
    handle_uuid: str | None
    handle_in_use: bool | None
    handle_job_id: int | None
    """The job that cleans the handle."""
    handle_deployable_id: int | None
    job_state: str | None
    """Of the job that ends its bind; None where there is no such job."""
    changed_at: dt.datetime | None
    is_uncertain: bool = False
    """It holds a handle of which no agent of ours has said yet if it must be
    cleaned."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """An attach handle of which nobody knows who has it."""

    id: int
    uuid: str
    hostname: str
    in_use: bool | None
    job_id: int | None
    job_state: str | None
    """Of the job that `job_id` names; None where there is no such job."""
    is_known: bool
    """Whether an agent of ours has said if it must be cleaned."""
    is_lost: bool
    changed_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class Twin:
    """An attach handle of which its deployable has another."""

    id: int
    uuid: str
    hostname: str
    deployable_id: int
    attach_info: str
    in_use: bool | None
    job_id: int | None
    held: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A job that has not ended."""

    id: int
    uuid: str
    kind: str
    hostname: str
    deadline: dt.datetime
    created_at: dt.datetime | None
    is_awaited: bool
    """Whether a handle waits for it."""
    host_seen_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A deployable that a job has which has ended, or is not there."""

    id: int
    uuid: str
    name: str
    hostname: str
    job_id: int
    job_state: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """A device that is said to be cleaned, by no job."""

    id: int
    uuid: str
    hostname: str
    state: str
    is_known: bool
    """Whether an agent of ours has reported it."""


def requests(session: orm.Session) -> list[Request]:
    """Every request but those that are new and nobody's."""
    rows: Any = session.execute(
        sa.select(
            Arq.uuid,
            Arq.state,
            Arq.instance_uuid,
            Arq.project_id,
            Arq.hostname,
            Arq.device_rp_uuid,
            Arq.deployable_id,
            Arq.attach_handle_id,
            Handle.uuid,
            Handle.in_use,
            Handle.job_id,
            Handle.deployable_id,
            Job.state,
            sa.func.coalesce(Arq.updated_at, Arq.created_at),
            sa.and_(
                Handle.id.is_not(None),
                Handle.lost_at.is_(None),
                Device.lost_at.is_(None),
                Device.driver.is_(None),
            ),
        )
        .outerjoin(Handle, Handle.id == Arq.attach_handle_id)
        .outerjoin(Deployable, Deployable.id == Handle.deployable_id)
        .outerjoin(Device, Device.id == Deployable.device_id)
        .outerjoin(Job, Job.id == Arq.job_id)
        .where(
            sa.or_(
                Arq.state != arq.State.INITIAL,
                Arq.instance_uuid.is_not(None),
                Arq.attach_handle_id.is_not(None),
                Arq.project_id.is_(None),
            )
        )
        .order_by(Arq.id)
    )
    return [Request(*row) for row in rows]


def units(session: orm.Session) -> list[Unit]:
    """Handles in use that no request has and no job cleans, and free ones
    that a job has."""
    held = sa.select(Arq.id).where(Arq.attach_handle_id == Handle.id)
    used = Handle.in_use.is_(sa.true())
    rows = session.execute(
        sa.select(
            Handle.id,
            Handle.uuid,
            Device.hostname,
            Handle.in_use,
            Handle.job_id,
            Job.state,
            Device.driver.is_not(None),
            sa.or_(Device.lost_at.is_not(None), Handle.lost_at.is_not(None)),
            sa.func.coalesce(Handle.updated_at, Handle.created_at),
        )
        .join(Deployable, Deployable.id == Handle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .outerjoin(Job, Job.id == Handle.job_id)
        .where(
            ~held.exists(),
            sa.or_(
                sa.and_(
                    used,
                    sa.or_(Job.id.is_(None), Job.state.not_in(jobs.ACTIVE)),
                ),
                sa.and_(~used, Handle.job_id.is_not(None)),
            ),
        )
        .order_by(Handle.id)
    )
    return [Unit(*row) for row in rows]


def twins(session: orm.Session) -> list[Twin]:
    """Handles of which a deployable has several with the same address."""
    key = (Handle.deployable_id, Handle.attach_type, Handle.attach_info)
    several = (
        sa.select(*key)
        .group_by(*key)
        .having(sa.func.count(Handle.id) > 1)
        .subquery()
    )
    rows = session.execute(
        sa.select(
            Handle.id,
            Handle.uuid,
            Device.hostname,
            Handle.deployable_id,
            Handle.attach_info,
            Handle.in_use,
            Handle.job_id,
            sa.select(Arq.id)
            .where(Arq.attach_handle_id == Handle.id)
            .exists(),
        )
        .join(
            several,
            sa.and_(*(several.c[column.key] == column for column in key)),
        )
        .join(Deployable, Deployable.id == Handle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .order_by(Handle.id)
    )
    return [Twin(*row) for row in rows]


def tasks(session: orm.Session) -> list[Task]:
    """Jobs that have not ended."""
    awaited = sa.select(Handle.id).where(Handle.job_id == Job.id)
    rows = session.execute(
        sa.select(
            Job.id,
            Job.uuid,
            Job.kind,
            Job.hostname,
            Job.deadline,
            Job.created_at,
            awaited.exists(),
            Host.last_seen_at,
        )
        .outerjoin(Host, Host.name == Job.hostname)
        .where(Job.state.in_(jobs.ACTIVE))
        .order_by(Job.id)
    )
    return [Task(*row) for row in rows]


def cards(session: orm.Session) -> list[Card]:
    """Deployables that a job has which is over."""
    rows: Any = session.execute(
        sa.select(
            Deployable.id,
            Deployable.uuid,
            Deployable.name,
            Device.hostname,
            Deployable.job_id,
            Job.state,
        )
        .join(Device, Device.id == Deployable.device_id)
        .outerjoin(Job, Job.id == Deployable.job_id)
        .where(
            Deployable.job_id.is_not(None),
            sa.or_(Job.id.is_(None), Job.state.not_in(jobs.ACTIVE)),
        )
        .order_by(Deployable.id)
    )
    return [Card(*row) for row in rows]


def shown(session: orm.Session) -> list[Shown]:
    """Devices that are said to be cleaned, or to be in error, by no job."""
    job = (
        sa.select(Handle.id)
        .join(Deployable, Deployable.id == Handle.deployable_id)
        .where(Deployable.device_id == Device.id, Handle.job_id.is_not(None))
    )
    rows: Any = session.execute(
        sa.select(
            Device.id,
            Device.uuid,
            Device.hostname,
            Device.device_state,
            Device.driver.is_not(None),
        )
        .where(Device.device_state.in_(sorted(cleaning.STATES)), ~job.exists())
        .order_by(Device.id)
    )
    return [Shown(*row) for row in rows]

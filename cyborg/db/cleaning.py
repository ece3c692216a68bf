# SPDX-License-Identifier: Apache-2.0
"""Units (attach handles) that are given back, and cleaned where they must be.

A unit that is to be cleaned stays in use and refers to its job until that
has ended well: neither a bind nor Placement gives it to anybody.  One whose
job failed stays so until an administrator has it cleaned again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import inventory
from cyborg.db import bulk
from cyborg.db import clock
from cyborg.db import hosts
from cyborg.db import jobs
from cyborg.db import models
from cyborg.db import notices
from cyborg.notification import Event

Arq = models.AcceleratorRequest
Job = models.Job
Handle = models.AttachHandle
Deployable = models.Deployable
Device = models.Device
ControlpathID = models.ControlpathID

MARGIN = 3600
"""How many seconds beyond four times what it may take a host can say that
it still cleans: its own limit is the one that counts."""

_RANKS = {jobs.QUEUED: 1, jobs.RUNNING: 2, jobs.FAILED: 3}
_SHOWN = {1: "pending_cleaning", 2: "cleaning", 3: "error"}
STATES = frozenset(_SHOWN.values())
"""Of a device that has units which are cleaned or could not be."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """An attach handle with what it takes to clean it."""

    id: int
    uuid: str
    attach_type: str
    attach_info: str
    job_id: int | None
    deployable_id: int
    deployable_name: str
    device_id: int
    device_uuid: str
    hostname: str
    driver: str
    controlpath: str
    clean_seconds: int | None
    is_lost: bool
    """Its host does not have the device any more."""

    @property
    def is_cleaned(self) -> bool:
        """Whether it is cleaned before anybody else gets it."""
        return self.clean_seconds is not None

    @property
    def is_made(self) -> bool:
        """Whether the host made it for the one that had it."""
        return inventory.is_made(self.attach_type, self.attach_info)


def units(
    session: orm.Session,
    *conditions: sa.ColumnElement[bool],
    limit: int | None = None,
    lock: bool = False,
) -> list[Unit]:
    """The units that meet these conditions, and do till the end of the
    transaction where they are locked (1 statement)."""
    query = (
        sa.select(
            Handle.id,
            Handle.uuid,
            Handle.attach_type,
            Handle.attach_info,
            Handle.job_id,
            Handle.deployable_id,
            Deployable.name,
            Deployable.driver_name,
            Device,
            ControlpathID.cpid_info,
        )
        .join(Deployable, Deployable.id == Handle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .join(ControlpathID, ControlpathID.id == Handle.cpid_id)
        .where(*conditions)
        .order_by(Handle.id)
        .limit(limit)
    )
    if lock:
        query = query.with_for_update(of=Handle)
    return [_unit(row) for row in session.execute(query)]


def _unit(row: Any) -> Unit:
    device: models.Device = row.Device
    return Unit(
        id=row.id,
        uuid=row.uuid,
        attach_type=row.attach_type,
        attach_info=row.attach_info,
        job_id=row.job_id,
        deployable_id=row.deployable_id,
        deployable_name=row.name,
        device_id=device.id,
        device_uuid=device.uuid,
        hostname=device.hostname,
        driver=device.driver or row.driver_name or "",
        controlpath=row.cpid_info,
        clean_seconds=device.clean_seconds,
        is_lost=device.lost_at is not None,
    )


def given_up(session: orm.Session, handles: Collection[int]) -> list[Unit]:
    """Those of these handles that no ARQ holds any more (1 statement, none
    where there are none).

    Of an adopted database two may hold one: it is the second's still.
    """
    if not handles:
        return []
    holder = sa.select(Arq.id).where(Arq.attach_handle_id == Handle.id)
    return units(session, Handle.id.in_(sorted(handles)), ~holder.exists())


def give_back(
    session: orm.Session, given: Collection[Unit], due_at: clock.Moment
) -> tuple[int, ...]:
    """Frees units, or begins to clean those whose devices want that; the
    hosts (ids) that Placement is to follow.

    Up to 9 statements; 1 where nothing is cleaned.
    """
    dirty = [unit for unit in given if unit.is_cleaned]
    free(session, [unit for unit in given if not unit.is_cleaned])
    if not dirty:
        return ()
    names = hosts.names(session, {unit.hostname for unit in dirty})
    host_ids = {
        names[unit.hostname].id for unit in dirty if unit.hostname in names
    }
    # Hosts come before what they have, as in the transaction of a report.
    if host_ids:
        hosts.changed(session, host_ids, due_at)
    begun = jobs.create(session, [_job(unit, names) for unit in dirty], None)
    bulk.update(
        session,
        Handle,
        {
            unit.id: {"in_use": True, "job_id": job.id}
            for unit, job in zip(dirty, begun, strict=True)
        },
    )
    show_states(session, {unit.device_id for unit in dirty})
    return tuple(sorted(host_ids))


def _job(unit: Unit, names: dict[str, hosts.Names]) -> jobs.New:
    host = names.get(unit.hostname)
    seconds = unit.clean_seconds or 0
    return jobs.New(
        kind=jobs.CLEAN,
        deployable_id=unit.deployable_id,
        hostname=unit.hostname if host is None else host.name,
        arguments={
            "driver": unit.driver,
            "controlpath": unit.controlpath,
            "deployable_name": unit.deployable_name,
            "units": [
                {
                    "uuid": unit.uuid,
                    "attach_type": unit.attach_type,
                    "attach_info": unit.attach_info,
                }
            ],
            "timeout": seconds,
            "device_uuid": unit.device_uuid,
        },
        seconds=4 * seconds + MARGIN,
    )


def free(session: orm.Session, given: Sequence[Unit]) -> None:
    """Lets anybody have these units."""
    if given:
        session.execute(
            sa.update(Handle)
            .where(Handle.id.in_(sorted(unit.id for unit in given)))
            .values(in_use=False, job_id=None)
            .execution_options(synchronize_session=False)
        )


def show_states(
    session: orm.Session, devices: Collection[int], error: str | None = None
) -> None:
    """Makes the devices (ids) show how far their units are.

    `error`: why one could not be cleaned just now (2 statements).
    """
    # One after another: what is read before another commits is not all.
    before = session.execute(
        sa.select(Device.id, Device.device_state, Device.clean_error)
        .where(Device.id.in_(sorted(devices)))
        .order_by(Device.id)
        .with_for_update()
    ).all()
    worst = (
        sa.select(sa.func.max(sa.case(_RANKS, value=Job.state, else_=0)))
        .join(Handle, Handle.job_id == Job.id)
        .join(Deployable, Deployable.id == Handle.deployable_id)
        .where(Deployable.device_id == Device.id)
        .scalar_subquery()
    )
    state: Any = sa.case(_SHOWN, value=worst, else_=sa.null())
    if session.get_bind().dialect.name == "postgresql":
        state = sa.cast(state, Device.device_state.type)
    kept = sa.case({3: Device.clean_error}, value=worst, else_=sa.null())
    session.execute(
        sa.update(Device)
        .where(Device.id.in_(sorted(devices)))
        .values(
            device_state=state, clean_error=kept if error is None else error
        )
        .execution_options(synchronize_session=False)
    )
    _tell_changed(session, {row.id: row for row in before})


def _tell_changed(session: orm.Session, before: Mapping[int, object]) -> None:
    """Tells of those of these devices that show another state now, or
    another reason of it."""
    if not notices.wanted(session):
        return
    rows = session.execute(
        sa.select(Device.id, Device.device_state, Device.clean_error).where(
            Device.id.in_(sorted(before))
        )
    )
    notices.devices(
        session,
        Event.DEVICE_UPDATED,
        [row.id for row in rows if row != before[row.id]],
    )


def devices_of(
    session: orm.Session, deployables: Collection[int]
) -> dict[int, str]:
    """The devices (id -> name of their host) of these deployables."""
    rows = session.execute(
        sa.select(Device.id, Device.hostname)
        .join(Deployable, Deployable.device_id == Device.id)
        .where(Deployable.id.in_(sorted(deployables)))
    )
    return {row.id: row.hostname for row in rows}


def retry(session: orm.Session, device_id: int, due_at: clock.Moment) -> None:
    """Has the units of a device cleaned again that could not be, or frees
    them where that is not wanted any more."""
    failed = sa.select(Job.id).where(
        Job.id == Handle.job_id, Job.state == jobs.FAILED
    )
    given = units(
        session, Deployable.device_id == device_id, failed.exists(), lock=True
    )
    give_back(session, given, due_at)
    freed = {unit.hostname for unit in given if not unit.is_cleaned}
    if freed:
        hosts.owe(session, freed, due_at)
    # Whatever an adopted row says.
    show_states(session, {device_id})


def follow_host(session: orm.Session, job: jobs.Claimed) -> None:
    """Has what a host that does not answer is to clean asked of the agent
    that its devices belong to today: it may have another name than when
    the job was made (2 statements, 3 where it has)."""
    for name in set(devices_of(session, {job.deployable_id}).values()):
        host = hosts.names(session, {name}).get(name)
        if host is None or host.name == job.hostname:
            continue
        theirs = (
            sa.select(Deployable.id)
            .join(Device, Device.id == Deployable.device_id)
            .where(Device.hostname == name)
        )
        session.execute(
            sa.update(Job)
            .where(
                Job.kind == jobs.CLEAN,
                Job.state.in_(jobs.ACTIVE),
                Job.hostname == job.hostname,
                Job.deployable_id.in_(theirs),
            )
            .values(hostname=host.name)
            .execution_options(synchronize_session=False)
        )


def forget_lost(
    session: orm.Session, before: clock.Moment, limit: int
) -> tuple[int, ...]:
    """Frees units that were lost and given back before that time and are
    held by their cleaning alone: nobody else keeps their rows.

    The hosts (ids) that Placement is to follow.  1 statement where there
    are none.
    """
    younger = sa.select(Job.id).where(
        Job.id == Handle.job_id, Job.created_at >= before
    )
    conditions = (
        Handle.job_id.is_not(None),
        ~younger.exists(),
        sa.or_(Handle.lost_at < before, Device.lost_at < before),
    )
    if not units(session, *conditions, limit=1):
        return ()
    given = units(session, *conditions, limit=limit, lock=True)
    host_ids = hosts.owe(
        session, {unit.hostname for unit in given}, due_at=clock.after(0)
    )
    ended = [unit.job_id for unit in given]
    session.execute(jobs.ending(jobs.CANCELLED).where(Job.id.in_(ended)))
    free(session, given)
    show_states(session, {unit.device_id for unit in given})
    return host_ids

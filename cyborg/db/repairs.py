# SPDX-License-Identifier: Apache-2.0
"""Rows put right, each in one transaction and only as they were found.

Every function says whether it did so: that rows are not as they were found
means that somebody else was faster, and nothing is changed then.  What is
given back goes the way of everything that is given back (`cleaning`).
"""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg.db import arq_release
from cyborg.db import bulk
from cyborg.db import cleaning
from cyborg.db import clock
from cyborg.db import engine
from cyborg.db import hosts
from cyborg.db import job_ends
from cyborg.db import jobs
from cyborg.db import models
from cyborg.db import suspects

Arq = models.AcceleratorRequest
Job = models.Job
Handle = models.AttachHandle
Deployable = models.Deployable
Device = models.Device

_HOLDING = sorted(arq.HOLDING)

_UNCLEAN = (
    sa.select(Job.id)
    .where(Job.id == Handle.job_id, Job.state.in_((*jobs.ACTIVE, jobs.FAILED)))
    .exists()
)
"""A handle has a job that cleans it, or could not."""


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """Whether something was put right, and the hosts (ids) that Placement
    is to follow."""

    done: bool
    host_ids: tuple[int, ...] = ()
    cleaning: bool = False
    """Whether a unit is cleaned before anybody else gets it."""


OVERTAKEN = Repair(False)


@engine.retried
def delete_request(
    database: engine.Database, found: suspects.Request
) -> Repair:
    """Deletes a request that is still for the same instance, and gives back
    what it holds."""
    with database.writer() as session:
        locked = arq_release.lock(session, uuids=[found.uuid])
        if not locked or not _is_still(session, found):
            return OVERTAKEN
        certain = _certain(found, locked)
        given = arq_release.delete(session, certain, clock.after(0))
        return Repair(True, given.host_ids, given.cleaning)


@engine.retried
def fail_request(
    database: engine.Database, found: suspects.Request, settle: float
) -> Repair:
    """Ends a bind that no job will end."""
    with database.writer() as session:
        failed, host_ids = arq_release.fail_forsaken(
            session,
            clock.after(-settle),
            "the service that bound it ended before it was done",
            clock.after(0),
            [found.uuid],
        )
        return Repair(failed > 0, host_ids)


@engine.retried
def release_handle(
    database: engine.Database, found: suspects.Request
) -> Repair:
    """Takes its handle from a request that should hold none."""
    with database.writer() as session:
        locked = arq_release.lock(session, uuids=[found.uuid])
        if not locked or not _is_still(session, found):
            return OVERTAKEN
        session.execute(
            sa.update(Arq)
            .where(Arq.uuid == found.uuid)
            .values(attach_handle_id=None, deployable_id=None)
            .execution_options(synchronize_session=False)
        )
        certain = _certain(found, locked)
        given = arq_release.give_back(session, certain, clock.after(0))
        return Repair(True, given.host_ids, given.cleaning)


def _certain(
    found: suspects.Request, locked: list[arq_release.Held]
) -> list[arq_release.Held]:
    """What is given back now: a unit that may have to be cleaned first stays
    in use, and is nobody's till an agent has said so."""
    if not found.is_uncertain:
        return locked
    return [dataclasses.replace(one, attach_handle_id=None) for one in locked]


def _is_still(session: orm.Session, found: suspects.Request) -> bool:
    """Whether a locked request is in what matters as it was found."""
    row = session.execute(
        sa.select(Arq.state, Arq.instance_uuid, Arq.attach_handle_id).where(
            Arq.uuid == found.uuid
        )
    ).one()
    return (row.state, row.instance_uuid, row.attach_handle_id) == (
        found.state,
        found.instance_uuid,
        found.handle_id,
    )


@engine.retried
def take_handle(database: engine.Database, found: suspects.Request) -> Repair:
    """Marks the handle as in use that a request holds."""
    holder = sa.select(Arq.id).where(
        Arq.uuid == found.uuid,
        Arq.attach_handle_id == Handle.id,
        Arq.state.in_(_HOLDING),
    )
    with database.writer() as session:
        # A request that is given back now is so before this or after.
        arq_release.lock(session, uuids=[found.uuid])
        return _updated(
            session,
            sa.update(Handle)
            .where(
                Handle.id == found.handle_id,
                Handle.in_use.is_not(sa.true()),
                Handle.job_id.is_(None),
                holder.exists(),
            )
            .values(in_use=True),
        )


@engine.retried
def set_deployable(
    database: engine.Database, found: suspects.Request
) -> Repair:
    """Has a request refer to the deployable of its handle."""
    with database.writer() as session:
        return _updated(
            session,
            sa.update(Arq)
            .where(
                Arq.uuid == found.uuid,
                Arq.state == arq.State.BOUND,
                Arq.attach_handle_id == found.handle_id,
            )
            .values(deployable_id=found.handle_deployable_id),
        )


@engine.retried
def fill_project(
    database: engine.Database, found: suspects.Request, project_id: str
) -> Repair:
    """Gives a request the project of its instance."""
    with database.writer() as session:
        return _updated(
            session,
            sa.update(Arq)
            .where(
                Arq.uuid == found.uuid,
                Arq.instance_uuid == found.instance_uuid,
                Arq.project_id.is_(None),
            )
            .values(project_id=project_id),
        )


@engine.retried
def give_back(database: engine.Database, found: suspects.Unit) -> Repair:
    """Gives back a handle in use that nobody has."""
    return _given_back(
        database,
        Handle.id == found.id,
        Handle.in_use.is_(sa.true()),
        # By itself: PostgreSQL looks at the locked row anew, but not at jobs
        # that were begun meanwhile.
        Handle.job_id.is_(None)
        if found.job_id is None
        else Handle.job_id == found.job_id,
        ~_UNCLEAN,
        sa.or_(
            Device.driver.is_not(None),
            Device.lost_at.is_not(None),
            Handle.lost_at.is_not(None),
        ),
    )


@engine.retried
def show_state(database: engine.Database, found: suspects.Shown) -> Repair:
    """Has a device's free units cleaned which it says are being cleaned,
    and has it say how far they are."""
    repair = _given_back(
        database,
        Device.id == found.id,
        Device.device_state == found.state,
        Device.driver.is_not(None),
        Handle.in_use.is_not(sa.true()),
        Handle.job_id.is_(None),
    )
    if repair.done:
        return repair
    with database.writer() as session:
        cleaning.show_states(session, {found.id})
    return Repair(True)


def _given_back(
    database: engine.Database, *conditions: sa.ColumnElement[bool]
) -> Repair:
    """Gives back the units that meet these conditions, and that no request
    holds."""
    held = sa.select(Arq.id).where(Arq.attach_handle_id == Handle.id)
    with database.writer() as session:
        given = cleaning.units(session, *conditions, ~held.exists(), lock=True)
        if not given:
            return OVERTAKEN
        host_ids = set(cleaning.give_back(session, given, clock.after(0)))
        freed = {unit.hostname for unit in given if not unit.is_cleaned}
        if freed:
            host_ids.update(hosts.owe(session, freed, clock.after(0)))
        cleaning.show_states(session, {unit.device_id for unit in given})
        return Repair(
            True,
            tuple(sorted(host_ids)),
            any(unit.is_cleaned for unit in given),
        )


@engine.retried
def keep_cleaned(database: engine.Database, found: suspects.Unit) -> Repair:
    """Marks a handle as in use until its job has ended well."""
    with database.writer() as session:
        return _updated(
            session,
            sa.update(Handle)
            .where(
                Handle.id == found.id,
                Handle.job_id == found.job_id,
                Handle.in_use.is_not(sa.true()),
                _UNCLEAN,
            )
            .values(in_use=True),
        )


@engine.retried
def forget_job(database: engine.Database, found: suspects.Unit) -> Repair:
    """Takes from a free handle a job that has ended."""
    with database.writer() as session:
        repair = _updated(
            session,
            sa.update(Handle)
            .where(
                Handle.id == found.id,
                Handle.job_id == found.job_id,
                Handle.in_use.is_not(sa.true()),
                ~_UNCLEAN,
            )
            .values(job_id=None),
        )
        return _followed(session, repair, found.hostname)


@engine.retried
def drop_handle(database: engine.Database, found: suspects.Twin) -> Repair:
    """Removes a free handle of which its deployable has another."""
    others = sa.orm.aliased(Handle)
    with database.writer() as session:
        # Of two that remove each the other's copy the second waits here.
        session.execute(
            sa.select(Deployable.id)
            .where(Deployable.id == found.deployable_id)
            .with_for_update()
        )
        left = session.scalars(
            sa.select(others.id).where(
                others.deployable_id == found.deployable_id,
                others.attach_info == found.attach_info,
                others.id != found.id,
            )
        ).all()
        held = sa.select(Arq.id).where(Arq.attach_handle_id == found.id)
        if not left or session.execute(held).first() is not None:
            return OVERTAKEN
        repair = _updated(
            session,
            sa.delete(Handle).where(
                Handle.id == found.id,
                Handle.in_use.is_not(sa.true()),
                Handle.job_id.is_(None),
            ),
        )
        return _followed(session, repair, found.hostname)


@engine.retried
def end_job(database: engine.Database, found: suspects.Task) -> Repair:
    """Ends a job that is past its deadline, and what waits for it."""
    fail = {
        jobs.PROGRAM: job_ends.program_failed,
        jobs.PREPARE: job_ends.prepare_failed,
    }[found.kind]
    with database.writer() as session:
        ended = fail(
            session,
            found.id,
            "no conductor ended it in time",
            clock.after(0),
        )
        return Repair(True, ended.host_ids) if ended else OVERTAKEN


@engine.retried
def cancel_job(database: engine.Database, found: suspects.Task) -> Repair:
    """Ends a job that cleans what does not wait for it."""
    awaited = sa.select(Handle.id).where(Handle.job_id == Job.id)
    with database.writer() as session:
        return _updated(
            session,
            jobs.ending(jobs.CANCELLED).where(
                Job.id == found.id,
                Job.kind == jobs.CLEAN,
                ~awaited.exists(),
            ),
        )


@engine.retried
def free_deployable(database: engine.Database, found: suspects.Card) -> Repair:
    """Lets others have a deployable whose job has ended.

    What it holds now is not known.
    """
    active = sa.select(Job.id).where(
        Job.id == found.job_id, Job.state.in_(jobs.ACTIVE)
    )
    with database.writer() as session:
        repair = _updated(
            session,
            sa.update(Deployable)
            .where(
                Deployable.id == found.id,
                Deployable.job_id == found.job_id,
                ~active.exists(),
            )
            .values(job_id=None, bitstream_id=None),
        )
        return _followed(session, repair, found.hostname)


@engine.retried
def owe(database: engine.Database, host_id: int) -> bool:
    """Owes Placement a look at a host; whether there is such a host."""
    with database.writer() as session:
        known = session.get(models.Host, host_id) is not None
        if known:
            hosts.changed(session, [host_id], clock.after(0))
        return known


def _updated(session: orm.Session, statement: sa.Update | sa.Delete) -> Repair:
    result = session.execute(
        statement.execution_options(synchronize_session=False)
    )
    return Repair(bulk.matched(result) == 1)


def _followed(session: orm.Session, repair: Repair, hostname: str) -> Repair:
    """The repair, after which Placement is to look at its host."""
    if not repair.done:
        return repair
    return Repair(True, hosts.owe(session, [hostname], clock.after(0)))

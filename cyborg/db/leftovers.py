# SPDX-License-Identifier: Apache-2.0
"""Units that a service of another release left half done.

None of ours does: who holds a unit is written in one transaction, and a
device whose units are cleaned has a job for each.  Rows of an adopted
database may say that a unit is in use which no accelerator request has, or
that a device is being cleaned which nobody cleans.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import cleaning
from cyborg.db import clock
from cyborg.db import hosts
from cyborg.db import models

Arq = models.AcceleratorRequest
Handle = models.AttachHandle
Deployable = models.Deployable
Device = models.Device


def give_back(
    session: orm.Session, before: clock.Moment, limit: int
) -> tuple[int, tuple[int, ...]]:
    """Has such units cleaned, or frees them where that is not wanted; how
    many, and the hosts (ids) that Placement is to follow.

    Only of devices of which our agents have said whether they clean them,
    or that were lost before that time.  A unit that is in use must have
    been so since: it may be that its request is yet to be written by a
    conductor of an older release.  2 statements where there are none.
    """
    devices = _uncleaned(session)
    conditions = (
        Handle.job_id.is_(None),
        sa.or_(Device.driver.is_not(None), Device.lost_at < before),
        ~sa.select(Arq.id).where(Arq.attach_handle_id == Handle.id).exists(),
        sa.or_(
            sa.and_(
                Handle.in_use.is_(sa.true()),
                sa.func.coalesce(Handle.updated_at, Handle.created_at)
                < before,
            ),
            # One that is taken meanwhile is not free when it is locked.
            sa.and_(Handle.in_use.is_not(sa.true()), Device.id.in_(devices)),
        ),
    )
    given = []
    if cleaning.units(session, *conditions, limit=1):
        given = cleaning.units(session, *conditions, limit=limit, lock=True)
    due_at = clock.after(0)
    host_ids = set(cleaning.give_back(session, given, due_at))
    freed = {unit.hostname for unit in given if not unit.is_cleaned}
    if freed:
        host_ids.update(hosts.owe(session, freed, due_at))
    if len(given) < limit and devices:
        cleaning.show_states(session, devices)
    return len(given), tuple(sorted(host_ids))


def _uncleaned(session: orm.Session) -> list[int]:
    """Devices that are said to be cleaned, or to be in error, without a
    job of ours."""
    job = (
        sa.select(Handle.id)
        .join(Deployable, Deployable.id == Handle.deployable_id)
        .where(Deployable.device_id == Device.id, Handle.job_id.is_not(None))
    )
    return list(
        session.scalars(
            sa.select(Device.id).where(
                Device.device_state.in_(sorted(cleaning.STATES)),
                Device.driver.is_not(None),
                ~job.exists(),
            )
        )
    )

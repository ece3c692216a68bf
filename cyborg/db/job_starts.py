# SPDX-License-Identifier: Apache-2.0
"""What a job needs of the rows of devices before it is begun.

Each function is one statement within the caller's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import bulk
from cyborg.db import jobs
from cyborg.db import models

Job = models.Job
Deployable = models.Deployable
Handle = models.AttachHandle


def take_deployables(session: orm.Session, job_ids: Mapping[int, int]) -> bool:
    """Whether no other job had any of these deployables; each is its job's
    now (deployable -> job)."""
    result = session.execute(
        sa.update(Deployable)
        .where(Deployable.id.in_(sorted(job_ids)), Deployable.job_id.is_(None))
        .values(job_id=bulk.by_id(session, Deployable.job_id, job_ids))
        .execution_options(synchronize_session=False)
    )
    return bulk.matched(result) == len(job_ids)


def in_use(
    session: orm.Session, deployables: Collection[int], own: Collection[int]
) -> set[int]:
    """Those of these deployables of which somebody has a handle that is not
    in `own`.

    Asked once the deployables are taken: who binds to one holds it
    meanwhile.
    """
    rows = session.execute(
        sa.select(Handle.id, Handle.deployable_id)
        .where(
            Handle.deployable_id.in_(deployables),
            Handle.in_use.is_(sa.true()),
        )
        .with_for_update(read=True)
    )
    return {row.deployable_id for row in rows if row.id not in own}


def controlpaths(
    session: orm.Session, devices: Collection[int]
) -> dict[int, str]:
    """The control path of each device that has one."""
    path = models.ControlpathID
    found: dict[int, str] = {}
    for device_id, info in session.execute(
        sa.select(path.device_id, path.cpid_info)
        .where(path.device_id.in_(devices))
        .order_by(path.id)
    ):
        found.setdefault(device_id, info)
    return found


def functions(
    session: orm.Session, deployables: Collection[int]
) -> dict[int, str]:
    """The function that each deployable was last programmed with, where it
    was chosen by its function."""
    rows = session.execute(
        sa.select(Job.deployable_id, Job.arguments)
        .where(
            Job.deployable_id.in_(deployables),
            Job.kind == jobs.PROGRAM,
            Job.state == jobs.DONE,
        )
        .order_by(Job.id)
    )
    last = {row.deployable_id: json.loads(row.arguments) for row in rows}
    return {
        deployable_id: arguments["function_id"]
        for deployable_id, arguments in last.items()
        if deployable_id is not None and arguments.get("function_id")
    }

# SPDX-License-Identifier: Apache-2.0
"""Adopted accelerator requests without a project, and whose they are."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from oslo_utils import uuidutils

from cyborg.db import engine
from cyborg.db import models


@engine.retried
def projectless(database: engine.Database) -> int:
    """How many accelerator requests have no project."""
    request = models.AcceleratorRequest
    with database.reader() as session:
        return session.scalars(
            sa.select(sa.func.count(request.id)).where(
                request.project_id.is_(None)
            )
        ).one()


@engine.retried
def instances_without_project(database: engine.Database) -> list[str]:
    """Instances that hold requests without a project."""
    request = models.AcceleratorRequest
    with database.reader() as session:
        found = session.scalars(
            sa.select(request.instance_uuid)
            .where(
                request.project_id.is_(None),
                request.instance_uuid.is_not(None),
            )
            .distinct()
            .order_by(request.instance_uuid)
        ).all()
    return [uuid for uuid in found if uuid and uuidutils.is_uuid_like(uuid)]


@engine.retried
def set_project(
    database: engine.Database,
    instance_uuid: str,
    project_id: str,
    limit: int | None,
) -> int:
    """Give an instance's projectless requests their project.

    At most `limit` of them; returns how many.
    """
    request = models.AcceleratorRequest
    wanted = (
        sa.select(request.id)
        .where(
            request.instance_uuid == instance_uuid,
            request.project_id.is_(None),
        )
        .order_by(request.id)
        .limit(limit)
    )
    with database.writer() as session:
        chosen = session.scalars(wanted).all()
        session.execute(
            sa.update(request)
            .where(request.id.in_(chosen), request.project_id.is_(None))
            .values(project_id=project_id)
            .execution_options(synchronize_session=False)
        )
    return len(chosen)


def fill_projects(
    database: engine.Database,
    project_of: Callable[[str], str | None],
    max_count: int | None = None,
) -> tuple[int, bool]:
    """Fill NULL projects from Nova's instances.

    `project_of` gives an instance's project, None where Nova has no such
    instance (its requests stay as they are).  Returns how many requests
    were filled and whether there are more to do.
    """
    filled = 0
    for instance in instances_without_project(database):
        left = None if max_count is None else max_count - filled
        if left is not None and left <= 0:
            return filled, True
        project = project_of(instance)
        if project:
            done = set_project(database, instance, project, left)
            filled += done
            if left is not None and done == left:
                return filled, bool(instances_without_project(database))
    return filled, False

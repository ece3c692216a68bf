# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests, read from the database.

`project_scope` is the only project whose requests exist for the caller, or
None where every project's do.  Rows come with profile and attach handle.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg import exception
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import query

_Request = models.AcceleratorRequest

SOURCE = query.Source(
    _Request,
    {
        **query.fields(
            _Request,
            "state",
            "device_profile_group_id",
            "hostname",
            "device_rp_uuid",
            "instance_uuid",
            "project_id",
        ),
        "device_profile_name": models.DeviceProfile.name,
        "attach_handle_type": models.AttachHandle.attach_type,
        "attach_handle_uuid": models.AttachHandle.uuid,
    },
    orm.join(_Request, models.DeviceProfile, _Request.device_profile).join(
        models.AttachHandle, _Request.attach_handle, isouter=True
    ),
)

_RESOLVED = sorted(state.value for state in arq.RESOLVED)


_JOINED = SOURCE.select(_Request).options(
    orm.load_only(
        _Request.uuid,
        _Request.state,
        _Request.device_profile_group_id,
        _Request.hostname,
        _Request.device_rp_uuid,
        _Request.instance_uuid,
        _Request.project_id,
        _Request.created_at,
        _Request.updated_at,
    ),
    orm.contains_eager(_Request.device_profile).load_only(
        models.DeviceProfile.name
    ),
    orm.contains_eager(_Request.attach_handle).load_only(
        models.AttachHandle.uuid,
        models.AttachHandle.attach_type,
        models.AttachHandle.attach_info,
    ),
)
"""Every request, with what the API shows of it."""


def in_scope(project_scope: str | None) -> list[sa.ColumnElement[bool]]:
    """The condition of what exists for the caller."""
    if project_scope is None:
        return []
    return [query.same(_Request.project_id, project_scope)]


def missing(uuids: Sequence[str]) -> exception.NotFound:
    """The error for requests that are not there."""
    names = ", ".join(query.shown(uuid, 36) for uuid in uuids)
    return exception.NotFound(f"There is no accelerator request {names}.")


@engine.retried
def get(
    database: engine.Database, uuid: str, project_scope: str | None = None
) -> models.AcceleratorRequest:
    """One request.  Raises NotFound."""
    with database.reader() as session:
        found: models.AcceleratorRequest | None = session.scalars(
            _JOINED.where(
                query.same(_Request.uuid, uuid), *in_scope(project_scope)
            )
        ).first()
    if found is None:
        raise missing([uuid])
    return found


@engine.retried
def get_many(
    database: engine.Database,
    uuids: Sequence[str],
    project_scope: str | None = None,
) -> list[models.AcceleratorRequest]:
    """The requests in the order asked.  Raises NotFound if one lacks."""
    with database.reader() as session:
        found = {
            request.uuid: request
            for request in session.scalars(
                _JOINED.where(
                    query.one_of(_Request.uuid, uuids),
                    *in_scope(project_scope),
                )
            )
        }
    absent = [uuid for uuid in uuids if uuid not in found]
    if absent:
        raise missing(absent)
    return [found[uuid] for uuid in uuids]


@engine.retried
def list_arqs(
    database: engine.Database,
    page: query.Page = query.EVERYTHING,
    instance: str | None = None,
    resolved: bool = False,
    project_scope: str | None = None,
) -> list[models.AcceleratorRequest]:
    """The requests of a page.

    With `resolved` only those for which Nova need not wait any longer; with
    `instance` too, raises NotResolved while one of that instance is not.
    """
    visible = in_scope(project_scope)
    if instance is not None:
        visible.append(query.same(_Request.instance_uuid, instance))
    elif resolved:
        visible.append(_Request.state.in_(_RESOLVED))
    guarded = instance is not None and resolved
    with database.reader() as session:
        if guarded and not page.whole:
            _refuse_unresolved(
                session.scalars(
                    sa.select(_Request.state)
                    .where(*visible, _Request.state.not_in(_RESOLVED))
                    .limit(1)
                ).all()
            )
        found = query.rows(session, _JOINED, SOURCE, page, *visible)
    requests = [request for (request,) in found]
    if guarded:
        _refuse_unresolved([request.state for request in requests])
    return requests


def _refuse_unresolved(states: Sequence[str]) -> None:
    if any(state not in _RESOLVED for state in states):
        raise exception.NotResolved(
            "An accelerator request of the instance is not resolved yet."
        )

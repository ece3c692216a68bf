# SPDX-License-Identifier: Apache-2.0
"""Device profiles in the database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy import orm

from cyborg import exception
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import query

SOURCE = query.Source(
    models.DeviceProfile,
    query.fields(models.DeviceProfile, "name", "description"),
)


def _missing(keys: Sequence[str]) -> exception.NotFound:
    names = ", ".join(query.shown(key) for key in keys)
    return exception.NotFound(f"There is no device profile {names}.")


def _called(keys: Sequence[str]) -> sa.ColumnElement[bool]:
    return sa.or_(
        query.one_of(models.DeviceProfile.uuid, keys),
        query.one_of(models.DeviceProfile.name, keys),
    )


@engine.retried
def get(database: engine.Database, key: str) -> models.DeviceProfile:
    """The profile with this uuid, else with this name.

    Raises NotFound.
    """
    with database.reader() as session:
        found = session.scalars(
            sa.select(models.DeviceProfile).where(_called([key]))
        ).all()
    if not found:
        raise _missing([key])
    return min(found, key=lambda profile: profile.uuid != key)


@engine.retried
def list_all(
    database: engine.Database,
    page: query.Page = query.EVERYTHING,
    names: Sequence[str] | None = None,
) -> list[models.DeviceProfile]:
    """The profiles of a page; with `names`, only those so called."""
    visible = []
    if names is not None:
        visible.append(query.one_of(models.DeviceProfile.name, names))
    with database.reader() as session:
        every = SOURCE.select(models.DeviceProfile)
        found = query.rows(session, every, SOURCE, page, *visible)
    return [profile for (profile,) in found]


@engine.retried
def create(
    database: engine.Database,
    name: str,
    groups: Sequence[Mapping[str, str]],
    description: str | None = None,
    uuid: str | None = None,
) -> models.DeviceProfile:
    """Store a profile whose name and groups were checked.

    Raises Conflict where the name (in any case) or the uuid is taken.
    """
    profile = models.DeviceProfile(
        uuid=uuid or models.new_uuid(),
        name=name,
        profile_json=json.dumps({"groups": [dict(group) for group in groups]}),
        description=description,
    )
    if not query.storable(name + (description or "")):
        raise exception.Invalid("name or description: not storable text")
    try:
        with database.writer() as session:
            _refuse_taken_name(session, name)
            session.add(profile)
    except db_exception.DBDuplicateEntry as error:
        raise exception.Conflict(
            f"A device profile with the name {name} or the uuid "
            f"{profile.uuid} exists already."
        ) from error
    return profile


def _refuse_taken_name(session: orm.Session, name: str) -> None:
    """MariaDB's unique index ignores case, those of the others do not.

    Only one creation at a time may pass here: SQLite's writer is alone
    already, PostgreSQL locks the table against other creations.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(
            sa.text("LOCK TABLE device_profiles IN SHARE ROW EXCLUSIVE MODE")
        )
    taken = session.scalars(
        sa.select(models.DeviceProfile.name).where(
            sa.func.lower(models.DeviceProfile.name) == name.lower()
        )
    ).first()
    if taken is not None:
        raise exception.Conflict(
            f"A device profile with the name {taken} exists already."
        )


@engine.retried
def delete(database: engine.Database, keys: Sequence[str]) -> None:
    """Remove the profiles with these names or uuids, all or none.

    Raises NotFound where one is missing, Conflict where one is in use.
    """
    try:
        with database.writer() as session:
            found = _found_for_deletion(session, keys)
            _refuse_used(session, found)
            session.execute(
                sa.delete(models.DeviceProfile).where(
                    models.DeviceProfile.id.in_(found)
                )
            )
    except db_exception.DBReferenceError as error:
        raise exception.Conflict(
            "A device profile is in use by an accelerator request."
        ) from error


def _found_for_deletion(
    session: orm.Session, keys: Sequence[str]
) -> dict[int, str]:
    """The id and name of each profile that a key names."""
    found = session.execute(
        sa.select(
            models.DeviceProfile.id,
            models.DeviceProfile.name,
            models.DeviceProfile.uuid,
        )
        .where(_called(keys))
        .order_by(models.DeviceProfile.id)
        .with_for_update()
    ).all()
    by_key = {row.name: row for row in found}
    by_key.update({row.uuid: row for row in found})
    missing = [key for key in keys if key not in by_key]
    if missing:
        raise _missing(missing)
    return {by_key[key].id: by_key[key].name for key in keys}


def _refuse_used(session: orm.Session, profiles: Mapping[int, str]) -> None:
    request = models.AcceleratorRequest
    used = session.execute(
        sa.select(request.uuid, request.device_profile_id)
        .where(request.device_profile_id.in_(profiles))
        .limit(1)
    ).first()
    if used is not None:
        raise exception.Conflict(
            f"Device profile {profiles[used.device_profile_id]} is in use "
            f"by accelerator request {used.uuid}."
        )

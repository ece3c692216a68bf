# SPDX-License-Identifier: Apache-2.0
"""Devices, deployables and attributes in the database.

What Placement should see after a change is owed by the device's host: each
such change bumps `hosts.revision` in its own transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy import orm

from cyborg import exception
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import query
from cyborg.db import shown

DEVICES = query.Source(
    models.Device,
    query.fields(
        models.Device,
        "type",
        "vendor",
        "model",
        "std_board_info",
        "vendor_board_info",
        "hostname",
        "status",
    ),
)
DEPLOYABLES = query.Source(
    models.Deployable,
    query.fields(
        models.Deployable,
        "parent_id",
        "root_id",
        "name",
        "num_accelerators",
        "device_id",
        "rp_uuid",
        "driver_name",
        "bitstream_id",
    ),
)
ATTRIBUTES = query.Source(
    models.Attribute,
    query.fields(models.Attribute, "deployable_id", "key", "value"),
)

_EVERY_DEVICE = DEVICES.select(
    *(DEVICES.fields[name] for name in shown.Device._fields)
)
_ONE_DEVICE = _EVERY_DEVICE.where(query.has_uuid(DEVICES))
_EVERY_DEPLOYABLE = DEPLOYABLES.select(
    *(DEPLOYABLES.fields[name] for name in shown.Deployable._fields[:-1])
)
_PAIRS = (
    sa.select(
        models.Attribute.deployable_id,
        models.Attribute.key,
        models.Attribute.value,
    )
    # Written into the statement: SQLite bounds the number of parameters.
    .where(
        models.Attribute.deployable_id.in_(
            sa.bindparam("ids", expanding=True, literal_execute=True)
        )
    )
    .order_by(models.Attribute.id)
)


def _missing(what: str, key: object) -> exception.NotFound:
    return exception.NotFound(f"There is no {what} {query.shown(key, 36)}.")


@engine.retried
def get_device(database: engine.Database, uuid: str) -> shown.Device:
    """One device.  Raises NotFound."""
    found = None
    if query.can_be_uuid(uuid):
        with database.reading() as connection:
            found = connection.execute(_ONE_DEVICE, {"uuid": uuid}).first()
    if found is None:
        raise _missing("device", uuid)
    return shown.Device._make(found)


@engine.retried
def list_devices(
    database: engine.Database, page: query.Page = query.EVERYTHING
) -> list[shown.Device]:
    """The devices of a page."""
    with database.reading() as connection:
        found = query.rows(connection, _EVERY_DEVICE, DEVICES, page)
    return [shown.Device._make(row) for row in found]


@engine.retried
def get_deployable(database: engine.Database, uuid: str) -> models.Deployable:
    """One deployable with its attributes.  Raises NotFound."""
    with database.reader() as session:
        found = (
            session.scalars(
                sa.select(models.Deployable)
                .where(query.same(models.Deployable.uuid, uuid))
                .options(orm.joinedload(models.Deployable.attributes))
            )
            .unique()
            .first()
        )
    if found is None:
        raise _missing("deployable", uuid)
    return found


@engine.retried
def list_deployables(
    database: engine.Database, page: query.Page = query.EVERYTHING
) -> list[shown.Deployable]:
    """The deployables of a page with their attributes, two statements."""
    pairs: dict[int, list[shown.Pair]] = {}
    with database.reading() as connection:
        found = query.rows(connection, _EVERY_DEPLOYABLE, DEPLOYABLES, page)
        ids = [row.id for row in found]
        for owner, *pair in connection.execute(_PAIRS, {"ids": ids}).all():
            pairs.setdefault(owner, []).append(shown.Pair._make(pair))
    return [
        shown.Deployable._make((*row, pairs.get(row.id, ()))) for row in found
    ]


@engine.retried
def get_attribute(database: engine.Database, uuid: str) -> models.Attribute:
    """One attribute.  Raises NotFound."""
    with database.reader() as session:
        return _attribute(session, uuid)


def _attribute(session: orm.Session, uuid: str) -> models.Attribute:
    found = session.scalars(
        sa.select(models.Attribute).where(
            query.same(models.Attribute.uuid, uuid)
        )
    ).first()
    if found is None:
        raise _missing("attribute", uuid)
    return found


@engine.retried
def list_attributes(
    database: engine.Database, page: query.Page = query.EVERYTHING
) -> list[models.Attribute]:
    """The attributes of a page."""
    with database.reader() as session:
        every = ATTRIBUTES.select(models.Attribute)
        found = query.rows(session, every, ATTRIBUTES, page)
    return [attribute for (attribute,) in found]


@engine.retried
def create_attribute(
    database: engine.Database, deployable_id: int, key: str, value: str
) -> models.Attribute:
    """Store an attribute of an operator; no report will touch it.

    Raises NotFound where the deployable does not exist, Conflict where it
    has the same key and value already.
    """
    if not 0 < deployable_id <= query.MAX_INTEGER:
        raise _missing("deployable", deployable_id)
    if not query.storable(key + value):
        raise exception.Invalid("key or value: not storable text")
    attribute = models.Attribute(
        uuid=models.new_uuid(),
        deployable_id=deployable_id,
        key=key,
        value=value,
        source="operator",
    )
    with database.writer() as session:
        _lock_deployable(session, deployable_id)
        _refuse_repeated(session, attribute)
        session.add(attribute)
        session.flush()
        if key.startswith("trait"):
            owe_sync(session, _hostname(session, deployable_id))
    return attribute


def _lock_deployable(session: orm.Session, deployable_id: int) -> None:
    """Only one writer of a deployable's attributes at a time."""
    found = session.execute(
        sa.select(models.Deployable.id)
        .where(models.Deployable.id == deployable_id)
        .with_for_update()
    ).first()
    if found is None:
        raise _missing("deployable", deployable_id)


def _refuse_repeated(
    session: orm.Session, attribute: models.Attribute
) -> None:
    repeated = session.scalars(
        sa.select(models.Attribute.uuid).where(
            models.Attribute.deployable_id == attribute.deployable_id,
            query.same(models.Attribute.key, attribute.key),
            query.same(models.Attribute.value, attribute.value),
        )
    ).first()
    if repeated is not None:
        raise exception.Conflict(
            f"The deployable has this key and value already, in {repeated}."
        )


def _hostname(session: orm.Session, deployable_id: int) -> str:
    return session.scalars(
        sa.select(models.Device.hostname)
        .join(models.Device.deployables)
        .where(models.Deployable.id == deployable_id)
    ).one()


@engine.retried
def delete_attribute(database: engine.Database, uuid: str) -> None:
    """Remove an attribute.  Raises NotFound.

    A trait is remembered as retired, so that it leaves Placement, unless
    another attribute of the deployable has it too.  What a driver reported
    comes back with the host's next report, which is asked for.
    """
    with database.writer() as session:
        attribute = _attribute(session, uuid)
        hostname = _hostname(session, attribute.deployable_id)
        _lock_deployable(session, attribute.deployable_id)
        session.execute(
            sa.delete(models.Attribute).where(
                models.Attribute.id == attribute.id
            )
        )
        if attribute.key.startswith("trait"):
            retire_traits(session, attribute.deployable_id, {attribute.value})
            owe_sync(session, hostname)
        if attribute.source != "operator":
            session.execute(
                sa.update(models.Host)
                .where(_belongs(hostname))
                .values(digest=None)
                .execution_options(synchronize_session=False)
            )


@engine.retried
def set_device_status(
    database: engine.Database, uuid: str, status: str
) -> tuple[models.Host, bool]:
    """Enable a device or take it into maintenance.

    Returns the host whose providers follow, and whether its revision is
    that of this change: it grows only where the status changed.  Raises
    NotFound.
    """
    device = models.Device
    chosen = query.same(device.uuid, uuid)
    with database.writer() as session:
        changed: Any = session.execute(
            sa.update(device)
            .where(chosen, device.status != status)
            .values(status=status)
            .execution_options(synchronize_session=False)
        )
        if changed.rowcount:
            hostname = sa.select(device.hostname).where(chosen)
            session.execute(_bump(hostname.scalar_subquery()))
        found = session.execute(
            sa.select(device.hostname, models.Host)
            .outerjoin(models.Host, _belongs(device.hostname))
            .where(chosen)
        ).all()
        if not found:
            raise _missing("device", uuid)
        host = _chosen(found[0].hostname, [row.Host for row in found])
        if host is None:
            return owe_sync(session, found[0].hostname), False
        return host, bool(changed.rowcount)


def _belongs(hostname: Any) -> sa.ColumnElement[bool]:
    return sa.or_(
        models.Host.provider_name == hostname, models.Host.name == hostname
    )


def _bump(hostname: Any) -> sa.Update:
    return (
        sa.update(models.Host)
        .where(_belongs(hostname))
        .values(revision=models.Host.revision + 1, sync_due_at=models.now())
        .execution_options(synchronize_session=False)
    )


def _chosen(
    hostname: str, hosts: Iterable[models.Host | None]
) -> models.Host | None:
    """The host that a device's hostname means: by its provider's name
    before its own."""
    return min(
        (host for host in hosts if host is not None),
        key=lambda host: host.provider_name.lower() != hostname.lower(),
        default=None,
    )


def owe_sync(session: orm.Session, hostname: str) -> models.Host:
    """Placement must follow a change on this host; the row, newly read.

    `hostname` is that of the device: the name of the root provider, or of
    the agent in older databases.  A host without a row gets one.
    """
    bumped: Any = session.execute(_bump(hostname))
    if not bumped.rowcount:
        host = models.Host(
            name=hostname,
            provider_name=hostname,
            revision=1,
            sync_due_at=models.now(),
        )
        try:
            with session.begin_nested():
                session.add(host)
            return host
        except db_exception.DBDuplicateEntry:
            session.execute(_bump(hostname))
    found = session.scalars(
        sa.select(models.Host)
        .where(_belongs(hostname))
        .execution_options(populate_existing=True)
    ).all()
    host_now = _chosen(hostname, found)
    if host_now is None:
        raise exception.Conflict(f"Host {hostname} is being changed.")
    return host_now


def retire_traits(
    session: orm.Session, deployable_id: int, names: Iterable[str]
) -> None:
    """Remember traits that must leave Placement with the next sync.

    Those that an attribute of the deployable still names stay.  The caller
    holds the deployable's row.
    """
    attribute = models.Attribute
    kept = session.scalars(
        sa.select(attribute.value).where(
            attribute.deployable_id == deployable_id,
            attribute.key.startswith("trait"),
        )
    ).all()
    retired = set(names) - set(kept)
    if not retired:
        return
    before = session.scalars(
        sa.select(models.Deployable.retired_traits).where(
            models.Deployable.id == deployable_id
        )
    ).one()
    retired.update(json.loads(before) if before else ())
    session.execute(
        sa.update(models.Deployable)
        .where(models.Deployable.id == deployable_id)
        .values(retired_traits=json.dumps(sorted(retired)))
        .execution_options(synchronize_session=False)
    )

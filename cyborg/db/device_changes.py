# SPDX-License-Identifier: Apache-2.0
"""Changes of devices and attributes that administrators make.

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
from cyborg.db import cleaning
from cyborg.db import clock
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import notices
from cyborg.db import query
from cyborg.notification import DevicePayload
from cyborg.notification import Event


@engine.retried
def create_attribute(
    database: engine.Database, deployable_id: int, key: str, value: str
) -> models.Attribute:
    """Store an attribute of an operator; no report will touch it.

    Raises NotFound where the deployable does not exist, Conflict where it
    has the same key and value already.
    """
    if not 0 < deployable_id <= query.MAX_INTEGER:
        raise devices.missing("deployable", deployable_id)
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
        raise devices.missing("deployable", deployable_id)


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
        attribute = devices.find_attribute(session, uuid)
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
    database: engine.Database,
    uuid: str,
    status: str,
    reason: str | None = None,
) -> tuple[models.Host, bool]:
    """Enable a device, and have cleaned again what could not be, or take it
    into maintenance for that reason.

    Returns the host whose providers follow, and whether its revision is
    that of this change alone.  Raises NotFound.
    """
    device = models.Device
    chosen = query.same(device.uuid, uuid)
    with database.writer() as session:
        changed: Any = session.execute(
            sa.update(device)
            .where(chosen, _differs(status, reason))
            .values(status=status, disabled_reason=reason)
            .execution_options(synchronize_session=False)
        )
        if changed.rowcount:
            hostname = sa.select(device.hostname).where(chosen)
            session.execute(_bump(hostname.scalar_subquery()))
        found = session.execute(
            sa.select(
                device.id,
                device.hostname.label("host_name"),
                device.device_state,
                models.Host,
                *notices.device_columns(session),
            )
            .outerjoin(models.Host, _belongs(device.hostname))
            .where(chosen)
        ).all()
        if not found:
            raise devices.missing("device", uuid)
        alone = bool(changed.rowcount)
        if alone:
            told = (DevicePayload(*row[4:]) for row in found[:1])
            notices.add(session, Event.DEVICE_UPDATED, told)
        if status == "enabled" and found[0].device_state in cleaning.STATES:
            cleaning.retry(session, found[0].id, clock.after(0))
            alone = False
        host = _chosen(found[0].host_name, [row.Host for row in found])
        if host is None:
            return owe_sync(session, found[0].host_name), False
        return host, alone


def _differs(status: str, reason: str | None) -> sa.ColumnElement[bool]:
    """Whether a device has another status, or was disabled for no reason
    or another one.  Who gives none leaves the one that there is."""
    device = models.Device
    other = device.status != status
    if status == "enabled":
        return sa.or_(other, device.disabled_reason.is_not(None))
    if reason is None:
        return other
    given = query.same(device.disabled_reason, reason)
    return sa.or_(other, device.disabled_reason.is_(None), ~given)


def _belongs(hostname: Any) -> sa.ColumnElement[bool]:
    return sa.or_(
        models.Host.provider_name == hostname, models.Host.name == hostname
    )


def _bump(hostname: Any) -> sa.Update:
    return (
        sa.update(models.Host)
        .where(_belongs(hostname))
        .values(revision=models.Host.revision + 1, sync_due_at=clock.after(0))
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
            sync_due_at=clock.after(0),
        )
        try:
            with session.begin_nested():
                session.add(host)
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

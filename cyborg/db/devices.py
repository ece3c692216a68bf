# SPDX-License-Identifier: Apache-2.0
"""Devices, deployables and attributes as they are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import exception
from cyborg.db import device_details
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
DETAILS = {
    "device_state": device_details.state(),
    "status_reason": device_details.reason(),
    "address": models.Device.address,
    "driver_name": models.Device.driver,
    "numa_node": models.Device.numa_node,
    "last_seen_at": device_details.last_seen_at(),
}
DETAILED_DEVICES = query.Source(models.Device, {**DEVICES.fields, **DETAILS})
DEPLOYABLES = query.Source(
    models.Deployable,
    {
        **query.fields(
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
        "status_reason": models.Deployable.fault,
    },
)
ATTRIBUTES = query.Source(
    models.Attribute,
    query.fields(models.Attribute, "deployable_id", "key", "value"),
)


def _every(source: query.Source) -> sa.Select[Any]:
    return source.select(
        *(
            source.fields[name]
            for name in shown.Device._fields
            if name in source.fields
        )
    )


_SOURCES = {False: DEVICES, True: DETAILED_DEVICES}
_EVERY_DEVICE = {key: _every(source) for key, source in _SOURCES.items()}
_ONE_DEVICE = {
    key: every.where(query.has_uuid(DEVICES))
    for key, every in _EVERY_DEVICE.items()
}
_EVERY_DEPLOYABLE = DEPLOYABLES.select(
    *(
        getattr(models.Deployable, name)
        for name in shown.Deployable._fields[:-1]
    )
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


def missing(what: str, key: object) -> exception.NotFound:
    """The error for a thing that there is not."""
    return exception.NotFound(f"There is no {what} {query.shown(key, 36)}.")


@engine.retried
def get_device(
    database: engine.Database, uuid: str, detailed: bool = False
) -> shown.Device:
    """One device, how it is and where too if `detailed`.  Raises
    NotFound."""
    found = None
    if query.can_be_uuid(uuid):
        with database.reading() as connection:
            found = connection.execute(
                _ONE_DEVICE[detailed], {"uuid": uuid}
            ).first()
    if found is None:
        raise missing("device", uuid)
    return _device(found)


def _device(row: Iterable[Any]) -> shown.Device:
    return shown.Device(*row)


@engine.retried
def list_devices(
    database: engine.Database,
    page: query.Page = query.EVERYTHING,
    detailed: bool = False,
) -> list[shown.Device]:
    """The devices of a page, how they are and where too if `detailed`."""
    with database.reading() as connection:
        found = query.rows(
            connection, _EVERY_DEVICE[detailed], _SOURCES[detailed], page
        )
    return [_device(row) for row in found]


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
        raise missing("deployable", uuid)
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
        return find_attribute(session, uuid)


def find_attribute(session: orm.Session, uuid: str) -> models.Attribute:
    """One attribute.  Raises NotFound."""
    found = session.scalars(
        sa.select(models.Attribute).where(
            query.same(models.Attribute.uuid, uuid)
        )
    ).first()
    if found is None:
        raise missing("attribute", uuid)
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

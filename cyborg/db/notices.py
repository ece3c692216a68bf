# SPDX-License-Identifier: Apache-2.0
"""What a transaction did, noted within it for whoever is told afterwards.

Where nobody listens nothing is noted, and no statement is spent.  Where
somebody does, a change of any number of rows costs one statement more for
each event; a transaction that is rolled back has told nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import notification
from cyborg.db import device_details
from cyborg.db import engine
from cyborg.db import models
from cyborg.notification import AcceleratorRequestPayload
from cyborg.notification import DevicePayload
from cyborg.notification import Event
from cyborg.notification import Notice

Arq = models.AcceleratorRequest
Device = models.Device
Deployable = models.Deployable


def wanted(session: orm.Session) -> bool:
    """Whether somebody will be told."""
    return engine.NOTICES in session.info


def add(
    session: orm.Session,
    event: Event,
    payloads: Iterable[notification.Payload],
) -> None:
    """Tells these once the transaction is committed."""
    if wanted(session):
        session.info[engine.NOTICES].extend(
            Notice(event, payload) for payload in payloads
        )


def arqs(
    session: orm.Session,
    event: Event,
    ids: Collection[int],
    state: str | None = None,
) -> None:
    """Tells what happened to these ARQs (ids) as they are now.

    With `state` they are shown in that state: it is called before what they
    hold is taken from them.
    """
    if not wanted(session) or not ids:
        return
    rows = session.execute(
        sa.select(
            Arq.uuid,
            Arq.state,
            Arq.project_id,
            models.DeviceProfile.name,
            Arq.device_profile_group_id,
            Arq.hostname,
            Arq.device_rp_uuid,
            Arq.instance_uuid,
            Arq.image_uuid,
            Arq.last_error,
        )
        .join(
            models.DeviceProfile,
            models.DeviceProfile.id == Arq.device_profile_id,
        )
        .where(Arq.id.in_(sorted(ids)))
        .order_by(Arq.id)
    )
    add(
        session,
        event,
        [
            AcceleratorRequestPayload(
                uuid=row.uuid,
                state=state or row.state,
                project_id=row.project_id,
                device_profile_name=row.name,
                device_profile_group_id=row.device_profile_group_id,
                hostname=row.hostname,
                device_rp_uuid=row.device_rp_uuid,
                instance_uuid=row.instance_uuid,
                image_uuid=row.image_uuid,
                error=row.last_error,
            )
            for row in rows
        ],
    )


def devices(
    session: orm.Session,
    event: Event,
    ids: Collection[int],
    deployables: Collection[int] = (),
) -> None:
    """Tells what happened to these devices (ids), and to those that these
    deployables are of, as they are now."""
    if not wanted(session) or not (ids or deployables):
        return
    chosen: sa.ColumnElement[bool] = Device.id.in_(sorted(ids))
    if deployables:
        parents = sa.select(Deployable.device_id).where(
            Deployable.id.in_(sorted(deployables))
        )
        chosen = sa.or_(chosen, Device.id.in_(parents))
    rows = session.execute(
        sa.select(*device_columns(session)).where(chosen).order_by(Device.id)
    )
    add(session, event, [DevicePayload(*row) for row in rows])


def device_columns(session: orm.Session) -> tuple[Any, ...]:
    """What a payload of a device is made of, for a statement that reads the
    device anyway; nothing where nobody is told."""
    if not wanted(session):
        return ()
    return (
        Device.uuid,
        Device.type,
        Device.vendor,
        Device.model,
        Device.hostname,
        Device.address,
        Device.numa_node,
        Device.driver,
        Device.status,
        device_details.state(),
        device_details.reason(),
        device_details.last_seen_at(),
    )

# SPDX-License-Identifier: Apache-2.0
"""How a device is and where, as columns of one statement.

They can be filtered and sorted by like any other.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cyborg.db import cleaning
from cyborg.db import hosts
from cyborg.db import models

Device = models.Device
Deployable = models.Deployable
Handle = models.AttachHandle
Host = models.Host


def state() -> Any:
    """What its units go through, else whether somebody has one."""
    used = (
        sa.select(Handle.id)
        .join(Deployable, Deployable.id == Handle.deployable_id)
        .where(Deployable.device_id == Device.id, Handle.in_use.is_(sa.true()))
        .correlate(Device)
        .exists()
    )
    return sa.case(
        (
            Device.device_state.in_(sorted(cleaning.STATES)),
            sa.cast(Device.device_state, sa.String(64)),
        ),
        (used, "allocated"),
        else_="available",
    )


def reason() -> Any:
    """Why nothing may be scheduled on it or its driver says nothing of it,
    all that is known; null where nothing is."""
    fault = (
        sa.select(Deployable.fault)
        .where(
            Deployable.device_id == Device.id,
            Deployable.fault.is_not(None),
        )
        .order_by(Deployable.id)
        .limit(1)
        .correlate(Device)
        .scalar_subquery()
    )
    parts = [
        sa.case((Device.lost_at.is_not(None), hosts.LOST)),
        Device.clean_error,
        Device.fault,
        fault,
        Device.driver_fault,
        Device.disabled_reason,
    ]
    joined: Any = sa.literal("", sa.Text)
    for part in parts:
        joined = joined.concat(
            sa.func.coalesce(sa.literal("; ", sa.Text).concat(part), "")
        )
    # Without the separator that the first part has, too.
    return sa.func.nullif(sa.func.substr(joined, 3), "", type_=sa.Text)


def last_seen_at() -> Any:
    """When a report last had it."""
    seen = (
        sa.select(sa.func.max(Host.last_seen_at))
        .where(Host.provider_name == Device.hostname)
        .correlate(Device)
        .scalar_subquery()
    )
    return sa.func.coalesce(Device.lost_at, seen, type_=sa.DateTime)

# SPDX-License-Identifier: Apache-2.0
"""What many hosts offer, read at once."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import hosts
from cyborg.db import models

Arq = models.AcceleratorRequest
Host = models.Host
Device = models.Device
Deployable = models.Deployable
Attribute = models.Attribute
Handle = models.AttachHandle


@dataclasses.dataclass(frozen=True, slots=True)
class HostRow:
    """A host as its agent left it."""

    id: int
    name: str
    provider_name: str
    provider_uuid: str | None
    last_seen_at: dt.datetime | None
    revision: int
    synced_revision: int

    @property
    def names(self) -> frozenset[str]:
        """What its devices may say that their host is called."""
        return frozenset((self.name, self.provider_name))


@dataclasses.dataclass(frozen=True, slots=True)
class Holdings:
    """What is there, and in use, under one host name."""

    hostname: str
    devices: int
    arqs: int
    """Accelerator requests that hold something of it."""
    units: int
    """Attach handles in use."""


def all_hosts(session: orm.Session) -> list[HostRow]:
    """Every host (1 statement)."""
    rows = session.execute(
        sa.select(
            Host.id,
            Host.name,
            Host.provider_name,
            Host.provider_uuid,
            Host.last_seen_at,
            Host.revision,
            Host.synced_revision,
        ).order_by(Host.provider_name, Host.id)
    )
    return [HostRow(*row) for row in rows]


def is_root(session: orm.Session, provider_uuid: str) -> bool:
    """Whether that provider is a host's root (1 statement)."""
    found = sa.select(Host.id).where(Host.provider_uuid == provider_uuid)
    return session.execute(found).first() is not None


def unknown_hostnames(session: orm.Session) -> list[str]:
    """What devices call a host that no agent has reported (1 statement)."""
    named = sa.select(Host.id).where(Host.name == Device.hostname)
    provided = sa.select(Host.id).where(Host.provider_name == Device.hostname)
    return list(
        session.scalars(
            sa.select(Device.hostname)
            .where(~named.exists(), ~provided.exists())
            .distinct()
            .order_by(Device.hostname)
        )
    )


def holdings(
    session: orm.Session, hostnames: Sequence[str]
) -> dict[str, Holdings]:
    """What there is under each of these names (3 statements, none where
    there are no names)."""
    if not hostnames:
        return {}
    of_deployable = Deployable.device_id == Device.id
    named = Device.hostname.in_(hostnames)
    devices = sa.select(Device.hostname, sa.func.count(Device.id))
    arqs = (
        sa.select(Device.hostname, sa.func.count(Arq.id))
        .join(Deployable, of_deployable)
        .join(Arq, Arq.deployable_id == Deployable.id)
    )
    units = (
        sa.select(Device.hostname, sa.func.count(Handle.id))
        .join(Deployable, of_deployable)
        .join(Handle, Handle.deployable_id == Deployable.id)
        .where(Handle.in_use.is_(sa.true()))
    )
    counts = [
        dict(
            session.execute(query.where(named).group_by(Device.hostname))
            .tuples()
            .all()
        )
        for query in (devices, arqs, units)
    ]
    return {
        name: Holdings(name, *(found.get(name, 0) for found in counts))
        for name in counts[0]
    }


def offers(
    session: orm.Session, rows: Sequence[HostRow]
) -> list[hosts.HostOffers]:
    """What each of these hosts offers (1 statement)."""
    owners: dict[str, HostRow] = {}
    for host in rows:
        owners.setdefault(host.name, host)
        owners[host.provider_name] = host
    found: dict[int, list[Any]] = {}
    for row in session.execute(_offered(list(owners))):
        owner = owners.get(row.Device.hostname)
        if owner is not None:
            found.setdefault(owner.id, []).append(row)
    return [
        hosts.HostOffers(
            id=host.id,
            name=host.name,
            provider_name=host.provider_name,
            provider_uuid=host.provider_uuid,
            revision=host.revision,
            synced_revision=host.synced_revision,
            offers=hosts.grouped(found.get(host.id, ())),
        )
        for host in rows
    ]


def _offered(hostnames: Sequence[str]) -> Any:
    """A row per attribute of each deployable of these hosts."""
    present = sa.and_(
        Handle.deployable_id == Deployable.id, Handle.lost_at.is_(None)
    )
    handles = sa.select(sa.func.count(Handle.id)).where(present)
    cleaned = sa.select(sa.func.count(Handle.job_id)).where(present)
    return (
        sa.select(
            sa.null(),
            Deployable,
            Device,
            Attribute,
            handles.correlate(Deployable).scalar_subquery(),
            cleaned.correlate(Deployable).scalar_subquery(),
        )
        .join(Deployable, Deployable.device_id == Device.id)
        .outerjoin(Attribute, Attribute.deployable_id == Deployable.id)
        .where(Device.hostname.in_(hostnames))
        .order_by(Deployable.id, Attribute.id)
    )

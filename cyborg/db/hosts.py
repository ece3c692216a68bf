# SPDX-License-Identifier: Apache-2.0
"""Hosts: which names belong together, what they offer, what Placement has
yet to be told of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import bulk
from cyborg.db import clock
from cyborg.db import models

Host = models.Host
Device = models.Device
Deployable = models.Deployable
Attribute = models.Attribute
Handle = models.AttachHandle

LOST = "the host does not have it any more"
"""Why nothing can be done with a lost device."""


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """A deployable as something that an ARQ can be bound to."""

    deployable_id: int
    uuid: str
    name: str
    rp_uuid: str
    bitstream_id: str | None
    job_id: int | None
    driver: str
    """Entry-point name, or what an adopted row calls its driver."""
    device_id: int
    hostname: str
    maintaining: bool
    broken: str
    """Why its device cannot be used; empty where it can."""
    fault: str
    """Why nothing can be bound to it although its device can be used (and
    programmed)."""
    attributes: tuple[tuple[str, str], ...]

    def resource_classes(self) -> frozenset[str]:
        """What it offers; one class, unless adopted rows are odd."""
        return frozenset(v for k, v in self.attributes if k == "rc")


def providers(
    session: orm.Session,
    *,
    rp_uuids: Collection[str] | None = None,
    deployable_uuid: str | None = None,
) -> list[Provider]:
    """The deployables of these providers, kept from changing till the end
    of the transaction."""
    query = (
        sa.select(Deployable, Device, Attribute.key, Attribute.value)
        .join(Device, Device.id == Deployable.device_id)
        .outerjoin(
            Attribute,
            sa.and_(
                Attribute.deployable_id == Deployable.id,
                Attribute.key == "rc",
            ),
        )
        .with_for_update(read=True, of=[Deployable, Device])
    )
    if rp_uuids is not None:
        query = query.where(Deployable.rp_uuid.in_(rp_uuids))
    else:
        query = query.where(Deployable.uuid == deployable_uuid)
    found: dict[int, Provider] = {}
    for deployable, device, key, value in session.execute(query):
        known = found.get(deployable.id)
        attributes = known.attributes if known else ()
        if key is not None:
            attributes += ((key, value),)
        found[deployable.id] = _provider(deployable, device, attributes)
    return list(found.values())


def _provider(
    deployable: models.Deployable,
    device: models.Device,
    attributes: tuple[tuple[str, str], ...],
) -> Provider:
    broken = device.fault or ""
    if device.lost_at is not None:
        broken = LOST
    return Provider(
        deployable_id=deployable.id,
        uuid=deployable.uuid,
        name=deployable.name,
        rp_uuid=deployable.rp_uuid or "",
        bitstream_id=deployable.bitstream_id,
        job_id=deployable.job_id,
        driver=device.driver or deployable.driver_name or "",
        device_id=device.id,
        hostname=device.hostname,
        maintaining=device.status == "maintaining",
        broken=broken,
        fault=deployable.fault or "",
        attributes=attributes,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """What one host is called."""

    id: int
    name: str
    provider_name: str


def names(
    session: orm.Session, hostnames: Collection[str]
) -> dict[str, Names]:
    """The hosts that are called so, by each of their names."""
    rows = session.execute(
        sa.select(Host.id, Host.name, Host.provider_name)
        .where(
            sa.or_(Host.name.in_(hostnames), Host.provider_name.in_(hostnames))
        )
        .order_by(Host.id)
    )
    found: dict[str, Names] = {}
    for row in rows:
        host = Names(row.id, row.name, row.provider_name)
        found.setdefault(host.name, host)
        found[host.provider_name] = host
    return found


def heartbeat(session: orm.Session, name: str, digest: str) -> bool:
    """Whether that host is known with that report; notes that it lives."""
    result = session.execute(
        sa.update(Host)
        .where(Host.name == name, Host.digest == digest)
        .values(last_seen_at=clock.after(0))
        .execution_options(synchronize_session=False)
    )
    return bulk.matched(result) == 1


def changed(
    session: orm.Session, hosts: Collection[int], due_at: clock.Moment
) -> None:
    """Owes Placement a look at these hosts."""
    session.execute(
        sa.update(Host)
        .where(Host.id.in_(sorted(hosts)))
        .values(revision=Host.revision + 1, sync_due_at=due_at)
        .execution_options(synchronize_session=False)
    )


def owe(
    session: orm.Session, hostnames: Collection[str], due_at: clock.Moment
) -> tuple[int, ...]:
    """The hosts (ids) that are called so, each owed a look (2 statements).

    A device's hostname that no host has is nobody's to follow.
    """
    found = names(session, hostnames)
    ids = {found[name].id for name in hostnames if name in found}
    if ids:
        changed(session, ids, due_at)
    return tuple(sorted(ids))


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """A deployable with what decides its provider."""

    id: int
    name: str
    rp_uuid: str | None
    num_accelerators: int
    withheld: bool
    """Nothing new may be scheduled on it."""
    attributes: tuple[tuple[str, str], ...]
    retired_traits: str | None
    device_uuid: str = ""
    handles: int = 0
    """How many units it has."""
    cleaned: int = 0
    """How many of them are being cleaned, or could not be."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostOffers:
    """A host as Placement should see it."""

    id: int
    name: str
    provider_name: str
    provider_uuid: str | None
    revision: int
    synced_revision: int
    offers: tuple[Offer, ...]


def offers(session: orm.Session, host_id: int) -> HostOffers | None:
    """What the host offers; None where there is no such host."""
    rows = session.execute(_offers_of(host_id)).all()
    if not rows:
        return None
    host = rows[0][0]
    return HostOffers(
        id=host.id,
        name=host.name,
        provider_name=host.provider_name,
        provider_uuid=host.provider_uuid,
        revision=host.revision,
        synced_revision=host.synced_revision,
        offers=grouped(rows),
    )


def _offers_of(host_id: int) -> Any:
    """A row per attribute of each deployable of the host; at least one."""
    present = sa.and_(
        Handle.deployable_id == Deployable.id, Handle.lost_at.is_(None)
    )
    handles = sa.select(sa.func.count(Handle.id)).where(present)
    cleaned = sa.select(sa.func.count(Handle.job_id)).where(present)
    return (
        sa.select(
            Host,
            Deployable,
            Device,
            Attribute,
            handles.correlate(Deployable).scalar_subquery(),
            cleaned.correlate(Deployable).scalar_subquery(),
        )
        .outerjoin(
            Device,
            sa.or_(
                Device.hostname == Host.provider_name,
                Device.hostname == Host.name,
            ),
        )
        .outerjoin(Deployable, Deployable.device_id == Device.id)
        .outerjoin(Attribute, Attribute.deployable_id == Deployable.id)
        .where(Host.id == host_id)
        .order_by(Deployable.id, Attribute.id)
    )


def grouped(rows: Sequence[Any]) -> tuple[Offer, ...]:
    """The deployables of rows as `offers` reads them."""
    attributes: dict[int, list[tuple[str, str]]] = {}
    found: dict[int, Any] = {}
    for row in rows:
        deployable, attribute = row.Deployable, row.Attribute
        if deployable is None:
            continue
        found[deployable.id] = row
        if attribute is not None:
            attributes.setdefault(deployable.id, []).append(
                (attribute.key, attribute.value)
            )
    return tuple(
        _offer(row, attributes.get(deployable_id, ()))
        for deployable_id, row in found.items()
    )


def _offer(row: Any, attributes: Sequence[tuple[str, str]]) -> Offer:
    _host, deployable, device, _attribute, handles, cleaned = row
    return Offer(
        id=deployable.id,
        name=deployable.name,
        rp_uuid=deployable.rp_uuid,
        num_accelerators=deployable.num_accelerators,
        withheld=device.status == "maintaining"
        or bool(device.fault or deployable.fault)
        or device.lost_at is not None
        or deployable.job_id is not None,
        attributes=tuple(attributes),
        retired_traits=deployable.retired_traits,
        device_uuid=device.uuid,
        handles=handles,
        cleaned=cleaned,
    )


def due(session: orm.Session, now: clock.Moment, limit: int) -> list[int]:
    """Hosts (ids) that a conductor should look at, the longest due first."""
    return list(
        session.scalars(
            sa.select(Host.id)
            .where(Host.sync_due_at <= now, Host.provider_uuid.is_not(None))
            .order_by(Host.sync_due_at)
            .limit(limit)
        )
    )


def take(
    session: orm.Session,
    host_id: int,
    now: clock.Moment,
    next_at: clock.Moment,
    owed_at: clock.Moment,
) -> bool:
    """Whether the host was due and no other conductor took it first.

    `owed_at`: when it is due again where something is owed, so that a
    conductor that dies now is soon replaced.
    """
    owed = Host.revision != Host.synced_revision
    result = session.execute(
        sa.update(Host)
        .where(Host.id == host_id, Host.sync_due_at <= now)
        .values(sync_due_at=sa.case((owed, owed_at), else_=next_at))
        .execution_options(synchronize_session=False)
    )
    return bulk.matched(result) == 1


def synced(
    session: orm.Session,
    host_id: int,
    revision: int,
    next_at: clock.Moment,
    only_owed: bool = False,
) -> bool:
    """Whether Placement now has all; False where rows changed meanwhile.

    `only_owed`: holds only where this revision was the only one owed.
    """
    query = sa.update(Host).where(
        Host.id == host_id, Host.revision == revision
    )
    if only_owed:
        query = query.where(Host.synced_revision == revision - 1)
    result = session.execute(
        query.values(
            synced_revision=revision, sync_due_at=next_at
        ).execution_options(synchronize_session=False)
    )
    return bulk.matched(result) == 1


def postpone(session: orm.Session, host_id: int, until: clock.Moment) -> None:
    """Tries the host again at that time."""
    session.execute(
        sa.update(Host)
        .where(Host.id == host_id)
        .values(sync_due_at=until)
        .execution_options(synchronize_session=False)
    )


def forget_root(session: orm.Session, host_id: int, root: str) -> None:
    """The root provider is gone: the agent has to look it up again."""
    session.execute(
        sa.update(Host)
        .where(Host.id == host_id, Host.provider_uuid == root)
        .values(provider_uuid=None, digest=None)
        .execution_options(synchronize_session=False)
    )


def retired(session: orm.Session, cleared: Mapping[int, str]) -> None:
    """These deployables' retired traits are off their providers, where no
    report has retired others meanwhile."""
    session.execute(
        sa.update(Deployable)
        .where(
            Deployable.id.in_(cleared),
            Deployable.retired_traits.in_(set(cleared.values())),
        )
        .values(retired_traits=None)
        .execution_options(synchronize_session=False)
    )


def hosts_with_lost(session: orm.Session) -> list[str]:
    """Names of the hosts that have lost devices."""
    return list(
        session.scalars(
            sa.select(Device.hostname)
            .where(Device.lost_at.is_not(None))
            .distinct()
        )
    )

# SPDX-License-Identifier: Apache-2.0
"""A host's devices as rows, and a plan of changes applied to them in bulk.

What has to change is decided elsewhere, without SQL; here is how: each
table is read by one statement and written by at most one INSERT, UPDATE and
DELETE, however many devices there are.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import bulk
from cyborg.db import clock
from cyborg.db import models
from cyborg.db import notices
from cyborg.db import report_rows
from cyborg.notification import Event

Host = models.Host
Device = models.Device
Deployable = models.Deployable
Attribute = models.Attribute
ControlpathID = models.ControlpathID
Handle = models.AttachHandle
Arq = models.AcceleratorRequest


class Overtaken(Exception):  # noqa: N818 - a turn of events, no error
    """Rows changed since they were read: do the transaction again."""


def lock_hosts(
    session: orm.Session, name: str, provider_name: str
) -> list[models.Host]:
    """The rows that have either name, locked."""
    return _locked(
        session,
        sa.or_(Host.name == name, Host.provider_name == provider_name),
    )


def lock_hosts_called(
    session: orm.Session, names: Collection[str]
) -> list[models.Host]:
    """The rows that have one of these names, whichever it is, locked."""
    return _locked(
        session,
        sa.or_(Host.name.in_(names), Host.provider_name.in_(names)),
    )


def _locked(
    session: orm.Session, condition: sa.ColumnElement[bool]
) -> list[models.Host]:
    return list(
        session.scalars(
            sa.select(Host)
            .where(condition)
            .order_by(Host.id)
            .with_for_update()
        )
    )


def add_host(session: orm.Session, values: Mapping[str, Any]) -> models.Host:
    """A host that was not known before."""
    host = Host(uuid=models.new_uuid(), **values)
    session.add(host)
    session.flush()
    return host


def is_alive(session: orm.Session, host: Host, down_time: float) -> bool:
    """Whether a host has been heard of within so many seconds."""
    found = session.scalar(
        sa.select(Host.id).where(
            Host.id == host.id, Host.last_seen_at > clock.after(-down_time)
        )
    )
    return found is not None


def change_host(
    session: orm.Session, host_id: int, values: Mapping[str, Any]
) -> None:
    """Sets these columns of a host."""
    bulk.update(session, Host, {host_id: values})


def delete_hosts(session: orm.Session, hosts: Collection[int]) -> None:
    """Forgets hosts (ids) whose agents have other names now."""
    session.execute(
        sa.delete(Host)
        .where(Host.id.in_(hosts))
        .execution_options(synchronize_session=False)
    )


def taken_elsewhere(
    session: orm.Session, rp_uuids: Collection[str], hostnames: Collection[str]
) -> dict[str, str]:
    """Which of these providers are another host's: uuid -> its name."""
    rows = session.execute(
        sa.select(Deployable.rp_uuid, Device.hostname)
        .join(Device, Device.id == Deployable.device_id)
        .where(
            Deployable.rp_uuid.in_(rp_uuids),
            Device.hostname.not_in(hostnames),
        )
    )
    return {str(row.rp_uuid): row.hostname for row in rows}


def apply(session: orm.Session, plan: report_rows.Plan) -> None:
    """Makes the rows so.

    Raises Overtaken where a handle that should go was taken meanwhile.
    """
    notices.devices(session, Event.DEVICE_DELETED, plan.gone_devices)
    _remove(session, plan)
    bulk.update(session, Device, plan.device_changes)
    bulk.update(session, Deployable, plan.deployable_changes)
    bulk.update(session, Handle, plan.handle_changes)
    device_ids = _add_devices(session, plan)
    deployable_ids, controlpath_ids = _add_deployables(
        session, plan, device_ids
    )
    _add_attributes(session, plan, deployable_ids)
    _add_handles(session, plan, deployable_ids, controlpath_ids)
    notices.devices(session, Event.DEVICE_CREATED, device_ids.values())
    notices.devices(
        session,
        Event.DEVICE_UPDATED,
        plan.device_changes,
        [
            deployable
            for deployable, row in plan.deployable_changes.items()
            if "fault" in row
        ],
    )


def _add_attributes(
    session: orm.Session,
    plan: report_rows.Plan,
    deployable_ids: Mapping[str, int],
) -> None:
    if plan.attributes:
        session.execute(
            sa.insert(Attribute),
            [
                {
                    "uuid": models.new_uuid(),
                    "deployable_id": _id(parent, deployable_ids),
                    "key": key,
                    "value": value,
                }
                for parent, key, value in plan.attributes
            ],
        )


def _add_handles(
    session: orm.Session,
    plan: report_rows.Plan,
    deployable_ids: Mapping[str, int],
    controlpath_ids: Mapping[int, int],
) -> None:
    if plan.handles:
        session.execute(
            sa.insert(Handle),
            [
                {
                    "uuid": models.new_uuid(),
                    "deployable_id": _id(parent, deployable_ids),
                    "cpid_id": controlpath_id
                    if controlpath_id is not None
                    else controlpath_ids[_id(parent, deployable_ids)],
                    "in_use": False,
                    "attach_type": handle.attach_type,
                    "attach_info": handle.attach_info,
                }
                for parent, controlpath_id, handle in plan.handles
            ],
        )


def _id(parent: int | str, ids: Mapping[str, int]) -> int:
    return ids[parent] if isinstance(parent, str) else parent


def _add_devices(
    session: orm.Session, plan: report_rows.Plan
) -> dict[str, int]:
    ids: dict[str, int] = {}
    if plan.devices:
        session.execute(sa.insert(Device), plan.devices)
        rows = session.execute(
            sa.select(Device.uuid, Device.id).where(
                Device.uuid.in_([row["uuid"] for row in plan.devices])
            )
        )
        ids = {row.uuid: row.id for row in rows}
    if plan.controlpaths:
        session.execute(
            sa.insert(ControlpathID),
            [
                {
                    "uuid": models.new_uuid(),
                    "device_id": _id(parent, ids),
                    "cpid_type": "PCI",
                    "cpid_info": info,
                }
                for parent, info in plan.controlpaths
            ],
        )
    return ids


def _add_deployables(
    session: orm.Session, plan: report_rows.Plan, device_ids: Mapping[str, int]
) -> tuple[dict[str, int], dict[int, int]]:
    """Ids of the new deployables by uuid, and of their control paths."""
    if not plan.deployables:
        return {}, {}
    session.execute(
        sa.insert(Deployable),
        [
            {**row, "device_id": _id(parent, device_ids)}
            for parent, row in plan.deployables
        ],
    )
    rows = session.execute(
        sa.select(Deployable.uuid, Deployable.id, ControlpathID.id)
        .outerjoin(
            ControlpathID, ControlpathID.device_id == Deployable.device_id
        )
        .where(
            Deployable.uuid.in_([row["uuid"] for _, row in plan.deployables])
        )
    ).all()
    return (
        {uuid: row_id for uuid, row_id, _ in rows},
        {
            row_id: controlpath_id
            for _, row_id, controlpath_id in rows
            if controlpath_id is not None
        },
    )


def _remove(session: orm.Session, plan: report_rows.Plan) -> None:
    if plan.gone_handles:
        result = session.execute(
            sa.delete(Handle)
            .where(
                Handle.id.in_(plan.gone_handles),
                Handle.in_use.is_not(sa.true()),
            )
            .execution_options(synchronize_session=False)
        )
        if bulk.matched(result) != len(plan.gone_handles):
            raise Overtaken
    _orphan(session, plan.gone_deployables)
    _delete(session, Attribute, Attribute.id, plan.gone_attributes)
    _delete(session, Attribute, Attribute.deployable_id, plan.gone_deployables)
    _delete(session, Deployable, Deployable.id, plan.gone_deployables)
    _delete(session, ControlpathID, ControlpathID.device_id, plan.gone_devices)
    _delete(session, Device, Device.id, plan.gone_devices)


def _orphan(session: orm.Session, deployables: Collection[int]) -> None:
    """Keeps what adopted rows have below these from going with them: it may
    be in use, and a report that cannot remove it could never be stored."""
    if not deployables:
        return
    parent, root = Deployable.parent_id, Deployable.root_id
    session.execute(
        sa.update(Deployable)
        .where(sa.or_(parent.in_(deployables), root.in_(deployables)))
        .values(
            parent_id=sa.case((parent.in_(deployables), None), else_=parent),
            root_id=sa.case((root.in_(deployables), None), else_=root),
        )
        .execution_options(synchronize_session=False)
    )


def _delete(
    session: orm.Session,
    model: type[models.Base],
    column: orm.InstrumentedAttribute[int],
    ids: Iterable[int],
) -> None:
    wanted = list(ids)
    if wanted:
        session.execute(
            sa.delete(model)
            .where(column.in_(wanted))
            .execution_options(synchronize_session=False)
        )

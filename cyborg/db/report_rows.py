# SPDX-License-Identifier: Apache-2.0
"""A host's devices as they are stored, and a plan of what must change."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import inventory
from cyborg.db import models

Device = models.Device
Deployable = models.Deployable
Attribute = models.Attribute
ControlpathID = models.ControlpathID
Handle = models.AttachHandle
Arq = models.AcceleratorRequest


@dataclasses.dataclass(frozen=True, slots=True)
class StoredHandle:
    """A handle with whether anybody has it."""

    id: int
    handle: inventory.AttachHandle
    held: bool
    lost: bool = False
    """No report has it any more."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredDeployable:
    """A deployable with what it holds."""

    id: int
    name: str
    rp_uuid: str | None
    num_accelerators: int
    driver_name: str
    retired_traits: str | None
    held: bool
    """An ARQ refers to it, one of its handles is in use, or a job runs."""
    attributes: tuple[tuple[int, str, str], ...]
    """(id, key, value) of what drivers reported."""
    operator_traits: frozenset[str]
    handles: tuple[StoredHandle, ...]
    fault: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredDevice:
    """A device with its (first) control path and its deployables."""

    id: int
    controlpath_id: int | None
    controlpath: str
    hostname: str
    lost: bool
    type: str
    vendor: str
    model: str
    driver: str | None
    std_board_info: str | None
    vendor_board_info: str | None
    fault: str
    deployables: tuple[StoredDeployable, ...]
    clean_seconds: int | None = None
    address: str | None = None
    numa_node: int | None = None
    driver_fault: str | None = None

    @property
    def held(self) -> bool:
        """Whether something on it is in use."""
        return any(deployable.held for deployable in self.deployables)


@dataclasses.dataclass(slots=True)
class Plan:
    """Row changes.  A child of a new row names its parent by uuid, one of a
    stored row by id."""

    devices: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    controlpaths: list[tuple[int | str, str]] = dataclasses.field(
        default_factory=list
    )
    deployables: list[tuple[int | str, dict[str, Any]]] = dataclasses.field(
        default_factory=list
    )
    attributes: list[tuple[int | str, str, str]] = dataclasses.field(
        default_factory=list
    )
    handles: list[tuple[int | str, int | None, inventory.AttachHandle]] = (
        dataclasses.field(default_factory=list)
    )
    """(deployable, control path where it is stored, handle)"""
    device_changes: dict[int, dict[str, object]] = dataclasses.field(
        default_factory=dict
    )
    deployable_changes: dict[int, dict[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    handle_changes: dict[int, dict[str, object]] = dataclasses.field(
        default_factory=dict
    )
    gone_attributes: list[int] = dataclasses.field(default_factory=list)
    gone_handles: list[int] = dataclasses.field(default_factory=list)
    gone_deployables: list[int] = dataclasses.field(default_factory=list)
    gone_devices: list[int] = dataclasses.field(default_factory=list)
    unsettled: bool = False
    """Something in use is left that the report does not have."""

    def __bool__(self) -> bool:
        return any(
            getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "unsettled"
        )


def load(
    session: orm.Session, hostnames: Collection[str]
) -> list[StoredDevice]:
    """The devices under these names (4 statements, 1 when none)."""
    rows = session.execute(
        sa.select(Device, ControlpathID.id, ControlpathID.cpid_info)
        .outerjoin(ControlpathID, ControlpathID.device_id == Device.id)
        .where(Device.hostname.in_(hostnames))
        .order_by(Device.id, ControlpathID.id)
    ).all()
    if not rows:
        return []
    deployables = _deployables(session, hostnames)
    found: dict[int, StoredDevice] = {}
    for device, controlpath_id, info in rows:
        found.setdefault(
            device.id,
            _device(
                device,
                controlpath_id,
                info or "",
                deployables.get(device.id, ()),
            ),
        )
    return list(found.values())


def _device(
    device: models.Device,
    controlpath_id: int | None,
    info: str,
    deployables: Sequence[StoredDeployable],
) -> StoredDevice:
    return StoredDevice(
        id=device.id,
        controlpath_id=controlpath_id,
        controlpath=inventory.canonical(info),
        hostname=device.hostname,
        lost=device.lost_at is not None,
        type=device.type,
        vendor=device.vendor,
        model=device.model,
        driver=device.driver,
        std_board_info=device.std_board_info,
        vendor_board_info=device.vendor_board_info,
        fault=device.fault or "",
        deployables=tuple(deployables),
        clean_seconds=device.clean_seconds,
        address=device.address,
        numa_node=device.numa_node,
        driver_fault=device.driver_fault,
    )


def _deployables(
    session: orm.Session, hostnames: Collection[str]
) -> dict[int, list[StoredDeployable]]:
    of_host = sa.select(Device.id).where(Device.hostname.in_(hostnames))
    referred = sa.select(Arq.id).where(Arq.deployable_id == Deployable.id)
    rows = session.execute(
        sa.select(Deployable, referred.exists())
        .where(Deployable.device_id.in_(of_host))
        .order_by(Deployable.id)
    ).all()
    deployable_ids = sa.select(Deployable.id).where(
        Deployable.device_id.in_(of_host)
    )
    attributes: dict[int, list[models.Attribute]] = {}
    for attribute in session.scalars(
        sa.select(Attribute)
        .where(Attribute.deployable_id.in_(deployable_ids))
        .order_by(Attribute.id)
    ):
        attributes.setdefault(attribute.deployable_id, []).append(attribute)
    handles = _handles(session, deployable_ids)
    found: dict[int, list[StoredDeployable]] = {}
    for deployable, is_referred in rows:
        own = handles.get(deployable.id, [])
        found.setdefault(deployable.device_id, []).append(
            _deployable(
                deployable,
                bool(is_referred),
                attributes.get(deployable.id, []),
                own,
            )
        )
    return found


def _deployable(
    row: models.Deployable,
    referred: bool,
    attributes: Sequence[models.Attribute],
    handles: Sequence[StoredHandle],
) -> StoredDeployable:
    return StoredDeployable(
        id=row.id,
        name=row.name,
        rp_uuid=row.rp_uuid,
        num_accelerators=row.num_accelerators,
        driver_name=row.driver_name or "",
        retired_traits=row.retired_traits,
        held=referred
        or row.job_id is not None
        or any(handle.held for handle in handles),
        attributes=tuple(
            (one.id, one.key, one.value)
            for one in attributes
            if one.source != "operator"
        ),
        operator_traits=frozenset(
            one.value
            for one in attributes
            if one.source == "operator" and one.key.startswith("trait")
        ),
        handles=tuple(handles),
        fault=row.fault or "",
    )


def _handles(
    session: orm.Session, deployable_ids: Any
) -> dict[int, list[StoredHandle]]:
    rows = session.execute(
        sa.select(Handle, Arq.id)
        .outerjoin(Arq, Arq.attach_handle_id == Handle.id)
        .where(Handle.deployable_id.in_(deployable_ids))
        .order_by(Handle.id)
    )
    found: dict[int, dict[int, StoredHandle]] = {}
    for handle, arq_id in rows:
        found.setdefault(handle.deployable_id, {})[handle.id] = StoredHandle(
            handle.id,
            inventory.AttachHandle(
                inventory.AttachType(handle.attach_type),
                inventory.canonical(handle.attach_info),
            ),
            held=bool(handle.in_use) or arq_id is not None,
            lost=handle.lost_at is not None,
        )
    return {key: list(value.values()) for key, value in found.items()}

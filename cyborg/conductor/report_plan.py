# SPDX-License-Identifier: Apache-2.0
"""What has to change in a host's rows, decided purely.

What is in use stays, whatever a report says.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg import inventory
from cyborg.conductor import places
from cyborg.conductor import providers
from cyborg.conductor.report_check import is_real
from cyborg.db import models
from cyborg.db import report_rows as rows


def plan(
    stored: Sequence[rows.StoredDevice],
    reported: Sequence[inventory.Device],
    report: inventory.HostReport,
    unreadable: Collection[str] = (),
) -> rows.Plan:
    """What turns the stored rows into what was reported.

    What is in use stays: a device that is gone is marked as lost, a handle
    or deployable that is gone is kept until it is given back.  A driver
    that failed says nothing of its devices, and the rows of a device whose
    report is `unreadable` (a control path) stay as they are.
    """
    failed = {fault.driver: fault.error for fault in report.faults}
    hostname = report.provider_name
    by_path: dict[str, rows.StoredDevice] = {}
    for device in sorted(stored, key=lambda one: not one.held):
        by_path.setdefault(device.controlpath, device)
    doubles = [
        device
        for device in stored
        if by_path[device.controlpath] is not device
    ]
    changes = inventory.diff(
        [_as_device(device) for device in by_path.values()], reported
    )
    result = rows.Plan()
    busy = _busy(stored)
    for new in changes.added:
        _add_device(result, new, hostname, busy)
    for new in reported:  # also an equal one may be lost or renamed
        if new.controlpath in by_path:
            _keep_device(result, by_path[new.controlpath], new, hostname, busy)
    gone = [by_path[device.controlpath] for device in changes.removed]
    for device in (*gone, *doubles):
        if device.controlpath not in unreadable:
            _miss_device(result, device, failed)
    _take_along(result, stored, hostname)
    return result


def _take_along(
    result: rows.Plan, stored: Iterable[rows.StoredDevice], hostname: str
) -> None:
    """Devices that stay have the host's name of today, reported or not: by
    any other they would not be found again."""
    gone = set(result.gone_devices)
    for device in stored:
        if device.hostname != hostname and device.id not in gone:
            changes = result.device_changes.setdefault(device.id, {})
            changes["hostname"] = hostname


def _busy(
    stored: Iterable[rows.StoredDevice],
) -> dict[inventory.AttachHandle, int]:
    """Units in use, and which deployable has each."""
    return {
        handle.handle: deployable.id
        for device in stored
        for deployable in device.deployables
        for handle in deployable.handles
        if handle.held and is_real(handle.handle)
    }


def _miss_device(
    result: rows.Plan, device: rows.StoredDevice, failed: Mapping[str, str]
) -> None:
    """A device that was not reported: it is gone, or its driver failed."""
    fault = _why_silent(device, failed)
    if not fault:
        lose_device(result, device)
    elif fault != device.driver_fault:
        result.device_changes[device.id] = {"driver_fault": fault}


def _why_silent(device: rows.StoredDevice, failed: Mapping[str, str]) -> str:
    """The faults of the drivers that may be the one that should have
    reported it, empty where none is; an adopted row does not say whose it
    is."""
    return "; ".join(
        f"{name}: {error}"
        for name, error in failed.items()
        if device.driver in {name, None}
    )


def _as_device(device: rows.StoredDevice) -> inventory.Device:
    return inventory.Device(
        controlpath=device.controlpath,
        type=inventory.DeviceType(device.type),
        vendor=device.vendor,
        model=device.model,
        driver=device.driver or "",
        std_board_info=device.std_board_info,
        vendor_board_info=device.vendor_board_info,
        fault=device.fault,
        clean_seconds=device.clean_seconds,
        deployables=tuple(
            inventory.Deployable(
                name=deployable.name,
                num_accelerators=deployable.num_accelerators,
                driver_name=deployable.driver_name,
                attributes=tuple(
                    (key, value) for _, key, value in deployable.attributes
                ),
                attach_handles=tuple(
                    handle.handle for handle in deployable.handles
                ),
                fault=deployable.fault,
            )
            for deployable in device.deployables
        ),
    )


def _device_columns(
    device: inventory.Device, hostname: str
) -> dict[str, object]:
    return {
        "type": device.type.value,
        "vendor": device.vendor,
        "model": device.model,
        "std_board_info": device.std_board_info,
        "vendor_board_info": device.vendor_board_info,
        "driver": device.driver,
        "fault": device.fault or None,
        "driver_fault": None,
        "hostname": hostname,
        "lost_at": None,
        "clean_seconds": device.clean_seconds,
        "address": places.address(device.controlpath),
        "numa_node": places.numa_node(device),
    }


def _add_device(
    result: rows.Plan,
    device: inventory.Device,
    hostname: str,
    busy: Mapping[inventory.AttachHandle, int],
) -> None:
    uuid = models.new_uuid()
    result.devices.append(
        {
            **_device_columns(device, hostname),
            "uuid": uuid,
            "status": "enabled",
        }
    )
    result.controlpaths.append((uuid, device.controlpath))
    for deployable in device.deployables:
        _add_deployable(result, uuid, None, deployable, busy)


def _add_deployable(
    result: rows.Plan,
    device: int | str,
    controlpath_id: int | None,
    deployable: inventory.Deployable,
    busy: Mapping[inventory.AttachHandle, int],
) -> None:
    uuid = models.new_uuid()
    free = [h for h in deployable.attach_handles if h not in busy]
    missing = len(deployable.attach_handles) - len(free)
    result.unsettled = result.unsettled or bool(missing)
    result.deployables.append(
        (
            device,
            {
                "uuid": uuid,
                "name": deployable.name,
                "num_accelerators": max(
                    0, deployable.num_accelerators - missing
                ),
                "rp_uuid": inventory.provider_uuid(deployable.name),
                "driver_name": deployable.driver_name,
                "fault": deployable.fault or None,
            },
        )
    )
    result.attributes += [
        (uuid, key, value) for key, value in deployable.attributes
    ]
    result.handles += [(uuid, controlpath_id, handle) for handle in free]


def _keep_device(
    result: rows.Plan,
    old: rows.StoredDevice,
    new: inventory.Device,
    hostname: str,
    busy: Mapping[inventory.AttachHandle, int],
) -> None:
    before = {
        "type": old.type,
        "vendor": old.vendor,
        "model": old.model,
        "std_board_info": old.std_board_info,
        "vendor_board_info": old.vendor_board_info,
        "driver": old.driver,
        "fault": old.fault or None,
        "driver_fault": old.driver_fault,
        "hostname": old.hostname,
        "lost_at": True if old.lost else None,
        "clean_seconds": old.clean_seconds,
        "address": old.address,
        "numa_node": old.numa_node,
    }
    after = _device_columns(new, hostname)
    columns = {k: v for k, v in after.items() if before[k] != v}
    if columns:
        result.device_changes[old.id] = columns
    if old.controlpath_id is None:
        result.controlpaths.append((old.id, new.controlpath))
    reported = {deployable.name: deployable for deployable in new.deployables}
    known: set[str] = set()
    for deployable in old.deployables:
        wanted = reported.get(deployable.name)
        if wanted is None or deployable.name in known:
            _lose_deployable(result, deployable)
            continue
        known.add(deployable.name)
        _keep_deployable(result, old, deployable, wanted, busy)
    for name, wanted in reported.items():
        if name not in known:
            _add_deployable(result, old.id, old.controlpath_id, wanted, busy)


def _keep_deployable(
    result: rows.Plan,
    device: rows.StoredDevice,
    old: rows.StoredDeployable,
    new: inventory.Deployable,
    busy: Mapping[inventory.AttachHandle, int],
) -> None:
    count = _keep_handles(result, device, old, new, busy)
    columns: dict[str, object] = {}
    if old.num_accelerators != count:
        columns["num_accelerators"] = count
    if old.driver_name != new.driver_name:
        columns["driver_name"] = new.driver_name
    if old.fault != new.fault:
        columns["fault"] = new.fault or None
    if old.rp_uuid is None:
        columns["rp_uuid"] = inventory.provider_uuid(new.name)
    retired = _keep_attributes(result, old, new)
    if retired != old.retired_traits:
        columns["retired_traits"] = retired
    if columns:
        result.deployable_changes[old.id] = columns


def _keep_handles(
    result: rows.Plan,
    device: rows.StoredDevice,
    old: rows.StoredDeployable,
    new: inventory.Deployable,
    busy: Mapping[inventory.AttachHandle, int],
) -> int:
    """How many accelerators the deployable has to offer."""
    wanted = list(new.attach_handles)
    for handle in sorted(old.handles, key=lambda one: not one.held):
        if handle.handle in wanted:
            wanted.remove(handle.handle)
            if handle.lost:
                result.handle_changes[handle.id] = {"lost_at": None}
        elif handle.held:
            _lose_handle(result, handle)
        else:
            result.gone_handles.append(handle.id)
    missing = 0
    for unit in wanted:
        if busy.get(unit, old.id) != old.id:
            missing += 1
            result.unsettled = True
        else:
            result.handles.append((old.id, device.controlpath_id, unit))
    return max(0, new.num_accelerators - missing)


def _keep_attributes(
    result: rows.Plan, old: rows.StoredDeployable, new: inventory.Deployable
) -> str | None:
    """The traits that have to be taken off the provider, as stored."""
    wanted = list(new.attributes)
    for attribute_id, key, value in old.attributes:
        if (key, value) in wanted:
            wanted.remove((key, value))
        else:
            result.gone_attributes.append(attribute_id)
    result.attributes += [(old.id, key, value) for key, value in wanted]
    before = inventory.traits((k, v) for _, k, v in old.attributes)
    retired = (
        (providers.retired(old.retired_traits) | before)
        - inventory.traits(new.attributes)
        - old.operator_traits
    )
    return json.dumps(sorted(retired)) if retired else None


def lose_device(result: rows.Plan, device: rows.StoredDevice) -> None:
    """Removes a device, or marks it as lost while it is in use."""
    if device.held:
        columns: dict[str, object] = {}
        if not device.lost:
            columns["lost_at"] = models.now()
        if device.driver_fault:
            columns["driver_fault"] = None
        if columns:
            result.device_changes[device.id] = columns
        result.gone_handles += [
            handle.id
            for deployable in device.deployables
            for handle in deployable.handles
            if not handle.held
        ]
        return
    result.gone_devices.append(device.id)
    for deployable in device.deployables:
        _remove_deployable(result, deployable)


def _lose_deployable(
    result: rows.Plan, deployable: rows.StoredDeployable
) -> None:
    """A deployable that its device does not have any more.

    While in use it keeps what is in use and offers nothing.
    """
    if not deployable.held:
        _remove_deployable(result, deployable)
        return
    result.unsettled = True
    for handle in deployable.handles:
        if handle.held:
            _lose_handle(result, handle)
        else:
            result.gone_handles.append(handle.id)
    if deployable.num_accelerators:
        result.deployable_changes[deployable.id] = {"num_accelerators": 0}


def _lose_handle(result: rows.Plan, handle: rows.StoredHandle) -> None:
    """A unit that is in use and not there any more: it is given to nobody
    else once it is given back."""
    result.unsettled = True
    if not handle.lost:
        result.handle_changes[handle.id] = {"lost_at": models.now()}


def _remove_deployable(
    result: rows.Plan, deployable: rows.StoredDeployable
) -> None:
    result.gone_deployables.append(deployable.id)
    result.gone_handles += [handle.id for handle in deployable.handles]

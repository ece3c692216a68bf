# SPDX-License-Identifier: Apache-2.0
"""Plans applied to rows in memory, for any two states of a host."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from cyborg import inventory
from cyborg.conductor import report_plan
from cyborg.db import report_rows as rows

PATHS = [inventory.pci_json(f"0000:0{number}:00.0") for number in range(4)]
UNITS = [
    inventory.AttachHandle(
        inventory.AttachType.PCI, inventory.pci_json(f"0000:1{number}:00.0")
    )
    for number in range(6)
]


def deployable(
    name: str, units: list[int], traits: list[str], fault: str = ""
) -> inventory.Deployable:
    return inventory.Deployable(
        name=name,
        num_accelerators=len(units),
        driver_name="fake",
        attributes=tuple(
            (f"trait{number}", trait) for number, trait in enumerate(traits)
        ),
        attach_handles=tuple(UNITS[number] for number in units),
        fault=fault,
    )


@st.composite
def devices(draw: st.DrawFn) -> list[inventory.Device]:
    """Devices that share no name and no unit."""
    left = list(range(len(UNITS)))
    found = []
    for path in draw(st.lists(st.sampled_from(PATHS), unique=True)):
        units = (
            draw(st.lists(st.sampled_from(left), unique=True)) if left else []
        )
        left = [unit for unit in left if unit not in units]
        found.append(
            inventory.Device(
                controlpath=path,
                type=inventory.DeviceType.FPGA,
                vendor="v",
                model=draw(st.sampled_from("ab")),
                driver=draw(st.sampled_from(["one", "two"])),
                deployables=(
                    deployable(
                        draw(st.sampled_from([path, f"{path} new"])),
                        units,
                        draw(
                            st.lists(
                                st.sampled_from(["CUSTOM_A", "CUSTOM_B"]),
                                unique=True,
                            )
                        ),
                        draw(st.sampled_from(["", "worn"])),
                    ),
                ),
                clean_seconds=draw(st.none() | st.integers(1, 9)),
            )
        )
    return found


class Store:
    """Rows in memory, changed as the database would change them."""

    def __init__(self) -> None:
        self.devices: list[rows.StoredDevice] = []
        self._ids = iter(range(1, 10_000))

    def apply(self, plan: rows.Plan) -> None:
        kept = [d for d in self.devices if d.id not in plan.gone_devices]
        self.devices = [self._changed(device, plan) for device in kept]
        paths = dict(plan.controlpaths)
        for row in plan.devices:
            self.devices.append(
                rows.StoredDevice(
                    id=next(self._ids),
                    controlpath_id=next(self._ids),
                    controlpath=paths[row["uuid"]],
                    hostname=row["hostname"],
                    lost=False,
                    type=row["type"],
                    vendor=row["vendor"],
                    model=row["model"],
                    driver=row["driver"],
                    std_board_info=row["std_board_info"],
                    vendor_board_info=row["vendor_board_info"],
                    fault=row["fault"] or "",
                    deployables=self._new(plan, row["uuid"]),
                    clean_seconds=row["clean_seconds"],
                    address=row["address"],
                    numa_node=row["numa_node"],
                )
            )

    def _changed(
        self, device: rows.StoredDevice, plan: rows.Plan
    ) -> rows.StoredDevice:
        values = dict(plan.device_changes.get(device.id, {}))
        if "lost_at" in values:
            values["lost"] = values.pop("lost_at") is not None
        if "fault" in values:
            values["fault"] = values["fault"] or ""
        deployables = [
            self._kept(one, plan)
            for one in device.deployables
            if one.id not in plan.gone_deployables
        ]
        return dataclasses.replace(
            device,
            **values,  # type: ignore[arg-type]
            deployables=(*deployables, *self._new(plan, device.id)),
        )

    def _kept(
        self, one: rows.StoredDeployable, plan: rows.Plan
    ) -> rows.StoredDeployable:
        values = dict(plan.deployable_changes.get(one.id, {}))
        if "fault" in values:
            values["fault"] = values["fault"] or ""
        return dataclasses.replace(
            one,
            **values,
            attributes=(
                *(
                    a
                    for a in one.attributes
                    if a[0] not in plan.gone_attributes
                ),
                *self._attributes(plan, one.id),
            ),
            handles=(
                *(
                    self._kept_handle(handle, plan)
                    for handle in one.handles
                    if handle.id not in plan.gone_handles
                ),
                *self._handles(plan, one.id),
            ),
        )

    def _kept_handle(
        self, handle: rows.StoredHandle, plan: rows.Plan
    ) -> rows.StoredHandle:
        values = plan.handle_changes.get(handle.id)
        if values is None:
            return handle
        return dataclasses.replace(handle, lost=values["lost_at"] is not None)

    def _new(
        self, plan: rows.Plan, parent: int | str
    ) -> tuple[rows.StoredDeployable, ...]:
        return tuple(
            rows.StoredDeployable(
                id=next(self._ids),
                name=row["name"],
                rp_uuid=row["rp_uuid"],
                num_accelerators=row["num_accelerators"],
                driver_name=row["driver_name"],
                retired_traits=None,
                held=False,
                attributes=self._attributes(plan, row["uuid"]),
                operator_traits=frozenset(),
                handles=self._handles(plan, row["uuid"]),
                fault=row["fault"] or "",
            )
            for owner, row in plan.deployables
            if owner == parent
        )

    def _attributes(
        self, plan: rows.Plan, parent: int | str
    ) -> tuple[tuple[int, str, str], ...]:
        return tuple(
            (next(self._ids), key, value)
            for owner, key, value in plan.attributes
            if owner == parent
        )

    def _handles(
        self, plan: rows.Plan, parent: int | str
    ) -> tuple[rows.StoredHandle, ...]:
        return tuple(
            rows.StoredHandle(next(self._ids), handle, held=False)
            for owner, _, handle in plan.handles
            if owner == parent
        )

    def hold(self, unit: inventory.AttachHandle, held: bool) -> None:
        """Somebody takes that unit, or gives it back."""
        self.devices = [
            dataclasses.replace(
                device,
                deployables=tuple(
                    _holding(one, unit, held) for one in device.deployables
                ),
            )
            for device in self.devices
        ]

    def offered(self) -> list[tuple[str, inventory.AttachHandle]]:
        """Units that can be taken once nobody has them, by deployable."""
        return [
            (one.name, handle.handle)
            for device in self.devices
            for one in device.deployables
            for handle in one.handles
            if not (device.lost or handle.lost)
        ]

    def units(self) -> list[tuple[inventory.AttachHandle, bool]]:
        return [
            (handle.handle, handle.held)
            for device in self.devices
            for one in device.deployables
            for handle in one.handles
        ]

    def tree(self) -> set[object]:
        """All that a report says, without order."""
        return {
            (
                device.controlpath,
                device.model,
                device.driver,
                device.lost,
                device.clean_seconds,
                one.name,
                one.fault,
                one.num_accelerators,
                frozenset((k, v) for _, k, v in one.attributes),
                frozenset(handle.handle for handle in one.handles),
            )
            for device in self.devices
            for one in device.deployables
        }


def _holding(
    one: rows.StoredDeployable, unit: inventory.AttachHandle, held: bool
) -> rows.StoredDeployable:
    handles = tuple(
        dataclasses.replace(handle, held=held)
        if handle.handle == unit
        else handle
        for handle in one.handles
    )
    return dataclasses.replace(
        one,
        handles=handles,
        held=any(handle.held for handle in handles),
    )


def tree(reported: list[inventory.Device]) -> set[object]:
    return {
        (
            device.controlpath,
            device.model,
            device.driver,
            False,
            device.clean_seconds,
            one.name,
            one.fault,
            one.num_accelerators,
            frozenset(one.attributes),
            frozenset(one.attach_handles),
        )
        for device in reported
        for one in device.deployables
    }


def plan(
    store: Store, reported: list[inventory.Device], *failed: str
) -> rows.Plan:
    faults = tuple(inventory.DriverFault(name, "x") for name in failed)
    report = inventory.HostReport(
        "node", "node.org", None, tuple(reported), faults
    )
    return report_plan.plan(store.devices, reported, report)


@given(devices(), devices())
def test_a_plan_applied_to_rows_gives_what_was_reported(
    first: list[inventory.Device], second: list[inventory.Device]
) -> None:
    store = Store()
    for reported in (first, second, first):
        made = plan(store, reported)
        assert not made.unsettled
        store.apply(made)
        assert store.tree() == tree(reported)
        assert not plan(store, reported)


@given(devices(), devices(), st.sets(st.sampled_from(UNITS)))
def test_what_is_in_use_stays_and_is_never_offered_twice(
    first: list[inventory.Device],
    second: list[inventory.Device],
    taken: set[inventory.AttachHandle],
) -> None:
    store = Store()
    store.apply(plan(store, first))
    for unit in taken:
        store.hold(unit, held=True)
    held = [unit for unit, is_held in store.units() if is_held]
    store.apply(plan(store, second))
    now = store.units()
    assert sorted(map(repr, (unit for unit, is_held in now if is_held))) == (
        sorted(map(repr, held))
    )
    units = [unit for unit, _ in now]
    assert len(units) == len(set(units))
    assert set(store.offered()) <= {
        (one.name, unit)
        for device in second
        for one in device.deployables
        for unit in one.attach_handles
    }
    store.apply(plan(store, second))
    for unit in taken:
        store.hold(unit, held=False)
    store.apply(plan(store, second))
    assert store.tree() == tree(second)


@given(devices(), devices())
def test_a_driver_that_failed_removes_nothing_of_its_own(
    first: list[inventory.Device], second: list[inventory.Device]
) -> None:
    store = Store()
    store.apply(plan(store, first))
    said = [device for device in second if device.driver != "one"]
    reported = {device.controlpath for device in said}
    store.apply(plan(store, said, "one"))
    left = {device.controlpath for device in store.devices}
    assert left == reported | {
        device.controlpath for device in first if device.driver == "one"
    }

# SPDX-License-Identifier: Apache-2.0
"""Which of several units in one IOMMU group is offered.

The kernel hands over an IOMMU group as a whole (its VFIO document): of two
units in one group only one instance can have any.  So the first by address
is offered, and the others say which that is.  It does not depend on who has
what at the moment: what is reported must not change when a guest takes a
card.  Pure: no I/O, no threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg import inventory

KEY = "iommu_group"
"""The attribute of a deployable that names its function's group."""


def settled(
    devices: Iterable[inventory.Device],
) -> tuple[inventory.Device, ...]:
    """The devices, with a fault at each deployable whose group another
    offers.

    Functions that one deployable hands over together share a group in
    peace, and a mediated device is in a group of its own.
    """
    devices = tuple(devices)
    owners: dict[str, str] = {}
    for group, name in sorted(_members(devices), key=lambda one: one[1]):
        owners.setdefault(group, name)
    return tuple(_device(device, owners) for device in devices)


def _members(
    devices: Iterable[inventory.Device],
) -> Iterator[tuple[str, str]]:
    """(group, deployable's name) of all that hands over a function."""
    for device in devices:
        for deployable in device.deployables:
            group = _group(deployable)
            if group is not None:
                yield group, deployable.name


def _group(deployable: inventory.Deployable) -> str | None:
    if not any(
        handle.attach_type is inventory.AttachType.PCI
        for handle in deployable.attach_handles
    ):
        return None
    return dict(deployable.attributes).get(KEY)


def _device(
    device: inventory.Device, owners: Mapping[str, str]
) -> inventory.Device:
    deployables = tuple(
        _deployable(deployable, owners) for deployable in device.deployables
    )
    if deployables == device.deployables:
        return device
    return dataclasses.replace(device, deployables=deployables)


def _deployable(
    deployable: inventory.Deployable, owners: Mapping[str, str]
) -> inventory.Deployable:
    group = _group(deployable)
    if group is None or owners[group] == deployable.name or deployable.fault:
        return deployable
    return dataclasses.replace(
        deployable,
        fault=(
            f"it shares IOMMU group {group} with {owners[group]}, and an"
            " instance gets a group as a whole: only one of them is offered"
        ),
    )

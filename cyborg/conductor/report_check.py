# SPDX-License-Identifier: Apache-2.0
"""Which devices of a report can be stored."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from cyborg import inventory

MAX_CLEAN_SECONDS = 31 * 24 * 3600
"""Longer than any device cleans itself; what is counted from it must remain
a time that a database holds."""


def check(
    report: inventory.HostReport,
) -> tuple[list[inventory.Device], dict[str, str]]:
    """The devices that can be stored, and why others (by control path)
    cannot.

    One bad device must not keep the rest of its host from being known.
    """
    good: list[inventory.Device] = []
    bad: dict[str, str] = {}
    seen = _Seen(set(), set(), set())
    for reported in report.devices:
        device = _canonical(reported)
        faults = itertools.chain(
            _sizes(device),
            _times(device),
            _meaning(device),
            seen.clashes(device),
        )
        fault = next(faults, None)
        if fault is not None:
            bad[device.controlpath] = fault
            continue
        seen.add(device)
        good.append(device)
    return good, bad


@dataclasses.dataclass(slots=True)
class _Seen:
    """What earlier devices of a report have; no two may have the same."""

    controlpaths: set[str]
    names: set[str]
    handles: set[inventory.AttachHandle]

    def clashes(self, device: inventory.Device) -> Iterator[str]:
        """What the device has that an earlier one has too."""
        if device.controlpath in self.controlpaths:
            yield "its control path is another device's"
        names = [deployable.name for deployable in device.deployables]
        if len(set(names)) != len(names) or self.names & set(names):
            yield "a deployable's name is another one's"
        handles = _handles(device)
        if len(set(handles)) != len(handles):
            yield "an attach handle is there twice"
        if self.handles & {h for h in handles if is_real(h)}:
            yield "an attach handle is another device's"

    def add(self, device: inventory.Device) -> None:
        """Remembers what the device has."""
        self.controlpaths.add(device.controlpath)
        self.names.update(d.name for d in device.deployables)
        self.handles.update(h for h in _handles(device) if is_real(h))


def _handles(device: inventory.Device) -> list[inventory.AttachHandle]:
    return [
        handle
        for deployable in device.deployables
        for handle in deployable.attach_handles
    ]


def is_real(handle: inventory.AttachHandle) -> bool:
    """Whether it is a unit of hardware, which exists once on a host."""
    return handle.attach_type is not inventory.AttachType.TEST_PCI


def _canonical(device: inventory.Device) -> inventory.Device:
    return dataclasses.replace(
        device,
        controlpath=inventory.canonical(device.controlpath),
        deployables=tuple(
            dataclasses.replace(
                deployable,
                attach_handles=tuple(
                    dataclasses.replace(
                        handle,
                        attach_info=inventory.canonical(handle.attach_info),
                    )
                    for handle in deployable.attach_handles
                ),
            )
            for deployable in device.deployables
        ),
    )


def _sizes(device: inventory.Device) -> Iterator[str]:
    """What no column can hold."""
    limits = [
        (device.controlpath, 255),
        (device.vendor, 255),
        (device.model, 255),
        (device.driver, 100),
        (device.std_board_info or "", inventory.MAX_TEXT_BYTES),
        (device.vendor_board_info or "", inventory.MAX_TEXT_BYTES),
        (device.fault, inventory.MAX_TEXT_BYTES),
    ]
    for deployable in device.deployables:
        limits += [
            (deployable.name, inventory.MAX_PROVIDER_NAME),
            (deployable.driver_name, 100),
            (deployable.fault, inventory.MAX_TEXT_BYTES),
        ]
        limits += [
            (text, inventory.MAX_TEXT_BYTES)
            for one in deployable.attributes
            for text in one
        ]
        limits += [(h.attach_info, 255) for h in deployable.attach_handles]
    for text, limit in limits:
        if (
            len(text) > limit
            or len(text.encode(errors="replace")) > inventory.MAX_TEXT_BYTES
        ):
            yield f"{text[:40]!r}... is longer than {limit}"
        if any(
            char == "\0"
            or (char > "\ud7ff" and char < "\ue000")
            or char > "\uffff"
            for char in text
        ):
            yield f"{text[:40]!r} has characters that no database takes"
    if not device.controlpath:
        yield "it has no control path"


def _times(device: inventory.Device) -> Iterator[str]:
    """What nobody would wait for."""
    seconds = device.clean_seconds
    if seconds is not None and not 0 < seconds <= MAX_CLEAN_SECONDS:
        yield f"cleaning one of its units takes {seconds} seconds"


def _meaning(device: inventory.Device) -> Iterator[str]:
    """What Placement would refuse, or a bind could not give."""
    for deployable in device.deployables:
        name = inventory.resource_class(deployable.attributes)
        if not deployable.name:
            yield "a deployable has no name"
        if not 0 <= deployable.num_accelerators < 2**31:
            yield f"it has {deployable.num_accelerators} accelerators"
        elif name is not None and not _is_whole(deployable):
            yield (
                f"{deployable.name} has {deployable.num_accelerators}"
                f" accelerators, {len(deployable.attach_handles)} handles"
            )
        if name is not None and not inventory.is_resource_class(name):
            yield f"{name!r} is no resource class"
        for trait in sorted(inventory.traits(deployable.attributes)):
            if not inventory.is_trait(trait):
                yield f"{trait!r} is no trait"


def _is_whole(deployable: inventory.Deployable) -> bool:
    """Whether each accelerator has a handle, or the same number of them."""
    handles = len(deployable.attach_handles)
    if not deployable.num_accelerators:
        return not handles
    return handles > 0 and handles % deployable.num_accelerators == 0

# SPDX-License-Identifier: Apache-2.0
"""What the reader and each driver see on this host, for a human to judge.

The same look that the agent has, without anything that the agent would do:
nothing is restored, reported or written.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from cyborg import inventory
from cyborg.agent import discovery
from cyborg.agent import vetting
from cyborg.agent.claims import ALSO_CLAIMED_BY
from cyborg.drivers import base
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """A deployable as Placement and Nova would have it.

    `handles` are counts by attach type of its units at one function; `fault`
    says why it is not offered now.
    """

    deployable: str
    resource_class: str | None
    traits: tuple[str, ...]
    accelerators: int
    handles: dict[str, int]
    fault: str


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A device of a driver; `controlpath` is its address.

    At a function that is its card alone there are no `offers`: these are at
    the functions that an instance gets.
    """

    driver: str
    also: tuple[str, ...]
    controlpath: str
    type: str
    model: str
    clean_seconds: int | None
    offers: tuple[Offer, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A PCI function, its names, and the devices that it is part of."""

    function: PciFunction
    vendor_name: str
    device_name: str
    claims: tuple[Claim, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Survey:
    """One host: its functions, devices that are none, and the drivers that
    were asked with their errors (empty: well).

    `error` says why functions could not be read at all.
    """

    host: str
    functions: tuple[Seen, ...]
    others: tuple[Claim, ...]
    drivers: dict[str, str]
    error: str = ""

    @property
    def is_well(self) -> bool:
        """Whether the reader and every driver could answer."""
        return not self.error and not any(self.drivers.values())


def survey(
    host: base.DriverHost, drivers: Iterable[str], limit: float
) -> Survey:
    """Ask these drivers (entry points), each for `limit` seconds at most."""
    names = list(dict.fromkeys(filter(None, drivers)))
    functions, error = _functions(host)
    found = discovery.Discovery(names, host, limit).look()
    if found is None:
        raise RuntimeError("the drivers were stopped meanwhile")
    errors = {fault.driver: fault.error for fault in found.faults}
    by_address: dict[str, list[Claim]] = {}
    others = []
    known = {function.address for function in functions}
    for device in found.devices:
        places = vetting.addresses(device) & known
        for address in places:
            by_address.setdefault(address, []).append(_claim(device, address))
        if not places:
            others.append(_claim(device))
    return Survey(
        host=host.name,
        functions=tuple(
            Seen(
                function,
                host.names.vendor(function.vendor) or "",
                host.names.device(function.vendor, function.device) or "",
                tuple(by_address.get(function.address, ())),
            )
            for function in functions
        ),
        others=tuple(others),
        drivers={name: errors.get(name, "") for name in names},
        error=error,
    )


def as_json(found: Survey) -> str:
    """The survey as JSON text."""
    plain: dict[str, Any] = dataclasses.asdict(found)
    for seen in plain["functions"]:
        seen.update(seen.pop("function"))
        del seen["path"]
    return json.dumps(plain, indent=2, sort_keys=True)


def _functions(host: base.DriverHost) -> tuple[list[PciFunction], str]:
    try:
        return host.sysfs.functions(), ""
    except HardwareError as error:
        return [], str(error)


def _claim(device: inventory.Device, address: str | None = None) -> Claim:
    """A device; with an address, the part of it that is there."""
    also = {
        name
        for deployable in device.deployables
        for key, value in deployable.attributes
        if key == ALSO_CLAIMED_BY
        for name in value.split(",")
    }
    offers = (
        _offer(device, deployable, _handles(device, deployable, address))
        for deployable in device.deployables
    )
    return Claim(
        driver=device.driver,
        also=tuple(sorted(also)),
        controlpath=vetting.address(device.controlpath),
        type=str(device.type),
        model=device.model,
        clean_seconds=device.clean_seconds,
        offers=tuple(offer for offer in offers if offer is not None),
    )


def _handles(
    device: inventory.Device,
    deployable: inventory.Deployable,
    address: str | None,
) -> list[inventory.AttachHandle] | None:
    """The units that are at an address (None: all of them); None where the
    deployable has nothing to do with it.

    What has no unit is where its card is.
    """
    handles = deployable.attach_handles
    if address is None:
        return list(handles)
    if not handles and vetting.address(device.controlpath) == address:
        return []
    here = [
        handle
        for handle in handles
        if vetting.address(handle.attach_info) == address
    ]
    return here or None


def _offer(
    device: inventory.Device,
    deployable: inventory.Deployable,
    handles: list[inventory.AttachHandle] | None,
) -> Offer | None:
    if handles is None:
        return None
    kinds = Counter(str(handle.attach_type) for handle in handles)
    return Offer(
        deployable=deployable.name,
        resource_class=inventory.resource_class(deployable.attributes),
        traits=tuple(sorted(inventory.traits(deployable.attributes))),
        accelerators=deployable.num_accelerators,
        handles=dict(sorted(kinds.items())),
        fault=device.fault or deployable.fault,
    )

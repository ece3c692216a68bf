# SPDX-License-Identifier: Apache-2.0
"""Which driver has what, where several say that it is theirs.

Of two drivers that claim one PCI address or name, the first that is asked
has it.  That another would have it too is shown on the device, for an
operator to decide.  Pure: no I/O, no threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from cyborg import inventory
from cyborg.agent import vetting

ALSO_CLAIMED_BY = "also_claimed_by"
"""The attribute of a deployable that names the drivers which would report
its device too, by their entry points."""


class Claims:
    """What is taken already: addresses and names."""

    def __init__(self) -> None:
        self._addresses: dict[str, tuple[str, str]] = {}
        self._names: dict[str, str] = {}
        self._others: dict[str, list[str]] = {}

    def fit(
        self,
        driver: str,
        answer: Iterable[object],
        complaints: dict[str, str],
    ) -> tuple[inventory.Device, ...]:
        """Those of a driver's devices that can be reported."""
        devices = (self._fit(driver, found, complaints) for found in answer)
        return tuple(device for device in devices if device is not None)

    def marked(self, device: inventory.Device) -> inventory.Device:
        """The device, with who else claims it; asked when all are fit."""
        others = self._others.get(device.controlpath)
        if not others:
            return device
        mark = (ALSO_CLAIMED_BY, ",".join(dict.fromkeys(others)))
        return dataclasses.replace(
            device,
            deployables=tuple(
                dataclasses.replace(
                    deployable, attributes=(*deployable.attributes, mark)
                )
                for deployable in device.deployables
            ),
        )

    def _fit(
        self, driver: str, found: object, complaints: dict[str, str]
    ) -> inventory.Device | None:
        try:
            device = vetting.vetted(driver, found)
            self._take(driver, device)
        except vetting.UnfitError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - what it holds is theirs
            reason = f"it cannot be read: {type(error).__name__}"
        else:
            return device
        text = (
            f"Driver {driver}: left out the device {_path_of(found)}: {reason}"
        )
        complaints[text] = text
        return None

    def _take(self, driver: str, device: inventory.Device) -> None:
        addresses = vetting.addresses(device)
        names = {deployable.name for deployable in device.deployables}
        clashes = sorted(addresses & self._addresses.keys())
        for address in clashes:
            other, controlpath = self._addresses[address]
            if other != driver:
                self._others.setdefault(controlpath, []).append(driver)
        for address in clashes:
            raise vetting.UnfitError(
                f"{self._addresses[address][0]} reports the address "
                f"{address} already"
            )
        for name in sorted(names & self._names.keys()):
            raise vetting.UnfitError(
                f"{self._names[name]} reports the deployable {name} already"
            )
        owner = (driver, device.controlpath)
        self._addresses.update(dict.fromkeys(addresses, owner))
        self._names.update(dict.fromkeys(names, driver))


def _path_of(device: object) -> str:
    try:
        return repr(getattr(device, "controlpath", device))[:200]
    except Exception:  # noqa: BLE001 - its words for itself are theirs too
        return f"(a {type(device).__name__})"

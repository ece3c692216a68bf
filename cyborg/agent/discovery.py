# SPDX-License-Identifier: Apache-2.0
"""What accelerators this host has, asked of every enabled driver.

The drivers answer side by side and apart from each other; their answers are
vetted, put into one order, and a device that two drivers claim goes to the
one that `[agent] enabled_drivers` names first.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Iterable

from oslo_log import log

from cyborg import inventory
from cyborg.agent import isolation
from cyborg.agent import vetting
from cyborg.drivers import base

LOG = log.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Findings:
    """One look at the host; equal hardware gives equal findings."""

    devices: tuple[inventory.Device, ...] = ()
    faults: tuple[inventory.DriverFault, ...] = ()


class Discovery:
    """Asks the drivers; remembers who reported what last."""

    def __init__(
        self,
        names: Iterable[str],
        host: base.DriverHost,
        limit: float,
        find: Callable[[str], isolation.Factory] = isolation.entry_point,
    ) -> None:
        self._changed = threading.Condition()
        self._limit = limit
        self._stopped = False
        self._looked = False
        self._drivers = [
            isolation.IsolatedDriver(name, host, find, self._changed)
            for name in dict.fromkeys(filter(None, names))
        ]
        self._known: dict[str, tuple[inventory.Device, ...]] = {}
        self._said: dict[str, str] = {}
        if not self._drivers:
            LOG.warning(
                "[agent] enabled_drivers is empty: this agent reports no "
                "accelerator"
            )

    def look(self) -> Findings | None:
        """Ask every driver; None where the agent stops meanwhile.

        Takes at most the time limit of one driver.
        """
        asked = [driver for driver in self._drivers if driver.look()]
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or not any(d.running for d in asked),
                self._limit,
            )
            if self._stopped:
                return None
            errors = self._errors()
        findings = self._findings(errors)
        with self._changed:
            self._looked = True
            self._changed.notify_all()
        return findings

    def stop(self) -> None:
        """End every wait; a driver that hangs is left behind."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def owner(self, controlpath: str, wait: float) -> tuple[str, str] | None:
        """Which driver reports this control path, and how it spells it.

        Waits up to `wait` seconds for the first look to end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._looked or self._stopped, wait)
        wanted = vetting.address(controlpath)
        for name, devices in self._known.copy().items():
            for device in devices:
                if vetting.address(device.controlpath) == wanted:
                    return name, device.controlpath
        return None

    def instance(self, name: str) -> base.Driver | None:
        """The driver of that name, None where it could not be built."""
        return next(
            (one.instance for one in self._drivers if one.name == name), None
        )

    def _errors(self) -> dict[str, str]:
        """Why a driver has no answer, by name; silent ones are left out."""
        late = f"did not answer within {self._limit:g} s"
        pairs = (
            (one.name, late if one.running else one.answer.error)
            for one in self._drivers
        )
        return {name: error for name, error in pairs if error}

    def _findings(self, errors: dict[str, str]) -> Findings:
        devices: list[inventory.Device] = []
        complaints: dict[str, str] = {}
        claims = _Claims()
        for driver in self._drivers:
            failed = driver.name in errors
            answer = (
                self._known.get(driver.name, ())
                if failed
                else driver.answer.devices
            )
            fit = tuple(claims.fit(driver.name, answer, complaints))
            self._known[driver.name] = fit
            if not failed:
                devices.extend(fit)
        self._say(errors, complaints)
        return Findings(
            tuple(sorted(devices, key=lambda one: one.controlpath)),
            tuple(
                inventory.DriverFault(name, error)
                for name, error in errors.items()
            ),
        )

    def _say(self, errors: dict[str, str], complaints: dict[str, str]) -> None:
        """Log what is new, and what is well again; nothing twice."""
        now = complaints | {
            name: f"Driver {name}: {error}; its devices keep their last state"
            for name, error in errors.items()
        }
        for key, text in now.items():
            if self._said.get(key) != text:
                level = log.ERROR if key in errors else log.WARNING
                LOG.log(level, "%s", text)
        for key in self._said.keys() - now.keys():
            LOG.info("No more: %s", self._said[key])
        self._said = now


class _Claims:
    """What is taken already: addresses and names, by the driver's name."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def fit(
        self,
        driver: str,
        answer: Iterable[object],
        complaints: dict[str, str],
    ) -> Iterable[inventory.Device]:
        """Those of a driver's devices that can be reported."""
        for found in answer:
            device = self._fit(driver, found, complaints)
            if device is not None:
                yield device

    def _fit(
        self, driver: str, found: object, complaints: dict[str, str]
    ) -> inventory.Device | None:
        try:
            device = vetting.vetted(driver, found)
            self._take(driver, device)
        except vetting.UnfitError as error:
            text = (
                f"Driver {driver}: left out the device "
                f"{_path_of(found)}: {error}"
            )
            complaints[text] = text
            return None
        return device

    def _take(self, driver: str, device: inventory.Device) -> None:
        addresses = vetting.addresses(device)
        names = {deployable.name for deployable in device.deployables}
        for what, wanted, taken in (
            ("address", addresses, self._addresses),
            ("deployable", names, self._names),
        ):
            for thing in sorted(wanted & taken.keys()):
                raise vetting.UnfitError(
                    f"{taken[thing]} reports the {what} {thing} already"
                )
        self._addresses.update(dict.fromkeys(addresses, driver))
        self._names.update(dict.fromkeys(names, driver))


def _path_of(device: object) -> str:
    return repr(getattr(device, "controlpath", device))[:200]

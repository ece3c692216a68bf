# SPDX-License-Identifier: Apache-2.0
"""What accelerators this host has, asked of every enabled driver.

The drivers answer side by side and apart from each other; their answers are
vetted, put into one order, and a device that two drivers claim goes to the
one that `[agent] enabled_drivers` names first (agent/claims.py).
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import Protocol

from oslo_log import log

from cyborg import exception
from cyborg import inventory
from cyborg.agent import groups
from cyborg.agent import isolation
from cyborg.agent import vetting
from cyborg.agent.claims import Claims
from cyborg.drivers import base

LOG = log.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Findings:
    """One look at the host; equal hardware gives equal findings."""

    devices: tuple[inventory.Device, ...] = ()
    faults: tuple[inventory.DriverFault, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """Who reports a device: the driver, its entry point, and how it spells
    the device's control path."""

    name: str
    driver: base.Driver
    controlpath: str


class Restorer(Protocol):
    """Gives the host back what a reboot took (agent/restoring.py)."""

    def due(self) -> bool:
        """Whether there is something to try now."""

    def restore(self, name: str, driver: base.Driver, deadline: float) -> None:
        """Do what is this driver's part, in its own thread."""

    def conclude(self) -> None:
        """All drivers had their part.  Not called where one has not ended
        it: what it did not come to is no mistake of an operator's."""


class Discovery:
    """Asks the drivers; remembers who reported what last."""

    def __init__(
        self,
        names: Iterable[str],
        host: base.DriverHost,
        limit: float,
        find: Callable[[str], isolation.Factory] = isolation.entry_point,
        restorer: Restorer | None = None,
    ) -> None:
        self._changed = threading.Condition()
        self._limit = limit
        self._sysfs = host.sysfs
        self._restorer = restorer
        self._stopped = False
        self._looked = False
        self._drivers = [
            isolation.IsolatedDriver(name, host, find, self._changed)
            for name in dict.fromkeys(filter(None, names))
        ]
        self._answers: dict[str, tuple[object, ...]] = {}
        self._known: dict[str, tuple[inventory.Device, ...]] = {}
        self._said: dict[str, str] = {}
        if not self._drivers:
            LOG.warning(
                "[agent] enabled_drivers is empty: this agent reports no "
                "accelerator"
            )

    @property
    def drivers(self) -> list[str]:
        """The names of the drivers that are asked."""
        return [driver.name for driver in self._drivers]

    def look(self) -> Findings | None:
        """Ask every driver; None where the agent stops meanwhile.

        Takes at most the time limit of one driver, and as long again where
        something has to be restored before.
        """
        self._restore()
        with self._sysfs.shared():
            asked = [driver for driver in self._drivers if driver.look()]
            self._await(asked)
        with self._changed:
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

    def looked(self, wait: float) -> bool:
        """Whether the first look has ended, after so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._looked or self._stopped, wait)
            return self._looked

    def owner(self, controlpath: str, name: str) -> Owner:
        """The driver that reports this control path, if it is called `name`.

        Raises Conflict where it is not, or nobody reports the device, and
        Unavailable where the one that may has not answered yet.
        """
        wanted = vetting.address(controlpath)
        for entry_point, devices in self._known.items():
            for device in devices:
                if vetting.address(device.controlpath) == wanted:
                    return self._owner(entry_point, device.controlpath, name)
        for one in self._drivers:
            if is_called(one.name, name) and one.name not in self._answers:
                raise exception.Unavailable(
                    f"The driver {one.name} has not found its devices yet."
                )
        raise exception.Conflict("The host has no such device now.")

    def _owner(self, entry_point: str, controlpath: str, name: str) -> Owner:
        if not is_called(entry_point, name):
            raise exception.Conflict(
                f"The device belongs to the driver {entry_point}, not to "
                f"{name}."
            )
        driver = next(
            one.instance
            for one in self._drivers
            if one.name == entry_point and one.instance is not None
        )
        return Owner(entry_point, driver, controlpath)

    def _restore(self) -> None:
        """Let each driver restore its part, within the time limit."""
        restorer = self._restorer
        if restorer is None or not restorer.due():
            return
        deadline = time.monotonic() + self._limit
        asked = [
            one
            for one in self._drivers
            if one.attend(_part(restorer, one.name, deadline))
        ]
        self._await(asked)
        if not (self._stopped or any(driver.running for driver in asked)):
            restorer.conclude()

    def _await(self, asked: list[isolation.IsolatedDriver]) -> None:
        """Returns when these have answered, at the limit, or at the stop."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or not any(d.running for d in asked),
                self._limit,
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
        complaints: dict[str, str] = {}
        claims = Claims()
        fit = {}
        for driver in self._drivers:
            if driver.name not in errors:
                self._answers[driver.name] = driver.answer.devices
            fit[driver.name] = claims.fit(
                driver.name, self._answers.get(driver.name, ()), complaints
            )
        self._known = {
            name: tuple(map(claims.marked, devices))
            for name, devices in fit.items()
        }
        self._say(errors, complaints)
        found = sorted(
            (
                device
                for name, devices in self._known.items()
                if name not in errors
                for device in devices
            ),
            key=lambda one: one.controlpath,
        )
        return Findings(
            groups.settled(found),
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


def _part(
    restorer: Restorer, name: str, deadline: float
) -> Callable[[base.Driver], None]:
    return lambda driver: restorer.restore(name, driver, deadline)


def is_called(entry_point: str, name: str) -> bool:
    """Whether a stored name means this driver.

    New rows hold the entry point.  Adopted ones hold what deployed services
    show (`fake`, `NVIDIA`, `intel`, `XILINX` ...): the first word of the
    entry point, in any case.
    """
    wanted = name.casefold()
    actual = entry_point.casefold()
    return actual == wanted or actual.startswith(f"{wanted}_")

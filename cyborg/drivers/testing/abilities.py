# SPDX-License-Identifier: Apache-2.0
"""The checks of what a driver may be able to do besides discovery.

A test inherits those of what its driver can do; `Conformance` finds one that
has too few or too many.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Protocol

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers.testing.host import Options
from cyborg.drivers.testing.kernel import Kernel
from cyborg.drivers.testing.parts import units_of
from cyborg.drivers.testing.reports import Reports
from cyborg.drivers.testing.reports import assert_same
from cyborg.drivers.testing.reports import refused
from cyborg.drivers.testing.reports import seen
from cyborg.drivers.testing.tools import RecordedTools
from cyborg.drivers.testing.tree import SysfsTree

WORK_SECONDS = 5.0
IDENTITY = "c0ffee00-1111-4222-8333-444444444444"

NOT_RUN = (
    "the privileged helper runs no such tool: [agent] further_tools has to"
    " name it, in the test's `options` and on each host"
)


class _MediatedDriver(base.Driver, base.Mediated, Protocol):
    """What `_mediated` finds, for the types' sake."""


class MakesUnits(Reports):
    """For a driver that makes units on demand (`Mediated`) with the options
    of the test."""

    def test_a_unit_is_made_once_and_removed_once(
        self, own_tree: SysfsTree
    ) -> None:
        host = self.host(own_tree.root, writer=Kernel(own_tree))
        driver, unit = self._mediated(host)
        before = seen(driver, host)

        for _ in range(2):
            driver.create(unit, IDENTITY, WORK_SECONDS)
        assert units_of(seen(driver, host)) == units_of(before)
        for _ in range(2):
            driver.remove(unit, IDENTITY, WORK_SECONDS)

        assert_same(seen(driver, host), before)

    def test_a_unit_that_cannot_be_made_or_removed_is_said_to_fail(
        self, own_tree: SysfsTree
    ) -> None:
        kernel = Kernel(own_tree)
        driver, unit = self._mediated(self.host(own_tree.root, writer=kernel))

        kernel.fail("*", errno.EIO)
        with pytest.raises(exception.DeviceFailed):
            driver.create(unit, IDENTITY, WORK_SECONDS)
        kernel.heal()
        driver.create(unit, IDENTITY, WORK_SECONDS)
        kernel.hang("*")
        with pytest.raises(exception.DeviceFailed):
            driver.remove(unit, IDENTITY, WORK_SECONDS)

    def _mediated(
        self, host: base.DriverHost
    ) -> tuple[_MediatedDriver, inventory.AttachHandle]:
        driver = self.kind()(host)
        assert isinstance(driver, base.Mediated)
        made = [
            unit for unit in units_of(seen(driver, host)) if _is_made(unit)
        ]
        return driver, made[0]


class Cleans(Reports):
    """For a driver that cleans a device (`Cleanable`)."""

    def test_cleaning_that_fails_is_said_to_fail(
        self, own_tree: SysfsTree
    ) -> None:
        kernel, tools = Kernel(own_tree), RecordedTools()
        host = self.host(
            own_tree.root,
            options=cleaning(self.options),
            writer=kernel,
            tools=tools,
        )
        driver = self.kind()(host)
        kernel.fail("*", errno.EIO)
        cleaned = _cleaned(seen(driver, host))
        assert cleaned
        assert isinstance(driver, base.Cleanable)
        for unit, controlpath in cleaned:
            with pytest.raises(exception.DeviceFailed):
                driver.clean(unit, controlpath, WORK_SECONDS, lambda _: None)
        assert not refused(host, tools), NOT_RUN


class Programs(Reports):
    """For a driver that programs its cards (`Programmable`) by a tool."""

    def test_programming_without_its_tool_is_said_to_fail(
        self, own_tree: SysfsTree, tmp_path: Path
    ) -> None:
        tools = RecordedTools()
        host = self.host(own_tree.root, writer=Kernel(own_tree), tools=tools)
        driver = self.kind()(host)
        assert isinstance(driver, base.Programmable)
        image = tmp_path / "image"
        image.write_bytes(b"no bitstream")
        device = seen(driver, host)[0]

        with pytest.raises(exception.CyborgError):
            driver.program(
                device.deployables[0].name,
                device.controlpath,
                image,
                {},
                WORK_SECONDS,
            )
        assert not refused(host, tools), NOT_RUN


class TellsHealth(Reports):
    """For a driver that knows whether a card is well (`Monitored`)."""

    def test_health_is_known_of_each_card(self, tree: SysfsTree) -> None:
        host = self.host(tree.root)
        driver = self.kind()(host)
        assert isinstance(driver, base.Monitored)
        for device in seen(driver, host):
            assert driver.health(device.controlpath) == device.fault
        gone = inventory.pci_json("0000:ff:1f.7")
        assert driver.health(gone)


KINDS: tuple[type[Reports], ...] = (MakesUnits, Cleans, Programs, TellsHealth)


def of_driver(
    driver: base.Driver, devices: tuple[inventory.Device, ...]
) -> set[type[Reports]]:
    """Which checks a driver needs that reports these devices, with the
    options of `cleaning`."""
    made = any(map(_is_made, units_of(devices)))
    simulated = getattr(driver, "simulated", False)
    there = {
        MakesUnits: made,
        Cleans: bool(_cleaned(devices)),
        Programs: isinstance(driver, base.Programmable) and not simulated,
        TellsHealth: isinstance(driver, base.Monitored),
    }
    return {kind for kind, is_there in there.items() if is_there}


def cleaning(options: Options) -> Options:
    """The same with what is given back being cleaned."""
    agent = {**options.get("agent", {}), "clean_on_release": True}
    return {**options, "agent": agent}


def _is_made(unit: inventory.AttachHandle) -> bool:
    return inventory.is_made(unit.attach_type.value, unit.attach_info)


def _cleaned(
    devices: tuple[inventory.Device, ...],
) -> list[tuple[inventory.AttachHandle, str]]:
    """The units that are cleaned, each with its device's control path."""
    return [
        (unit, device.controlpath)
        for device in devices
        if device.clean_seconds is not None
        for unit in units_of([device])
        if not _is_made(unit)
    ]

# SPDX-License-Identifier: Apache-2.0
"""The checks of what a driver may be able to do besides discovery."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Protocol

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import base
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


class Abilities(Reports):
    """What one can do is what it is an instance of; the rest is skipped."""

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
        made = [
            unit
            for unit in units_of(seen(driver, host))
            if inventory.is_made(unit.attach_type.value, unit.attach_info)
        ]
        if not isinstance(driver, base.Mediated):
            assert not made, "only a Mediated driver can have such units made"
            pytest.skip("nothing of this driver's is made on demand")
        if not made:
            pytest.skip("with these options no unit is made on demand")
        return driver, made[0]

    def test_cleaning_that_fails_is_said_to_fail(
        self, own_tree: SysfsTree
    ) -> None:
        kernel = Kernel(own_tree)
        agent = {**self.options.get("agent", {}), "clean_on_release": True}
        tools = RecordedTools()
        host = self.host(
            own_tree.root,
            options={**self.options, "agent": agent},
            writer=kernel,
            tools=tools,
        )
        driver = self.kind()(host)
        kernel.fail("*", errno.EIO)
        cleaned = [
            (unit, device.controlpath)
            for device in seen(driver, host)
            if device.clean_seconds is not None
            for unit in units_of([device])
            if not inventory.is_made(unit.attach_type.value, unit.attach_info)
        ]
        if not cleaned:
            pytest.skip("nothing of this driver's is cleaned")
        assert isinstance(driver, base.Cleanable)
        for unit, controlpath in cleaned:
            with pytest.raises(exception.DeviceFailed):
                driver.clean(unit, controlpath, WORK_SECONDS, lambda _: None)
        assert not refused(host, tools), NOT_RUN

    def test_programming_without_its_tool_is_said_to_fail(
        self, own_tree: SysfsTree, tmp_path: Path
    ) -> None:
        tools = RecordedTools()
        host = self.host(own_tree.root, writer=Kernel(own_tree), tools=tools)
        driver = self.kind()(host)
        if not isinstance(driver, base.Programmable):
            pytest.skip("nothing of this driver's is programmed")
        if getattr(driver, "simulated", False):
            pytest.skip("this driver programs what is not there")
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

    def test_health_is_known_of_each_card(self, tree: SysfsTree) -> None:
        host = self.host(tree.root)
        driver = self.kind()(host)
        if not isinstance(driver, base.Monitored):
            pytest.skip("this driver tells no health")
        for device in seen(driver, host):
            assert driver.health(device.controlpath) == device.fault
        gone = inventory.pci_json("0000:ff:1f.7")
        assert driver.health(gone)

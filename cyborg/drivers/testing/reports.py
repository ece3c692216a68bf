# SPDX-License-Identifier: Apache-2.0
"""The checks of a driver that change nothing: fake trees and real hosts
alike can have them."""

from __future__ import annotations

import dataclasses
import difflib
import json
import logging
from pathlib import Path
from typing import Any
from typing import ClassVar
from typing import cast

import pytest
from oslo_config import cfg
from stevedore import DriverManager

from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers.testing import rules
from cyborg.drivers.testing.host import Options
from cyborg.drivers.testing.host import configuration
from cyborg.drivers.testing.tools import RecordedTools
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pciids import PciNames
from cyborg.hardware.privileged import TOOLS
from cyborg.hardware.tools import Tools
from cyborg.hardware.writes import Writer

NAMESPACE = "cyborg.accelerator.driver"
HOST = "compute-1"


class Untouchable:
    """Stands for the hardware where nobody may look at it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the hardware is touched ({name})")


class Reports:
    """What holds for every report of a driver.

    `driver` is the name of its entry point (or, while it has none, its
    class), `options` what its options say, as
    `{group: {option: value}}`.  `discover_tools` are the names of tools
    that its discovery may run; no driver's may write.
    """

    driver: ClassVar[str | type[base.Driver]]
    options: ClassVar[Options] = {}
    discover_tools: ClassVar[frozenset[str]] = frozenset()

    # What a subclass or a test asks of it --------------------------------

    def kind(self) -> type[base.Driver]:
        """The driver's class, by its entry point as the agent finds it."""
        if not isinstance(self.driver, str):
            return self.driver
        found: DriverManager[base.Driver] = DriverManager(
            NAMESPACE, self.driver, invoke_on_load=False
        )
        return cast("type[base.Driver]", found.driver)

    def host(
        self,
        root: Path,
        *,
        name: str = HOST,
        options: Options | None = None,
        writer: Writer | None = None,
        tools: Tools | None = None,
    ) -> base.DriverHost:
        """A host with this hardware; nothing can be written and no tool is
        there unless they are given."""
        return base.DriverHost(
            name=name,
            sysfs=Sysfs(root),
            conf=self.configuration(
                self.options if options is None else options
            ),
            names=PciNames(()),
            writer=writer or cast("Writer", Untouchable()),
            tools=tools or self.tools(),
        )

    def configuration(self, options: Options) -> cfg.ConfigOpts:
        """Every option of ours, with these set."""
        return configuration(options)

    def tools(self) -> Tools:
        """The tools of a host on which none is installed but those that
        discovery needs."""
        return Tools()

    def look(self, host: base.DriverHost) -> tuple[inventory.Device, ...]:
        """What the driver, built anew, finds on a host."""
        return seen(self.kind()(host), host)

    # Checks --------------------------------------------------------------

    def test_the_entry_point_has_the_drivers_name(self) -> None:
        kind = self.kind()
        if isinstance(self.driver, str):
            assert kind.name == self.driver
        assert isinstance(kind.name, str)
        assert kind.name

    def test_building_touches_no_hardware(self, root: Path) -> None:
        host = base.DriverHost(
            name=HOST,
            sysfs=cast("Sysfs", Untouchable()),
            conf=self.host(root).conf,
            names=PciNames(()),
            writer=cast("Writer", Untouchable()),
            tools=cast("Tools", Untouchable()),
        )

        assert isinstance(self.kind()(host), base.Driver)

    def test_the_report_is_as_every_report_is(self, root: Path) -> None:
        devices = self.look(self.host(root))

        found = list(rules.faults(HOST, self.kind().name, devices))
        assert not found, "\n".join(found)

    def test_two_looks_give_the_same_report(self, root: Path) -> None:
        host = self.host(root)
        driver = self.kind()(host)

        first = tuple(driver.discover())

        assert_same(seen(driver, host), first)
        assert_same(seen(driver, host), first)
        assert_same(self.look(self.host(root)), first)

    def test_two_hosts_share_no_deployable(self, root: Path) -> None:
        here = _names(self.look(self.host(root)))
        there = _names(self.look(self.host(root, name="compute-2")))

        assert not here & there, "names must begin with the host's"
        assert len(here) == len(there)

    def test_hardware_that_is_well_is_no_reason_to_warn(
        self, root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            self.look(self.host(root))

        assert warnings(caplog) == []


def seen(
    driver: base.Driver, host: base.DriverHost
) -> tuple[inventory.Device, ...]:
    """One look as the agent has it: one scan answers all that is asked."""
    with host.sysfs.shared():
        return tuple(driver.discover())


def refused(host: base.DriverHost, tools: RecordedTools) -> set[str]:
    """The tools that were run here, and that a host's privileged helper
    would not run."""
    known = TOOLS.union(host.conf.agent.further_tools)
    return {command[0] for command in tools.commands} - known


def digest(devices: tuple[inventory.Device, ...]) -> str:
    """Of the report of a host that has these devices."""
    return inventory.HostReport(HOST, HOST, None, devices).digest()


def assert_same(
    after: tuple[inventory.Device, ...], before: tuple[inventory.Device, ...]
) -> None:
    """Fails, with the lines that differ, where the reports are not alike."""
    if digest(after) != digest(before):
        changed = difflib.unified_diff(_lines(before), _lines(after), n=0)
        pytest.fail("two reports differ:\n" + "\n".join(changed))


def _lines(devices: tuple[inventory.Device, ...]) -> list[str]:
    values = [dataclasses.asdict(device) for device in devices]
    return json.dumps(values, indent=1, default=str).splitlines()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What an operator was warned of."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]


def _names(devices: tuple[inventory.Device, ...]) -> set[str]:
    return {one.name for device in devices for one in device.deployables}

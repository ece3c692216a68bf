# SPDX-License-Identifier: Apache-2.0
"""The conformance kit finds each kind of fault in a driver."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from typing import ClassVar

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers import card
from cyborg.drivers.testing import abilities
from cyborg.drivers.testing import breaking
from cyborg.drivers.testing import conformance
from cyborg.drivers.testing import rules
from cyborg.drivers.testing.cards import Card
from cyborg.drivers.testing.host import Options
from cyborg.drivers.testing.tree import SysfsTree
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.tools import ToolError

LOG = logging.getLogger(__name__)
FIRST, SECOND = "0000:3b:00.0", "0000:5e:00.0"


class GoodDriver(card.PciCardDriver):
    name = "good_driver"
    driver_name = "ACME"
    type = inventory.DeviceType.AICHIP
    resource_class = "CUSTOM_NPU"
    vendor = "1234"
    traits = ("NPU_ACME",)


class GoodTest(conformance.Conformance):
    """What a vendor would write."""

    driver: ClassVar[Any] = GoodDriver
    wrong_options: ClassVar[Any] = ()

    def plug(self, tree: SysfsTree) -> None:
        for address in (FIRST, SECOND):
            tree.add_function(
                Card(address, "1234:abcd", "120000", files=(("grade", "1"),))
            )


# Reports --------------------------------------------------------------------

HANDLE = inventory.AttachHandle(
    inventory.AttachType.PCI, inventory.pci_json(FIRST)
)
DEPLOYABLE = inventory.Deployable(
    name=f"compute-1_{FIRST}",
    num_accelerators=1,
    driver_name="ACME",
    attributes=(("trait0", "CUSTOM_NPU_ACME"), ("rc", "CUSTOM_NPU")),
    attach_handles=(HANDLE,),
)
DEVICE = inventory.Device(
    controlpath=inventory.pci_json(FIRST),
    type=inventory.DeviceType.AICHIP,
    vendor="1234",
    model="1234:abcd",
    driver="good_driver",
    std_board_info="{}",
    deployables=(DEPLOYABLE,),
)


def _device(**changes: Any) -> inventory.Device:
    return dataclasses.replace(DEVICE, **changes)


def _deployable(**changes: Any) -> inventory.Device:
    changed = dataclasses.replace(DEPLOYABLE, **changes)
    return _device(deployables=(changed,))


def _handle(kind: Any, **info: str) -> inventory.Device:
    text = json.dumps(
        {**json.loads(HANDLE.attach_info), **info}, sort_keys=True
    )
    return _deployable(attach_handles=(inventory.AttachHandle(kind, text),))


def _attributes(*pairs: Any) -> inventory.Device:
    return _deployable(attributes=(("rc", "CUSTOM_NPU"), *pairs))


PCI = inventory.AttachType.PCI
MDEV = inventory.AttachType.MDEV
TEST = inventory.AttachType.TEST_PCI

GOOD = [
    _device(),
    _device(std_board_info=None, clean_seconds=60, fault="broken"),
    _handle(PCI, physical_network="physnet1"),
    _handle(PCI, asked_type="nvidia-1147"),
    _handle(MDEV, asked_type="nvidia-222", vgpu_mark="nvidia-222_0"),
    _handle(TEST, device="1", socket="/var/tmp/vhost.0"),
    _deployable(num_accelerators=0, attach_handles=()),
    _attributes(("numa_node", "0"), ("trait0", "HW_GPU_API_VULKAN")),
    _device(
        fault="its domain",
        controlpath=inventory.pci_json("10000:01:00.0"),
        deployables=(
            dataclasses.replace(
                DEPLOYABLE,
                attach_handles=(
                    inventory.AttachHandle(
                        PCI, inventory.pci_json("10000:01:00.0")
                    ),
                ),
            ),
        ),
    ),
]

BAD = [
    (None, "is not a Device"),
    (_device(driver="other"), "is not 'good_driver'"),
    (_device(controlpath="0000:3b:00.0"), "not the JSON text"),
    (_device(controlpath='{"bus": "3b"}'), "not the JSON text"),
    (
        _device(
            controlpath='{"domain": "0000", "bus": "3b", "device": "00",'
            ' "function": "0"}'
        ),
        "order and spacing",
    ),
    (_device(controlpath=inventory.pci_json(FIRST, {"a": "b"})), "besides"),
    (_device(type="AICHIP"), "is not a DeviceType"),
    (_device(vendor=""), "vendor '' is not a text"),
    (_device(model="m" * 256), "longer than 255"),
    (_device(model="a\0"), "no database takes"),
    (_device(model="\U0001f600"), "no database takes"),
    (_device(std_board_info="{"), "std_board_info is not JSON"),
    (_device(vendor_board_info="é" * 40_000), "longer than 65535 bytes"),
    (_device(fault="f" * 70_000), "longer than 65535"),
    (_device(clean_seconds=0), "clean_seconds 0"),
    (_device(clean_seconds=1.5), "clean_seconds 1.5"),
    (_device(deployables=[DEPLOYABLE]), "not a tuple"),
    (_device(deployables=(DEPLOYABLE, DEPLOYABLE)), "comes twice"),
    (_deployable(name=FIRST), "does not start with compute-1_"),
    (_deployable(name="compute-1_" + "a" * 191), "longer than 200"),
    (_deployable(driver_name="A" * 101), "longer than 100"),
    (_deployable(num_accelerators=True), "is not a count"),
    (_deployable(num_accelerators=-1), "is not a count"),
    (_deployable(num_accelerators=2), "2 accelerators have 1 attach"),
    (_deployable(num_accelerators=0), "0 accelerators have 1 attach"),
    (_deployable(attach_handles=()), "1 accelerators have 0 attach"),
    (_deployable(attach_handles=[HANDLE]), "not a tuple"),
    (
        _deployable(num_accelerators=2, attach_handles=(HANDLE, HANDLE)),
        "comes twice",
    ),
    (_deployable(attach_handles=("0000:3b:00.0",)), "is not an AttachHandle"),
    (_deployable(attributes=(("a", "b"),)), "no resource class"),
    (_deployable(attributes=(("rc", "NPU"),)), "no legal resource class"),
    (_deployable(attributes=[("rc", "PGPU")]), "not a tuple"),
    (_attributes(("rc", "PGPU")), "comes twice"),
    (_attributes(("trait0", "NPU")), "no legal trait"),
    (_attributes(("trait0", "CUSTOM_a")), "no legal trait"),
    (_attributes(("trait0", "OWNER_CYBORG")), "on every provider already"),
    (_attributes(("a", 1)), "is not an attribute"),
    (_attributes(("", "b")), "attribute key '' is not a text"),
    (_handle("PCI"), "is not an AttachType"),
    (_handle(PCI, bus="3B"), "as the kernel writes"),
    (_handle(PCI, device="0"), "as the kernel writes"),
    (_handle(PCI, function="8"), "as the kernel writes"),
    (_handle(PCI, color="blue"), "keys besides: ['color']"),
    (_handle(PCI, physical_network="n" * 256), "longer than 255"),
    (_handle(PCI, physical_network=1), "not a text"),
    (_handle(PCI, domain="10000"), "Nova cannot attach domain 10000"),
    (_handle(MDEV), "has not all of ['asked_type', 'vgpu_mark']"),
]


@pytest.mark.parametrize("device", GOOD)
def test_a_good_device_has_no_fault(device: inventory.Device) -> None:
    assert list(rules.faults("compute-1", "good_driver", [device])) == []


@pytest.mark.parametrize(("device", "fault"), BAD)
def test_each_fault_of_a_report_is_named(device: object, fault: str) -> None:
    found = list(rules.faults("compute-1", "good_driver", [device]))

    assert [text for text in found if fault in text], found


# Drivers --------------------------------------------------------------------


class TouchingDriver(GoodDriver):
    def __init__(self, host: base.DriverHost) -> None:
        super().__init__(host)
        host.sysfs.functions()


class MovingDriver(GoodDriver):
    """Reports what changes though the hardware does not."""

    def device(self, function: PciFunction) -> inventory.Device:
        return dataclasses.replace(
            super().device(function), vendor_board_info=str(time.time_ns())
        )


class UnorderedDriver(GoodDriver):
    """As directories list it."""

    def discover(self) -> Iterable[inventory.Device]:
        bus = self.host.sysfs.root / "bus" / "pci" / "devices"
        order = [entry.name for entry in os.scandir(bus)]
        return sorted(
            super().discover(),
            key=lambda one: order.index(
                one.deployables[0].name.partition("_")[2]
            ),
        )


class HostlessDriver(GoodDriver):
    """Two hosts with it collide."""

    def deployable(self, *args: Any, **kwargs: Any) -> inventory.Deployable:
        found = super().deployable(*args, **kwargs)
        return dataclasses.replace(found, name=found.name.partition("_")[2])


class LoudDriver(GoodDriver):
    def discover(self) -> Iterable[inventory.Device]:
        LOG.warning("I look for my devices")
        return super().discover()


class WritingDriver(GoodDriver):
    def device(self, function: PciFunction) -> inventory.Device:
        self.host.writer.write(f"{function.path}/reset", "1")
        return super().device(function)


class AskingDriver(GoodDriver):
    """Needs a tool to find anything."""

    def discover(self) -> Iterable[inventory.Device]:
        self.host.tools.run(["acme-smi"], 5)
        return super().discover()


class _GradedDriver(GoodDriver):
    def grade(self, function: PciFunction) -> str:
        raise NotImplementedError

    def device(self, function: PciFunction) -> inventory.Device:
        return dataclasses.replace(
            super().device(function), vendor_board_info=self.grade(function)
        )


class FragileDriver(_GradedDriver):
    """One bad file costs all cards."""

    def grade(self, function: PciFunction) -> str:
        return str(int(Path(function.path, "grade").read_text()))


class SilentDriver(_GradedDriver):
    """One bad file costs its card without a word."""

    def discover(self) -> Iterable[inventory.Device]:
        for function in filter(self.claims, self.host.sysfs.functions()):
            try:
                yield self.device(function)
            except (OSError, ValueError):
                continue

    def grade(self, function: PciFunction) -> str:
        return str(int(Path(function.path, "grade").read_text()))


class RepeatingDriver(_GradedDriver):
    """One bad file is worth two warnings."""

    def grade(self, function: PciFunction) -> str:
        try:
            return str(int(Path(function.path, "grade").read_text()))
        except (OSError, ValueError):
            LOG.warning("%s has no grade", function.address)
            LOG.warning("%s is worthless", function.address)
            return "0"


class WaitingDriver(_GradedDriver):
    """Reads so that a pipe keeps it."""

    def grade(self, function: PciFunction) -> str:
        try:
            return Path(function.path, "grade").read_text(errors="replace")
        except OSError:
            return ""


class StubbornDriver(GoodDriver):
    """Keeps what it saw once."""

    def __init__(self, host: base.DriverHost) -> None:
        super().__init__(host)
        self._seen: list[inventory.Device] = []

    def discover(self) -> Iterable[inventory.Device]:
        self._seen = self._seen or list(super().discover())
        return self._seen


class UncleanDriver(GoodDriver):
    """Says that a card is clean that it could not reset."""

    def clean(self, *args: Any) -> None:
        return


class FlashingDriver(GoodDriver):
    """Programs by a tool that no privileged helper runs."""

    def program(self, *args: Any) -> None:
        try:
            self.host.tools.run(["acmeflash"], 1.0)
        except ToolError as error:
            raise exception.DeviceFailed(str(error)) from error


class CarelessDriver(GoodDriver):
    """Lets a wrong option pass."""


class UnmakingDriver(GoodDriver):
    """Has units that nobody can make."""

    def deployable(self, *args: Any, **kwargs: Any) -> inventory.Deployable:
        kwargs["handle_extra"] = {"asked_type": "acme-1"}
        return super().deployable(*args, **kwargs)


class GoodMediatedDriver(UnmakingDriver):
    """A unit that is made by a write to a file of its function."""

    def create(
        self, unit: inventory.AttachHandle, identity: str, timeout: float
    ) -> None:
        self._write(unit, "current_vgpu_type", "1", timeout)

    def remove(
        self, unit: inventory.AttachHandle, identity: str, timeout: float
    ) -> None:
        self._write(unit, "current_vgpu_type", "0", timeout)

    def _write(
        self,
        unit: inventory.AttachHandle,
        name: str,
        value: str,
        timeout: float,
    ) -> None:
        function = card.unit_function(self.host, unit)
        path = Path(function.path, "nvidia", name)
        if path.read_text().strip() == value:
            return
        try:
            self.host.writer.write(str(path), value, timeout)
        except Exception as error:
            raise exception.DeviceFailed(str(error)) from error


class ForgetfulMediatedDriver(GoodMediatedDriver):
    """Makes what is there already once more."""

    def _write(self, *args: Any) -> None:
        unit, name, value, timeout = args
        function = card.unit_function(self.host, unit)
        self.host.writer.write(
            f"{function.path}/nvidia/{name}", value, timeout
        )


def _mediated(kind: type[GoodDriver]) -> type[GoodTest]:
    class Mediated(abilities.MakesUnits, GoodTest):
        driver = kind

        def plug(self, tree: SysfsTree) -> None:
            for address in (FIRST, SECOND):
                facts = Card(
                    address,
                    "1234:abcd",
                    "120000",
                    "acme",
                    total_vfs=2,
                    vf="abcd",
                    vf_driver="acme",
                    vgpu_types=("1:ACME 1:2",),
                )
                tree.add_function(facts)
                tree.add_virtual_functions(facts, 2)

    kind.virtual_functions = True
    kind.claims = lambda self, one: (  # type: ignore[method-assign]
        one.vendor == "1234" and bool(one.physical_function)
    )
    return Mediated


def _test(kind: type[base.Driver], **members: Any) -> type[GoodTest]:
    """With the checks of every ability, whether the driver has it or not."""
    bases = (*abilities.KINDS, GoodTest)
    return type("Test", bases, {"driver": kind, **members})


def _check(
    test: type[GoodTest], name: str, tmp_path: Path, **more: Any
) -> None:
    """One check of the kit, as pytest would run it."""
    one = test()
    tree = one.tree_class(tmp_path / "sys")
    one.plug(tree)
    method: Callable[..., None] = getattr(one, name)
    given = {
        "tree": tree,
        "own_tree": tree,
        "root": tree.root,
        "tmp_path": tmp_path / "more",
        **more,
    }
    (tmp_path / "more").mkdir()
    wanted = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    method(**{key: given[key] for key in wanted})


FOUND = (
    AssertionError,
    HardwareError,
    ToolError,
    pytest.fail.Exception,
)
"""How a check ends that finds something."""

FAILURES = [
    (_test(TouchingDriver), "test_building_touches_no_hardware"),
    (_test(MovingDriver), "test_two_looks_give_the_same_report"),
    (_test(MovingDriver), "test_the_order_of_directories_does_not_count"),
    (_test(UnorderedDriver), "test_the_order_of_directories_does_not_count"),
    (_test(HostlessDriver), "test_the_report_is_as_every_report_is"),
    (_test(HostlessDriver), "test_two_hosts_share_no_deployable"),
    (
        _test(WritingDriver),
        "test_discovery_writes_nothing_and_runs_what_it_declares",
    ),
    (_test(AskingDriver), "test_discovery_works_without_any_tool"),
    (_test(StubbornDriver), "test_a_card_that_goes_while_it_is_looked_at"),
    (
        _test(
            CarelessDriver,
            wrong_options=[("[acme] grade", {"acme": {"grade": "x"}})],
        ),
        "test_a_wrong_option_is_an_error_that_names_it",
    ),
    (
        _test(FlashingDriver),
        "test_programming_without_its_tool_is_said_to_fail",
    ),
    (_test(UncleanDriver), "test_cleaning_that_fails_is_said_to_fail"),
    (
        _mediated(ForgetfulMediatedDriver),
        "test_a_unit_that_cannot_be_made_or_removed_is_said_to_fail",
    ),
    (_test(UnmakingDriver), "test_a_unit_is_made_once_and_removed_once"),
    (
        _test(
            GoodDriver,
            plug=lambda self, tree: tree.add_port(
                tree.root / "devices" / "pci0000:00" / "0000:00:01.0"
            ),
        ),
        "test_every_card_that_is_plugged_in_is_found",
    ),
]


@pytest.mark.parametrize(("test", "name"), FAILURES)
def test_each_fault_of_a_driver_is_found(
    test: type[GoodTest], name: str, tmp_path: Path
) -> None:
    full = next(key for key in dir(test) if key.startswith(name))

    with pytest.raises(FOUND):
        _check(test, full, tmp_path)


@pytest.mark.parametrize(
    ("bases", "wanted"),
    [
        ((), r"\['Cleans'\]"),
        ((abilities.Cleans, abilities.TellsHealth), r"\['Cleans'\]"),
        ((abilities.Cleans, abilities.Programs), r"\['Cleans'\]"),
    ],
)
def test_checks_of_too_few_or_too_many_abilities_are_found(
    bases: tuple[type[Any], ...], wanted: str, tmp_path: Path
) -> None:
    test = type("Test", (*bases, GoodTest), {"driver": GoodDriver})

    with pytest.raises(AssertionError, match=wanted):
        _check(test, "test_each_ability_of_the_driver_is_checked", tmp_path)


def test_what_moved_is_named(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="vendor_board_info"):
        _check(
            _test(MovingDriver),
            "test_two_looks_give_the_same_report",
            tmp_path,
        )


def test_what_is_wrong_in_a_report_is_all_said(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not start with compute-1_"):
        _check(
            _test(HostlessDriver),
            "test_the_report_is_as_every_report_is",
            tmp_path,
        )


BAD_WITH_FILES = [
    (FragileDriver, "missing"),
    (FragileDriver, "malformed"),
    (FragileDriver, "binary"),
    (FragileDriver, "a directory"),
    (SilentDriver, "empty"),
    (RepeatingDriver, "a dangling link"),
    (RepeatingDriver, "endless"),
]


@pytest.mark.parametrize(("kind", "way"), BAD_WITH_FILES)
def test_who_cannot_stand_a_bad_file_is_found(
    kind: type[base.Driver],
    way: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = "test_one_bad_path_costs_at_most_its_card_and_one_warning"

    with pytest.raises((*FOUND, OSError, ValueError)):
        _check(_test(kind), name, tmp_path, way=way, caplog=caplog)


def test_who_waits_for_a_pipe_is_found(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conformance, "LOOK_SECONDS", 0.5)
    name = "test_one_bad_path_costs_at_most_its_card_and_one_warning"

    with pytest.raises(pytest.fail.Exception, match=r"waits for .*grade"):
        _check(
            _test(WaitingDriver), name, tmp_path, way="a pipe", caplog=caplog
        )


def test_who_warns_of_what_is_well_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "test_hardware_that_is_well_is_no_reason_to_warn"

    with pytest.raises(AssertionError):
        _check(_test(LoudDriver), name, tmp_path, caplog=caplog)


def test_a_tool_that_the_options_name_is_no_fault(tmp_path: Path) -> None:
    options = {"agent": {"further_tools": ["acmeflash"]}}

    _check(
        _test(FlashingDriver, options=options),
        "test_programming_without_its_tool_is_said_to_fail",
        tmp_path,
    )


class TestGood(abilities.Cleans, GoodTest):
    """And a good driver passes all of it."""

    options: ClassVar[Options] = {"agent": {"clean_timeout": 30}}


TestGoodMediated = _mediated(GoodMediatedDriver)


# What it is made of -------------------------------------------------------


@pytest.mark.parametrize("way", breaking.WAYS)
def test_what_was_broken_is_whole_again(tmp_path: Path, way: str) -> None:
    tree = SysfsTree(tmp_path / "sys")
    path = tree.add_function(Card(FIRST, "1234:abcd", "120000", "acme"))
    before = {
        place: os.lstat(place).st_mode for place in breaking.places(path)
    }

    for place in before:
        with breaking.broken(place, way, tmp_path):
            assert (way == "missing") != os.path.lexists(place)

    after = {place: os.lstat(place).st_mode for place in breaking.places(path)}
    assert after == before


def test_a_directory_is_listed_in_both_orders(tmp_path: Path) -> None:
    for name in ("a", "c", "b"):
        (tmp_path / name).touch()

    def listings() -> list[list[str]]:
        with os.scandir(tmp_path) as entries:
            scanned = [entry.name for entry in entries]
        return [
            os.listdir(tmp_path),  # noqa: PTH208 - as drivers do
            scanned,
            [path.name for path in tmp_path.iterdir()],
            [path.name for path in tmp_path.glob("*")],
        ]

    with breaking.listed(backwards=False):
        assert listings() == [["a", "b", "c"]] * 4
    with breaking.listed(backwards=True):
        assert listings() == [["c", "b", "a"]] * 4

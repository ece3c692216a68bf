# SPDX-License-Identifier: Apache-2.0
"""What a reboot took comes back, and what cannot yet is tried again."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.agent import ledger
from cyborg.agent import orders
from cyborg.agent import restoring
from tests.driver_host import driver_host
from tests.sysfs import SysfsTree

QAT = "0000:3d:00.0"
GPU = "0000:af:00.0"


class Carver:
    """A driver that gives the functions of its vendor virtual functions."""

    def __init__(self, vendor: str = "8086") -> None:
        self.name = "carver"
        self.vendor = vendor
        self.failure: BaseException | None = None
        self.carved: list[tuple[str, int]] = []

    def discover(self):
        return []

    def claims(self, function) -> bool:
        return function.vendor == self.vendor

    def carve(self, function, count, timeout) -> None:
        assert timeout > 0
        self.carved.append((function.address, count))
        if self.failure:
            raise self.failure


class Maker:
    """A driver that makes units."""

    def __init__(self) -> None:
        self.name = "maker"
        self.failure: BaseException | None = None
        self.made: list[str] = []

    def discover(self):
        return []

    def create(self, unit, identity, timeout) -> None:
        assert unit.attach_type is inventory.AttachType.MDEV
        assert timeout > 0
        self.made.append(identity)
        if self.failure:
            raise self.failure

    def remove(self, unit, identity, timeout) -> None:
        raise AssertionError("nothing is removed when a host comes back")


class Plain:
    """A driver that can neither."""

    name = "plain"

    def discover(self):
        return []


def entry(uuid: str, driver: str = "maker") -> ledger.Made:
    return ledger.Made(
        uuid,
        driver,
        inventory.pci_json(GPU),
        "MDEV",
        inventory.pci_json(GPU, {"asked_type": "nvidia-222"}),
        "job",
    )


class Setting:
    """A host that has just booted; `look` is what comes before a look."""

    def __init__(self, directory: Path, *wanted: str) -> None:
        self.tree = SysfsTree(directory / "sys")
        self.tree.add_unknown()
        self.host = driver_host(
            self.tree.root, {"agent": {"virtual_functions": list(wanted)}}
        )
        self.ledger = ledger.Ledger(str(directory), "host")
        self.orders = orders.Orders(lambda: None)
        self.now = 1000.0
        self.restorer = restoring.Restorer(
            lambda: restoring.tasks(
                self.host.conf, self.host.sysfs, self.ledger, self.orders
            ),
            clock=lambda: self.now,
        )

    def look(self, *drivers) -> bool:
        """Whether there was anything to do."""
        if not self.restorer.due():
            return False
        for driver in drivers:
            self.restorer.restore(driver.name, driver, self.now + 30)
        self.restorer.conclude()
        return True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:3d:00.0=16", ("0000:3d:00.0", 16)),
        (" 0000:3D:00.0 = 1 ", ("0000:3d:00.0", 1)),
        ("0000:3d:00.0=max", ("0000:3d:00.0", None)),
        ("0000:3d:00.0=MAX", ("0000:3d:00.0", None)),
        ("10000:01:00.0=4", ("10000:01:00.0", 4)),
    ],
)
def test_a_value_is_an_address_and_a_count(text, expected):
    assert restoring.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "=16",
        "0000:3d:00.0",
        "0000:3d:00.0=",
        "0000:3d:00.0=0",
        "0000:3d:00.0=-1",
        "0000:3d:00.0=1.5",
        "0000:3d:00.0=sixteen",
        "0000:3d:00.0=١",
        "0000:3d:00.0=16=16",
        "3d:00.0=16",
        "eth0=16",
    ],
)
def test_any_other_value_is_one_error_that_names_the_option(
    tmp_path, caplog, text
):
    setting = Setting(tmp_path, text, f"{QAT}=16")
    setting.tree.add("intel_c62x", QAT)
    carver = Carver()
    for _ in range(2):
        setting.look(carver)
    assert carver.carved == [(QAT, 16)]
    errors = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "[agent] virtual_functions" in errors[0].getMessage()


def test_two_counts_for_one_function_are_an_error_and_the_first_holds(
    tmp_path, caplog
):
    setting = Setting(tmp_path, f"{QAT}=2", f"{QAT}=2", f"{QAT}=4")
    setting.tree.add("intel_c62x", QAT)
    carver = Carver()
    setting.look(carver)
    assert carver.carved == [(QAT, 2)]
    assert "contradicts" in caplog.text


def test_an_option_that_cannot_be_read_is_an_error_and_units_come_back(
    tmp_path, caplog
):
    setting = Setting(tmp_path, "$nothing")
    setting.ledger.add([entry("1")])
    maker = Maker()
    setting.look(maker)
    assert maker.made == ["1"]
    assert "[agent] virtual_functions: a `$`" in caplog.text


def test_all_that_the_card_can_have_is_what_the_kernel_says(tmp_path):
    setting = Setting(tmp_path, f"{QAT}=max")
    setting.tree.add("intel_c62x", QAT)
    carver = Carver()
    assert setting.look(Plain(), carver)
    assert carver.carved == [(QAT, 16)]
    assert not setting.look(carver)


@pytest.mark.parametrize("wanted", ["16", "max"])
def test_a_card_that_has_them_is_left_alone(tmp_path, caplog, wanted):
    setting = Setting(tmp_path, f"{QAT}={wanted}")
    setting.tree.add("intel_c62x", QAT, vfs=16)
    carver = Carver()
    setting.look(carver)
    assert carver.carved == []
    assert not setting.look(carver)
    assert caplog.records == []


@pytest.mark.parametrize("wanted", ["8", "max"])
def test_another_number_is_a_warning_and_left_alone(tmp_path, caplog, wanted):
    setting = Setting(tmp_path, f"{QAT}={wanted}")
    setting.tree.add("intel_c62x", QAT, vfs=4)
    carver = Carver()
    setting.look(carver)
    assert not setting.look(carver)
    assert carver.carved == []
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "has 4 virtual functions, not" in record.getMessage()


def test_a_number_that_the_card_cannot_have_is_tried_once(tmp_path, caplog):
    setting = Setting(tmp_path, f"{QAT}=99")
    setting.tree.add("intel_c62x", QAT)
    carver = Carver()
    carver.failure = exception.Invalid("it can have 16 at most")
    setting.look(carver)
    setting.now += 1000
    assert not setting.look(carver)
    assert carver.carved == [(QAT, 99)]
    assert "[agent] virtual_functions: 0000:3d:00.0: it can have" in (
        caplog.text
    )


def test_a_card_without_virtual_functions_is_told(tmp_path, caplog):
    setting = Setting(tmp_path, "0000:3b:00.0=max")
    setting.tree.add("nvidia_v100", "0000:3b:00.0")
    setting.look(Carver("10de"))
    assert "cannot have virtual functions" in caplog.text


def test_a_driver_that_comes_late_is_waited_for_with_one_warning(
    tmp_path, caplog
):
    setting = Setting(tmp_path, f"{QAT}=16")
    setting.tree.add("intel_c62x", QAT)
    carver = Carver()
    carver.failure = exception.DeviceFailed("the function has no driver")
    for _ in range(5):
        setting.look(carver)
        setting.now += 1000
    assert len(carver.carved) == 5
    assert len(caplog.records) == 1
    carver.failure = None
    assert setting.look(carver)
    assert not setting.look(carver)


def test_another_reason_is_another_warning(tmp_path, caplog):
    setting = Setting(tmp_path, f"{QAT}=16")
    setting.tree.add("intel_c62x", QAT)
    carver = Carver()
    for reason in ("no driver", "no driver", "no memory", "no driver"):
        carver.failure = exception.DeviceFailed(reason)
        setting.look(carver)
        setting.now += 1000
    assert len(caplog.records) == 2


def test_what_fails_is_not_tried_by_each_event_that_trying_makes(tmp_path):
    setting = Setting(tmp_path, f"{QAT}=16")
    setting.tree.add("intel_c62x", QAT)
    carver = Carver()
    carver.failure = exception.DeviceFailed("no driver")
    for _ in range(600):
        setting.look(carver)
        setting.now += 0.5
    assert 5 <= len(carver.carved) <= 12
    setting.now += restoring.LONGEST_PAUSE
    assert setting.look(carver)


@pytest.mark.parametrize(
    "failure", [ValueError("bug"), KeyError("x"), SystemExit(1)]
)
def test_a_bug_of_a_driver_costs_only_what_it_was_to_do(tmp_path, failure):
    setting = Setting(tmp_path, f"{QAT}=16")
    setting.tree.add("intel_c62x", QAT)
    setting.ledger.add([entry("1")])
    carver, maker = Carver(), Maker()
    carver.failure = failure
    setting.look(carver, maker)
    assert maker.made == ["1"]


def test_a_function_that_is_not_there_is_one_warning_until_it_comes(
    tmp_path, caplog
):
    setting = Setting(tmp_path, f"{QAT}=16")
    carver = Carver()
    for _ in range(3):
        assert setting.look(carver)
    (record,) = caplog.records
    assert "there is no such PCI function" in record.getMessage()
    setting.tree.add("intel_c62x", QAT)
    setting.look(carver)
    assert carver.carved == [(QAT, 16)]


def test_a_function_that_no_driver_knows_is_one_warning(tmp_path, caplog):
    setting = Setting(tmp_path, f"{QAT}=16")
    setting.tree.add("intel_c62x", QAT)
    for _ in range(3):
        setting.look(Carver("10de"), Plain())
    (record,) = caplog.records
    assert "none of the enabled drivers" in record.getMessage()


def test_units_come_back_by_their_own_driver_and_uuid(tmp_path):
    setting = Setting(tmp_path)
    setting.ledger.add([entry("1"), entry("2"), entry("3", "other")])
    maker, other = Maker(), Maker()
    other.name = "other"
    assert setting.look(maker, other)
    assert (maker.made, other.made) == (["1", "2"], ["3"])
    assert not setting.look(maker, other)


def test_functions_come_before_the_units_on_them(tmp_path):
    class BothAtOnce(Maker, Carver):
        def __init__(self) -> None:
            Carver.__init__(self)
            Maker.__init__(self)

        def carve(self, function, count, timeout) -> None:
            self.made.append("functions")

    setting = Setting(tmp_path, f"{QAT}=1")
    setting.tree.add("intel_c62x", QAT)
    setting.ledger.add([entry("1")])
    both = BothAtOnce()
    setting.look(both)
    assert both.made == ["functions", "1"]


def test_a_unit_whose_card_is_gone_stays_in_the_ledger(tmp_path, caplog):
    setting = Setting(tmp_path)
    setting.ledger.add([entry("1")])
    maker = Maker()
    maker.failure = exception.DeviceFailed(f"there is no PCI function {GPU}")
    for _ in range(3):
        setting.look(maker)
        setting.now += 1000
    assert setting.ledger.has("1")
    (record,) = caplog.records
    assert f"Unit 1 of {GPU}: there is no PCI function" in (
        record.getMessage()
    )


def test_a_unit_whose_driver_is_not_enabled_is_one_warning(tmp_path, caplog):
    setting = Setting(tmp_path)
    setting.ledger.add([entry("1")])
    for _ in range(3):
        setting.look(Plain())
    (record,) = caplog.records
    assert "its driver maker is not enabled" in record.getMessage()


def test_a_driver_that_makes_no_units_any_more_is_told(tmp_path, caplog):
    setting = Setting(tmp_path)
    setting.ledger.add([entry("1", "plain")])
    setting.look(Plain())
    assert "plain cannot make units" in caplog.text


def test_a_unit_that_was_given_back_meanwhile_does_not_come_back(tmp_path):
    setting = Setting(tmp_path)
    setting.ledger.add([entry("1")])
    maker = Maker()
    maker.failure = exception.DeviceFailed("not yet")
    setting.look(maker)
    setting.ledger.end(["1"])
    setting.now += 1000
    maker.failure = None
    setting.look(maker)
    assert maker.made == ["1"]
    assert not setting.look(maker)


def test_a_unit_that_is_being_given_back_is_not_waited_for(tmp_path):
    setting = Setting(tmp_path)
    setting.ledger.add([entry("1")])
    maker = Maker()
    place = orders.Place(GPU, frozenset({"1"}))
    with setting.orders.at(place, 0):
        setting.look(maker)
    assert maker.made == []
    setting.now += 1000
    setting.look(maker)
    assert maker.made == ["1"]


def test_when_time_is_up_the_rest_is_left_for_the_next_look(tmp_path):
    class Slow(Maker):
        def create(self, unit, identity, timeout) -> None:
            super().create(unit, identity, timeout)
            setting.now += 20

    setting = Setting(tmp_path)
    setting.ledger.add([entry(str(number)) for number in range(3)])
    slow = Slow()
    setting.look(slow)
    assert slow.made == ["0", "1"]
    setting.look(slow)
    assert slow.made == ["0", "1", "2"]
    assert not setting.look(slow)


@pytest.mark.parametrize("controlpath", ["", "garbage", "[1]"])
def test_an_entry_that_makes_no_sense_is_told_and_others_come_back(
    tmp_path, caplog, controlpath
):
    setting = Setting(tmp_path)
    bad = dataclasses.replace(entry("1"), controlpath=controlpath)
    alien = dataclasses.replace(entry("2"), attach_type="NEW")
    setting.ledger.add([bad, alien, entry("3")])
    other, maker = Plain(), Maker()
    maker.failure = None
    setting.look(other, maker)
    assert maker.made[-1] == "3"
    assert "Unit 2" in caplog.text
    setting.now += 100
    assert setting.look(other)

# SPDX-License-Identifier: Apache-2.0
"""Units are made and cleaned once for each order, and nothing is left
halfway."""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg import inventory
from cyborg.agent import discovery
from cyborg.agent import ledger
from cyborg.agent import orders
from cyborg.agent import programming
from cyborg.agent import units
from cyborg.drivers import base
from cyborg.hardware import pci
from cyborg.rpc import agent as rpc_agent

WAIT = 10
CARD = inventory.pci_json("0000:af:00.0")
VGPU = inventory.pci_json("0000:af:00.0", {"asked_type": "nvidia-222"})


class Cards:
    """A driver of one card; its other abilities are in the subclasses.

    Each call goes into `calls`, is then held by `held`, and raises what
    `failures` has for it.
    """

    def __init__(self) -> None:
        self.name = "cards"
        self.there: set[str] = set()
        self.calls: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        self.held = threading.Event()
        self.held.set()
        self.failures: dict[tuple[str, str], BaseException] = {}

    def __call__(self, host: base.DriverHost) -> Cards:
        return self

    def discover(self):
        return [
            inventory.Device(
                controlpath=CARD,
                type=inventory.DeviceType.GPU,
                vendor="10de",
                model="card",
                driver=self.name,
            )
        ]

    def next(self) -> tuple:
        return self.calls.get(timeout=WAIT)

    def called(self) -> list[tuple]:
        found = []
        while not self.calls.empty():
            found.append(self.calls.get())
        return found

    def _work(self, what: str, identity: str) -> None:
        self.calls.put((what, identity))
        assert self.held.wait(WAIT)
        if (what, identity) in self.failures:
            raise self.failures[what, identity]


class Makers(Cards):
    """Makes units."""

    def create(self, unit, identity, timeout):
        assert unit == inventory.AttachHandle(inventory.AttachType.MDEV, VGPU)
        assert 0 < timeout <= WAIT
        self.there.add(identity)
        self._work("create", identity)

    def remove(self, unit, identity, timeout):
        assert timeout > 0
        self._work("remove", identity)
        self.there.discard(identity)


class Cleaners(Cards):
    """Cleans units."""

    progress: tuple[object, ...] = ()

    def clean(self, unit, controlpath, timeout, progress):
        assert controlpath == CARD
        assert 0 < timeout <= WAIT
        for percent in self.progress:
            progress(percent)
        self._work("clean", unit.attach_info)


class Both(Makers, Cleaners):
    pass


class Programmers(Both):
    def program(
        self, deployable_name, controlpath, image, properties, timeout
    ):
        self._work("program", controlpath)


def an_order(*uuids: str, **changes: object) -> rpc_agent.UnitsOrder:
    fields: dict = {
        "job_uuid": str(uuid.uuid4()),
        "driver": "cards",
        "controlpath": CARD,
        "deployable_name": "host_card",
        "units": tuple(rpc_agent.Unit(one, "MDEV", VGPU) for one in uuids),
        "timeout": WAIT,
    }
    return rpc_agent.UnitsOrder(**fields | changes)


def whole(*uuids: str, **changes: object) -> rpc_agent.UnitsOrder:
    """An order about units that need not be made."""
    found = tuple(rpc_agent.Unit(one, "PCI", CARD) for one in uuids)
    return an_order(units=found, **changes)


class Setting:
    """An agent's parts around one driver, as they are after a start."""

    def __init__(
        self, directory: Path, driver: Cards, *, look: bool = True
    ) -> None:
        self.directory = directory
        self.driver = driver
        self.finished: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.discovery = discovery.Discovery(
            ["cards"],
            base.DriverHost("host", pci.Sysfs(directory), cfg.ConfigOpts()),
            WAIT,
            lambda name: driver,
        )
        if look:
            self.discovery.look()
        self.orders = orders.Orders(lambda: self.finished.put(True))
        self.ledger = ledger.Ledger(str(directory), "host")
        self.units = units.Units(
            self.discovery, self.orders, self.ledger, late=0, wait=WAIT
        )
        self.programmer = programming.Programmer(
            self.discovery,
            self.orders,
            self._no_glance,
            programming.Workspace(str(directory), "host"),
            max_image_bytes=1,
        )

    def _no_glance(self):
        raise cfg.Error("none")

    def impatient(self) -> units.Units:
        """The same, that answers at once how far cleaning is."""
        return units.Units(
            self.discovery, self.orders, self.ledger, late=0, wait=0
        )

    def in_thread(self, call, order) -> queue.SimpleQueue:
        results: queue.SimpleQueue = queue.SimpleQueue()

        def run() -> None:
            try:
                results.put(call(order))
            except exception.CyborgError as error:
                results.put(error)

        threading.Thread(target=run, daemon=True).start()
        return results

    def recorded(self) -> list[str]:
        """The uuids in the ledger, as the next agent would find them."""
        again = ledger.Ledger(str(self.directory), "host")
        return [entry.uuid for entry in again.units()]


@pytest.fixture
def made(tmp_path):
    return Setting(tmp_path, Makers())


@pytest.fixture
def cleaned(tmp_path):
    return Setting(tmp_path, Cleaners())


DONE = rpc_agent.CleanResult(done=True, percent=100)


def test_units_are_there_and_recorded_when_prepare_returns(made):
    made.units.prepare(an_order("1", "2"))
    assert made.driver.called() == [("create", "1"), ("create", "2")]
    assert made.recorded() == ["1", "2"]
    assert made.finished.get(timeout=WAIT)


def test_a_unit_is_recorded_before_it_is_made(made):
    made.driver.held.clear()
    result = made.in_thread(made.units.prepare, an_order("1", "2"))
    made.driver.next()
    assert made.recorded() == ["1", "2"]
    made.driver.held.set()
    assert result.get(timeout=WAIT) is None


def test_what_an_order_made_before_it_failed_is_removed(made):
    made.driver.failures["create", "2"] = exception.DeviceFailed("no room")
    with pytest.raises(exception.DeviceFailed, match="no room"):
        made.units.prepare(an_order("1", "2", "3"))
    assert made.driver.called() == [
        ("create", "1"),
        ("create", "2"),
        ("remove", "2"),
        ("remove", "1"),
    ]
    assert made.driver.there == set()
    assert made.recorded() == []


@pytest.mark.parametrize("error", [ValueError("bug"), SystemExit(1)])
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_a_bug_of_the_driver_leaves_nothing_either(made, error):
    made.driver.failures["create", "2"] = error
    with pytest.raises(exception.DeviceFailed):
        made.units.prepare(an_order("1", "2"))
    assert made.driver.there == set()
    assert made.recorded() == []


def test_what_cannot_be_removed_after_a_failure_is_told(made, caplog):
    made.driver.failures["create", "2"] = exception.DeviceFailed("no room")
    made.driver.failures["remove", "2"] = exception.DeviceFailed("in use")
    with pytest.raises(exception.DeviceFailed, match="no room"):
        made.units.prepare(an_order("1", "2"))
    assert made.driver.there == {"2"}
    assert made.recorded() == []
    assert "in use" in caplog.text


def test_units_that_come_after_the_time_was_up_are_removed(made):
    made.driver.held.clear()
    with pytest.raises(exception.Timeout):
        made.units.prepare(an_order("1", timeout=0.05))
    assert made.driver.next() == ("create", "1")
    made.driver.held.set()
    assert made.finished.get(timeout=WAIT)
    assert made.driver.there == set()
    assert made.recorded() == []


def test_the_same_order_asked_again_is_one_order(made):
    made.driver.held.clear()
    order = an_order("1")
    results = [made.in_thread(made.units.prepare, order) for _ in range(3)]
    made.driver.next()
    made.driver.held.set()
    for result in results:
        assert result.get(timeout=WAIT) is None
    made.units.prepare(order)
    assert made.driver.called() == []


def test_the_same_failure_is_told_again(made):
    made.driver.failures["create", "1"] = exception.DeviceFailed("no room")
    order = an_order("1")
    for _ in range(2):
        with pytest.raises(exception.DeviceFailed, match="no room"):
            made.units.prepare(order)
    assert made.driver.called() == [("create", "1"), ("remove", "1")]


def test_units_that_need_not_be_made_are_there_already(tmp_path):
    setting = Setting(tmp_path, Both())
    setting.units.prepare(whole("1"))
    assert setting.driver.called() == []
    assert setting.recorded() == []


@pytest.mark.parametrize("what", ["prepare", "clean"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"driver": "somebody_else"}, "belongs to the driver cards"),
        (
            {"controlpath": inventory.pci_json("0000:ff:00.0")},
            "no such device",
        ),
    ],
)
def test_an_order_for_somebody_elses_device_is_a_conflict(
    made, what, changes, words
):
    with pytest.raises(exception.Conflict, match=words):
        getattr(made.units, what)(an_order("1", **changes))
    assert made.driver.called() == []


@pytest.mark.parametrize("what", ["prepare", "clean"])
def test_an_unknown_kind_of_unit_is_refused(made, what):
    unit = rpc_agent.Unit("1", "USB", CARD)
    with pytest.raises(exception.Invalid, match="USB"):
        getattr(made.units, what)(an_order(units=(unit,)))


def test_a_driver_that_cannot_make_or_clean_is_a_conflict(tmp_path):
    setting = Setting(tmp_path, Cards())
    with pytest.raises(exception.Conflict, match="cannot make"):
        setting.units.prepare(an_order("1"))
    with pytest.raises(exception.Conflict, match="cannot clean"):
        setting.units.clean(an_order("1"))


def test_a_maker_does_not_clean_what_it_has_not_made(made):
    with pytest.raises(exception.Conflict, match="cannot clean"):
        made.units.clean(whole("1"))


def test_a_made_unit_is_cleaned_by_its_removal(tmp_path):
    setting = Setting(tmp_path, Both())
    setting.units.prepare(an_order("1", "2"))
    setting.driver.called()
    assert setting.units.clean(an_order("1")) == DONE
    assert setting.driver.called() == [("remove", "1")]
    assert setting.recorded() == ["2"]


def test_any_other_unit_is_cleaned_by_its_driver(tmp_path):
    setting = Setting(tmp_path, Both())
    assert setting.units.clean(whole("1")) == DONE
    assert setting.driver.called() == [("clean", CARD)]


def test_a_unit_that_a_guest_still_has_stays_recorded(made):
    made.units.prepare(an_order("1"))
    made.driver.failures["remove", "1"] = exception.DeviceFailed("in use")
    order = an_order("1")
    for _ in range(2):
        with pytest.raises(exception.DeviceFailed, match="in use"):
            made.units.clean(order)
    assert made.recorded() == ["1"]
    del made.driver.failures["remove", "1"]
    assert made.units.clean(an_order("1")) == DONE
    assert made.recorded() == []


def test_who_asks_while_it_cleans_hears_how_far_it_is(cleaned):
    cleaned.driver.held.clear()
    cleaned.driver.progress = (10, 42)
    order = whole("1")
    impatient = cleaned.impatient()
    assert not impatient.clean(order).done
    cleaned.driver.next()
    assert impatient.clean(order) == rpc_agent.CleanResult(False, 42)
    last = cleaned.in_thread(cleaned.units.clean, order)
    cleaned.driver.held.set()
    assert last.get(timeout=WAIT) == DONE
    assert cleaned.units.clean(order) == DONE
    assert cleaned.driver.called() == []


def test_the_progress_of_several_units_is_one_number(cleaned):
    order = whole("1", "2")
    cleaned.driver.progress = (50,)
    cleaned.driver.held.clear()
    impatient = cleaned.impatient()
    impatient.clean(order)
    cleaned.driver.next()
    assert impatient.clean(order).percent == 25
    cleaned.driver.progress = (20,)
    cleaned.driver.held.set()
    assert cleaned.units.clean(order) == DONE


@pytest.mark.parametrize(
    ("told", "shown"),
    [(100, 99), (400, 99), (-3, 0), ("x", 0), (None, 0), (float("inf"), 0)],
)
def test_a_driver_that_counts_wrongly_is_not_done_before_it_is(
    cleaned, told, shown
):
    cleaned.driver.progress = (told,)
    cleaned.driver.held.clear()
    order = whole("1")
    impatient = cleaned.impatient()
    impatient.clean(order)
    cleaned.driver.next()
    assert impatient.clean(order) == rpc_agent.CleanResult(False, shown)
    cleaned.driver.held.set()


def test_cleaning_that_takes_too_long_has_failed_for_good(cleaned):
    cleaned.driver.held.clear()
    order = whole("1", timeout=0.05)
    with pytest.raises(exception.Timeout, match=r"not cleaned within 0\.05"):
        cleaned.units.clean(order)
    cleaned.driver.held.set()
    assert cleaned.finished.get(timeout=WAIT)
    with pytest.raises(exception.Timeout):
        cleaned.units.clean(order)
    assert cleaned.units.clean(whole("1")) == DONE


def test_a_new_order_for_a_unit_whose_driver_hangs_waits_and_fails(cleaned):
    cleaned.driver.held.clear()
    with pytest.raises(exception.Timeout):
        cleaned.units.clean(whole("1", timeout=0.05))
    with pytest.raises(exception.Timeout, match="Earlier work"):
        cleaned.units.clean(whole("1", timeout=0.05))
    assert cleaned.driver.called() == [("clean", CARD)]
    cleaned.driver.held.set()


def test_the_time_of_cleaning_counts_from_its_begin(tmp_path):
    setting = Setting(tmp_path, Makers())
    setting.driver.held.clear()
    prepared = setting.in_thread(setting.units.prepare, an_order("1"))
    setting.driver.next()
    order = an_order("1", timeout=WAIT / 2)
    assert not setting.impatient().clean(order).done
    job = setting.orders.known(f"clean {order.job_uuid}")
    assert job.deadline == float("inf")
    setting.driver.held.set()
    assert prepared.get(timeout=WAIT) is None
    assert setting.units.clean(order) == DONE
    assert job.deadline != float("inf")


def test_a_clean_that_overtakes_nothing_waits_for_the_prepare(made):
    made.driver.held.clear()
    prepared = made.in_thread(made.units.prepare, an_order("1"))
    assert made.driver.next() == ("create", "1")
    cleaned = made.in_thread(made.units.clean, an_order("1"))
    beside = made.in_thread(made.units.prepare, an_order("2"))
    assert made.driver.next() == ("create", "2")
    made.driver.held.set()
    assert prepared.get(timeout=WAIT) is None
    assert cleaned.get(timeout=WAIT) == DONE
    assert beside.get(timeout=WAIT) is None
    assert made.driver.there == {"2"}


def test_a_late_prepare_of_an_order_that_is_over_makes_nothing(made, tmp_path):
    order = an_order("1")
    made.units.prepare(order)
    made.units.clean(an_order("1"))
    made.driver.called()
    made.units.prepare(order)
    assert made.driver.called() == []
    restarted = Setting(tmp_path, Makers())
    with pytest.raises(exception.Conflict, match="given back"):
        restarted.units.prepare(order)
    assert restarted.driver.called() == []
    restarted.units.prepare(an_order("1"))
    assert restarted.recorded() == ["1"]


def test_an_order_of_a_killed_agent_begins_again(made, tmp_path):
    made.driver.held.clear()
    order = an_order("1", "2")
    made.in_thread(made.units.prepare, order)
    made.driver.next()
    restarted = Setting(tmp_path, Makers())
    assert restarted.recorded() == ["1", "2"]
    restarted.units.prepare(order)
    assert restarted.driver.there == {"1", "2"}
    made.driver.held.set()


def test_a_device_that_is_programmed_is_not_cleaned_meanwhile(tmp_path):
    driver = Programmers()
    driver.simulated = True
    setting = Setting(tmp_path, driver)
    driver.held.clear()
    program = rpc_agent.ProgramOrder(
        str(uuid.uuid4()), "cards", CARD, "host_card", None, None, WAIT
    )
    programmed = setting.in_thread(setting.programmer.program, program)
    assert driver.next() == ("program", CARD)
    order = whole("1")
    assert not setting.impatient().clean(order).done
    assert driver.called() == []
    driver.held.set()
    assert setting.units.clean(order) == DONE
    assert programmed.get(timeout=WAIT).bitstream_id is None


def test_a_device_that_is_cleaned_is_programmed_afterwards(tmp_path):
    driver = Programmers()
    driver.simulated = True
    setting = Setting(tmp_path, driver)
    driver.held.clear()
    order = whole("1")
    setting.impatient().clean(order)
    assert driver.next() == ("clean", CARD)
    program = rpc_agent.ProgramOrder(
        str(uuid.uuid4()), "cards", CARD, "host_card", None, None, 0.05
    )
    with pytest.raises(exception.Timeout):
        setting.programmer.program(program)
    assert driver.called() == []
    driver.held.set()
    assert setting.units.clean(order) == DONE
    setting.programmer.program(
        rpc_agent.ProgramOrder(
            str(uuid.uuid4()), "cards", CARD, "host_card", None, None, WAIT
        )
    )
    assert driver.called() == [("program", CARD)]


def test_an_order_that_comes_before_the_first_look_waits_for_it(tmp_path):
    setting = Setting(tmp_path, Both(), look=False)
    order = whole("1")
    assert setting.impatient().clean(order) == rpc_agent.CleanResult(False)
    prepared = setting.in_thread(setting.units.prepare, an_order("1"))
    cleaned = setting.in_thread(setting.units.clean, order)
    setting.discovery.look()
    assert prepared.get(timeout=WAIT) is None
    assert cleaned.get(timeout=WAIT) == DONE


def test_a_stopping_agent_lets_nobody_wait(cleaned):
    cleaned.driver.held.clear()
    asked = cleaned.in_thread(cleaned.units.clean, whole("1"))
    cleaned.driver.next()
    cleaned.orders.stop(0, 0)
    assert isinstance(asked.get(timeout=WAIT), exception.Unavailable)
    with pytest.raises(exception.Unavailable):
        cleaned.units.clean(whole("2"))
    cleaned.driver.held.set()


def test_a_late_order_that_fails_takes_no_unit_of_another(made):
    first = an_order("1")
    made.units.prepare(first)
    made.driver.failures["create", "2"] = exception.DeviceFailed("no room")
    late = an_order("1", "2", "3")
    with pytest.raises(exception.DeviceFailed, match="no room"):
        made.units.prepare(late)
    assert made.driver.there == {"1"}
    (entry,) = ledger.Ledger(str(made.directory), "host").units()
    assert (entry.uuid, entry.job_uuid) == ("1", first.job_uuid)


def test_an_order_that_fails_is_a_warning(made, caplog):
    made.driver.failures["create", "1"] = exception.DeviceFailed("no room")
    with pytest.raises(exception.DeviceFailed):
        made.units.prepare(an_order("1"))
    assert made.finished.get(timeout=WAIT)
    (record,) = [one for one in caplog.records if "no room" in one.message]
    assert record.levelno == logging.WARNING

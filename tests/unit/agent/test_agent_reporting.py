# SPDX-License-Identifier: Apache-2.0
"""When the conductor is told, and what, and what when it is not there."""

from __future__ import annotations

import logging
import queue
import threading

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.agent import discovery
from cyborg.agent import gauges
from cyborg.agent import provider
from cyborg.agent import reporting

WAIT = 10


def device(bus: str) -> inventory.Device:
    return inventory.Device(
        controlpath=inventory.pci_json(f"0000:{bus}:00.0"),
        type=inventory.DeviceType.PCI,
        vendor="abcd",
        model="card",
        driver="cards",
    )


class Hardware:
    """In place of a Discovery."""

    def __init__(self) -> None:
        self.found = discovery.Findings((device("01"),))
        self.error: Exception | None = None

    def look(self) -> discovery.Findings | None:
        if self.error:
            raise self.error
        return self.found


class Placement:
    """Has at most the one provider."""

    uuid: str | None = "uuid-1"

    def find_provider(self, name: str) -> str | None:
        return self.uuid


class Conductor:
    """Tells each message; fails or has forgotten as a test says."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.known: str | None = None
        self.error: Exception | None = None

    def report_host(self, context, report) -> None:
        assert context.is_admin
        self.told.put(report if self.error is None else "lost")
        if self.error:
            raise self.error
        self.known = report.digest()

    def heartbeat(self, context, host, digest) -> bool:
        self.told.put((host, digest))
        if self.error:
            raise self.error
        return digest == self.known

    def next(self) -> object:
        return self.told.get(timeout=WAIT)

    def quiet(self, seconds: float = 0.1) -> bool:
        try:
            self.told.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


class Setting:
    """A running report loop and all that it touches."""

    def __init__(self, period: float = 3600) -> None:
        self.hardware = Hardware()
        self.placement = Placement()
        self.conductor = Conductor()
        self.reporter = reporting.Reporter(
            "host", period, self.conductor, self.hardware
        )
        self.root = provider.RootProvider(
            ["host.name"],
            lambda: self.placement,
            lambda: None,
            quick_retries=0,
            period=3600,
        )
        self.thread = threading.Thread(
            target=self.reporter.run, args=(self.root,)
        )

    def start(self) -> None:
        self.root.start()
        self.thread.start()

    def stop(self) -> None:
        self.reporter.stop()
        self.root.stop()
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


@pytest.fixture
def setting():
    made = Setting()
    yield made
    made.stop()


@pytest.fixture
def brisk():
    made = Setting(period=0.05)
    yield made
    made.stop()


def test_the_first_report_is_the_whole_host_with_its_provider(setting):
    setting.start()
    assert setting.conductor.next() == inventory.HostReport(
        "host", "host.name", "uuid-1", (device("01"),)
    )
    assert setting.conductor.quiet()


def test_that_a_host_has_never_reported_is_told(setting):
    (family,) = gauges.Gauges(setting.reporter).collect()
    assert family.name == "cyborg_agent_last_report_timestamp_seconds"
    assert [sample.value for sample in family.samples] == [0]
    setting.start()


def test_unchanged_hardware_costs_a_heartbeat(setting):
    setting.start()
    report = setting.conductor.next()
    setting.reporter.wake()
    assert setting.conductor.next() == ("host", report.digest())


def test_a_change_is_reported_whole(setting):
    setting.start()
    setting.conductor.next()
    setting.hardware.found = discovery.Findings((device("02"),))
    setting.reporter.wake()
    assert setting.conductor.next().devices == (device("02"),)


def test_the_log_names_what_came_and_what_went(setting, caplog):
    caplog.set_level(logging.INFO, "cyborg.agent.reporting")
    setting.start()
    setting.conductor.next()
    setting.hardware.found = discovery.Findings((device("02"),))
    setting.reporter.wake()
    setting.conductor.next()
    setting.stop()
    card = inventory.pci_json
    assert f"PCI card at {card('0000:02:00.0')} appeared" in caplog.text
    assert f"PCI card at {card('0000:01:00.0')} is gone" in caplog.text


def test_a_fault_of_a_driver_is_a_change(setting):
    setting.start()
    setting.conductor.next()
    fault = inventory.DriverFault("cards", "broken")
    setting.hardware.found = discovery.Findings((), (fault,))
    setting.reporter.wake()
    assert setting.conductor.next().faults == (fault,)


def test_the_period_alone_brings_a_heartbeat(brisk):
    brisk.start()
    brisk.conductor.next()
    assert brisk.conductor.next()[0] == "host"
    assert brisk.conductor.next()[0] == "host"


def test_a_conductor_that_forgot_gets_all_with_the_provider_looked_up_again(
    setting,
):
    setting.start()
    setting.conductor.next()
    setting.conductor.known = None
    setting.placement.uuid = "uuid-2"
    setting.reporter.wake()
    assert setting.conductor.next()[0] == "host"
    report = setting.conductor.next()
    assert report.provider_uuid == "uuid-2"
    assert report.devices == (device("01"),)


def test_a_missing_provider_keeps_nothing_from_being_reported(setting):
    setting.placement.uuid = None
    setting.start()
    report = setting.conductor.next()
    assert (report.provider_name, report.provider_uuid) == ("host.name", None)


@pytest.mark.parametrize(
    "error",
    [
        exception.Unavailable("no broker"),
        exception.Timeout("no answer"),
        exception.CyborgError("the conductor failed"),
        RuntimeError("anything else"),
    ],
)
def test_an_outage_of_the_conductor_is_outlived_and_said_once(
    brisk, caplog, error
):
    brisk.conductor.error = error
    with caplog.at_level(logging.INFO, "cyborg.agent.reporting"):
        brisk.start()
        for _ in range(4):
            assert brisk.conductor.next() == "lost"
        brisk.conductor.error = None
        while brisk.conductor.next() == "lost":
            pass
        brisk.conductor.next()
    said = [record.levelname for record in caplog.records]
    if isinstance(error, exception.CyborgError):
        assert said.count("WARNING") == 1
    assert "has the report of this host again" in caplog.text


def test_a_lost_answer_makes_the_next_message_whole_again(setting):
    setting.start()
    setting.conductor.next()
    setting.hardware.found = discovery.Findings((device("02"),))
    setting.conductor.error = exception.Timeout("no answer")
    setting.reporter.wake()
    assert setting.conductor.next() == "lost"
    setting.conductor.error = None
    setting.reporter.wake()
    assert setting.conductor.next().devices == (device("02"),)


def test_a_failing_look_does_not_end_the_loop(brisk):
    brisk.hardware.error = OSError("broken")
    brisk.start()
    assert brisk.conductor.quiet()
    brisk.hardware.error = None
    assert brisk.conductor.next().devices == (device("01"),)


def test_retries_grow_to_the_period_and_no_further():
    setting = Setting(period=20)
    pauses = []
    for failures in range(1, 50):
        setting.reporter._failures = failures
        pauses.append(setting.reporter._retry_pause())
    assert 0.5 <= pauses[0] <= 1
    assert 2 <= pauses[2] <= 4
    assert all(10 <= pause <= 20 for pause in pauses[5:])
    assert len(set(pauses)) == len(pauses)

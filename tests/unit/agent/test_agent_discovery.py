# SPDX-License-Identifier: Apache-2.0
"""Drivers that raise, hang or lie hurt nobody but themselves."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg import inventory
from cyborg.agent import discovery
from cyborg.agent import vetting
from cyborg.drivers import base
from cyborg.hardware import pci

WAIT = 10


def card(address: str, **changes: object) -> inventory.Device:
    fields: dict = {
        "controlpath": inventory.pci_json(address),
        "type": inventory.DeviceType.PCI,
        "vendor": "abcd",
        "model": "card",
        "driver": "",
        "deployables": (
            inventory.Deployable(
                name=f"host_{address}",
                num_accelerators=1,
                driver_name="CARD",
                attributes=(("rc", "CUSTOM_PCI"),),
                attach_handles=(
                    inventory.AttachHandle(
                        inventory.AttachType.PCI, inventory.pci_json(address)
                    ),
                ),
            ),
        ),
    }
    return inventory.Device(**fields | changes)


class Cards:
    """A driver whose answer a test sets: devices or an exception."""

    def __init__(self, *answer: object) -> None:
        self.answer: object = answer
        if answer and isinstance(answer[0], BaseException):
            self.answer = answer[0]
        self.built = 0
        self.asked = 0
        self.released = threading.Event()
        self.released.set()
        self.name = "cards"

    def __call__(self, host: base.DriverHost) -> Cards:
        self.built += 1
        return self

    def discover(self):
        self.asked += 1
        assert self.released.wait(WAIT)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def looking(limit: float = WAIT, **drivers: object) -> discovery.Discovery:
    """A discovery over these drivers, in this order of enabled_drivers."""

    def find(name: str):
        found = drivers[name]
        if isinstance(found, BaseException):
            raise found
        return found

    host = base.DriverHost("host", pci.Sysfs(Path("/none")), cfg.ConfigOpts())
    return discovery.Discovery(list(drivers), host, limit, find)


def paths(findings: discovery.Findings | None) -> list[str]:
    assert findings is not None
    return [vetting.address(device.controlpath) for device in findings.devices]


def test_devices_of_all_drivers_come_in_one_order():
    found = looking(
        a=Cards(card("0000:02:00.0")),
        b=Cards(card("0000:03:00.0"), card("0000:01:00.0")),
    ).look()
    assert paths(found) == ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    assert [device.driver for device in found.devices] == ["b", "a", "b"]
    assert found.faults == ()


def test_equal_hardware_gives_an_equal_digest_in_whatever_order_it_is_found():
    one, two = card("0000:01:00.0"), card("0000:02:00.0")
    first = looking(a=Cards(one, two)).look()
    second = looking(a=Cards(two, one)).look()
    digests = {
        inventory.HostReport(
            "h", "p", None, found.devices, found.faults
        ).digest()
        for found in (first, second)
    }
    assert len(digests) == 1


def test_no_driver_at_all_is_an_idle_agent():
    assert looking().look() == discovery.Findings()


def test_a_driver_may_answer_with_a_generator():
    class Lazy(Cards):
        def discover(self):
            yield card("0000:01:00.0")

    assert paths(looking(a=Lazy()).look()) == ["0000:01:00.0"]


def test_a_raising_driver_is_a_fault_and_the_others_are_reported():
    found = looking(
        bad=Cards(OSError("/sys/x: gone")),
        worse=Cards(SystemExit(1)),
        good=Cards(card("0000:01:00.0")),
    ).look()
    assert paths(found) == ["0000:01:00.0"]
    assert found.faults == (
        inventory.DriverFault("bad", "/sys/x: gone"),
        inventory.DriverFault("worse", "SystemExit: 1"),
    )


def test_a_driver_that_raises_halfway_reports_nothing_of_that_look():
    class Halfway(Cards):
        def discover(self):
            yield card("0000:01:00.0")
            raise OSError("read error")

    found = looking(a=Halfway()).look()
    assert found.devices == ()
    assert found.faults == (inventory.DriverFault("a", "read error"),)


def test_drivers_that_cannot_be_loaded_or_built_are_faults():
    def broken(_host: base.DriverHost):
        raise base.OptionError("[pci] passthrough_whitelist", "is not JSON")

    look = looking(
        unknown=LookupError("no installed package has it"),
        unimportable=ImportError("No module named 'vendor'"),
        broken=broken,
        good=Cards(card("0000:01:00.0")),
    ).look
    for _ in range(2):
        found = look()
        assert paths(found) == ["0000:01:00.0"]
        assert {fault.driver: fault.error for fault in found.faults} == {
            "unknown": "cannot be loaded: no installed package has it",
            "unimportable": "cannot be loaded: No module named 'vendor'",
            "broken": "[pci] passthrough_whitelist: is not JSON",
        }


def test_a_driver_that_could_not_be_built_is_built_when_it_can():
    attempts = iter([base.DriverError("no tool"), None])
    cards = Cards(card("0000:01:00.0"))

    def build(host: base.DriverHost):
        error = next(attempts)
        if error:
            raise error
        return cards(host)

    found = looking(a=build)
    assert found.look().faults == (inventory.DriverFault("a", "no tool"),)
    assert paths(found.look()) == ["0000:01:00.0"]


def test_a_hanging_driver_is_left_alone_and_never_asked_twice_at_once():
    slow, good = Cards(card("0000:02:00.0")), Cards(card("0000:01:00.0"))
    slow.released.clear()
    found = looking(0.2, slow=slow, good=good)
    threads = threading.active_count()
    for _ in range(3):
        findings = found.look()
        assert paths(findings) == ["0000:01:00.0"]
        assert findings.faults == (
            inventory.DriverFault("slow", "did not answer within 0.2 s"),
        )
    assert slow.asked == 1
    assert good.asked == 3
    assert threading.active_count() <= threads + 1
    slow.released.set()
    deadline = time.monotonic() + WAIT
    while paths(found.look()) != ["0000:01:00.0", "0000:02:00.0"]:
        assert time.monotonic() < deadline


def test_a_driver_known_to_hang_does_not_delay_the_others_again():
    slow, good = Cards(), Cards(card("0000:01:00.0"))
    slow.released.clear()
    found = looking(0.1, slow=slow, good=good)
    found.look()
    found._limit = WAIT
    start = time.monotonic()
    found.look()
    assert time.monotonic() - start < WAIT / 2
    slow.released.set()


def test_stop_ends_a_look_at_once():
    slow = Cards()
    slow.released.clear()
    found = looking(WAIT, slow=slow)
    answers: list = []
    thread = threading.Thread(target=lambda: answers.append(found.look()))
    thread.start()
    found.stop()
    thread.join(2)
    assert answers == [None]
    slow.released.set()


def test_one_bad_device_costs_only_itself(caplog):
    found = looking(
        a=Cards(
            card("0000:01:00.0"),
            card("0000:02:00.0", vendor="v" * 300),
            None,
            card("0000:01:00.0", model="again"),
        )
    )
    with caplog.at_level(logging.WARNING):
        findings = found.look()
        found.look()
    assert paths(findings) == ["0000:01:00.0"]
    assert findings.faults == ()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "vendor is longer than 255" in said[0]
    assert "NoneType" in said[1]
    assert "a reports the address 0000:01:00.0 already" in said[2]


def test_of_two_drivers_that_claim_a_device_the_first_has_it(caplog):
    found = looking(
        first=Cards(card("0000:01:00.0")),
        second=Cards(card("0000:01:00.0"), card("0000:02:00.0")),
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            findings = found.look()
    assert [device.driver for device in findings.devices] == [
        "first",
        "second",
    ]
    assert len(caplog.records) == 1
    assert "first reports the address" in caplog.text


def test_the_second_does_not_get_it_while_the_first_is_at_fault():
    first = Cards(card("0000:01:00.0"))
    found = looking(first=first, second=Cards(card("0000:01:00.0")))
    found.look()
    first.answer = OSError("read error")
    assert found.look().devices == ()
    first.answer = ()
    assert [device.driver for device in found.look().devices] == ["second"]


def test_a_function_that_is_handed_out_by_one_device_is_not_another_device():
    whole = card("0000:01:00.0")
    handle = inventory.AttachHandle(
        inventory.AttachType.PCI, inventory.pci_json("0000:01:00.4")
    )
    carved = card(
        "0000:01:00.0",
        deployables=(inventory.Deployable("vfs", 1, "CARD", (), (handle,)),),
    )
    found = looking(
        a=Cards(carved), b=Cards(whole, card("0000:01:00.4"))
    ).look()
    assert [device.driver for device in found.devices] == ["a"]


def test_two_deployables_of_one_name_would_be_one_provider():
    handleless = inventory.Deployable("host_0000:01:00.0", 1, "CARD")
    twin = card("0000:02:00.0", deployables=(handleless,))
    found = looking(a=Cards(card("0000:01:00.0"), twin)).look()
    assert paths(found) == ["0000:01:00.0"]


def test_a_fault_is_said_once_and_its_end_once(caplog):
    cards = Cards(OSError("broken"))
    found = looking(a=cards)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            found.look()
        cards.answer = ()
        for _ in range(3):
            found.look()
    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "INFO"]


def test_the_owner_of_a_control_path_is_found_by_any_spelling():
    cards = Cards(card("0000:0c:00.0"))
    found = looking(a=cards)
    found.look()
    bare = '{"domain": "0", "bus": "c", "device": "0", "function": "0"}'
    owner = found.owner(bare, "a")
    assert (owner.name, owner.driver) == ("a", cards)
    assert owner.controlpath == inventory.pci_json("0000:0c:00.0")
    with pytest.raises(exception.Conflict, match="no such device"):
        found.owner(inventory.pci_json("0000:0d:00.0"), "a")
    with pytest.raises(exception.Conflict, match="belongs to the driver a"):
        found.owner(bare, "b")


def test_a_driver_that_has_not_answered_yet_may_have_the_device():
    slow = Cards(OSError("the vendor's driver is not loaded"))
    found = looking(slow=slow, quick=Cards())
    found.look()
    path = inventory.pci_json("0000:0c:00.0")
    with pytest.raises(exception.Unavailable, match="slow"):
        found.owner(path, "slow")
    with pytest.raises(exception.Conflict):
        found.owner(path, "quick")
    slow.answer = ()
    found.look()
    with pytest.raises(exception.Conflict):
        found.owner(path, "slow")


def test_the_end_of_the_first_look_can_be_waited_for():
    found = looking(a=Cards(card("0000:0c:00.0")))
    assert not found.looked(0)
    answers: list = []
    thread = threading.Thread(
        target=lambda: answers.append(found.looked(WAIT))
    )
    thread.start()
    found.look()
    thread.join(WAIT)
    assert answers == [True]


def others(findings: discovery.Findings | None) -> list[str]:
    """Of each device, who else claims it."""
    assert findings is not None
    return [
        dict(device.deployables[0].attributes).get("also_claimed_by", "")
        for device in findings.devices
    ]


def test_a_device_shows_which_drivers_would_have_it_too():
    found = looking(
        first=Cards(card("0000:01:00.0"), card("0000:02:00.0")),
        second=Cards(card("0000:02:00.0")),
        third=Cards(card("0000:02:00.0"), card("0000:03:00.0")),
    )
    findings = found.look()
    assert paths(findings) == ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    assert others(findings) == ["", "second,third", ""]


def test_a_driver_that_reports_a_device_twice_is_no_other():
    found = looking(a=Cards(card("0000:01:00.0"), card("0000:01:00.0")))
    assert others(found.look()) == [""]


def test_a_card_that_another_driver_has_in_parts_is_shown_on_each_part():
    functions = tuple(f"0000:01:00.{number}" for number in (4, 5))
    handles = tuple(
        inventory.AttachHandle(
            inventory.AttachType.PCI, inventory.pci_json(address)
        )
        for address in functions
    )
    whole = card(
        "0000:01:00.0",
        deployables=(inventory.Deployable("vfs", 2, "CARD", (), handles),),
    )
    found = looking(a=Cards(*map(card, functions)), b=Cards(whole)).look()
    assert others(found) == ["b", "b"]


def test_equal_names_of_unlike_cards_are_no_shared_claim():
    twin = card("0000:02:00.0", deployables=card("0000:01:00.0").deployables)
    twin = dataclasses.replace(
        twin,
        deployables=(
            dataclasses.replace(twin.deployables[0], attach_handles=()),
        ),
    )
    found = looking(a=Cards(card("0000:01:00.0")), b=Cards(twin)).look()
    assert paths(found) == ["0000:01:00.0"]
    assert others(found) == [""]


def test_handles_that_nobody_attaches_clash_with_no_card():
    simulated = inventory.AttachHandle(
        inventory.AttachType.TEST_PCI, inventory.pci_json("0000:02:00.0")
    )
    fake = card(
        "0000:01:00.0",
        deployables=(
            inventory.Deployable("fake", 1, "FAKE", (), (simulated,)),
        ),
    )
    found = looking(a=Cards(fake), b=Cards(card("0000:02:00.0"))).look()
    assert others(found) == ["", ""]


def test_who_else_claims_a_device_is_known_while_that_driver_is_at_fault():
    second = Cards(card("0000:01:00.0"))
    found = looking(first=Cards(card("0000:01:00.0")), second=second)
    before = found.look()
    second.answer = OSError("broken")
    assert found.look().devices == before.devices
    second.answer = ()
    assert others(found.look()) == [""]


class Bus:
    """A Sysfs that tells who scanned it."""

    def __init__(self, root: Path) -> None:
        (root / "bus" / "pci" / "devices").mkdir(parents=True)
        self.sysfs = pci.Sysfs(root)
        self.scans = 0

    def scan(self, sysfs: pci.Sysfs) -> int:
        self.scans += 1
        return self.scans


def test_all_drivers_of_one_look_share_a_scan(tmp_path):
    bus = Bus(tmp_path)

    class Scanning(Cards):
        def discover(self):
            bus.sysfs.once(bus.scan)
            return []

    found = discovery.Discovery(
        ["a", "b", "c"],
        base.DriverHost("host", bus.sysfs, cfg.ConfigOpts()),
        WAIT,
        lambda name: Scanning(),
    )
    found.look()
    assert bus.scans == 1
    found.look()
    assert bus.scans == 2


def test_a_look_that_hangs_in_the_shared_scan_holds_up_only_who_shares_it(
    tmp_path,
):
    bus = Bus(tmp_path)
    held, begun = threading.Event(), threading.Event()

    def hanging(sysfs: pci.Sysfs) -> None:
        begun.set()
        assert held.wait(WAIT)

    class Hanging(Cards):
        def discover(self):
            bus.sysfs.once(hanging)
            return []

    class Scanning(Cards):
        def discover(self):
            assert begun.wait(WAIT)
            bus.sysfs.once(bus.scan)
            return [card("0000:01:00.0")]

    drivers = {"hanging": Hanging(), "shares": Hanging(), "good": Scanning()}
    found = discovery.Discovery(
        list(drivers),
        base.DriverHost("host", bus.sysfs, cfg.ConfigOpts()),
        0.5,
        drivers.__getitem__,
    )
    at_last = threading.Timer(WAIT / 2, held.set)
    at_last.start()
    for _ in range(2):
        findings = found.look()
        assert not held.is_set()
        assert paths(findings) == ["0000:01:00.0"]
        assert [fault.driver for fault in findings.faults] == [
            "hanging",
            "shares",
        ]
    at_last.cancel()
    held.set()


class Restoring:
    """A Restorer whose work a test sets."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.left: list[float] = []
        self.concluded = 0
        self.wanted = True
        self.work = lambda driver: None

    def due(self) -> bool:
        return self.wanted

    def restore(self, name, driver, deadline) -> None:
        self.left.append(deadline - time.monotonic())
        self.parts.append(name)
        self.work(driver)

    def conclude(self) -> None:
        self.concluded += 1


def restoring_look(
    restorer: Restoring, limit: float = WAIT, **drivers: Cards
) -> discovery.Discovery:
    return discovery.Discovery(
        list(drivers),
        base.DriverHost("host", pci.Sysfs(Path("/none")), cfg.ConfigOpts()),
        limit,
        drivers.__getitem__,
        restorer,
    )


def test_what_a_reboot_took_is_restored_before_the_first_look():
    restorer = Restoring()
    cards = Cards()

    def work(driver: Cards) -> None:
        driver.answer = (card("0000:01:00.0"),)

    restorer.work = work
    found = restoring_look(restorer, a=cards)
    assert paths(found.look()) == ["0000:01:00.0"]
    assert restorer.concluded == 1
    assert 0 < restorer.left[0] <= WAIT
    restorer.wanted = False
    found.look()
    assert restorer.parts == ["a"]


def test_a_driver_that_hangs_while_it_restores_hurts_nobody_else():
    restorer = Restoring()
    held = threading.Event()
    hanging, good = Cards(), Cards(card("0000:01:00.0"))
    restorer.work = lambda driver: driver is good or held.wait(WAIT)
    found = restoring_look(restorer, 0.2, hanging=hanging, good=good)
    start = time.monotonic()
    for _ in range(2):
        findings = found.look()
        assert paths(findings) == ["0000:01:00.0"]
        assert [fault.driver for fault in findings.faults] == ["hanging"]
    assert time.monotonic() - start < WAIT / 2
    held.set()
    restorer.wanted = False
    deadline = time.monotonic() + WAIT
    while found.look().faults:
        assert time.monotonic() < deadline


def test_a_driver_that_cannot_be_built_restores_nothing_and_is_a_fault():
    restorer = Restoring()

    def broken(_host: base.DriverHost):
        raise base.OptionError("[pci] passthrough_whitelist", "is not JSON")

    found = restoring_look(restorer, a=broken).look()
    assert restorer.parts == []
    assert found.faults == (
        inventory.DriverFault("a", "[pci] passthrough_whitelist: is not JSON"),
    )


class Unspeakable:
    """An object of somebody else's that cannot even be shown."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")


@pytest.mark.parametrize(
    "bad",
    [
        Unspeakable(),
        card("0000:02:00.0", vendor=Unspeakable()),
        card("0000:02:00.0", std_board_info="[" * 60_000),
        card("0000:02:00.0", deployables=[Unspeakable()]),
    ],
    ids=("device", "field", "nesting", "deployable"),
)
def test_a_device_that_cannot_be_read_at_all_costs_only_itself(caplog, bad):
    found = looking(a=Cards(bad, card("0000:01:00.0")))
    with caplog.at_level(logging.WARNING):
        findings = found.look()
    assert paths(findings) == ["0000:01:00.0"]
    (record,) = caplog.records
    assert "Driver a: left out the device" in record.getMessage()


def test_a_driver_that_never_stops_naming_devices_is_a_fault():
    class Endless(Cards):
        def discover(self):
            return itertools.repeat(card("0000:01:00.0"))

    found = looking(endless=Endless(), b=Cards(card("0000:02:00.0")))
    findings = found.look()
    assert paths(findings) == ["0000:02:00.0"]
    (fault,) = findings.faults
    assert "more than" in fault.error


@pytest.mark.parametrize(
    "controlpath", ["", "garbage", "[1]", "null", "[" * 999]
)
def test_an_order_for_what_is_no_control_path_is_a_conflict(controlpath):
    found = looking(a=Cards(card("0000:01:00.0")))
    found.look()
    with pytest.raises(exception.Conflict, match="no such device"):
        found.owner(controlpath, "a")


def test_what_a_stop_cut_short_is_no_drivers_fault():
    restorer = Restoring()
    begun, held = threading.Event(), threading.Event()

    def work(driver: Cards) -> None:
        begun.set()
        held.wait(WAIT)

    restorer.work = work
    found = restoring_look(restorer, a=Cards())
    thread = threading.Thread(target=found.look, daemon=True)
    thread.start()
    assert begun.wait(WAIT)
    found.stop()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert restorer.concluded == 0
    held.set()

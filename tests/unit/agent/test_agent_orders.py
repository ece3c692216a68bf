# SPDX-License-Identifier: Apache-2.0
"""Who may work on what, and in which order."""

from __future__ import annotations

import queue
import threading

import pytest

from cyborg import exception
from cyborg.agent import orders

WAIT = 10
CARD = orders.Place("0000:01:00.0")
ONE = orders.Place("0000:01:00.0", frozenset({"one"}))
TWO = orders.Place("0000:01:00.0", frozenset({"two"}))
BOTH = orders.Place("0000:01:00.0", frozenset({"one", "two"}))
OTHER = orders.Place("0000:02:00.0", frozenset({"one"}))


class Work:
    """Work that says when it has begun, and ends when a test says so."""

    def __init__(self, log: queue.SimpleQueue, name: str) -> None:
        self.log = log
        self.name = name
        self.may_end = threading.Event()

    def __call__(self, job: orders.Job[str]) -> str:
        self.log.put(self.name)
        assert self.may_end.wait(WAIT)
        return self.name


class Setting:
    def __init__(self) -> None:
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.finished: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.orders = orders.Orders(lambda: self.finished.put(True))

    def begin(
        self, name: str, place: orders.Place, patience: float = WAIT
    ) -> tuple[orders.Job[str], Work]:
        work = Work(self.begun, name)
        job: orders.Job[str] = orders.Job(name, place, object())
        return self.orders.begin(name, job, work, patience), work

    def next(self) -> str:
        return self.begun.get(timeout=WAIT)

    def idle(self) -> bool:
        """Whether nothing else has begun."""
        return self.begun.empty()


@pytest.fixture
def setting():
    return Setting()


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (CARD, CARD, True),
        (CARD, ONE, True),
        (ONE, ONE, True),
        (ONE, TWO, False),
        (ONE, BOTH, True),
        (ONE, OTHER, False),
        (CARD, OTHER, False),
    ],
)
def test_places_meet_where_work_on_both_would_disturb(one, other, meet):
    assert one.meets(other) is meet
    assert other.meets(one) is meet


def test_work_at_one_place_is_done_in_the_order_of_asking(setting):
    _, first = setting.begin("first", ONE)
    assert setting.next() == "first"
    second, work = setting.begin("second", BOTH)
    third, last = setting.begin("third", TWO)
    apart, beside = setting.begin("apart", OTHER)
    assert setting.next() == "apart"
    assert setting.idle()
    first.may_end.set()
    assert setting.next() == "second"
    assert setting.idle()
    work.may_end.set()
    assert setting.next() == "third"
    for one in (last, beside):
        one.may_end.set()
    for job in (second, third, apart):
        assert setting.orders.wait(job, WAIT)
        assert job.answer() == job.what


def test_the_whole_device_waits_for_its_units_and_they_for_it(setting):
    _, unit = setting.begin("unit", ONE)
    setting.next()
    _, work = setting.begin("whole", CARD)
    later, last = setting.begin("later", TWO)
    assert setting.idle()
    unit.may_end.set()
    assert setting.next() == "whole"
    assert setting.idle()
    work.may_end.set()
    assert setting.next() == "later"
    last.may_end.set()
    assert setting.orders.wait(later, WAIT)


def test_an_order_whose_turn_does_not_come_fails_and_lets_others_by(setting):
    _, first = setting.begin("first", ONE)
    setting.next()
    second, _ = setting.begin("second", ONE, patience=0)
    assert setting.orders.wait(second, WAIT)
    with pytest.raises(exception.Timeout, match="Earlier work"):
        second.answer()
    third, work = setting.begin("third", ONE)
    first.may_end.set()
    assert setting.next() == "third"
    work.may_end.set()
    assert setting.orders.wait(third, WAIT)


def test_one_who_only_passes_has_a_place_too(setting):
    with setting.orders.at(ONE, WAIT) as free:
        assert free
        job, work = setting.begin("job", ONE)
        assert setting.idle()
        with setting.orders.at(ONE, 0) as again:
            assert not again
    assert setting.next() == "job"
    work.may_end.set()
    assert setting.orders.wait(job, WAIT)


def test_a_job_that_was_given_up_stays_so_and_keeps_its_place(setting):
    job, work = setting.begin("job", ONE)
    setting.next()
    setting.orders.give_up(job, exception.Timeout("too long"))
    assert setting.orders.wait(job, 0)
    with setting.orders.at(ONE, 0) as free:
        assert not free
    work.may_end.set()
    assert setting.finished.get(timeout=WAIT)
    with pytest.raises(exception.Timeout, match="too long"):
        setting.orders.known("job").answer()
    with setting.orders.at(ONE, 0) as free:
        assert free


def test_a_job_that_ended_well_cannot_be_given_up(setting):
    job, work = setting.begin("job", ONE)
    work.may_end.set()
    assert setting.orders.wait(job, WAIT)
    setting.orders.give_up(job, exception.Timeout("too long"))
    assert job.answer() == "job"


def test_a_stop_ends_those_at_once_who_wait_for_their_turn(setting):
    first, work = setting.begin("first", ONE)
    setting.next()
    second, _ = setting.begin("second", ONE)
    stopping = threading.Thread(target=setting.orders.stop, args=(WAIT, 0))
    stopping.start()
    assert setting.orders.wait(second, WAIT)
    with pytest.raises(exception.Unavailable):
        second.answer()
    work.may_end.set()
    stopping.join(WAIT)
    assert not stopping.is_alive()
    assert first.answer() == "first"
    with pytest.raises(exception.Unavailable):
        setting.begin("late", ONE)

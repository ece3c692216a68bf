# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
import time

import pytest

from cyborg import exception
from cyborg.conductor import background
from cyborg.conductor import events


def test_only_one_work_of_a_key_waits() -> None:
    pool = background.Pool(1, "test")
    gate, begun, done = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        gate.wait(5)

    pool.submit(first, "a")
    assert begun.wait(5)
    second = pool.submit(lambda: done.append(2), "a")
    assert second is not None
    assert pool.submit(lambda: done.append(3), "a") is None
    gate.set()
    assert pool.stop(5)
    assert done == [2]
    assert pool.submit(lambda: done.append(4)) is None


def test_a_work_that_fails_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = background.Pool(1, "test")
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("broken")

    def unavailable() -> None:
        raise exception.Unavailable("the database does not answer")

    for work in (fail, unavailable, done.set):
        pool.submit(work)
    assert done.wait(5)
    assert pool.stop(5)
    assert "broken" in caplog.text
    assert "put off" in caplog.text


def test_a_stop_waits_for_what_runs_and_no_longer_than_it_may() -> None:
    pool = background.Pool(1, "test")
    gate = threading.Event()
    pool.submit(lambda: gate.wait(30))
    began = time.monotonic()
    assert not pool.stop(0.1)
    assert time.monotonic() - began < 5
    gate.set()


def test_what_a_stop_cuts_off_is_a_line_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """oslo.messaging raises an AttributeError at whoever waits for an answer
    when its transport is closed."""
    pool = background.Pool(1, "test")
    gate = threading.Event()

    def wait() -> None:
        gate.wait(30)
        raise AttributeError("no unlisten")

    work = pool.submit(wait)
    assert work is not None
    assert not pool.stop(0.1)
    gate.set()
    work.result(30)
    (record,) = caplog.records
    assert "test: cut off by the stop: no unlisten" in record.getMessage()
    assert record.exc_info is None


def test_a_pass_is_done_at_once_when_it_is_woken_and_when_it_asks() -> None:
    done = threading.Semaphore(0)
    answers = iter([0.01, None, None])

    def work() -> float | None:
        done.release()
        return next(answers, None)

    made = background.Pass("test", work, 3600)
    made.start()
    assert done.acquire(timeout=5)
    assert done.acquire(timeout=5)
    assert not done.acquire(timeout=0.1)
    made.wake()
    assert done.acquire(timeout=5)
    made.stop(5)
    made.wake()
    assert not done.acquire(timeout=0.1)


def test_a_pass_that_fails_is_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.01)
    done = threading.Event()
    ends = iter([RuntimeError("x"), exception.Unavailable("y"), None])

    def work() -> float | None:
        error = next(ends, None)
        if error is not None:
            raise error
        done.set()
        return None

    made = background.Pass("test", work, 3600)
    made.start()
    assert done.wait(5)
    made.stop(5)


def test_delays_double_up_to_a_limit() -> None:
    assert [events.delay(n) for n in (1, 2, 3, 20)] == [
        1,
        2,
        4,
        events.MAX_DELAY,
    ]

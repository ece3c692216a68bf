# SPDX-License-Identifier: Apache-2.0
"""Work on devices that conductors order, each order done once.

A conductor that asks again after it (or the broker) was lost joins the same
order or gets the same result, so that nothing is written, made or cleaned
twice for one order.  Work on the same thing is done one after another, in
the order in which it was asked for.  What the work is, is not known here.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Generic
from typing import TypeVar
from typing import cast

from oslo_log import log

from cyborg import context
from cyborg import exception
from cyborg.agent import isolation
from cyborg.drivers import base

LOG = log.getLogger(__name__)

Result = TypeVar("Result")

KEPT_RESULTS = 1000
STOP_SECONDS = 4.0
"""How long a stopping agent waits for work that runs."""
CANCEL_SECONDS = 1.0
"""How long, after that, for drivers to give up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """What is worked on: the device at an address, or (by the uuids of
    attach handles) some of its units alone."""

    device: str
    units: frozenset[str] = frozenset()

    def meets(self, other: Place) -> bool:
        """Whether work on both must not be done at the same time."""
        return self.device == other.device and (
            not self.units or not other.units or bool(self.units & other.units)
        )


@dataclasses.dataclass(eq=False)
class Job(Generic[Result]):
    """One order under way or done; `what` names it for people.

    `deadline` (of `time.monotonic`) is set by work that has one.
    """

    what: str
    place: Place
    driver: base.Driver
    percent: int = 0
    deadline: float = math.inf
    done: bool = False
    result: Result | None = None
    error: exception.CyborgError | None = None

    @property
    def decided(self) -> bool:
        """Whether it is known how it ended, though a driver may hang on."""
        return self.done or self.error is not None

    def answer(self) -> Result:
        """What came of it; raises what went wrong."""
        if self.error is not None:
            # One exception may be raised to several who wait.
            raise type(self.error)(self.error.message)
        return cast("Result", self.result)


class _Turn:
    """One who waits for a place, or has it."""

    def __init__(self, place: Place) -> None:
        self.place = place


class Orders:
    """The jobs of this host, by the uuid of each order.

    `finished` is called after each job, in its thread.
    """

    def __init__(self, finished: Callable[[], None]) -> None:
        self._finished = finished
        self._changed = threading.Condition()
        self._stopped = False
        self._turns: list[_Turn] = []
        self._running: dict[str, Job[Any]] = {}
        self._kept: collections.OrderedDict[str, Job[Any]] = (
            collections.OrderedDict()
        )

    def known(self, uuid: str) -> Job[Any] | None:
        """The job of that order, if it runs or its result is kept."""
        with self._changed:
            return self._running.get(uuid) or self._kept.get(uuid)

    def begin(
        self,
        uuid: str,
        job: Job[Result],
        work: Callable[[Job[Result]], Result],
        patience: float,
    ) -> Job[Result]:
        """Do `work` in a thread once nobody else is at its place; the job,
        or the one that this order has already.

        It fails with Timeout where its turn does not come within `patience`
        seconds.  Raises Conflict where the whole device has work already
        and this is more of it, and Unavailable where the agent stops.
        """
        with self._changed:
            if self._stopped:
                raise stopping()
            known = self._running.get(uuid) or self._kept.get(uuid)
            if known is not None:
                return known
            if not job.place.units and job.place in self._places():
                raise exception.Conflict("The device is being programmed.")
            turn = self._take(job.place)
            self._running[uuid] = job
        for_whom = context.current()

        def run() -> None:
            with context.acting(for_whom):
                self._run(uuid, job, work, turn, patience)

        threading.Thread(
            target=run,
            name=f"order-{uuid}",
            daemon=True,
        ).start()
        return job

    def wait(self, job: Job[Any], seconds: float) -> bool:
        """Whether it is known within so many seconds how the job ended."""
        with self._changed:
            return self._changed.wait_for(lambda: job.decided, seconds)

    def give_up(self, job: Job[Any], error: exception.CyborgError) -> None:
        """Let a job whose driver hangs have failed; it keeps its place
        until the driver returns."""
        with self._changed:
            job.error = job.error or (None if job.done else error)
            self._changed.notify_all()

    @contextlib.contextmanager
    def at(self, place: Place, patience: float) -> Iterator[bool]:
        """Have a place for a while in one's own thread; False where it is
        not free in time."""
        with self._changed:
            turn = self._take(place)
        try:
            yield self._comes(turn, patience)
        finally:
            self._leave(turn)

    def stop(
        self, wait: float = STOP_SECONDS, give_up: float = CANCEL_SECONDS
    ) -> None:
        """Take no more orders; give those that run `wait` seconds to end,
        then `give_up` seconds to fail.

        Those that wait for their turn end at once.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running, wait)
            running = list(self._running.values())
        for job in running:
            if isinstance(job.driver, base.Cancellable):
                job.driver.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self._running, give_up)
            for job in self._running.values():
                job.error = job.error or stopping()
            self._changed.notify_all()

    def _places(self) -> list[Place]:
        return [turn.place for turn in self._turns]

    def _take(self, place: Place) -> _Turn:
        turn = _Turn(place)
        self._turns.append(turn)
        return turn

    def _comes(self, turn: _Turn, patience: float) -> bool:
        """Whether the turn comes within `patience` seconds."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or self._is_next(turn), patience
            )
            return not self._stopped and self._is_next(turn)

    def _is_next(self, turn: _Turn) -> bool:
        earlier = self._turns[: self._turns.index(turn)]
        return not any(turn.place.meets(other.place) for other in earlier)

    def _leave(self, turn: _Turn) -> None:
        with self._changed:
            self._turns.remove(turn)
            self._changed.notify_all()

    def _run(
        self,
        uuid: str,
        job: Job[Result],
        work: Callable[[Job[Result]], Result],
        turn: _Turn,
        patience: float,
    ) -> None:
        result: Result | None = None
        error: exception.CyborgError | None = exception.DeviceFailed(
            "The driver ended without an answer."
        )
        try:
            self._await(turn, patience)
            result = work(job)
            error = None
        except exception.CyborgError as failure:
            error = failure
        except Exception as failure:
            LOG.exception("%s failed", job.what)
            error = exception.DeviceFailed(isolation.reason(failure))
        finally:
            self._end(uuid, turn, job, result, error)
            self._finished()

    def _await(self, turn: _Turn, patience: float) -> None:
        """Returns when the turn has come; raises where it does not."""
        if self._comes(turn, patience):
            return
        if self._stopped:
            raise stopping()
        raise exception.Timeout(
            f"Earlier work on the device did not end within {patience:.0f} s."
        )

    def _end(
        self,
        uuid: str,
        turn: _Turn,
        job: Job[Result],
        result: Result | None,
        error: exception.CyborgError | None,
    ) -> None:
        with self._changed:
            job.result, job.error = result, job.error or error
            job.done = True
            self._running.pop(uuid, None)
            self._keep(uuid, job)
            self._leave(turn)
        if job.error is None:
            LOG.info("%s: done", job.what)
        else:
            LOG.warning("%s: %s", job.what, job.error.message)

    def _keep(self, uuid: str, job: Job[Any]) -> None:
        """Remember a result; not that something was away, which passes and
        left the device alone."""
        if isinstance(job.error, exception.Unavailable):
            return
        self._kept[uuid] = job
        while len(self._kept) > KEPT_RESULTS:
            self._kept.popitem(last=False)


def stopping() -> exception.Unavailable:
    """What those hear who ask an agent that ends."""
    return exception.Unavailable("The agent of this host is stopping.")

# SPDX-License-Identifier: Apache-2.0
"""Nova is told of every bind that ended, sooner or later.

What is owed is in the rows; a bind is never rolled back because Nova does
not answer.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Protocol

from cyborg import arq
from cyborg import exception
from cyborg.clients.nova import BindEvent
from cyborg.db import clock
from cyborg.db import engine
from cyborg.db import events
from cyborg.db import jobs

LOG = logging.getLogger(__name__)

_Pair = tuple[str, str]
"""An ARQ and the instance that it is bound for."""

MAX_ATTEMPTS = 10
MAX_DELAY = 120.0
BATCH = 500


class Teller(Protocol):
    """What we need of Nova's client."""

    def notify(self, events: Sequence[BindEvent]) -> frozenset[str]:
        """The ARQs whose event should be tried again."""


def delay(attempts: int) -> float:
    """Seconds to wait after so many attempts failed: 1, 2, 4, ..."""
    return float(min(2.0 ** (attempts - 1), MAX_DELAY))


class Notifier:
    """Tells Nova; `nova` is None where there is no Nova to tell."""

    def __init__(
        self,
        database: engine.Database,
        nova: Teller | None,
        grace: float,
        wake: Callable[[float], None],
    ) -> None:
        self._database = database
        self._nova = nova
        self._grace = grace
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: collections.Counter[_Pair] = collections.Counter()
        self._overtaken: set[_Pair] = set()
        """Of those that wait, what `send_due` has told of."""
        self._sending: collections.Counter[_Pair] = collections.Counter()

    def later(self, told: Sequence[jobs.Told]) -> Callable[[], None]:
        """What tells Nova of these binds when it is called, once.

        However long Nova takes for it then, `send_due` leaves them out; what
        waits for so long that it is due `send_due` tells of, and this not:
        threads that wait for Placement must not hold up a guest.
        """
        pairs = collections.Counter(map(_pair, told))
        with self._lock:
            self._waiting += pairs

        def send() -> None:
            with self._lock:
                self._waiting -= pairs
                left = [
                    one for one in told if _pair(one) not in self._overtaken
                ]
                self._overtaken -= pairs.keys()
                sending = collections.Counter(map(_pair, left))
                self._sending += sending
            try:
                self.send(left)
            finally:
                with self._lock:
                    self._sending -= sending

        return send

    def send(self, told: Iterable[jobs.Told], attempts: int = 0) -> None:
        """Tells Nova of these binds and notes which ones it knows."""
        by_uuid = {
            one.arq_uuid: BindEvent(one.instance_uuid, one.arq_uuid, status)
            for one in told
            if (status := arq.nova_outcome(one.state)) is not None
        }
        if not by_uuid:
            return
        failed = self._notify(list(by_uuid.values()))
        done = [_pair(by_uuid[uuid]) for uuid in by_uuid.keys() - failed]
        again = [_pair(by_uuid[uuid]) for uuid in by_uuid.keys() & failed]
        if again and attempts + 1 >= MAX_ATTEMPTS:
            LOG.error(
                "Nova was not told that accelerator requests %s are bound or"
                " failed, after %d attempts",
                ", ".join(uuid for uuid, _ in again),
                MAX_ATTEMPTS,
            )
            done, again = [*done, *again], []
        self._note(done, again, attempts + 1)

    def _notify(self, wanted: list[BindEvent]) -> frozenset[str]:
        if self._nova is None:
            return frozenset()
        try:
            return self._nova.notify(wanted)
        except exception.CyborgError as error:
            LOG.warning("Nova cannot be told of binds now: %s", error)
            return frozenset(event.arq_uuid for event in wanted)

    def _note(
        self,
        done: list[tuple[str, str]],
        again: list[tuple[str, str]],
        attempts: int,
    ) -> None:
        wait = delay(attempts)
        _note(self._database, done, again, attempts, wait)
        if again:
            self._wake(wait)

    def send_due(self) -> float | None:
        """Tells Nova what is due; seconds until more is."""
        with self._lock:
            # Before taking: what ends in between is due no more.
            sending = set(self._sending)
        found = _take(self._database, self._grace)
        with self._lock:
            sending |= self._sending.keys()
            owed = [one for one in found if _pair(one) not in sending]
            self._overtaken |= self._waiting.keys() & set(map(_pair, owed))
        by_attempts: dict[int, list[jobs.Told]] = {}
        for one in owed:
            by_attempts.setdefault(one.attempts, []).append(
                jobs.Told(one.arq_uuid, one.instance_uuid, one.state)
            )
        for attempts, told in by_attempts.items():
            self.send(told, attempts)
        forgotten = [
            _pair(one) for one in owed if arq.nova_outcome(one.state) is None
        ]
        if forgotten:
            _note(self._database, forgotten, [], 0, 0)
        left = _seconds_left(self._database)
        return None if left is None else max(1.0, left)


def _pair(one: BindEvent | jobs.Told | events.Owed) -> _Pair:
    return one.arq_uuid, one.instance_uuid


@engine.retried
def _take(database: engine.Database, grace: float) -> list[events.Owed]:
    with database.writer() as session:
        return events.take(session, clock.after(grace), BATCH)


@engine.retried
def _seconds_left(database: engine.Database) -> float | None:
    with database.reader() as session:
        return events.seconds_left(session)


@engine.retried
def _note(
    database: engine.Database,
    done: list[tuple[str, str]],
    again: list[tuple[str, str]],
    attempts: int,
    wait: float,
) -> None:
    with database.writer() as session:
        if done:
            events.told(session, done)
        if again:
            events.postpone(session, again, attempts, clock.after(wait))

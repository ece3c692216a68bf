# SPDX-License-Identifier: Apache-2.0
"""The host's root resource provider: nova-compute makes it, we look it up.

It may be minutes late, and Placement may be down: the look-up runs in a
thread of its own, so that reports never wait long for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Protocol

from oslo_config import cfg
from oslo_log import log

from cyborg import context
from cyborg import exception

LOG = log.getLogger(__name__)


def names(configured: str, host: str) -> tuple[str, ...]:
    """The names to look for, the likelier first.

    A host that cannot resolve itself takes "localhost" for its full name,
    and many hosts of a cloud may: that must not become the name of one.
    """
    if configured.partition(".")[0] == "localhost":
        return (host, configured)
    return (configured, host)


class Finder(Protocol):
    """What we need of Placement."""

    def find_provider(self, name: str) -> str | None:
        """The uuid of the root provider of that name."""


class RootProvider:
    """Keeps the name and uuid of the host's root provider.

    `names` are tried in order; until one is found the first is the name and
    there is no uuid.  `connect` makes the client; None means that there is
    no Placement.  `found` is called (in the look-up's thread) whenever name
    or uuid have changed.
    """

    def __init__(
        self,
        names: Sequence[str],
        connect: Callable[[], Finder] | None,
        found: Callable[[], None],
        *,
        quick_retries: int,
        period: float,
    ) -> None:
        self._names = tuple(dict.fromkeys(filter(None, names)))
        self._connect = connect
        self._found = found
        self._quick_retries = quick_retries
        self._period = period
        self._changed = threading.Condition()
        self._asked = 1
        self._answered = 0
        self._stopped = connect is None
        self._finder: Finder | None = None
        self._current: tuple[str, str | None] = (self._names[0], None)
        self._trouble = ""
        self._said: str | None = None

    @property
    def current(self) -> tuple[str, str | None]:
        """Name, and uuid where Placement has it."""
        return self._current

    def start(self) -> None:
        """Begin to look."""
        if self._connect is None:
            LOG.warning(
                "This agent is configured without Placement: its devices are "
                "reported, but nothing can be scheduled on them before a "
                "conductor knows the host's resource provider"
            )
            return
        threading.Thread(
            target=self._run, name="root-provider", daemon=True
        ).start()

    def stop(self) -> None:
        """End every wait; a call to Placement that hangs is left behind."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def refresh(self, wait: float) -> None:
        """Look now; returns when that is done, or after `wait` seconds."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
        self.settle(wait)

    def settle(self, wait: float) -> None:
        """Returns when every look that was asked for is done, or after
        `wait` seconds."""
        with self._changed:
            ticket = self._asked
            self._changed.wait_for(
                lambda: self._stopped or self._answered >= ticket, wait
            )

    def _run(self) -> None:
        misses = 0
        while not self._stopped:
            ticket = self._asked
            with context.acting(context.admin_context()):
                misses = 0 if self._looked_up() else misses + 1
            self._say(misses)
            pause = self._pause(misses)
            with self._changed:
                self._answered = ticket
                self._changed.notify_all()
                self._changed.wait_for(self._wanted, pause)

    def _wanted(self) -> bool:
        return self._stopped or self._asked > self._answered

    def _pause(self, misses: int) -> float | None:
        """Seconds until the next look: 1, 2, 4 ... up to the period, then
        each period; none once found."""
        if not misses:
            return None
        if misses > self._quick_retries:
            return self._period
        return float(min(2 ** min(misses - 1, 16), self._period))

    def _looked_up(self) -> bool:
        try:
            found = self._look()
        except (exception.CyborgError, cfg.Error) as error:
            self._trouble = str(error)
        except Exception as error:
            LOG.debug("The look-up failed", exc_info=True)
            self._trouble = f"{type(error).__name__}: {error}"
        else:
            self._trouble = ""
            return found
        return False

    def _look(self) -> bool:
        """True where one of the names exists."""
        if self._finder is None and self._connect is not None:
            self._finder = self._connect()
        for name in self._names if self._finder else ():
            uuid = self._finder.find_provider(name) if self._finder else None
            if uuid:
                self._become((name, uuid))
                return True
        self._become((self._current[0], None))
        return False

    def _become(self, current: tuple[str, str | None]) -> None:
        if current == self._current:
            return
        self._current = current
        if current[1]:
            LOG.info("The host's root resource provider is %s (%s)", *current)
        self._found()

    def _say(self, misses: int) -> None:
        """Once that it is missing, once that it cannot be known."""
        if not misses:
            self._said = None
        elif misses > self._quick_retries and self._said != self._trouble:
            self._said = self._trouble
            LOG.warning(
                "%s: the devices of this host are reported but cannot be "
                "scheduled until its resource provider is known; looking on",
                self._trouble or self._missing(),
            )

    def _missing(self) -> str:
        return (
            f"No root resource provider is called {' or '.join(self._names)} "
            "(nova-compute makes it)"
        )

# SPDX-License-Identifier: Apache-2.0
"""One driver in a thread of its own, so that it can hurt nobody else.

Loading, building and asking a driver run code of others: it may raise, end
its thread, or never return.  Whoever waits here waits with a limit, and a
driver that has not returned is never asked a second time meanwhile.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import threading
import time
from collections.abc import Callable
from typing import cast

from oslo_log import log
from stevedore import driver
from stevedore import exception

from cyborg import metrics
from cyborg.drivers import base

LOG = log.getLogger(__name__)

GROUP = "cyborg.accelerator.driver"
MAX_ERROR = 500
MAX_DEVICES = 10_000
"""More than any host has."""

Factory = Callable[[base.DriverHost], base.Driver]
"""What an entry point holds: the driver's class."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a driver said: its devices as they are, or why there are none."""

    devices: tuple[object, ...] = ()
    error: str = ""


def entry_point(name: str) -> Factory:
    """The class that an installed package offers under `name`.

    Raises LookupError where none does, and whatever its import raises.
    """
    try:
        manager: driver.DriverManager[Factory] = driver.DriverManager(
            GROUP, name
        )
    except exception.NoMatches as error:
        raise LookupError(
            f"[agent] enabled_drivers: no installed package has a driver "
            f"called {name!r}"
        ) from error
    return cast("Factory", manager.driver)


def installed() -> list[str]:
    """The names of the drivers that installed packages offer."""
    points = importlib.metadata.entry_points(group=GROUP)
    return sorted({point.name for point in points})


class IsolatedDriver:
    """An enabled driver and the one thread that may be at work in it."""

    def __init__(
        self,
        name: str,
        host: base.DriverHost,
        find: Callable[[str], Factory],
        changed: threading.Condition,
    ) -> None:
        self.name = name
        self.instance: base.Driver | None = None
        self._host = host
        self._find = find
        self._changed = changed
        self._factory: Factory | None = None
        self._unloadable = ""
        self._running = False
        self._answer = Answer(error="has not been asked yet")

    @property
    def running(self) -> bool:
        """True while its thread has not returned."""
        return self._running

    @property
    def answer(self) -> Answer:
        """What the last finished look brought."""
        return self._answer

    def look(self) -> bool:
        """Start a look; False where the driver has not returned from what
        it did last."""
        return self._start(lambda instance: Answer(self._listed(instance)))

    def attend(self, task: Callable[[base.Driver], None]) -> bool:
        """Start `task` with the driver, which is built for it where it can
        be; False as above.  Until the next look there is no answer."""

        def work(instance: base.Driver) -> Answer:
            task(instance)
            return Answer(error="was busy and has not been asked since")

        return self._start(work)

    def _listed(self, instance: base.Driver) -> tuple[object, ...]:
        began = time.perf_counter()
        found = _listed(instance)
        metrics.discovered(self.name, time.perf_counter() - began)
        return found

    def _start(self, work: Callable[[base.Driver], Answer]) -> bool:
        with self._changed:
            if self._running:
                return False
            self._running = True
        threading.Thread(
            target=self._run,
            args=(work,),
            name=f"driver-{self.name}",
            daemon=True,
        ).start()
        return True

    def _run(self, work: Callable[[base.Driver], Answer]) -> None:
        answer = Answer(error="its thread ended without an answer")
        try:
            answer = work(self._built())
        except (Exception, SystemExit) as error:
            LOG.debug("Driver %s failed", self.name, exc_info=True)
            answer = Answer(error=reason(error))
        finally:
            with self._changed:
                self._answer = answer
                self._running = False
                self._changed.notify_all()

    def _built(self) -> base.Driver:
        if self._unloadable:
            raise ImportError(self._unloadable)
        if self._factory is None:
            try:
                self._factory = self._find(self.name)
            except (Exception, SystemExit) as error:
                self._unloadable = f"cannot be loaded: {reason(error)}"
                raise ImportError(self._unloadable) from error
        if self.instance is None:
            self.instance = self._factory(self._host)
        return self.instance


def _listed(instance: base.Driver) -> tuple[object, ...]:
    """What a driver finds; a generator that never ends must not eat the
    host's memory."""
    found = tuple(itertools.islice(instance.discover(), MAX_DEVICES + 1))
    if len(found) > MAX_DEVICES:
        raise ValueError(f"it reports more than {MAX_DEVICES} devices")
    return found


_WORDLESS = (KeyError, TypeError, AttributeError, SystemExit)


def reason(error: BaseException) -> str:
    """An exception in words for an operator, of bounded length."""
    text = str(error)
    if not text or isinstance(error, _WORDLESS):
        text = f"{type(error).__name__}: {text}"
    return text[:MAX_ERROR]

# SPDX-License-Identifier: Apache-2.0
"""Gives the host back what a reboot took, before it is first reported.

Virtual functions by `[agent] virtual_functions`, and the units of guests by
the agent's ledger.  Each driver does its part in its own thread
(agent/discovery.py).  Drivers of vendors may come late at boot: what could
not be done is tried again before each following look.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import Protocol

from oslo_config import cfg
from oslo_log import log

import cyborg.conf
from cyborg import exception
from cyborg.agent import isolation
from cyborg.agent import orders
from cyborg.agent import units
from cyborg.agent import vetting
from cyborg.agent.ledger import Ledger
from cyborg.agent.ledger import Made
from cyborg.drivers import base
from cyborg.hardware.files import Directory
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pci import parse_address

LOG = log.getLogger(__name__)

OPTION = "[agent] virtual_functions"
LONGEST_PAUSE = 60.0
"""Between two tries of what failed: a try makes events, and these wake the
agent."""


class _Settled(Exception):  # noqa: N818 - no error
    """It stays as it is; says why."""


class Task(Protocol):
    """One thing to restore."""

    @property
    def what(self) -> str:
        """Its name for people."""

    def attempt(self, name: str, driver: base.Driver, left: float) -> bool:
        """Do it within `left` seconds; False where it is not this driver's.

        Raises what went wrong.
        """

    def nobody(self) -> str:
        """Why no driver has taken it on."""


class Restorer:
    """All that has to be restored on this host, and how far that is."""

    def __init__(
        self,
        tasks: Callable[[], Iterable[Task]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = tasks
        self._clock = clock
        self._lock = threading.Lock()
        self._tasks: list[Task] | None = None
        self._failures: dict[Task, int] = {}
        self._not_before: dict[Task, float] = {}
        self._at_work: list[Task] = []
        self._said: set[tuple[str, str]] = set()

    def due(self) -> bool:
        """Whether there is something to try now."""
        if self._tasks is None:
            self._tasks = list(self._find())
        return bool(self._due())

    def restore(self, name: str, driver: base.Driver, deadline: float) -> None:
        """Try what is due and is this driver's, until `deadline` (of the
        clock)."""
        for task in self._due():
            left = deadline - self._clock()
            if left <= 0:
                return
            self._at_work.append(task)
            self._try(task, name, driver, left)
            self._at_work.remove(task)

    def _try(
        self, task: Task, name: str, driver: base.Driver, left: float
    ) -> None:
        try:
            mine = task.attempt(name, driver, left)
        except _Settled as reason:
            self._end(task, str(reason))
        except (Exception, SystemExit) as error:
            LOG.debug("Restoring failed", exc_info=True)
            self._put_off(task, isolation.reason(error))
        else:
            if mine:
                self._end(task)

    def conclude(self) -> None:
        """Say what no driver has taken on."""
        for task in self._due():
            if task not in self._at_work and task not in self._failures:
                self._say(task, f"{task.nobody()}; it is tried again")

    def _due(self) -> list[Task]:
        now = self._clock()
        with self._lock:
            return [
                task
                for task in self._tasks or ()
                if self._not_before.get(task, now) <= now
            ]

    def _end(self, task: Task, reason: str = "") -> None:
        with self._lock:
            if self._tasks is None or task not in self._tasks:
                return
            self._tasks.remove(task)
        if reason:
            self._say(task, reason)
        else:
            LOG.info("%s: is there", task.what)

    def _put_off(self, task: Task, reason: str) -> None:
        with self._lock:
            failures = self._failures[task] = self._failures.get(task, 0) + 1
            pause = min(LONGEST_PAUSE, 2.0 ** min(failures - 1, 10))
            self._not_before[task] = self._clock() + pause
        self._say(task, f"{reason}; it is tried again")

    def _say(self, task: Task, reason: str) -> None:
        """Warn, once for each reason."""
        if (task.what, reason) not in self._said:
            self._said.add((task.what, reason))
            LOG.warning("%s: %s", task.what, reason)


@dataclasses.dataclass(frozen=True)
class Carve:
    """A physical function gets its virtual functions, `count` of them or
    (None) all that it can have."""

    sysfs: Sysfs
    queue: orders.Orders
    address: str
    count: int | None

    @property
    def what(self) -> str:
        return f"{OPTION}: {self.address}"

    def attempt(self, name: str, driver: base.Driver, left: float) -> bool:
        """The driver that claims the function carves it, if it has none."""
        function = self.sysfs.function(self.address)
        if (
            function is None
            or not isinstance(driver, base.Carving)
            or not driver.claims(function)
        ):
            return False
        with self.queue.at(orders.Place(self.address), 0) as free:
            if not free:
                raise exception.Timeout("the device is busy")
            self._carve(driver, left)
        return True

    def _carve(self, driver: base.Carving, left: float) -> None:
        function = self.sysfs.function(self.address)
        if function is None:
            raise exception.DeviceFailed("the function went away")
        count = self.count or _all_of(function)
        there = len(function.virtual_functions)
        if there == count:
            return
        if there:
            raise _Settled(
                f"has {there} virtual functions, not {count}; they may be "
                "in use and are left alone"
            )
        try:
            driver.carve(function, count, left)
        except exception.Invalid as error:
            raise _Settled(error.message) from error

    def nobody(self) -> str:
        if self.sysfs.function(self.address) is None:
            return "there is no such PCI function"
        return "none of the enabled drivers that answer knows this function"


@dataclasses.dataclass(frozen=True)
class Make:
    """A unit of the ledger is made again."""

    made: Ledger
    queue: orders.Orders
    entry: Made

    @property
    def what(self) -> str:
        address = vetting.address(self.entry.controlpath)
        return f"Unit {self.entry.uuid} of {address}"

    def attempt(self, name: str, driver: base.Driver, left: float) -> bool:
        """Its driver makes it, unless it was given back meanwhile."""
        entry = self.entry
        if name != entry.driver:
            return False
        if not isinstance(driver, base.Mediated):
            raise exception.DeviceFailed(f"{name} cannot make units")
        place = orders.Place(
            vetting.address(entry.controlpath), frozenset({entry.uuid})
        )
        with self.queue.at(place, 0) as free:
            if not free:
                raise exception.Timeout("the device is busy")
            if self.made.has(entry.uuid):
                driver.create(units.handle(entry), entry.uuid, left)
        return True

    def nobody(self) -> str:
        return f"its driver {self.entry.driver} is not enabled or not ready"


def tasks(
    conf: cfg.ConfigOpts, sysfs: Sysfs, made: Ledger, queue: orders.Orders
) -> list[Task]:
    """What there is to restore: first functions, since units are on them.

    What is wrong with a value of the option is one error in the log.
    """
    counts, errors = _wanted(conf)
    for error in errors:
        LOG.error("%s: %s; it is passed over", OPTION, error)
    return [
        *(
            Carve(sysfs, queue, address, count)
            for address, count in counts.items()
        ),
        *(Make(made, queue, entry) for entry in made.units()),
    ]


def _wanted(conf: cfg.ConfigOpts) -> tuple[dict[str, int | None], list[str]]:
    """The counts of virtual functions by address (None: all), and what is
    wrong with the option."""
    counts: dict[str, int | None] = {}
    errors = []
    try:
        values = cyborg.conf.driver_option(conf, "agent", "virtual_functions")
    except ValueError as error:
        return {}, [str(error)]
    for text in values:
        try:
            address, count = parse(text)
        except ValueError as error:
            errors.append(str(error))
            continue
        if counts.setdefault(address, count) != count:
            errors.append(f"{text!r} contradicts an earlier value")
    return counts, errors


def parse(text: str) -> tuple[str, int | None]:
    """`0000:3d:00.0=16` as address and count, `=max` as None.

    Raises ValueError that says what is wrong.
    """
    name, _, number = (part.strip() for part in text.partition("="))
    address = str(parse_address(name))
    if number.lower() == "max":
        return address, None
    if not (number.isascii() and number.isdecimal() and int(number)):
        raise ValueError(
            f"{text!r} is not address=count with a count of 1 or more, or max"
        )
    return address, int(number)


def _all_of(function: PciFunction) -> int:
    """How many virtual functions it can have (`sriov_totalvfs`, in the
    kernel's Documentation/ABI/testing/sysfs-bus-pci)."""
    total = Directory(function.path).number("sriov_totalvfs")
    if not total:
        raise exception.DeviceFailed("it cannot have virtual functions")
    return total

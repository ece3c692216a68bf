# SPDX-License-Identifier: Apache-2.0
"""Makes units for instances, and takes their traces off when given back.

What a unit is made or cleaned by is its driver's business; here is in which
order, within what time, and what is remembered (agent/orders.py,
agent/ledger.py).  An order that comes for the first time after its units
were given back cannot be told from a new one; it then makes units that
nobody has, which the next order for them finds as they should be.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from oslo_log import log

from cyborg import exception
from cyborg import inventory
from cyborg.agent import discovery
from cyborg.agent import isolation
from cyborg.agent import orders
from cyborg.agent import vetting
from cyborg.agent.ledger import Ledger
from cyborg.agent.ledger import Made
from cyborg.drivers import base
from cyborg.rpc import agent as rpc_agent

LOG = log.getLogger(__name__)

LATE_SECONDS = 5.0
"""How much later than its limit a driver may say that it failed."""
UNDO_SECONDS = 5.0
"""How long it may take to remove a unit of an order that failed."""


class Units:
    """Makes and cleans the units of this host."""

    def __init__(
        self,
        found: discovery.Discovery,
        queue: orders.Orders,
        made: Ledger,
        *,
        late: float = LATE_SECONDS,
        wait: float = rpc_agent.CLEAN_WAIT,
    ) -> None:
        self._discovery = found
        self._orders = queue
        self._ledger = made
        self._late = late
        self._wait = wait

    def prepare(self, order: rpc_agent.UnitsOrder) -> None:
        """Make the order's units, those that have to be; returns when all
        of them are there.

        Raises DeviceFailed with the driver's reason (nothing is left then
        of what was made), Conflict (no such device, its driver cannot, the
        units were given back meanwhile), Timeout, and Unavailable where the
        driver has not answered yet or the agent stops.
        """
        key = f"prepare {order.job_uuid}"
        job = self._orders.known(key) or self._prepare(key, order)
        if not self._orders.wait(job, order.timeout + self._late):
            raise exception.Timeout(
                "The units were not made within"
                f" {round(order.timeout, 2):g} s."
            )
        job.answer()

    def clean(self, order: rpc_agent.UnitsOrder) -> rpc_agent.CleanResult:
        """Begin to clean the order's units, or see how far it is.

        Answers within `CLEAN_WAIT`.  Raises DeviceFailed with the driver's
        reason, Timeout where it takes longer than the order allows,
        Conflict and Unavailable as above.
        """
        key = f"clean {order.job_uuid}"
        job = self._orders.known(key)
        if job is None:
            if not self._discovery.looked(self._wait):
                return rpc_agent.CleanResult(done=False)
            job = self._clean(key, order)
        last = job.deadline + self._late - time.monotonic()
        if not self._orders.wait(job, max(0.0, min(self._wait, last))):
            if time.monotonic() < job.deadline + self._late:
                return rpc_agent.CleanResult(False, min(job.percent, 99))
            self._orders.give_up(
                job,
                exception.Timeout(
                    "The device was not cleaned within"
                    f" {round(order.timeout, 2):g} s."
                ),
            )
        job.answer()
        return rpc_agent.CleanResult(done=True, percent=100)

    def _prepare(
        self, key: str, order: rpc_agent.UnitsOrder
    ) -> orders.Job[None]:
        deadline = time.monotonic() + order.timeout
        self._discovery.looked(order.timeout)
        owner = self._discovery.owner(order.controlpath, order.driver)
        driver = owner.driver
        if not isinstance(driver, base.Mediated):
            raise exception.Conflict(
                f"The driver {owner.name} cannot make units."
            )
        entries = list(
            filter(
                _is_made, (_entry(unit, owner, order) for unit in order.units)
            )
        )
        return self._orders.begin(
            key,
            _job(f"Preparing {order.deployable_name}", owner, order),
            lambda _: self._make(driver, entries, deadline),
            max(0.0, deadline - time.monotonic()),
        )

    def _make(
        self,
        driver: base.Mediated,
        entries: Sequence[Made],
        deadline: float,
    ) -> None:
        if any(self._ledger.is_ended(entry.job_uuid) for entry in entries):
            raise exception.Conflict(
                "What this order made was given back since."
            )
        others = self._others(entries)
        self._ledger.add(entries)
        tried: list[Made] = []
        try:
            for entry in entries:
                left = _left(deadline)
                tried.append(entry)
                driver.create(handle(entry), entry.uuid, left)
            _left(deadline)
        except BaseException:
            kept = {entry.uuid for entry in others}
            for entry in reversed(tried):
                if entry.uuid not in kept:
                    _undo(driver, entry)
            self._ledger.add(others)
            self._ledger.forget({entry.uuid for entry in entries} - kept)
            raise

    def _others(self, entries: Sequence[Made]) -> list[Made]:
        """Those units that another order has made: it may be late that
        these are asked for, and an instance have them."""
        orders_of = {entry.uuid: entry.job_uuid for entry in entries}
        return [
            unit
            for unit in self._ledger.units()
            if unit.job_uuid != orders_of.get(unit.uuid, unit.job_uuid)
        ]

    def _clean(
        self, key: str, order: rpc_agent.UnitsOrder
    ) -> orders.Job[None]:
        owner = self._discovery.owner(order.controlpath, order.driver)
        entries = [_entry(unit, owner, order) for unit in order.units]
        for entry in entries:
            if not _can_clean(owner.driver, entry):
                raise exception.Conflict(
                    f"The driver {owner.name} cannot clean its units."
                )

        def work(job: orders.Job[None]) -> None:
            job.deadline = time.monotonic() + order.timeout
            for number, entry in enumerate(entries):
                self._clean_one(job, entry, _Share(job, number, len(entries)))

        return self._orders.begin(
            key,
            _job(f"Cleaning {order.deployable_name}", owner, order),
            work,
            order.timeout,
        )

    def _clean_one(
        self, job: orders.Job[None], entry: Made, share: _Share
    ) -> None:
        driver, left = job.driver, _left(job.deadline)
        if _is_made(entry) and isinstance(driver, base.Mediated):
            driver.remove(handle(entry), entry.uuid, left)
            self._ledger.end([entry.uuid])
        elif isinstance(driver, base.Cleanable):
            driver.clean(handle(entry), entry.controlpath, left, share.reach)
        share.reach(100)


class _Share:
    """The part that one of several units has in the whole job."""

    def __init__(self, job: orders.Job[None], number: int, count: int) -> None:
        self._job = job
        self._number = number
        self._count = count

    def reach(self, percent: int) -> None:
        """The unit is so far; what a driver says wrongly is passed over."""
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            own = min(100, max(0, int(percent)))
            self._job.percent = (self._number * 100 + own) // self._count


def handle(entry: Made) -> inventory.AttachHandle:
    """The unit as its driver knows it."""
    return inventory.AttachHandle(
        inventory.AttachType(entry.attach_type), entry.attach_info
    )


def _entry(
    unit: rpc_agent.Unit,
    owner: discovery.Owner,
    order: rpc_agent.UnitsOrder,
) -> Made:
    if unit.attach_type not in {kind.value for kind in inventory.AttachType}:
        raise exception.Invalid(f"{unit.attach_type!r} is no attach type.")
    return Made(
        uuid=unit.uuid,
        driver=owner.name,
        controlpath=owner.controlpath,
        attach_type=unit.attach_type,
        attach_info=unit.attach_info,
        job_uuid=order.job_uuid,
    )


def _job(
    what: str, owner: discovery.Owner, order: rpc_agent.UnitsOrder
) -> orders.Job[None]:
    place = orders.Place(
        vetting.address(owner.controlpath),
        frozenset(unit.uuid for unit in order.units),
    )
    return orders.Job(what, place, owner.driver)


def _is_made(entry: Made) -> bool:
    return inventory.is_made(entry.attach_type, entry.attach_info)


def _can_clean(driver: base.Driver, entry: Made) -> bool:
    return (_is_made(entry) and isinstance(driver, base.Mediated)) or (
        isinstance(driver, base.Cleanable)
    )


def _left(deadline: float) -> float:
    """Seconds until then; raises Timeout where there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise exception.Timeout("The work took all the time that it had.")
    return left


def _undo(driver: base.Mediated, entry: Made) -> None:
    """Remove what may have been made of a unit."""
    try:
        driver.remove(handle(entry), entry.uuid, UNDO_SECONDS)
    except (Exception, SystemExit) as error:
        # Outermost for this unit: the others must go all the same.
        LOG.debug("Removing failed", exc_info=True)
        LOG.warning(
            "%s, made for an order that failed, could not be removed: %s",
            entry.uuid,
            isolation.reason(error),
        )

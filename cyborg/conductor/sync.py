# SPDX-License-Identifier: Apache-2.0
"""Placement follows the rows.

A change of a host's rows raises its revision; here the tree that the rows
want is made, and the revision noted as synced.  An attempt that fails, or a
conductor that dies, leaves the host owed: the next pass makes it good.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

from cyborg import exception
from cyborg import metrics
from cyborg.clients.placement import ProvidersRefused
from cyborg.clients.placement import WantedProvider
from cyborg.conductor import background
from cyborg.conductor import providers
from cyborg.db import clock
from cyborg.db import engine
from cyborg.db import hosts

LOG = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a host whose rows keep changing is synced in one go."""
BATCH = 64
MAX_BACKOFF = 15.0
"""Seconds until a host that Placement refused is tried again, at most."""


class Tree(Protocol):
    """What we need of Placement's client."""

    def reconcile(
        self, root_uuid: str, wanted: Sequence[WantedProvider]
    ) -> bool:
        """Makes all our providers below the root so; whether they were not."""

    def refresh_inventories(
        self, root_uuid: str, wanted: Sequence[WantedProvider]
    ) -> None:
        """Makes the inventories of these providers so."""


class Change(NamedTuple):
    """The revision of a host that changed one device's inventories alone."""

    device_uuid: str
    revision: int


class Synchronizer:
    """Brings hosts to Placement; `placement` None: there is no Placement."""

    def __init__(
        self,
        database: engine.Database,
        placement: Tree | None,
        interval: float,
        pool: background.Pool,
        wake: Callable[[float], None],
    ) -> None:
        self._database = database
        self._placement = placement
        self._interval = interval
        self._backoff = min(interval, MAX_BACKOFF)
        self._pool = pool
        self._wake = wake
        self._locks: dict[int, threading.Lock] = {}
        self._locks_lock = threading.Lock()
        self._refused: dict[int, str] = {}

    def soon(self, host_id: int, change: Change | None = None) -> None:
        """Has the host synced, now that its rows have changed.

        `change`: that is all this change was.
        """
        if self._placement is not None:
            self._pool.submit(
                lambda: self._try_sync(host_id, change),
                ("sync", host_id, change),
            )

    def _try_sync(self, host_id: int, change: Change | None) -> None:
        """Sync; what Placement does not do now a pass makes good."""
        try:
            self.sync(host_id, change)
        except exception.PlacementUnavailable as error:
            # Its client, or `_bring`, has said so once.
            LOG.debug("Host %d: put off: %s", host_id, error)

    def look_soon(self) -> None:
        """Has every host looked at that is owed now."""
        self._wake(0.0)

    def sync(self, host_id: int, change: Change | None = None) -> None:
        """Brings what is owed of a host to Placement."""
        with self._lock_of(host_id):
            host = _read(self._database, host_id)
            if host is not None and host.revision != host.synced_revision:
                self._bring_all(host, change)

    def _bring_all(
        self, host: hosts.HostOffers, change: Change | None
    ) -> None:
        """Brings a host to Placement, again while its rows change.

        Another conductor may have brought newer rows before we brought
        ours: then ours are brought anew, though nothing is owed any more.
        """
        for _ in range(ATTEMPTS):
            if self._bring(host, change):
                return
            found = _read(self._database, host.id)
            if found is None:
                return
            host = found
        LOG.debug("Host %s keeps changing; its sync is owed", host.name)

    def _lock_of(self, host_id: int) -> threading.Lock:
        """Held from reading a host's rows until Placement has them, so that
        of two threads the later one brings the newer rows."""
        with self._locks_lock:
            return self._locks.setdefault(host_id, threading.Lock())

    def pass_due(self) -> float | None:
        """Looks at the hosts that are due; seconds until the next pass."""
        if self._placement is None:
            return None
        due = _due(self._database)
        failures: list[int] = []
        futures = [
            self._pool.submit(functools.partial(self._audit, key, failures))
            for key in due
        ]
        concurrent.futures.wait(
            [future for future in futures if future is not None]
        )
        metrics.passed("placement", succeeded=not failures)
        if failures:
            return self._backoff
        return 0.0 if len(due) == BATCH else None

    def _audit(self, host_id: int, failures: list[int]) -> None:
        """Looks at one host, unless Placement fails in this pass already."""
        if len(failures) >= 3:
            return
        with self._lock_of(host_id):
            host = _take(
                self._database, host_id, self._interval, self._backoff
            )
            if host is None:
                return
            try:
                self._bring_all(host, None)
            except ProvidersRefused:
                return
            except exception.PlacementUnavailable:
                failures.append(host_id)

    def _bring(self, host: hosts.HostOffers, change: Change | None) -> bool:
        """Whether Placement now has all of the host's rows."""
        if self._placement is None or host.provider_uuid is None:
            return True
        alone = (
            change is not None
            and host.revision == change.revision
            and host.synced_revision == change.revision - 1
        )
        corrected = False
        try:
            if change is not None and alone:
                self._placement.refresh_inventories(
                    host.provider_uuid,
                    providers.wanted(
                        offer
                        for offer in host.offers
                        if offer.device_uuid == change.device_uuid
                    ),
                )
            else:
                corrected = self._placement.reconcile(
                    host.provider_uuid, providers.wanted(host.offers)
                )
        except exception.NotFound:
            self._forget_root(host)
            return True
        except exception.PlacementUnavailable as error:
            if isinstance(error, ProvidersRefused):
                self._say_refused(host, str(error))
            _postpone(self._database, host.id, self._backoff)
            self._wake(self._backoff)
            raise
        self._say_refused(host, "")
        if corrected and host.revision == host.synced_revision:
            # Nothing was owed.  Was it somebody else's slip that we have
            # mended, or newer rows that another conductor had brought?
            now = _read(self._database, host.id)
            return now is None or now.revision == host.revision
        return _note(self._database, host, alone, self._interval)

    def _say_refused(self, host: hosts.HostOffers, why: str) -> None:
        """Log why Placement refuses a host's providers (empty: it does not),
        once each time that this changes."""
        before = self._refused.pop(host.id, "")
        if why:
            self._refused[host.id] = why
        if why and why != before:
            LOG.warning("Host %s: %s", host.name, why)
        elif before and not why:
            LOG.info("Host %s: Placement takes its providers again", host.name)

    def _forget_root(self, host: hosts.HostOffers) -> None:
        LOG.warning(
            "Host %s: its resource provider %s is not in Placement any more;"
            " its agent will look for it",
            host.name,
            host.provider_uuid,
        )
        _forget_root(self._database, host)


@engine.retried
def _read(database: engine.Database, host_id: int) -> hosts.HostOffers | None:
    with database.reader() as session:
        return hosts.offers(session, host_id)


@engine.retried
def _due(database: engine.Database) -> list[int]:
    with database.reader() as session:
        return hosts.due(session, clock.after(0), BATCH)


@engine.retried
def _take(
    database: engine.Database, host_id: int, interval: float, backoff: float
) -> hosts.HostOffers | None:
    """The host, where it is due and no other conductor has taken it."""
    with database.writer() as session:
        if not hosts.take(
            session,
            host_id,
            clock.after(0),
            next_at=clock.after(interval),
            owed_at=clock.after(backoff),
        ):
            return None
        return hosts.offers(session, host_id)


@engine.retried
def _postpone(database: engine.Database, host_id: int, backoff: float) -> None:
    with database.writer() as session:
        hosts.postpone(session, host_id, clock.after(backoff))


@engine.retried
def _forget_root(database: engine.Database, host: hosts.HostOffers) -> None:
    with database.writer() as session:
        hosts.forget_root(session, host.id, host.provider_uuid or "")


@engine.retried
def _note(
    database: engine.Database,
    host: hosts.HostOffers,
    alone: bool,
    interval: float,
) -> bool:
    """Whether nothing changed since the host was read; notes it then."""
    cleared = {
        offer.id: offer.retired_traits
        for offer in host.offers
        if offer.retired_traits is not None
    }
    if host.revision == host.synced_revision and not cleared:
        return True
    with database.writer() as session:
        if cleared and not alone:
            hosts.retired(session, cleared)
        return hosts.synced(
            session,
            host.id,
            host.revision,
            clock.after(interval),
            only_owed=alone,
        )

# SPDX-License-Identifier: Apache-2.0
"""A state read from the database, Placement and Nova.

The database costs a fixed number of statements, and one more for every
`CHUNK` hosts; the others are asked by a bounded number of threads.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

from cyborg import exception
from cyborg.audit import departures
from cyborg.audit.state import Patience
from cyborg.audit.state import Rows
from cyborg.audit.state import State
from cyborg.clients.nova_servers import Fate
from cyborg.clients.nova_servers import Server
from cyborg.clients.nova_servers import Servers
from cyborg.clients.placement_survey import Entry
from cyborg.clients.placement_survey import Survey
from cyborg.clients.placement_survey import Tree
from cyborg.conductor import providers
from cyborg.db import clock
from cyborg.db import fleet
from cyborg.db import suspects
from cyborg.db.engine import Database
from cyborg.db.engine import retried
from cyborg.db.hosts import HostOffers

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 500
"""How many hosts one statement reads."""

FEW = 200
"""Up to how many instances Nova is asked one by one, not for a list."""

FAILURES = 3
"""How often in a row a service fails before it is not asked any more."""

PAUSES = (1.0, 2.0)
"""Seconds after which it is asked again for what it failed on."""

Progress = Callable[[str, int, int], None]
"""Told what is looked at, how much of it is done, and of how much."""


def untold(_what: str, _done: int, _count: int) -> None:
    """Nobody is told how far it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unchecked:
    """What could not be looked at, and why."""

    what: str
    why: str


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where everything is read.

    `survey` and `servers` are None where there is no such service, or none
    that can be asked; `silent` says of the latter why, `nova_silence` what
    to say of an instance where `servers` is None.
    """

    database: Database
    survey: Survey | None
    servers: Servers | None
    patience: Patience
    concurrency: int = 8
    silent: tuple[Unchecked, ...] = ()
    nova_silence: str = ""
    progress: Progress = untold


class _Endurance:
    """Asks a service again that fails now and then, and not at all any more
    once it fails all the time.  For many threads."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._last = exception.Unavailable()

    def call(self, work: Callable[[], R]) -> R:
        """What comes of the work; raises Unavailable."""
        for pause in (*PAUSES, None):
            if self._in_a_row >= FAILURES:
                break
            try:
                found = work()
            except exception.Unavailable as error:
                self._last = error
                if pause is not None:
                    time.sleep(pause)
            else:
                self._in_a_row = 0
                return found
        self._in_a_row += 1
        raise self._last


class Gatherer:
    """Reads states; what Nova has said once of an instance is kept."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._servers: dict[str, Server] = {}
        self._only_listed: set[str] = set()
        self._placement_knows_us = False
        self.without_nova = sources.servers is None
        self.unchecked: list[Unchecked] = list(sources.silent)

    def gather(self, only: Collection[str] | None) -> State:
        """Everything, or of hosts only those with one of these names.

        Raises Unavailable where the database cannot be read.
        """
        self.unchecked = list(self._sources.silent)
        rows = _rows(self._sources.database, self._sources.patience)
        chosen = [
            host
            for host in rows.hosts
            if only is None or host.names & set(only)
        ]
        offers, trees = self._placement(chosen)
        state = State(
            rows,
            self._sources.patience,
            offers,
            trees,
            self._rootless(rows, chosen, trees),
            self._owned() if only is None else (),
        )
        state = dataclasses.replace(
            state, unknown_traits=self._unknown_traits(state)
        )
        self._ask_nova(
            state,
            None
            if only is None
            else frozenset(only).union(*(host.names for host in chosen)),
        )
        return dataclasses.replace(
            state,
            servers=dict(self._servers),
            nova_silence=self._sources.nova_silence,
        )

    def _failed(self, what: str, error: Exception) -> None:
        self.unchecked.append(Unchecked(what, str(error)))

    def _placement(
        self, hosts: Sequence[fleet.HostRow]
    ) -> tuple[dict[int, HostOffers], dict[int, Tree | None]]:
        """What each host offers, and its tree."""
        survey = self._sources.survey
        offers: dict[int, HostOffers] = {}
        trees: dict[int, Tree | None] = {}
        if survey is None:
            return offers, trees
        rooted = [host for host in hosts if host.provider_uuid]
        patience = _Endurance()

        def look(host: HostOffers) -> Tree | Exception | None:
            try:
                return patience.call(
                    lambda: survey.tree(
                        host.provider_uuid or "", providers.wanted(host.offers)
                    )
                )
            except exception.Unavailable as error:
                return error

        missed, why = 0, ""
        for host, tree in self._each(
            look, self._offers(rooted), "hosts", len(rooted)
        ):
            if isinstance(tree, Exception):
                missed += 1
                why = f"{host.provider_name}: {tree}"
            else:
                offers[host.id], trees[host.id] = host, tree
                self._placement_knows_us |= tree is not None
        if missed:
            self.unchecked.append(
                Unchecked(f"providers of {missed} hosts", why)
            )
        return offers, trees

    def _offers(self, hosts: Sequence[fleet.HostRow]) -> Iterator[HostOffers]:
        for start in range(0, len(hosts), CHUNK):
            yield from _offers(
                self._sources.database, hosts[start : start + CHUNK]
            )

    def _rootless(
        self,
        rows: Rows,
        hosts: Sequence[fleet.HostRow],
        trees: Mapping[int, Tree | None],
    ) -> frozenset[int]:
        """The silent hosts of whose name there is no root."""
        survey = self._sources.survey
        if survey is None:
            return frozenset()
        patience = self._sources.patience
        state = State(rows, patience)
        lost = [
            host
            for host in hosts
            if state.older(host.last_seen_at, patience.vanish)
            and (host.provider_uuid is None or trees.get(host.id, ()) is None)
        ]
        try:
            return frozenset(
                host.id
                for host, root in self._each(
                    lambda host: survey.root_called(host.provider_name),
                    lost,
                    "silent hosts",
                    len(lost),
                )
                if root is None
            )
        except exception.Unavailable as error:
            self._failed("silent hosts", error)
            return frozenset()

    def _owned(self) -> tuple[Entry, ...]:
        if self._sources.survey is None:
            return ()
        try:
            return tuple(self._sources.survey.owned())
        except exception.Unavailable as error:
            self._failed("providers of hosts that are not known", error)
            return ()

    def _unknown_traits(self, state: State) -> frozenset[str]:
        """Standard traits that are missing because Placement has none of
        that name."""
        survey = self._sources.survey
        missing: set[str] = set()
        for host_id, tree in state.trees.items():
            seen = {each.uuid: each for each in tree.providers} if tree else {}
            for aim in providers.wanted(state.offers[host_id].offers):
                found = seen.get(aim.uuid)
                if found is not None and found.traits is not None:
                    missing |= aim.traits - found.traits
        standard = {name for name in missing if not name.startswith("CUSTOM_")}
        if survey is None or not standard:
            return frozenset()
        try:
            return frozenset(standard - survey.known_traits(standard))
        except exception.Unavailable as error:
            self._failed("which traits Placement has", error)
            return frozenset(standard)

    def _ask_nova(
        self, state: State, hostnames: frozenset[str] | None
    ) -> None:
        """Learns what became of every instance that matters."""
        servers = self._sources.servers
        if servers is None:
            return
        wanted = departures.instances(state, hostnames)
        # That one is gone is asked again in each look: it is the ground on
        # which something is destroyed.  A list does not tell who is busy.
        left = sorted(
            wanted
            - {
                key
                for key, server in self._servers.items()
                if server.fate not in (Fate.UNTOLD, Fate.GONE)
                and key not in self._only_listed
            }
        )
        self._only_listed -= set(left)
        if len(left) > FEW and not self._servers:
            left = self._listed(servers, left, state)
        self._find(servers, left, departures.ours(state))

    def _listed(
        self, servers: Servers, wanted: Sequence[str], state: State
    ) -> list[str]:
        """Those of these instances that are in no list of Nova's; a list
        does not tell all that some have to be asked for."""
        projectless = {
            one.instance_uuid
            for one in state.rows.requests
            if one.project_id is None
        }
        left = set(wanted)
        try:
            for number, uuid in enumerate(servers.all()):
                if uuid in left and uuid not in projectless:
                    left.discard(uuid)
                    self._servers[uuid] = Server(Fate.ALIVE)
                    self._only_listed.add(uuid)
                if number % 1000 == 0:
                    self._sources.progress("servers", number, 0)
        except exception.Unavailable:
            # Some may have been read; the others are asked one by one.
            return sorted(left)
        return sorted(left)

    def _find(
        self, servers: Servers, wanted: Sequence[str], ours: frozenset[str]
    ) -> None:
        nova, placement = _Endurance(), _Endurance()
        survey = self._sources.survey

        def find(uuid: str) -> Server:
            try:
                found = nova.call(lambda: servers.find(uuid))
                if found.fate is not Fate.GONE:
                    return found
                claim = (
                    placement.call(lambda: survey.claim(uuid))
                    if survey is not None
                    else None
                )
            except exception.Unavailable as error:
                return Server(Fate.UNTOLD, why=str(error))
            return departures.judged(claim, ours, self._placement_knows_us)

        for uuid, server in self._each(find, wanted, "instances", len(wanted)):
            self._servers[uuid] = server

    def _each(
        self,
        work: Callable[[T], R],
        things: Collection[T] | Iterator[T],
        what: str,
        count: int,
    ) -> Iterator[tuple[T, R]]:
        """Each thing with what came of it, by a bounded number of threads,
        of which none runs far ahead."""
        width = self._sources.concurrency
        waiting: Any = iter(things)
        with concurrent.futures.ThreadPoolExecutor(width) as pool:
            done = 0
            while batch := list(itertools.islice(waiting, 8 * width)):
                yield from zip(batch, pool.map(work, batch), strict=True)
                done += len(batch)
                self._sources.progress(what, done, count)


@retried
def _offers(
    database: Database, hosts: Sequence[fleet.HostRow]
) -> list[HostOffers]:
    with database.reader() as session:
        return fleet.offers(session, hosts)


@retried
def _rows(database: Database, patience: Patience) -> Rows:
    """All rows that are judged, of one transaction."""
    with database.reader() as session:
        hosts = tuple(fleet.all_hosts(session))
        unknown = tuple(fleet.unknown_hostnames(session))
        rows = Rows(
            now=clock.now(session),
            requests=tuple(suspects.requests(session)),
            units=tuple(suspects.units(session)),
            twins=tuple(suspects.twins(session)),
            tasks=tuple(suspects.tasks(session)),
            cards=tuple(suspects.cards(session)),
            shown=tuple(suspects.shown(session)),
            hosts=hosts,
            unknown_hosts=unknown,
        )
        silent = {
            name
            for host in hosts
            if State(rows, patience).older(host.last_seen_at, patience.vanish)
            for name in host.names
        }
        return dataclasses.replace(
            rows,
            holdings=fleet.holdings(session, sorted({*silent, *unknown})),
        )

# SPDX-License-Identifier: Apache-2.0
"""All that is known when it is judged: a moment of rows, Placement, Nova."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import functools
from collections.abc import Mapping

from cyborg.clients.nova_servers import Fate
from cyborg.clients.nova_servers import Server
from cyborg.clients.placement_survey import Entry
from cyborg.clients.placement_survey import Tree
from cyborg.db.fleet import Holdings
from cyborg.db.fleet import HostRow
from cyborg.db.hosts import HostOffers
from cyborg.db.suspects import Card
from cyborg.db.suspects import Request
from cyborg.db.suspects import Shown
from cyborg.db.suspects import Task
from cyborg.db.suspects import Twin
from cyborg.db.suspects import Unit


@dataclasses.dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for which what looks wrong may be work in progress."""

    settle: float
    """Since a row changed: a bind takes no longer."""
    down: float
    """Of silence, after which an agent or a conductor counts as down."""
    vanish: float
    """Of silence, after which a host without provider counts as gone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """What the database says; `now` is by its clock."""

    now: dt.datetime
    requests: tuple[Request, ...] = ()
    units: tuple[Unit, ...] = ()
    twins: tuple[Twin, ...] = ()
    tasks: tuple[Task, ...] = ()
    cards: tuple[Card, ...] = ()
    shown: tuple[Shown, ...] = ()
    hosts: tuple[HostRow, ...] = ()
    unknown_hosts: tuple[str, ...] = ()
    holdings: Mapping[str, Holdings] = dataclasses.field(default_factory=dict)
    """By host name, of hosts that are silent or unknown."""


@dataclasses.dataclass(frozen=True)
class State:
    """What was read; a host that was not looked at is in no mapping."""

    rows: Rows
    patience: Patience
    offers: Mapping[int, HostOffers] = dataclasses.field(default_factory=dict)
    trees: Mapping[int, Tree | None] = dataclasses.field(default_factory=dict)
    """By host; None where its root is not in Placement."""
    rootless: frozenset[int] = frozenset()
    """Hosts for which Placement has no root of their name either."""
    owned: tuple[Entry, ...] = ()
    """All providers that carry our trait, if they were asked for."""
    unknown_traits: frozenset[str] = frozenset()
    """Standard traits that this Placement does not have."""
    servers: Mapping[str, Server] = dataclasses.field(default_factory=dict)
    nova_silence: str = ""
    """Why Nova says nothing of instances that are not in `servers`."""

    def server(self, instance: str | None) -> Server:
        """What Nova says of an instance."""
        untold = Server(
            Fate.UNTOLD, why=self.nova_silence or "Nova was not asked"
        )
        return self.servers.get(instance or "", untold)

    def is_gone(self, request: Request) -> bool:
        """Whether the instance of a request is deleted."""
        return (
            request.instance_uuid is not None
            and self.server(request.instance_uuid).fate is Fate.GONE
        )

    def settled(self, changed_at: dt.datetime | None) -> bool:
        """Whether a row changed so long ago that nobody is at it."""
        return self.older(changed_at, self.patience.settle)

    def older(self, moment: dt.datetime | None, seconds: float) -> bool:
        """Whether that was more than so many seconds ago, or never."""
        return (
            moment is None
            or (self.rows.now - moment).total_seconds() > seconds
        )

    @functools.cached_property
    def requests_on(self) -> Mapping[str, tuple[Request, ...]]:
        """The requests of each provider whose instances are not gone."""
        found: dict[str, list[Request]] = collections.defaultdict(list)
        for request in self.rows.requests:
            if request.provider_uuid and not self.is_gone(request):
                found[request.provider_uuid].append(request)
        return {key: tuple(each) for key, each in found.items()}

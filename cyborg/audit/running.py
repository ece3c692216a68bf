# SPDX-License-Identifier: Apache-2.0
"""An audit, and a heal: what is looked at, how often, and in which order.

Rows, Placement and Nova are not read in one moment, and services change
them meanwhile.  What a first look finds wrong counts where a second one,
at the hosts concerned alone, finds it again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg import exception
from cyborg.audit import healing
from cyborg.audit import judging
from cyborg.audit import request_checks
from cyborg.audit.findings import Finding
from cyborg.audit.findings import Kind
from cyborg.audit.gathering import Gatherer
from cyborg.audit.gathering import Unchecked
from cyborg.audit.healing import Healer
from cyborg.audit.healing import Outcome
from cyborg.audit.healing import Result
from cyborg.audit.state import State

PAUSE = 2.0
"""Seconds between the two looks: what is being done now is done then."""

ROUNDS = 3
"""How often a heal looks for what its own remedies have brought to light."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What is asked for; an empty collection asks for all."""

    kinds: frozenset[Kind] = frozenset()
    hosts: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()

    def has(self, finding: Finding, hosts: Collection[str]) -> bool:
        """Whether a finding is one of these; `hosts`: all the names of the
        chosen hosts."""
        return (
            (not self.kinds or finding.kind in self.kinds)
            and (not self.hosts or finding.host in hosts)
            and (
                not self.uuids
                or not self.uuids.isdisjoint(finding.uuid.split("/"))
            )
        )


@dataclasses.dataclass(frozen=True)
class Audit:
    """What was found, in which state, and what could not be looked at."""

    findings: tuple[Finding, ...]
    state: State
    unchecked: tuple[Unchecked, ...]


@dataclasses.dataclass(frozen=True)
class Heal:
    """What became of all that was found, and what could not be looked at."""

    outcomes: tuple[Outcome, ...]
    unchecked: tuple[Unchecked, ...]


def audit(
    gatherer: Gatherer,
    choice: Choice,
    pause: Callable[[float], None] = time.sleep,
) -> Audit:
    """Looks twice.  Raises Unavailable where the database does not answer."""
    only = choice.hosts or None
    first, unchecked, state = _look(gatherer, choice, only)
    if not first:
        return Audit((), state, unchecked)
    pause(PAUSE)
    return _again(gatherer, choice, first, unchecked)


def _again(
    gatherer: Gatherer,
    choice: Choice,
    first: Sequence[Finding],
    unchecked: Sequence[Unchecked],
) -> Audit:
    """Looks once more at the hosts of what was found."""
    concerned = {one.host for one in first} - {""}
    second, more, state = _look(gatherer, choice, concerned)
    known = {one.key for one in first}
    again = {one.key: one for one in second if one.key in known}
    # Only a look at everything finds providers of hosts nobody knows.
    again |= {
        one.key: one
        for one in first
        if one.kind in _WHOLE and one.key not in again
    }
    return Audit(
        tuple(again.values()),
        state,
        tuple(dict.fromkeys([*unchecked, *more])),
    )


_WHOLE = frozenset({Kind.FOREIGN_PROVIDER, Kind.FOREIGN_TRAIT})


def _look(
    gatherer: Gatherer, choice: Choice, only: Collection[str] | None
) -> tuple[list[Finding], tuple[Unchecked, ...], State]:
    state = gatherer.gather(only)
    hosts = _names(state, choice.hosts)
    found = [one for one in judging.findings(state) if choice.has(one, hosts)]
    unchecked = list(gatherer.unchecked)
    for why, count in request_checks.untold(state).items():
        if not gatherer.without_nova:
            unchecked.append(
                Unchecked(f"whether {count} instances still exist", why)
            )
    return found, tuple(unchecked), state


def _names(state: State, chosen: Collection[str]) -> frozenset[str]:
    """The names of the chosen hosts, and all others that they have."""
    return frozenset(chosen).union(
        *(
            host.names
            for host in state.rows.hosts
            if not host.names.isdisjoint(chosen)
        )
    )


def heal(
    gatherer: Gatherer,
    healer: Healer,
    choice: Choice,
    pause: Callable[[float], None] = time.sleep,
) -> Heal:
    """Heals, and looks whether that has brought more to light."""
    found = audit(gatherer, choice, pause)
    unchecked = found.unchecked
    outcomes: dict[tuple[Kind, str], Outcome] = {}
    for _ in range(ROUNDS):
        came = healer.heal(found.state, found.findings, choice.kinds)
        outcomes |= {one.finding.key: one for one in came}
        if not any(one.result is Result.HEALED for one in came):
            break
        try:
            found = _left(gatherer, choice, found, outcomes, pause)
        except exception.Unavailable as error:
            left = Unchecked(
                "whether all that was healed is right", str(error)
            )
            return Heal(tuple(outcomes.values()), (*unchecked, left))
        unchecked = tuple(dict.fromkeys((*unchecked, *found.unchecked)))
        if not found.findings:
            break
    outcomes |= {
        one.key: Outcome(one, Result.FAILED, "it is found again")
        for one in found.findings
        if one.key in outcomes and outcomes[one.key].result is Result.HEALED
    }
    return Heal(tuple(outcomes.values()), unchecked)


def _left(
    gatherer: Gatherer,
    choice: Choice,
    before: Audit,
    outcomes: Mapping[tuple[Kind, str], Outcome],
    pause: Callable[[float], None],
) -> Audit:
    """What is wrong now with the hosts of what was found before, and was
    not refused then."""
    concerned = {one.host for one in before.findings} - {""}
    found, unchecked, state = _look(gatherer, choice, concerned)
    fresh = [
        one
        for one in found
        if one.key not in outcomes or outcomes[one.key].result is Result.HEALED
    ]
    if not fresh:
        return Audit((), state, unchecked)
    pause(PAUSE)
    return _again(gatherer, choice, fresh, unchecked)


def planned(found: Audit, choice: Choice) -> Heal:
    """What a heal would do."""
    return Heal(
        tuple(healing.plan(one, choice.kinds) for one in found.findings),
        found.unchecked,
    )

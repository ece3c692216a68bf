# SPDX-License-Identifier: Apache-2.0
"""What is wrong between a host's rows and its providers.  Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg import arq
from cyborg.audit.findings import Action
from cyborg.audit.findings import Finding
from cyborg.audit.findings import Kind
from cyborg.audit.state import State
from cyborg.clients.nova_servers import Fate
from cyborg.clients.placement_survey import Seen
from cyborg.clients.placement_survey import Tree
from cyborg.clients.placement_values import Inventory
from cyborg.clients.placement_values import WantedProvider
from cyborg.conductor import providers
from cyborg.db.hosts import HostOffers
from cyborg.db.suspects import Request


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """What a consumer has of a provider, or should have: for its healing."""

    consumer: str
    provider: str
    amounts: Mapping[str, int]
    root: str


def check(state: State) -> Iterator[Finding]:
    """Findings of every host that was looked at."""
    for host_id, tree in state.trees.items():
        if tree is not None:
            yield from _Host(state, state.offers[host_id], tree).check()


class _Host:
    """One host's tree."""

    def __init__(self, state: State, host: HostOffers, tree: Tree) -> None:
        self._state = state
        self._host = host
        self._tree = tree
        self._wanted = {
            each.uuid: each for each in providers.wanted(host.offers)
        }

    def check(self) -> Iterator[Finding]:
        """What is wrong with it."""
        seen = {each.uuid: each for each in self._tree.providers}
        for uuid, aim in self._wanted.items():
            if uuid not in seen:
                yield self._sync(
                    Kind.MISSING_PROVIDER,
                    uuid,
                    f"deployable {aim.name} has no provider below the host's"
                    " root",
                )
            else:
                yield from self._inventory(aim, seen[uuid])
                yield from self._traits(aim, seen[uuid])
        for uuid, each in seen.items():
            if uuid not in self._wanted:
                yield from self._superfluous(each)
            yield from self._allocations(each)

    def _sync(self, kind: Kind, uuid: str, explanation: str) -> Finding:
        return Finding(
            kind,
            uuid,
            self._host.provider_name,
            explanation,
            Action.SYNC,
            facts=self._host.id,
        )

    def _inventory(self, aim: WantedProvider, seen: Seen) -> Iterator[Finding]:
        wrong = list(_differences(aim.inventories(), seen))
        if wrong:
            yield self._sync(
                Kind.INVENTORY,
                aim.uuid,
                f"provider {aim.name} has {'; '.join(wrong)}",
            )

    def _traits(self, aim: WantedProvider, seen: Seen) -> Iterator[Finding]:
        if seen.traits is None:
            return
        missing = aim.traits - seen.traits - self._state.unknown_traits
        if missing:
            yield self._sync(
                Kind.MISSING_TRAIT,
                aim.uuid,
                f"provider {aim.name} lacks {', '.join(sorted(missing))}",
            )
        stale = seen.traits & aim.retired_traits
        if stale:
            yield self._sync(
                Kind.STALE_TRAIT,
                aim.uuid,
                f"provider {aim.name} still has {', '.join(sorted(stale))},"
                " which its device is not any more",
            )

    def _superfluous(self, seen: Seen) -> Iterator[Finding]:
        """One of ours that no deployable wants stays while it is used, with
        nothing left to allocate."""
        used = bool(seen.allocations)
        if used and all(
            each == each.closed() for each in seen.inventories.values()
        ):
            return
        yield self._sync(
            Kind.UNLISTED_PROVIDER,
            seen.uuid,
            f"provider {seen.name} is of no deployable"
            + (", is in use and still open" if used else ""),
        )

    def _allocations(self, seen: Seen) -> Iterator[Finding]:
        requests = self._state.requests_on.get(seen.uuid, ())
        having = {request.instance_uuid for request in requests}
        for consumer, amounts in seen.allocations.items():
            if consumer not in having:
                yield from self._unasked(seen, consumer, amounts)
        aim = self._wanted.get(seen.uuid)
        bound: dict[str, list[Request]] = {}
        for request in requests:
            if request.state == arq.State.BOUND and request.instance_uuid:
                bound.setdefault(request.instance_uuid, []).append(request)
        for instance, each in bound.items():
            if aim is not None and aim.resource_class not in (
                seen.allocations.get(instance, ())
            ):
                yield from self._unallocated(aim, instance, each)

    def _unasked(
        self, seen: Seen, consumer: str, amounts: Mapping[str, int]
    ) -> Iterator[Finding]:
        server = self._state.server(consumer)
        if server.fate is Fate.BUSY:
            return
        what = ", ".join(f"{n} {name}" for name, n in sorted(amounts.items()))
        explanation = (
            f"consumer {consumer} has {what} of it, and no accelerator request"
        )
        gone = server.fate is Fate.GONE
        yield Finding(
            Kind.ALLOCATION_WITHOUT_ARQ,
            f"{seen.uuid}/{consumer}",
            self._host.provider_name,
            f"provider {seen.name}: {explanation}"
            + (": Nova has no such instance" if gone else ""),
            Action.RELEASE_ALLOCATION if gone else None,
            "" if gone else _why_kept(server.fate, server.why),
            Allocation(consumer, seen.uuid, amounts, self._tree.root),
        )

    def _unallocated(
        self, aim: WantedProvider, instance: str, requests: list[Request]
    ) -> Iterator[Finding]:
        server = self._state.server(instance)
        if server.fate is Fate.BUSY:
            return
        alive = server.fate is Fate.ALIVE
        yield Finding(
            Kind.ARQ_WITHOUT_ALLOCATION,
            requests[0].uuid,
            self._host.provider_name,
            f"is Bound for instance {instance}, which has no"
            f" {aim.resource_class} of provider {aim.name}",
            Action.ALLOCATE if alive else None,
            "" if alive else f"whether the instance lives: {server.why}",
            Allocation(
                instance,
                aim.uuid,
                {aim.resource_class: self._amount(aim, len(requests))},
                self._tree.root,
            ),
        )

    def _amount(self, aim: WantedProvider, units: int) -> int:
        """How many accelerators so many units are of."""
        each = next(
            max(1, offer.handles // aim.total)
            for offer in self._host.offers
            if offer.rp_uuid == aim.uuid
        )
        return -(-units // each)


def _why_kept(fate: Fate, why: str) -> str:
    if fate is Fate.MIGRATION:
        return (
            "it is a migration's: nova-manage placement audit says whether"
            " that is over"
        )
    if fate is Fate.UNTOLD:
        return f"whether such an instance lives: {why}"
    return (
        "the instance lives and may be using it: if it has no accelerator,"
        " nova-manage placement audit or a rebuild puts it right"
    )


def _differences(wanted: Mapping[str, Inventory], seen: Seen) -> Iterator[str]:
    for name, aim in wanted.items():
        found = seen.inventories.get(name)
        if found is None:
            yield f"no {name}, instead of {aim.total}"
        elif found != aim:
            yield f"{name} " + ", ".join(
                f"{field} {is_now} instead of {should}"
                for field, is_now, should in zip(
                    aim._fields, found, aim, strict=True
                )
                if is_now != should
            )
    for name in sorted(seen.inventories.keys() - wanted.keys()):
        found = seen.inventories[name]
        used = any(name in each for each in seen.allocations.values())
        if not used or found != found.closed():
            yield f"{found.total} {name}, which it does not offer"

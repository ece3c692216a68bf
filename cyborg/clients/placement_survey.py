# SPDX-License-Identifier: Apache-2.0
"""Placement looked at: what it has of us, read in few calls.

Of providers that nobody uses and that have all their traits one call tells
so for all of a host that are alike; only the others are asked for traits
and allocations one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from keystoneauth1 import adapter as ks_adapter

from cyborg import exception
from cyborg import inventory
from cyborg.clients import placement_api
from cyborg.clients import placement_names
from cyborg.clients.placement_values import Inventory
from cyborg.clients.placement_values import WantedProvider

CONSUMERS = "placement 1.28"
"""The first with generations of consumers, by which an allocation is changed
only as it was read."""

TYPED = "placement 1.38"
"""The first that tells what a consumer is; older ones are asked without."""

CONCURRENT = "placement.concurrent_update"

ATTEMPTS = 3
"""How often a tree that changes while it is read is read again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A provider as a list has it."""

    uuid: str
    name: str
    root: str


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A provider of ours, as Placement has it."""

    uuid: str
    name: str
    inventories: Mapping[str, Inventory]
    traits: frozenset[str] | None
    """None: all that it should have, at least."""
    allocations: Mapping[str, Mapping[str, int]]
    """Consumer -> resource class -> amount."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """Our providers below one host's root, and the uuids of all else."""

    root: str
    providers: tuple[Seen, ...]
    others: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What a consumer has, in all of Placement."""

    kind: str
    """What it is said to be, in capitals; empty where nobody has said."""
    providers: frozenset[str]


class Survey:
    """Looks at Placement; one object serves many threads.

    Each method raises PlacementUnavailable.
    """

    def __init__(self, adapter: ks_adapter.Adapter) -> None:
        self._api = placement_api.Api(adapter)

    def root_called(self, name: str) -> str | None:
        """The uuid of the root provider of that name, None without one."""
        found = self._listed({"name": name})
        return next((one.uuid for one in found if one.root == one.uuid), None)

    def owned(self) -> list[Entry]:
        """Every provider that carries our trait (1 call)."""
        return self._listed({"required": inventory.OWNER_TRAIT})

    def claim(self, consumer: str) -> Claim:
        """What a consumer has (1 call, 2 where Placement is older)."""
        path = f"/allocations/{consumer}"
        status, found = self._api.send("GET", path, version=TYPED)
        if status != 200:
            found = self._read(path, None, CONSUMERS)
        kind = str(found.get("consumer_type") or "unknown")
        return Claim(
            "" if kind == "unknown" else kind, frozenset(found["allocations"])
        )

    def known_traits(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these traits that Placement has."""
        found: set[str] = set()
        for query in placement_names.queries(names):
            answer = self._read("/traits", {"name": f"in:{query}"})
            found.update(answer["traits"])
        return frozenset(found)

    def tree(self, root: str, wanted: Sequence[WantedProvider]) -> Tree | None:
        """Our part of the tree; None where there is no such root.

        2 calls and 1 for each provider that nobody uses and that is right,
        2 more for each other.
        """
        for _ in range(ATTEMPTS):
            try:
                return self._tree(root, wanted)
            except placement_api.MovedError:
                continue
            except placement_api.RefusedError as error:
                raise _unavailable(error) from error
        raise exception.PlacementUnavailable(
            f"the tree of provider {root} changes all the time"
        )

    def _tree(
        self, root: str, wanted: Sequence[WantedProvider]
    ) -> Tree | None:
        entries = self._entries({"in_tree": root})
        by_uuid = {entry.uuid: entry for entry in entries}
        if root not in by_uuid:
            return None
        aims = {each.uuid: each for each in wanted}
        ours = [
            entry
            for entry in entries
            if entry.uuid != root
            and (
                entry.uuid in aims
                or entry.uuid == inventory.provider_uuid(entry.name)
            )
        ]
        idle = self._idle(root, [aims[e.uuid] for e in ours if e.uuid in aims])
        return Tree(
            root,
            tuple(
                self._seen(
                    entry, aims[entry.uuid] if entry.uuid in idle else None
                )
                for entry in ours
            ),
            frozenset(by_uuid.keys() - {entry.uuid for entry in ours}),
        )

    def _idle(
        self, root: str, aims: Iterable[WantedProvider]
    ) -> frozenset[str]:
        """Those that can give all they should have at once, and have all
        their traits: nobody uses any of them."""
        alike: dict[tuple[str, int, frozenset[str]], set[str]] = {}
        for each in aims:
            if not each.reserved and not each.retired_traits:
                key = each.resource_class, each.total, each.traits
                alike.setdefault(key, set()).add(each.uuid)
        found: set[str] = set()
        for (name, total, traits), uuids in alike.items():
            query = {
                "in_tree": root,
                "resources": f"{name}:{total}",
                "required": ",".join(sorted(traits)),
            }
            status, body = self._api.send(
                "GET", "/resource_providers", params=query
            )
            if status == 200:  # 400: it does not know one of the names
                able = {one["uuid"] for one in body["resource_providers"]}
                found |= able & uuids
        return frozenset(found)

    def _seen(self, entry: Entry, idle: WantedProvider | None) -> Seen:
        """A provider; `idle` is what it should be, where it is known to
        have all its traits and to be able to give all it should have."""
        path = f"/resource_providers/{entry.uuid}"
        stored = self._api.get(f"{path}/inventories")["inventories"]
        traits: frozenset[str] | None = None
        allocations: dict[str, dict[str, int]] = {}
        if idle is None:
            traits = frozenset(self._api.get(f"{path}/traits")["traits"])
        inventories = {
            name: Inventory(**values) for name, values in stored.items()
        }
        if idle is None or inventories != idle.inventories():
            answer = self._api.get(f"{path}/allocations")["allocations"]
            allocations = {
                consumer: dict(one["resources"])
                for consumer, one in answer.items()
            }
        return Seen(
            uuid=entry.uuid,
            name=entry.name,
            inventories=inventories,
            traits=traits,
            allocations=allocations,
        )

    def release(
        self, consumer: str, provider: str, amounts: Mapping[str, int]
    ) -> bool:
        """Takes what a consumer has of a provider, and nothing else from
        it; False where it has not (or not so much) any more."""

        def change(held: dict[str, Any]) -> bool:
            if held.get(provider, {}).get("resources") != dict(amounts):
                return False
            del held[provider]
            return True

        return self._change(consumer, change)

    def add(
        self,
        consumer: str,
        provider: str,
        amounts: Mapping[str, int],
        beside: Collection[str],
    ) -> bool:
        """Gives a consumer that has something of one of the providers
        `beside` these amounts of another; False where that is not so."""

        def change(held: dict[str, Any]) -> bool:
            if provider in held or not held.keys() & set(beside):
                return False
            held[provider] = {"resources": dict(amounts)}
            return True

        return self._change(consumer, change)

    def _change(self, consumer: str, change: Any) -> bool:
        """Changes a consumer's allocations as they were read, or not."""
        path = f"/allocations/{consumer}"
        for _ in range(ATTEMPTS):
            found = self._read(path, None, CONSUMERS)
            held = {
                uuid: {"resources": one["resources"]}
                for uuid, one in found["allocations"].items()
            }
            if not held or not change(held):
                return False
            body = {
                "allocations": held,
                "project_id": found["project_id"],
                "user_id": found["user_id"],
                "consumer_generation": found["consumer_generation"],
            }
            status, answer = self._api.send(
                "PUT", path, body, version=CONSUMERS
            )
            if status == 204:
                return True
            said = placement_api.detail(answer)
            if placement_api.code(answer) != CONCURRENT:
                raise exception.Conflict(f"Placement refuses: {said}")
        raise exception.Conflict(f"Placement refuses: {said}")

    def _listed(self, query: Mapping[str, str]) -> list[Entry]:
        try:
            return self._entries(query)
        except (placement_api.MovedError, placement_api.RefusedError) as error:
            raise _unavailable(error) from error

    def _entries(self, query: Mapping[str, str]) -> list[Entry]:
        answer = self._api.get("/resource_providers", query)
        return [
            Entry(one["uuid"], one["name"], one["root_provider_uuid"])
            for one in answer["resource_providers"]
        ]

    def _read(
        self,
        path: str,
        query: Mapping[str, str] | None,
        version: str = placement_api.MICROVERSION,
    ) -> dict[str, Any]:
        try:
            return self._api.get(path, query, version)
        except (placement_api.MovedError, placement_api.RefusedError) as error:
            raise _unavailable(error) from error


def _unavailable(error: Exception) -> exception.PlacementUnavailable:
    return exception.PlacementUnavailable(f"Placement refuses: {error}")

# SPDX-License-Identifier: Apache-2.0
"""Our providers below one host's root, as Placement has them.

What was read or written is kept with the generation it was true at; a tree
listing that shows the same generation proves that it is still true, so that
an unchanged host costs one call.  Every write carries the generation, hence
what another process does at the same time is noticed, never overwritten.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg import exception
from cyborg import inventory
from cyborg.clients import placement_api
from cyborg.clients import placement_names
from cyborg.clients.placement_values import Inventory
from cyborg.clients.placement_values import Known
from cyborg.clients.placement_values import WantedProvider

LOG = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a provider that others change at the same time is redone."""


class HostTree:
    """One host's tree.  The caller holds `lock` around each use."""

    def __init__(
        self,
        api: placement_api.Api,
        names: placement_names.Names,
        root: str,
    ) -> None:
        self.lock = threading.Lock()
        self._api = api
        self._names = names
        self._root = root
        self._known: dict[str, Known] = {}
        self._wanted: tuple[WantedProvider, ...] = ()
        self.written = False
        """Whether Placement took a write since the last `read`."""

    def read(self, wanted: Iterable[WantedProvider]) -> None:
        """List the tree (one call); raises NotFound where it has no root.

        Ours are the children whose uuid is made from their name, those that
        are wanted, and those that were ours before somebody renamed them.
        """
        self._wanted = tuple(wanted)
        self.written = False
        found = self._api.get("/resource_providers", {"in_tree": self._root})
        ours = {each.uuid for each in self._wanted} | self._known.keys()
        before, self._known = self._known, {}
        present = False
        for entry in found["resource_providers"]:
            uuid, name = entry["uuid"], entry["name"]
            if uuid == self._root:
                present = True
            elif uuid in ours or uuid == inventory.provider_uuid(name):
                known = before.get(uuid) or Known(name, entry["generation"])
                known.name = name
                known.at(entry["generation"])
                self._known[uuid] = known
        if not present:
            raise _no_root(self._root)

    def reconcile(self) -> list[str]:
        """Make our part of the tree as wanted, after `read`.

        A provider that Placement refuses does not keep the others back: the
        result says why, for each.
        """
        superfluous = self._known.keys() - {each.uuid for each in self._wanted}
        names = {uuid: self._known[uuid].name for uuid in superfluous}
        return [
            *self._each(self._redone(self._make_right)),
            *(
                f"{name}: {refusal}"
                for uuid, name in names.items()
                if (refusal := _refusal(self._remove, uuid))
            ),
        ]

    def remove(self, uuid: str) -> list[str]:
        """Make one of ours go, after `read`; why it was refused."""
        known = self._known.get(uuid)
        if known is None:
            return []
        refusal = _refusal(self._remove, uuid)
        return [f"{known.name}: {refusal}"] if refusal else []

    def refresh_inventories(self) -> list[str]:
        """Make the inventories of what is wanted right, unread, after `read`.

        One call each where the provider is there; what else it should have
        is left alone.
        """
        self._ensure_classes()
        return self._each(self._redone(self._refresh))

    def release(self) -> None:
        """Let go of what was wanted; what is known stays."""
        self._wanted = ()

    def _each(self, step: Callable[[WantedProvider], None]) -> list[str]:
        """Do a step for each wanted provider; which were refused, and why."""
        return [
            f"{provider.name}: {refusal}"
            for provider in self._wanted
            if (refusal := _refusal(step, provider))
        ]

    def _redone(
        self, step: Callable[[WantedProvider], None]
    ) -> Callable[[WantedProvider], None]:
        """A step that is done again, bounded, while others are faster."""

        def redo(provider: WantedProvider) -> None:
            said = ""
            for _ in range(ATTEMPTS):
                said = _moved(step, provider)
                if not said:
                    return
                self._look_up(provider.uuid)
            raise placement_api.RefusedError(said)

        return redo

    def _look_up(self, uuid: str) -> None:
        """Learn anew whether a provider is there, and its generation."""
        self._known.pop(uuid, None)
        status, body = self._api.send("GET", f"/resource_providers/{uuid}")
        if status == 404:
            return
        if status != 200:
            raise placement_api.RefusedError(placement_api.detail(body))
        if body["root_provider_uuid"] != self._root:
            raise placement_api.RefusedError(
                f"resource provider {uuid} is below another root provider, "
                f"{body['root_provider_uuid']}; if that host is gone, delete "
                "the provider there and it will be made here"
            )
        self._known[uuid] = Known(body["name"], body["generation"])

    def _refresh(self, provider: WantedProvider) -> None:
        if provider.uuid in self._known:
            self._write_inventories(self._known[provider.uuid], provider)
        else:
            self._make_right(provider)

    def _make_right(self, provider: WantedProvider) -> None:
        """Create or correct one provider, writing only what is wrong."""
        known = self._known.get(provider.uuid) or self._create(provider)
        if known.name != provider.name:
            self._rename(known, provider)
        if known.traits is None:
            self._read_traits(known, provider.uuid)
        if known.inventories is None:
            self._read_inventories(known, provider.uuid)
        if known.traits is None or known.inventories is None:
            raise placement_api.MovedError("it changes all the time")
        if known.traits != self._traits(known.traits, provider):
            self._names.ensure_traits(
                trait for each in self._wanted for trait in each.traits
            )
            self._write_traits(known, provider)
        if known.inventories != provider.inventories():
            self._ensure_classes()
            self._write_inventories(known, provider)

    def _ensure_classes(self) -> None:
        self._names.ensure_classes(
            each.resource_class for each in self._wanted
        )

    def _traits(
        self, found: frozenset[str], provider: WantedProvider
    ) -> frozenset[str]:
        wanted = self._names.usable(provider.traits)
        return (found - provider.retired_traits) | wanted

    def _create(self, provider: WantedProvider) -> Known:
        status, body = self._api.send(
            "POST",
            "/resource_providers",
            {
                "name": provider.name,
                "uuid": provider.uuid,
                "parent_provider_uuid": self._root,
            },
        )
        if status == 200:
            self.written = True
            LOG.info("Resource provider %s created", provider.name)
            known = Known(provider.name, body["generation"], {}, frozenset())
            self._known[provider.uuid] = known
            return known
        if status == 409:
            self._look_up(provider.uuid)
            if provider.uuid in self._known:
                return self._known[provider.uuid]
        self._check_root()
        raise placement_api.RefusedError(placement_api.detail(body))

    def _check_root(self) -> None:
        status, _ = self._api.send("GET", f"/resource_providers/{self._root}")
        if status == 404:
            raise _no_root(self._root)

    def _rename(self, known: Known, provider: WantedProvider) -> None:
        self._put("", provider.uuid, {"name": provider.name})
        known.name = provider.name

    def _read_traits(self, known: Known, uuid: str) -> None:
        body = self._api.get(f"/resource_providers/{uuid}/traits")
        known.at(body["resource_provider_generation"])
        known.traits = self._names.seen(body["traits"])

    def _read_inventories(self, known: Known, uuid: str) -> None:
        body = self._api.get(f"/resource_providers/{uuid}/inventories")
        known.at(body["resource_provider_generation"])
        known.inventories = {
            name: Inventory(**values)
            for name, values in body["inventories"].items()
        }

    def _write_traits(self, known: Known, provider: WantedProvider) -> None:
        wanted = self._traits(known.traits or frozenset(), provider)
        if wanted == known.traits:
            return
        body = self._put(
            "/traits",
            provider.uuid,
            {
                "traits": sorted(wanted),
                "resource_provider_generation": known.generation,
            },
        )
        known.generation = body["resource_provider_generation"]
        known.traits = self._names.seen(wanted)

    def _write_inventories(
        self, known: Known, provider: WantedProvider
    ) -> None:
        """Replace the inventories; a class in use stays, closed."""
        wanted = provider.inventories()
        if known.inventories == wanted:
            return
        if self._put_inventories(known, provider.uuid, wanted):
            return
        if known.inventories is None:
            self._read_inventories(known, provider.uuid)
        found = known.inventories or {}
        kept = {name: each.closed() for name, each in found.items()} | wanted
        if kept != found and not self._put_inventories(
            known, provider.uuid, kept
        ):
            raise placement_api.MovedError(
                "its inventories change all the time"
            )

    def _put_inventories(
        self, known: Known, uuid: str, wanted: Mapping[str, Inventory]
    ) -> bool:
        """Whether they were taken: False where one that goes is in use."""
        try:
            body = self._put(
                "/inventories",
                uuid,
                {
                    "inventories": {
                        name: each._asdict() for name, each in wanted.items()
                    },
                    "resource_provider_generation": known.generation,
                },
            )
        except _InUseError:
            return False
        known.generation = body["resource_provider_generation"]
        known.inventories = dict(wanted)
        return True

    def _put(
        self, what: str, uuid: str, body: Mapping[str, object]
    ) -> Mapping[str, Any]:
        status, answer = self._api.send(
            "PUT", f"/resource_providers/{uuid}{what}", body
        )
        if status == 200:
            self.written = True
            return answer
        said = placement_api.detail(answer)
        if placement_api.code(answer) == placement_api.INVENTORY_IN_USE:
            raise _InUseError
        if placement_api.code(answer) == placement_api.DUPLICATE_NAME:
            raise placement_api.RefusedError(said)
        if status == 400:
            self._names.forget()
        if status in (400, 404, 409):
            raise placement_api.MovedError(said)
        raise placement_api.RefusedError(f"{status}: {said}")

    def _remove(self, uuid: str) -> None:
        """Delete a provider; while it is in use, close it instead."""
        for _ in range(ATTEMPTS):
            if uuid not in self._known or self._deleted(uuid):
                return
            if not _moved(self._close, uuid):
                return
            self._look_up(uuid)
        raise placement_api.RefusedError("it changes all the time")

    def _deleted(self, uuid: str) -> bool:
        """Whether it is gone now; False while it is in use."""
        status, body = self._api.send("DELETE", f"/resource_providers/{uuid}")
        if status in (204, 404):
            self.written = True
            LOG.info("Resource provider %s removed", self._known[uuid].name)
            del self._known[uuid]
            return True
        if status != 409:
            raise placement_api.RefusedError(placement_api.detail(body))
        return False

    def _close(self, uuid: str) -> None:
        known = self._known[uuid]
        if known.inventories is None:
            self._read_inventories(known, uuid)
        found = known.inventories or {}
        closed = {name: each.closed() for name, each in found.items()}
        if closed != found:
            LOG.info(
                "Resource provider %s is gone but in use: closed until its "
                "last allocation goes",
                known.name,
            )
            self._put_inventories(known, uuid, closed)


class _InUseError(Exception):
    """An inventory that the write would drop has allocations."""


def _refusal(step: Callable[..., None], *arguments: object) -> str:
    """Do a step; why Placement refused it, or nothing."""
    try:
        step(*arguments)
    except placement_api.RefusedError as refusal:
        return str(refusal) or "refused"
    return ""


def _moved(step: Callable[..., None], *arguments: object) -> str:
    """Do a step; what Placement said if somebody else was faster."""
    try:
        step(*arguments)
    except placement_api.MovedError as moved:
        return str(moved) or "it changed"
    return ""


def _no_root(root: str) -> exception.NotFound:
    return exception.NotFound(
        f"There is no root resource provider {root} in Placement"
    )

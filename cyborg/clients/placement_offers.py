# SPDX-License-Identifier: Apache-2.0
"""Whether any provider in Placement could ever serve a request group.

Free or not does not matter: it is asked before an upgrade, of a cloud at
work.
"""

from __future__ import annotations

from collections.abc import Mapping

from keystoneauth1 import adapter as ks_adapter

from cyborg import exception
from cyborg import profile
from cyborg.clients import placement_api

OWNER = "OWNER_CYBORG"
MOST_PROVIDERS = 100
"""Of those with the right traits, so many are looked at more closely."""


class Offers:
    """What Placement has; remembers what it was asked."""

    def __init__(self, adapter: ks_adapter.Adapter) -> None:
        self._api = placement_api.Api(adapter)
        self._known: dict[frozenset[tuple[str, str]], bool] = {}

    def satisfies(self, group: Mapping[str, str]) -> bool:
        """Whether some provider of Cyborg has what the group asks for.

        Raises PlacementUnavailable where Placement does not say.
        """
        key = frozenset((str(name), str(group[name])) for name in group)
        if key not in self._known:
            try:
                self._known[key] = self._ask(group)
            except placement_api.RefusedError:
                # No such class or trait: Nova would be told the same.
                self._known[key] = False
            except placement_api.MovedError as error:
                raise exception.PlacementUnavailable(
                    f"Placement refuses: {error}"
                ) from error
        return self._known[key]

    def _ask(self, group: Mapping[str, str]) -> bool:
        wanted = _of(group, profile.RESOURCES)
        if not wanted:
            return False
        required = ",".join([OWNER, *_traits(group)])
        free = self._providers(
            {
                "required": required,
                "resources": ",".join(
                    f"{name}:{amount}" for name, amount in wanted.items()
                ),
            }
        )
        if free:
            return True
        return any(
            self._could_have(uuid, wanted)
            for uuid in self._providers({"required": required})
        )

    def _providers(self, params: Mapping[str, str]) -> list[str]:
        found = self._api.get("/resource_providers", params)
        return [
            str(entry["uuid"])
            for entry in found["resource_providers"][:MOST_PROVIDERS]
        ]

    def _could_have(self, uuid: str, wanted: Mapping[str, str]) -> bool:
        """Whether it would do if nothing on it were in use or disabled."""
        try:
            found = self._api.get(f"/resource_providers/{uuid}/inventories")
        except placement_api.MovedError:
            return False
        inventories = found["inventories"]
        return all(
            name in inventories and int(amount) <= inventories[name]["total"]
            for name, amount in wanted.items()
        )


def _of(group: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The keys with that prefix, without it."""
    return {
        name.removeprefix(prefix).strip(): str(value)
        for name, value in group.items()
        if name.startswith(prefix)
    }


def _traits(group: Mapping[str, str]) -> list[str]:
    return [
        f"!{name}" if value == "forbidden" else name
        for name, value in sorted(_of(group, profile.TRAIT).items())
    ]

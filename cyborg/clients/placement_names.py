# SPDX-License-Identifier: Apache-2.0
"""Which traits and resource classes Placement has.

A name must exist before a provider can carry it.  What was seen once is
remembered for the life of the process: others delete a custom name only
while nobody uses it, and then a write is refused and `forget` is called.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from collections.abc import Iterator

from cyborg.clients import placement_api

LOG = logging.getLogger(__name__)

CUSTOM = "CUSTOM_"

QUERY_LENGTH = 4000
"""How many characters of names go into one query."""


class Names:
    """The names that Placement has; safe for many threads."""

    def __init__(self, api: placement_api.Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._traits: frozenset[str] = frozenset()
        self._absent: frozenset[str] = frozenset()
        self._classes: frozenset[str] = frozenset()
        self._sets: dict[frozenset[str], frozenset[str]] = {}

    def ensure_traits(self, traits: Iterable[str]) -> None:
        """Make the custom traits that are missing.

        One that this Placement cannot have (standard, but its os-traits is
        older; or not a legal name) is noted, and `usable` leaves it out.
        """
        unknown = frozenset(traits) - self._traits - self._absent
        if not unknown:
            return
        missing = unknown
        if len(unknown) > 1 or not all(map(_is_custom, unknown)):
            missing = unknown - self._existing(unknown)
        made = self._make("/traits/", missing)
        absent = missing - made
        if absent:
            LOG.warning(
                "Placement has no traits %s and takes none of them, so no "
                "provider has them; a standard one needs a newer os-traits "
                "there",
                ", ".join(sorted(absent)),
            )
        with self._lock:
            self._absent |= absent
            self._traits |= unknown - absent

    def ensure_classes(self, classes: Iterable[str]) -> None:
        """Make the custom resource classes that are missing.

        One that is refused shows when it is written.
        """
        unknown = frozenset(filter(_is_custom, classes)) - self._classes
        if not unknown:
            return
        missing = unknown
        if len(unknown) > 1:
            found = self._api.get("/resource_classes")["resource_classes"]
            missing = unknown - {str(entry["name"]) for entry in found}
        made = self._make("/resource_classes/", missing)
        with self._lock:
            self._classes |= (unknown - missing) | made

    def usable(self, traits: frozenset[str]) -> frozenset[str]:
        """Those of `traits` that a provider can carry here."""
        return traits - self._absent

    def seen(self, traits: Iterable[str]) -> frozenset[str]:
        """Note traits that a provider carries: they exist.

        The result equals them, and is one object for all providers that
        carry the same: a fleet has many providers and few sets.
        """
        found = frozenset(traits)
        with self._lock:
            if not found <= self._traits:
                self._traits |= found
            return self._sets.setdefault(found, found)

    def forget(self) -> None:
        """Believe nothing: a name was refused that we thought was there."""
        with self._lock:
            self._traits = self._absent = self._classes = frozenset()

    def _make(self, path: str, names: frozenset[str]) -> frozenset[str]:
        """Create custom names; those that Placement took."""
        return frozenset(
            name
            for name in sorted(names)
            if _is_custom(name) and self._api.send("PUT", path + name)[0] < 300
        )

    def _existing(self, names: frozenset[str]) -> frozenset[str]:
        found: set[str] = set()
        for query in queries(names):
            found.update(
                self._api.get("/traits", {"name": f"in:{query}"})["traits"]
            )
        return frozenset(found)


def _is_custom(name: str) -> bool:
    return name.startswith(CUSTOM)


def queries(names: Iterable[str]) -> Iterator[str]:
    """Comma-separated names, each text short enough for a URL."""
    batch: list[str] = []
    length = 0
    for name in sorted(names):
        if batch and length + len(name) > QUERY_LENGTH:
            yield ",".join(batch)
            batch, length = [], 0
        batch.append(name)
        length += len(name) + 1
    if batch:
        yield ",".join(batch)

# SPDX-License-Identifier: Apache-2.0
"""Providers as values: what a host should have, and what Placement has."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


class Inventory(NamedTuple):
    """What Placement stores of one resource class of a provider."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float

    def closed(self) -> Inventory:
        """The same with nothing left to allocate; what runs stays."""
        return self._replace(reserved=self.total, allocation_ratio=1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class WantedProvider:
    """One provider that a host should have below its root.

    `retired_traits` are those that we reported once and do not any more;
    whatever else it carries is the operator's and stays.
    """

    name: str
    uuid: str
    resource_class: str
    total: int
    reserved: int = 0
    traits: frozenset[str] = frozenset()
    retired_traits: frozenset[str] = frozenset()

    def inventories(self) -> dict[str, Inventory]:
        """Its inventories; Placement knows none of zero units."""
        if self.total <= 0:
            return {}
        reserved = min(self.reserved, self.total)
        return {
            self.resource_class: Inventory(
                self.total, reserved, 1, self.total, 1, 1.0
            )
        }


@dataclasses.dataclass(slots=True)
class Known:
    """A provider as it was at `generation`; None = not read."""

    name: str
    generation: int
    inventories: dict[str, Inventory] | None = None
    traits: frozenset[str] | None = None

    def at(self, generation: int) -> None:
        """Forget what is not proven for `generation`."""
        if generation != self.generation:
            self.generation = generation
            self.inventories = self.traits = None

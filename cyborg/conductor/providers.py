# SPDX-License-Identifier: Apache-2.0
"""What provider tree a host should have, from its rows.

Pure: the same rows give the same tree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from cyborg import inventory
from cyborg.clients.placement import WantedProvider
from cyborg.db.hosts import Offer


def wanted(offers: Iterable[Offer]) -> list[WantedProvider]:
    """One provider per deployable that can be scheduled.

    A deployable without a resource class, accelerators or a provider uuid
    of its own has none: Placement could not hold its inventory.  What is
    withheld (a disabled, faulty, lost or busy one) keeps its provider with
    all of it reserved, one of which units are cleaned with those reserved.
    """
    found: dict[str, WantedProvider] = {}
    for offer in offers:
        provider = _provider(offer)
        if provider is not None:
            found.setdefault(provider.uuid, provider)
    return list(found.values())


def _provider(offer: Offer) -> WantedProvider | None:
    name = inventory.resource_class(offer.attributes)
    if (
        offer.rp_uuid is None
        or name is None
        or not inventory.is_resource_class(name)
        or offer.num_accelerators < 1
    ):
        return None
    traits = frozenset(
        trait
        for trait in inventory.traits(offer.attributes)
        if inventory.is_trait(trait)
    )
    return WantedProvider(
        name=offer.name,
        uuid=offer.rp_uuid,
        resource_class=name,
        total=offer.num_accelerators,
        reserved=_reserved(offer),
        traits=traits,
        retired_traits=retired(offer.retired_traits) - traits,
    )


def _reserved(offer: Offer) -> int:
    """How many of its accelerators nobody may have now.

    One accelerator may have several units, the same number each.
    """
    total = offer.num_accelerators
    if offer.withheld:
        return total
    each = max(1, offer.handles // total)
    return min(total, -(-offer.cleaned // each))


def retired(stored: str | None) -> frozenset[str]:
    """The traits that a deployable's `retired_traits` names."""
    if stored is None:
        return frozenset()
    try:
        found = json.loads(stored)
    except ValueError:
        return frozenset()
    if not isinstance(found, list):
        return frozenset()
    return frozenset(trait for trait in found if isinstance(trait, str))

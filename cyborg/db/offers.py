# SPDX-License-Identifier: Apache-2.0
"""Which device profiles the known hardware could satisfy.

Reads only columns that every adoptable revision has: it is asked before an
upgrade too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Mapping

import sqlalchemy as sa

from cyborg import inventory
from cyborg import profile
from cyborg.db import engine
from cyborg.db import models

_TRAIT = "trait:"


@engine.retried
def unsatisfied_profiles(database: engine.Database) -> list[str]:
    """Names of profiles with a group that no deployable offers, sorted."""
    attribute = models.Attribute
    stored = models.DeviceProfile
    with database.reader() as session:
        profiles = session.execute(
            sa.select(stored.name, stored.profile_json).order_by(stored.name)
        ).all()
        attributes = session.execute(
            sa.select(attribute.deployable_id, attribute.key, attribute.value)
        ).all()
    offered: dict[int, list[tuple[str, str]]] = {}
    for deployable_id, key, value in attributes:
        offered.setdefault(deployable_id, []).append((key, value))
    return [
        name
        for name, text in profiles
        if not all(
            any(_offers(pairs, group) for pairs in offered.values())
            for group in groups_of(text)
        )
    ]


def groups_of(profile_json: str) -> list[Mapping[str, str]]:
    """The groups of a stored profile; none where the text is not one."""
    try:
        groups = json.loads(profile_json)["groups"]
    except (ValueError, TypeError, KeyError):
        return []
    if not isinstance(groups, list):
        return []
    return [group for group in groups if isinstance(group, dict)]


def _offers(
    attributes: Iterable[tuple[str, str]], group: Mapping[str, str]
) -> bool:
    pairs = list(attributes)
    wanted = profile.resource_class(group)
    if wanted is None or inventory.resource_class(pairs) != wanted:
        return False
    traits = inventory.traits(pairs)
    return all(
        (key.removeprefix(_TRAIT).strip() in traits) == (value != "forbidden")
        for key, value in group.items()
        if key.startswith(_TRAIT)
    )

# SPDX-License-Identifier: Apache-2.0
"""Which device profiles the known hardware could satisfy.

Reads only columns that every adoptable revision has: it is asked before an
upgrade too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

import sqlalchemy as sa

from cyborg import inventory
from cyborg import profile
from cyborg.db import engine
from cyborg.db import models

_TRAIT = "trait:"


@engine.retried
def stored_profiles(
    database: engine.Database,
) -> dict[str, list[Mapping[str, str]]]:
    """The groups of each profile by its name, sorted."""
    stored = models.DeviceProfile
    with database.reader() as session:
        found = session.execute(
            sa.select(stored.name, stored.profile_json).order_by(stored.name)
        ).all()
    return {name: groups_of(text) for name, text in found}


@engine.retried
def offered(
    database: engine.Database,
) -> Callable[[Mapping[str, str]], bool]:
    """Whether a deployable that we know offers what a group asks for."""
    attribute = models.Attribute
    with database.reader() as session:
        found = session.execute(
            sa.select(attribute.deployable_id, attribute.key, attribute.value)
        ).all()
    pairs: dict[int, list[tuple[str, str]]] = {}
    for deployable_id, key, value in found:
        pairs.setdefault(deployable_id, []).append((key, value))
    return lambda group: any(_offers(one, group) for one in pairs.values())


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

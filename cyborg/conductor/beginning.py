# SPDX-License-Identifier: Apache-2.0
"""Jobs begun in the transaction that needs them.

Their number of statements does not grow with that of the deployables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from sqlalchemy import orm

from cyborg import exception
from cyborg.conductor.choice import Choice
from cyborg.conductor.choice import Program
from cyborg.conductor.settings import Settings
from cyborg.db import hosts
from cyborg.db import job_starts
from cyborg.db import jobs
from cyborg.db.hosts import Provider
from cyborg.rpc import codec
from cyborg.rpc.agent import Unit


def programs(
    session: orm.Session,
    wanted: Iterable[tuple[Provider, Program]],
    own: Collection[int],
    settings: Settings,
) -> list[jobs.Claimed]:
    """Jobs that program deployables which nobody but `own` (handles) uses.

    Raises Conflict where one is busy or bound.
    """
    orders = {
        provider.deployable_id: (provider, dataclasses.asdict(program))
        for provider, program in wanted
    }
    begun = _begin(session, jobs.PROGRAM, orders.values(), settings)
    taken = {job.deployable_id: job.id for job in begun}
    if not job_starts.take_deployables(session, taken):
        raise exception.Conflict(f"{_named(orders.values())} is busy")
    used = job_starts.in_use(session, taken, own)
    if used:
        bound = _named(orders[key] for key in sorted(used))
        raise exception.Conflict(
            f"{bound} is bound and cannot be programmed now"
        )
    return begun


def prepares(
    session: orm.Session, choices: Iterable[Choice], settings: Settings
) -> list[jobs.Claimed]:
    """Jobs that make the units of these choices, one per deployable.

    Others are bound beside them, and prepared at the same time.
    """
    units: dict[int, list[Any]] = {}
    orders: dict[int, tuple[Provider, dict[str, Any]]] = {}
    for choice in choices:
        key, handle = choice.provider.deployable_id, choice.handle
        mine = units.setdefault(key, [])
        orders[key] = choice.provider, {"units": mine}
        mine.append(
            codec.encode(
                Unit(handle.uuid, handle.attach_type, handle.attach_info)
            )
        )
    return _begin(session, jobs.PREPARE, orders.values(), settings)


def _named(orders: Iterable[tuple[Provider, object]]) -> str:
    return " or ".join(provider.name for provider, _ in orders)


def _begin(
    session: orm.Session,
    kind: str,
    orders: Collection[tuple[Provider, Mapping[str, Any]]],
    settings: Settings,
) -> list[jobs.Claimed]:
    """Jobs that this conductor runs (5 statements)."""
    names = hosts.names(session, {one.hostname for one, _ in orders})
    paths = job_starts.controlpaths(
        session, {one.device_id for one, _ in orders}
    )
    return jobs.create(
        session,
        [
            jobs.New(
                kind=kind,
                deployable_id=one.deployable_id,
                hostname=names[one.hostname].name
                if one.hostname in names
                else one.hostname,
                arguments={
                    "driver": one.driver,
                    "controlpath": paths.get(one.device_id, ""),
                    "deployable_name": one.name,
                    **more,
                },
                seconds=settings.bind_timeout,
            )
            for one, more in orders
        ],
        settings.new_lease(),
    )

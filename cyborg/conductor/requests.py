# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests made, given back and deleted; one transaction each."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_db import exception as db_exception
from sqlalchemy import orm

from cyborg import arq
from cyborg import exception
from cyborg import profile
from cyborg.conductor.choice import missing_arqs
from cyborg.conductor.settings import Settings
from cyborg.db import arq_release
from cyborg.db import arq_writes
from cyborg.db import bulk
from cyborg.db import engine
from cyborg.db import hosts
from cyborg.db import jobs

LOG = logging.getLogger(__name__)

KEEP_JOBS = 7 * 24 * 3600.0
"""Seconds for which a job that has ended can still be looked at."""


def make_rows(
    groups: Sequence[Mapping[str, str]],
    group_id: int | None,
    limit: int,
) -> list[tuple[int, str]]:
    """(group's number, group as JSON) of each ARQ that a profile gives.

    Raises Invalid where there is no such group, where nothing is asked, or
    more than the limit.
    """
    if group_id is not None and not 0 <= group_id < len(groups):
        raise exception.Invalid(
            f"device_profile_group_id: the profile has no group {group_id}"
        )
    chosen = range(len(groups)) if group_id is None else [group_id]
    counts = {i: profile.accelerator_count(groups[i]) for i in chosen}
    total = sum(counts.values())
    if not total:
        raise exception.Invalid("the device profile asks for no accelerator")
    if total > limit:
        raise exception.Invalid(
            f"the device profile asks for {total} accelerators; at most"
            f" {limit} can be had at once"
        )
    return [
        (i, json.dumps(groups[i], sort_keys=True))
        for i in chosen
        for _ in range(counts[i])
    ]


def groups_of(profile_json: str) -> list[Mapping[str, str]]:
    """The groups of a stored profile, however odd it is."""
    try:
        found = json.loads(profile_json)["groups"]
    except (ValueError, KeyError, TypeError):
        return []
    if not isinstance(found, list):
        return []
    return [group if isinstance(group, dict) else {} for group in found]


@engine.retried
def create(
    database: engine.Database,
    profile_name: str,
    *,
    group_id: int | None,
    image_uuid: str | None,
    project_id: str | None,
    limit: int,
) -> list[str]:
    """Makes the ARQs of a profile; their uuids in the order of its groups."""
    missing = exception.NotFound(f"there is no device profile {profile_name}")
    try:
        with database.writer() as session:
            found = arq_writes.profile_called(session, profile_name)
            if found is None:
                raise missing
            profile_id, profile_json = found
            rows = make_rows(groups_of(profile_json), group_id, limit)
            return arq_writes.create(
                session, profile_id, rows, project_id, image_uuid
            )
    except db_exception.DBReferenceError as error:
        # The profile was deleted in between.
        raise missing from error


@dataclasses.dataclass(frozen=True, slots=True)
class Released:
    """What was given back; `lost_on`: hosts that lost the device of one."""

    missing: tuple[str, ...] = ()
    lost_on: tuple[str, ...] = ()


@engine.retried
def unbind(
    database: engine.Database,
    uuids: Collection[str],
    project_scope: str | None,
) -> Released:
    """Takes from these ARQs what they hold, all or none.

    Raises NotFound.
    """
    with database.writer() as session:
        held = arq_release.lock(
            session, uuids=uuids, project_scope=project_scope
        )
        missing = sorted(set(uuids) - {row.uuid for row in held})
        if missing:
            raise missing_arqs(missing)
        sources = arq.TRANSITIONS[arq.Event.UNBIND].sources
        taken = [row for row in held if row.state in sources]
        if not taken:
            return Released()
        arq_release.unbind(session, taken)
        return Released(lost_on=_lost_on(session, taken))


@engine.retried
def delete(
    database: engine.Database,
    uuids: Collection[str],
    project_scope: str | None,
    may_unbind: bool,
) -> Released:
    """Deletes those of these ARQs that there are.

    Raises Forbidden, and deletes nothing, where one is bound and
    `may_unbind` is false.
    """
    with database.writer() as session:
        held = arq_release.lock(
            session, uuids=uuids, project_scope=project_scope
        )
        bound = [row.uuid for row in held if row.state in arq.HOLDING]
        if bound and not may_unbind:
            raise exception.Forbidden(
                "deleting a bound accelerator request requires a service"
                f" token: {', '.join(bound)}"
            )
        missing = sorted(set(uuids) - {row.uuid for row in held})
        return Released(tuple(missing), _delete(session, held))


@engine.retried
def delete_of_instance(
    database: engine.Database, instance: str, project_scope: str | None
) -> Released:
    """Deletes the ARQs of an instance, if it has any."""
    with database.writer() as session:
        held = arq_release.lock(
            session, instance=instance, project_scope=project_scope
        )
        return Released(lost_on=_delete(session, held))


def _delete(
    session: orm.Session, held: Sequence[arq_release.Held]
) -> tuple[str, ...]:
    if not held:
        return ()
    arq_release.delete(session, held)
    return _lost_on(session, held)


def _lost_on(
    session: orm.Session, held: Sequence[arq_release.Held]
) -> tuple[str, ...]:
    deployables = {
        row.deployable_id for row in held if row.deployable_id is not None
    }
    if not deployables:
        return ()
    return tuple(hosts.lost_devices(session, deployables))


@engine.retried
def sweep(
    database: engine.Database, settings: Settings, limit: int = 1000
) -> None:
    """Ends what a service that is gone left half done in adopted rows."""
    with database.writer() as session:
        left = arq_release.lock_deleting(session, limit)
        if left:
            _delete(session, left)
            LOG.info("%d accelerator requests deleted to the end", len(left))
        failed = arq_release.fail_forsaken(
            session,
            bulk.after(-settings.bind_timeout),
            "the service that bound it ended before it was done",
            bulk.after(0),
        )
        if failed:
            LOG.info("%d binds that nobody would end have failed", failed)
        jobs.forget_old(session, bulk.after(-KEEP_JOBS), limit)

# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests made, given back and deleted; one transaction each."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import uuid
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
from cyborg.db import cleaning
from cyborg.db import clock
from cyborg.db import engine
from cyborg.db import job_ends
from cyborg.db import leftovers
from cyborg.db.arq_release import GivenBack

LOG = logging.getLogger(__name__)

MADE_BY_REQUEST = uuid.UUID("0b2a1b34-7a52-4d1e-9d2c-4f0a6a1d5c3e")
"""Namespace of the uuids that follow from a request's id."""

KEEP_JOBS = 7 * 24 * 3600.0
"""Seconds for which a job that has ended can still be looked at."""

KEEP_LOST = 24 * 3600.0
"""Seconds for which a unit that was to be cleaned is kept though its host
does not have it any more.  Were it forgotten at once, one that is back after
a restart or a reset would be a new one, and clean."""

KEEP_UNHELD = 3600.0
"""Seconds for which a unit stays in use that no accelerator request has."""


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
    request_id: str,
    group_id: int | None,
    image_uuid: str | None,
    project_id: str | None,
    limit: int,
    deadline: float,
) -> list[str]:
    """Makes the ARQs of a profile; their uuids in the order of its groups.

    Unavailable after `deadline` (monotonic), when nobody waits any more:
    nobody would ever use them or delete them.  Once for one request: where
    its message comes twice, or the answer to a commit was lost, they are
    those that are there already.
    """
    missing = exception.NotFound(f"there is no device profile {profile_name}")
    uuids: list[str] = []
    try:
        with database.writer() as session:
            found = arq_writes.profile_called(session, profile_name)
            if found is None:
                raise missing
            profile_id, profile_json = found
            rows = make_rows(groups_of(profile_json), group_id, limit)
            uuids = uuids_of(request_id, len(rows))
            arq_writes.create(
                session,
                (profile_id, profile_name),
                dict(zip(uuids, rows, strict=True)),
                project_id,
                image_uuid,
            )
            if time.monotonic() > deadline:
                raise exception.Unavailable("The database took too long.")
    except db_exception.DBDuplicateEntry:
        LOG.info("Request %s has its accelerator requests", request_id)
    except db_exception.DBReferenceError as error:
        # The profile was deleted in between.
        raise missing from error
    return uuids


def uuids_of(request_id: str, count: int) -> list[str]:
    """What the ARQs are called that a request makes, in their order."""
    return [
        str(uuid.uuid5(MADE_BY_REQUEST, f"{request_id}/{number}"))
        for number in range(count)
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Released:
    """What was not there, and what follows from what was given back."""

    missing: tuple[str, ...] = ()
    given_back: GivenBack = dataclasses.field(default_factory=GivenBack)


@engine.retried
def unbind(
    database: engine.Database,
    uuids: Collection[str],
    project_scope: str | None,
    grace: float,
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
        return Released(
            given_back=arq_release.unbind(session, taken, clock.after(grace))
        )


@engine.retried
def delete(
    database: engine.Database,
    uuids: Collection[str],
    project_scope: str | None,
    *,
    may_unbind: bool,
    grace: float,
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
        return Released(tuple(missing), _delete(session, held, grace))


@engine.retried
def delete_of_instance(
    database: engine.Database,
    instance: str,
    project_scope: str | None,
    grace: float,
) -> Released:
    """Deletes the ARQs of an instance, if it has any."""
    with database.writer() as session:
        held = arq_release.lock(
            session, instance=instance, project_scope=project_scope
        )
        return Released(given_back=_delete(session, held, grace))


def _delete(
    session: orm.Session, held: Sequence[arq_release.Held], grace: float
) -> GivenBack:
    if not held:
        return GivenBack()
    return arq_release.delete(session, held, clock.after(grace))


@engine.retried
def sweep(
    database: engine.Database, settings: Settings, limit: int = 1000
) -> tuple[int, ...]:
    """Ends what a service that is gone left half done in adopted rows, and
    forgets what is old; the hosts (ids) that Placement is to follow."""
    with database.writer() as session:
        found: set[int] = set()
        left = arq_release.lock_deleting(session, limit)
        if left:
            found.update(_delete(session, left, settings.grace).host_ids)
            LOG.info("%d accelerator requests deleted to the end", len(left))
        failed, host_ids = arq_release.fail_forsaken(
            session,
            clock.after(-settings.bind_timeout),
            "the service that bound it ended before it was done",
            clock.after(0),
        )
        if failed:
            LOG.info("%d binds that nobody would end have failed", failed)
        found.update(host_ids)
        left_over, host_ids = leftovers.give_back(
            session, clock.after(-KEEP_UNHELD), limit
        )
        if left_over:
            LOG.info("%d units that nobody held are given back", left_over)
        found.update(host_ids)
        found.update(
            cleaning.forget_lost(session, clock.after(-KEEP_LOST), limit)
        )
        job_ends.forget_old(session, clock.after(-KEEP_JOBS), limit)
        return tuple(sorted(found))

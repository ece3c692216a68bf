# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests as the conductor changes them.

Each function is one statement (or says how many) within the caller's
transaction.  A change of state is an UPDATE that holds only for the states
that `arq.TRANSITIONS` allows, and tells whether it found all its rows: who
finds fewer was overtaken and must do the whole transaction again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq
from cyborg import inventory
from cyborg.db import arq_release
from cyborg.db import bulk
from cyborg.db import clock
from cyborg.db import models
from cyborg.db import notices
from cyborg.notification import AcceleratorRequestPayload
from cyborg.notification import Event

Arq = models.AcceleratorRequest
Handle = models.AttachHandle


@dataclasses.dataclass(frozen=True, slots=True)
class StoredArq:
    """An ARQ with the group of the profile that it was made from."""

    id: int
    uuid: str
    project_id: str | None
    state: arq.State
    group: Mapping[str, str]
    image_uuid: str | None
    hostname: str | None
    device_rp_uuid: str | None
    instance_uuid: str | None
    attach_handle_id: int | None
    deployable_id: int | None
    job_id: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """What an ARQ is to hold."""

    arq_id: int
    hostname: str
    device_rp_uuid: str
    instance_uuid: str
    project_id: str | None
    handle_id: int
    deployable_id: int
    job_id: int | None = None


def read(
    session: orm.Session,
    uuids: Collection[str],
    project_scope: str | None,
) -> dict[str, StoredArq]:
    """The ARQs that exist (for that project) by uuid."""
    query = (
        sa.select(Arq, models.DeviceProfile.profile_json)
        .join(
            models.DeviceProfile,
            Arq.device_profile_id == models.DeviceProfile.id,
        )
        .where(Arq.uuid.in_(uuids))
    )
    if project_scope is not None:
        query = query.where(Arq.project_id == project_scope)
    return {
        row.uuid: _stored(row, profile_json)
        for row, profile_json in session.execute(query)
        if project_scope is None or row.project_id == project_scope
    }


def _stored(row: models.AcceleratorRequest, profile_json: str) -> StoredArq:
    return StoredArq(
        id=row.id,
        uuid=row.uuid,
        project_id=row.project_id,
        state=arq.State(row.state),
        group=group_of(
            row.profile_group, profile_json, row.device_profile_group_id
        ),
        image_uuid=row.image_uuid,
        hostname=row.hostname,
        device_rp_uuid=row.device_rp_uuid,
        instance_uuid=row.instance_uuid,
        attach_handle_id=row.attach_handle_id,
        deployable_id=row.deployable_id,
        job_id=row.job_id,
    )


def group_of(
    stored: str | None, profile_json: str, group_id: int
) -> Mapping[str, str]:
    """The group an ARQ was made from: its own copy, else its profile's.

    Empty where an adopted row names none that can be read.
    """
    try:
        if stored is not None:
            found = json.loads(stored)
        else:
            found = json.loads(profile_json)["groups"][group_id]
    except (ValueError, KeyError, IndexError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def profile_called(session: orm.Session, name: str) -> tuple[int, str] | None:
    """The profile's id and groups; None where none has exactly that name."""
    rows = session.execute(
        sa.select(
            models.DeviceProfile.id,
            models.DeviceProfile.name,
            models.DeviceProfile.profile_json,
        ).where(models.DeviceProfile.name == name)
    )
    return next(
        ((row.id, row.profile_json) for row in rows if row.name == name), None
    )


def create(
    session: orm.Session,
    profile: tuple[int, str],
    groups: Mapping[str, tuple[int, str]],
    project_id: str | None,
    image_uuid: str | None,
) -> None:
    """New ARQs of these uuids of a profile (id and name), each of the
    (number, JSON) of a group."""
    profile_id, profile_name = profile
    session.execute(
        sa.insert(Arq),
        [
            {
                "uuid": uuid,
                "project_id": project_id,
                "state": arq.State.INITIAL.value,
                "substate": "Initial",
                "device_profile_id": profile_id,
                "device_profile_group_id": number,
                "profile_group": group,
                "image_uuid": image_uuid,
            }
            for uuid, (number, group) in groups.items()
        ],
    )
    notices.add(
        session,
        Event.ARQ_CREATED,
        (
            AcceleratorRequestPayload(
                uuid=uuid,
                state=arq.State.INITIAL.value,
                project_id=project_id,
                device_profile_name=profile_name,
                device_profile_group_id=number,
                hostname=None,
                device_rp_uuid=None,
                instance_uuid=None,
                image_uuid=image_uuid,
                error=None,
            )
            for uuid, (number, _) in groups.items()
        ),
    )


def lock_instances(session: orm.Session, instances: Collection[str]) -> None:
    """Makes binds for one instance come one after another (PostgreSQL).

    MariaDB does that by the locks that `others_bound` takes, SQLite has one
    writer; both are spared the statement.
    """
    if session.get_bind().dialect.name != "postgresql":
        return
    keys = sorted(
        int.from_bytes(
            hashlib.sha256(name.encode()).digest()[:8], "big", signed=True
        )
        for name in instances
    )
    locks = sa.values(
        sa.column("key", sa.BigInteger), name="instance_keys"
    ).data([(key,) for key in keys])
    session.execute(
        sa.select(sa.func.count(sa.func.pg_advisory_xact_lock(locks.c.key)))
    )


def others_bound(
    session: orm.Session, instances: Collection[str], own: Collection[int]
) -> list[str]:
    """Instances of these that hold ARQs other than `own`.

    Asked after `own` were changed: on MariaDB this then waits for another
    transaction that does the same for one of these instances, and one of
    the two starts again.
    """
    rows = session.execute(
        sa.select(Arq.id, Arq.instance_uuid)
        .where(
            Arq.instance_uuid.in_(instances),
            Arq.state.in_(arq.HOLDING),
        )
        .with_hint(Arq, arq_release.BY_INSTANCE, "mysql")
        .with_hint(Arq, arq_release.BY_INSTANCE, "mariadb")
        .with_for_update(read=True)
    )
    return sorted(
        {
            instance
            for arq_id, instance in rows
            if instance is not None
            and arq_id not in own
            and instance in instances
        }
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FreeHandle:
    """An attach handle that nobody has."""

    id: int
    uuid: str
    attach_type: str
    attach_info: str

    @property
    def is_made(self) -> bool:
        """Whether the host has to make it for whoever gets it."""
        return inventory.is_made(self.attach_type, self.attach_info)


def free_handles(
    session: orm.Session, deployables: Collection[int]
) -> dict[int, list[FreeHandle]]:
    """Handles that nobody has, by deployable.

    One that an ARQ refers to is not free, whatever an adopted row says, nor
    is one that its card has no more.
    """
    held = sa.select(Arq.id).where(Arq.attach_handle_id == Handle.id).exists()
    rows = session.execute(
        sa.select(
            Handle.deployable_id,
            Handle.id,
            Handle.uuid,
            Handle.attach_type,
            Handle.attach_info,
        )
        .where(
            Handle.deployable_id.in_(deployables),
            Handle.in_use.is_not(sa.true()),
            Handle.lost_at.is_(None),
            ~held,
        )
        .order_by(Handle.id)
    )
    found: dict[int, list[FreeHandle]] = {}
    for row in rows:
        found.setdefault(row.deployable_id, []).append(
            FreeHandle(row.id, row.uuid, row.attach_type, row.attach_info)
        )
    return found


def take_handles(session: orm.Session, handles: Collection[int]) -> bool:
    """Whether all of them were free and are now ours."""
    result = session.execute(
        sa.update(Handle)
        .where(
            Handle.id.in_(sorted(handles)),
            Handle.in_use.is_not(sa.true()),
            Handle.lost_at.is_(None),
        )
        .values(in_use=True)
        .execution_options(synchronize_session=False)
    )
    return bulk.matched(result) == len(handles)


def bind(
    session: orm.Session,
    rows: Sequence[Bound],
    event: arq.Event,
    event_due_at: clock.Moment | None,
) -> bool:
    """Whether all of these ARQs were free, and hold now what they should."""
    transition = arq.TRANSITIONS[event]

    def column(name: str) -> object:
        return bulk.by_id(
            session,
            getattr(Arq, "attach_handle_id" if name == "handle_id" else name),
            {row.arq_id: getattr(row, name) for row in rows},
        )

    values = {
        "state": transition.target,
        "hostname": column("hostname"),
        "device_rp_uuid": column("device_rp_uuid"),
        "instance_uuid": column("instance_uuid"),
        "project_id": column("project_id"),
        "attach_handle_id": column("handle_id"),
        "deployable_id": column("deployable_id"),
        "job_id": column("job_id"),
        "last_error": None,
        "event_due_at": event_due_at,
        "event_attempts": 0,
    }
    result = session.execute(
        sa.update(Arq)
        .where(
            Arq.id.in_([row.arq_id for row in rows]),
            Arq.state.in_(transition.sources),
        )
        .values(values)
        .execution_options(synchronize_session=False)
    )
    if bulk.matched(result) != len(rows):
        return False
    started = transition.target is arq.State.BIND_STARTED
    notices.arqs(
        session,
        Event.BIND_STARTED if started else Event.BOUND,
        [row.arq_id for row in rows],
    )
    return True


def tell_again(
    session: orm.Session,
    arqs: Collection[int],
    event_due_at: clock.Moment,
) -> None:
    """Owes Nova the event of these bound ARQs once more."""
    session.execute(
        sa.update(Arq)
        .where(Arq.id.in_(arqs), Arq.state == arq.State.BOUND)
        .values(event_due_at=event_due_at, event_attempts=0)
        .execution_options(synchronize_session=False)
    )

# SPDX-License-Identifier: Apache-2.0
"""What is wrong with attach handles, jobs and what jobs have.  Pure."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator

from cyborg.audit.findings import UNCERTAIN
from cyborg.audit.findings import Action
from cyborg.audit.findings import Finding
from cyborg.audit.findings import Kind
from cyborg.audit.state import State
from cyborg.db import jobs
from cyborg.db.suspects import Card
from cyborg.db.suspects import Shown
from cyborg.db.suspects import Task
from cyborg.db.suspects import Twin
from cyborg.db.suspects import Unit


def check(state: State) -> Iterator[Finding]:
    """Findings of all handles, jobs, deployables and devices."""
    rows = state.rows
    for unit in rows.units:
        yield from _unheld(state, unit) if unit.in_use else _half(unit)
    yield from _copies(rows.twins)
    for task in rows.tasks:
        yield from _task(state, task)
    yield from map(_busy, rows.cards)
    yield from map(_shown, rows.shown)


def _unheld(state: State, unit: Unit) -> Iterator[Finding]:
    explanation = "is in use, but no request holds it and no job cleans it"
    action: Action | None = Action.GIVE_BACK
    refusal = ""
    kind = Kind.UNHELD_HANDLE
    if unit.job_state == jobs.FAILED:
        kind = Kind.FAILED_CLEANING
        action = None
        explanation = "could not be cleaned and is kept from everybody"
        refusal = (
            "the next guest could read it: see the device's clean_error, put"
            " it right and enable the device, which tries again"
        )
    elif unit.job_id is None and not state.settled(unit.changed_at):
        return
    elif unit.job_id is not None:
        explanation = "waits for a job that has ended or is not there"
    if action and not (unit.is_known or unit.is_lost):
        action = None
        refusal = UNCERTAIN
    yield Finding(
        kind, unit.uuid, unit.hostname, explanation, action, refusal, unit
    )


def _half(unit: Unit) -> Iterator[Finding]:
    """One that is free although a job has it, or had it."""
    is_clean = unit.job_state in (None, jobs.DONE, jobs.CANCELLED)
    yield Finding(
        Kind.HALF_CLEANED,
        unit.uuid,
        unit.hostname,
        "is free and refers to a job that has ended"
        if is_clean
        else "is free although it is not clean yet",
        Action.FORGET_JOB if is_clean else Action.KEEP_CLEANED,
        facts=unit,
    )


def _copies(twins: Iterable[Twin]) -> Iterator[Finding]:
    copies: dict[tuple[int, str], list[Twin]] = collections.defaultdict(list)
    for twin in twins:
        copies[twin.deployable_id, twin.attach_info].append(twin)
    for several in copies.values():
        yield from _twins(several)


def _twins(several: list[Twin]) -> Iterator[Finding]:
    """Of units with one address one is kept: one in use, else the first."""
    used = [
        twin
        for twin in several
        if twin.in_use or twin.held or twin.job_id is not None
    ]
    kept = used or several[:1]
    for twin in several:
        if twin not in kept:
            yield Finding(
                Kind.DUPLICATE_HANDLE,
                twin.uuid,
                twin.hostname,
                f"has the address of unit {kept[0].uuid}",
                Action.DROP_HANDLE,
                facts=twin,
            )
    for twin in used[1:]:
        yield Finding(
            Kind.DUPLICATE_HANDLE,
            twin.uuid,
            twin.hostname,
            f"has the address of unit {used[0].uuid}, and both are in use",
            refusal="two guests may have been given one unit: delete one of"
            " their instances, then the copy can be removed",
            facts=twin,
        )


def _task(state: State, task: Task) -> Iterator[Finding]:
    if task.kind == jobs.CLEAN:
        yield from _cleaning(state, task)
    elif task.kind in (jobs.PROGRAM, jobs.PREPARE):
        yield from _overdue(state, task)


def _cleaning(state: State, task: Task) -> Iterator[Finding]:
    if not state.settled(task.created_at):
        return
    if not task.is_awaited:
        yield _job(
            Kind.STUCK_JOB,
            task,
            "cleans a unit that does not wait for it",
            Action.CANCEL_JOB,
        )
    elif state.older(task.host_seen_at, 2 * state.patience.down):
        yield _job(
            Kind.STUCK_CLEANING,
            task,
            "waits to clean a unit on a host whose agent says nothing",
            refusal="only its host can clean it: start the agent; if the"
            " host is gone for good, delete its resource provider and heal"
            f" --kind {Kind.VANISHED_HOST}",
        )


def _overdue(state: State, task: Task) -> Iterator[Finding]:
    if state.older(task.deadline, state.patience.down):
        yield _job(
            Kind.STUCK_JOB,
            task,
            f"should have ended by {task.deadline.isoformat()}Z and no"
            " conductor has ended it (does one run?)",
            Action.END_JOB,
        )


def _job(
    kind: Kind,
    task: Task,
    explanation: str,
    action: Action | None = None,
    refusal: str = "",
) -> Finding:
    return Finding(
        kind, task.uuid, task.hostname, explanation, action, refusal, task
    )


def _busy(card: Card) -> Finding:
    return Finding(
        Kind.BUSY_DEPLOYABLE,
        card.uuid,
        card.hostname,
        f"deployable {card.name} belongs to a job that has ended or is not"
        " there, so that nothing is scheduled on it",
        Action.FREE_DEPLOYABLE,
        facts=card,
    )


def _shown(device: Shown) -> Finding:
    return Finding(
        Kind.DEVICE_STATE,
        device.uuid,
        device.hostname,
        f"device is {device.state}, but no job cleans any unit of it",
        Action.SHOW_STATE if device.is_known else None,
        ""
        if device.is_known
        else "no agent has said yet whether it must be cleaned: start the"
        " agent of this release on its host",
        device,
    )

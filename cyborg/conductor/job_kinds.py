# SPDX-License-Identifier: Apache-2.0
"""The kinds of job: what is asked of an agent, and what its end means."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any
from typing import Protocol
from typing import TypeAlias

from sqlalchemy import orm

from cyborg import context as cyborg_context
from cyborg.db import clock
from cyborg.db import job_ends
from cyborg.db import jobs
from cyborg.db.job_ends import Ended
from cyborg.rpc import codec
from cyborg.rpc.agent import CleanResult
from cyborg.rpc.agent import ProgramOrder
from cyborg.rpc.agent import ProgramResult
from cyborg.rpc.agent import Unit
from cyborg.rpc.agent import UnitsOrder

Context: TypeAlias = cyborg_context.RequestContext


class Agents(Protocol):
    """What we need of the agents' client."""

    def program(
        self, context: Context, host: str, order: ProgramOrder
    ) -> ProgramResult:
        """Has a device programmed; returns when it is."""
        ...

    def prepare(self, context: Context, host: str, order: UnitsOrder) -> None:
        """Has units made; returns when they are."""
        ...

    def clean(
        self, context: Context, host: str, order: UnitsOrder
    ) -> CleanResult:
        """Has units cleaned, or asks how far that is."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of job.

    `order` asks the agent, and gives its answer; `finish` and `fail` end the
    job in a transaction, or give None where it had ended before.  `patient`:
    it may take long, and is asked for now and then.
    """

    words: str
    order: Callable[[Agents, jobs.Claimed], Any]
    finish: Callable[
        [orm.Session, jobs.Claimed, Any, clock.Moment], Ended | None
    ]
    fail: Callable[[orm.Session, int, str, clock.Moment], Ended | None]
    patient: bool = False


def _program(agents: Agents, job: jobs.Claimed) -> ProgramResult:
    found = job.arguments
    return agents.program(
        cyborg_context.current(),
        job.hostname,
        ProgramOrder(
            job_uuid=job.uuid,
            driver=found.get("driver") or "",
            controlpath=found.get("controlpath") or "",
            deployable_name=found.get("deployable_name") or "",
            image_uuid=found.get("image_uuid"),
            function_id=found.get("function_id"),
            timeout=job.ends_at - time.monotonic(),
        ),
    )


def _programmed(
    session: orm.Session,
    job: jobs.Claimed,
    result: ProgramResult,
    due_at: clock.Moment,
) -> Ended | None:
    holds = result.bitstream_id or job.arguments.get("image_uuid")
    return job_ends.program_done(session, job.id, holds, due_at)


def _prepare(agents: Agents, job: jobs.Claimed) -> None:
    agents.prepare(
        cyborg_context.current(),
        job.hostname,
        _units(job, job.ends_at - time.monotonic()),
    )


def _clean(agents: Agents, job: jobs.Claimed) -> CleanResult:
    return agents.clean(
        cyborg_context.current(),
        job.hostname,
        _units(job, float(job.arguments["timeout"])),
    )


def _units(job: jobs.Claimed, timeout: float) -> UnitsOrder:
    found = job.arguments
    return UnitsOrder(
        job_uuid=job.uuid,
        driver=found["driver"],
        controlpath=found["controlpath"],
        deployable_name=found["deployable_name"],
        units=tuple(codec.decode(Unit, unit) for unit in found["units"]),
        timeout=timeout,
    )


KINDS = {
    jobs.PROGRAM: Kind(
        "programming", _program, _programmed, job_ends.program_failed
    ),
    jobs.PREPARE: Kind(
        "preparing units of",
        _prepare,
        lambda session, job, _, due_at: job_ends.prepare_done(
            session, job.id, due_at
        ),
        job_ends.prepare_failed,
    ),
    jobs.CLEAN: Kind(
        "cleaning a unit of",
        _clean,
        lambda session, job, _, due_at: job_ends.clean_done(
            session, job.id, due_at
        ),
        lambda session, job_id, reason, _: job_ends.clean_failed(
            session, job_id, reason
        ),
        patient=True,
    ),
}


def describe(job: jobs.Claimed) -> str:
    """What a job does, for a log."""
    return f"{KINDS[job.kind].words} {job.arguments.get('deployable_name')}"

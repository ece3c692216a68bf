# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests bound.

A bind is one transaction; one that was overtaken by another is done again
from the beginning, so that what it decides rests on rows as they are.
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_db import exception as db_exception
from sqlalchemy import orm

from cyborg import arq
from cyborg import exception
from cyborg.conductor import beginning
from cyborg.conductor import choice as choosing
from cyborg.conductor.choice import Choice
from cyborg.conductor.choice import Program
from cyborg.conductor.settings import Settings
from cyborg.db import arq_writes
from cyborg.db import clock
from cyborg.db import engine
from cyborg.db import hosts
from cyborg.db import job_starts
from cyborg.db import jobs
from cyborg.db.arq_writes import StoredArq
from cyborg.rpc.conductor import Binding

LOG = logging.getLogger(__name__)

ATTEMPTS = 64
"""How often a bind that is overtaken starts again.  Each time somebody else
has got what it wanted, so that this bounds how many may be in front."""


class Overtaken(Exception):  # noqa: N818 - a turn of events, no error
    """Rows changed since they were read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What has to be done once a bind is committed."""

    told: tuple[jobs.Told, ...] = ()
    jobs: tuple[jobs.Claimed, ...] = ()
    changed_hosts: tuple[int, ...] = ()


@engine.retried
def bind(
    database: engine.Database,
    bindings: Sequence[Binding],
    project_scope: str | None,
    settings: Settings,
) -> Outcome:
    """Binds these ARQs, all or none.

    A bind that needs work on a host is begun: its jobs are this conductor's
    to run.
    """
    # It spreads load and hides nothing.
    rng = random.Random()  # nosec B311
    for _ in range(ATTEMPTS):
        try:
            with database.writer() as session:
                outcome = _Binding(session, settings, rng).run(
                    bindings, project_scope
                )
        except (Overtaken, db_exception.DBDeadlock) as error:
            LOG.debug("A bind starts again: %r", error)
        else:
            _log(bindings, outcome)
            return outcome
    raise exception.Conflict("too many others bind there at the same time")


def _log(bindings: Sequence[Binding], outcome: Outcome) -> None:
    for instance in sorted({one.instance_uuid for one in bindings}):
        LOG.info(
            "Instance %s: accelerator requests %s %s",
            instance,
            ", ".join(
                one.arq_uuid
                for one in bindings
                if one.instance_uuid == instance
            ),
            "are being bound" if outcome.jobs else "are bound",
        )


class _Binding:
    """One transaction that binds."""

    def __init__(
        self, session: orm.Session, settings: Settings, rng: random.Random
    ) -> None:
        self._session = session
        self._settings = settings
        self._rng = rng
        self._due_at = clock.after(settings.grace)

    def run(
        self, bindings: Sequence[Binding], project_scope: str | None
    ) -> Outcome:
        """Binds; raises Overtaken where rows changed meanwhile."""
        session = self._session
        instances = {binding.instance_uuid for binding in bindings}
        arq_writes.lock_instances(session, instances)
        arqs = arq_writes.read(
            session, [b.arq_uuid for b in bindings], project_scope
        )
        wanted, done = choosing.divide(bindings, arqs)
        told = self._tell_again(done)
        if not wanted:
            return Outcome(told)
        try:
            choices = self._choose(wanted, arqs)
        except exception.Conflict:
            # Has the same bind, sent twice, taken what this one lacks?
            if arq_writes.read(session, list(arqs), project_scope) != arqs:
                raise Overtaken from None
            raise
        if not arq_writes.take_handles(
            session, [choice.handle.id for choice in choices]
        ):
            raise Overtaken
        outcome = self._apply(choices)
        self._check_instances(instances, arqs)
        return dataclasses.replace(outcome, told=(*told, *outcome.told))

    def _tell_again(self, done: Sequence[StoredArq]) -> tuple[jobs.Told, ...]:
        bound = [one for one in done if one.state is arq.State.BOUND]
        if bound:
            arq_writes.tell_again(
                self._session, [one.id for one in bound], self._due_at
            )
        return tuple(
            jobs.Told(one.uuid, one.instance_uuid or "", one.state)
            for one in bound
        )

    def _choose(
        self, wanted: Sequence[Binding], arqs: Mapping[str, StoredArq]
    ) -> list[Choice]:
        session = self._session
        found = choosing.find_providers(
            wanted,
            hosts.providers(
                session, rp_uuids={b.device_rp_uuid for b in wanted}
            ),
        )
        strange = {
            found[b.device_rp_uuid].hostname
            for b in wanted
            if found[b.device_rp_uuid].hostname != b.hostname
        }
        names = hosts.names(session, strange) if strange else {}
        for binding in wanted:
            choosing.check(
                binding,
                arqs[binding.arq_uuid].group,
                found[binding.device_rp_uuid],
                names,
            )
        free = arq_writes.free_handles(
            session,
            {found[b.device_rp_uuid].deployable_id for b in wanted},
        )
        return choosing.choose(
            [(b, arqs[b.arq_uuid], found[b.device_rp_uuid]) for b in wanted],
            free,
            self._rng,
        )

    def _apply(self, choices: Sequence[Choice]) -> Outcome:
        asked = choosing.by_function(choices)
        functions = job_starts.functions(self._session, asked) if asked else {}
        needed = choosing.programs(choices, functions)
        started: list[Choice] = []
        at_once: list[Choice] = []
        for choice in choices:
            works = choice.provider.deployable_id in needed
            where = started if works or choice.handle.is_made else at_once
            where.append(choice)
        told: tuple[jobs.Told, ...] = ()
        if at_once:
            self._bind(at_once, arq.Event.BIND_AT_ONCE, {}, self._due_at)
            told = tuple(
                jobs.Told(
                    choice.arq.uuid,
                    choice.binding.instance_uuid,
                    arq.State.BOUND,
                )
                for choice in at_once
            )
        if not started:
            return Outcome(told)
        begun, host_ids = self._begin(started, needed)
        self._bind(
            started,
            arq.Event.BIND,
            {job.deployable_id: job.id for job in begun},
            None,
        )
        return Outcome(told, tuple(begun), host_ids)

    def _bind(
        self,
        choices: Sequence[Choice],
        event: arq.Event,
        job_ids: Mapping[int, int],
        event_due_at: clock.Moment | None,
    ) -> None:
        rows = [
            arq_writes.Bound(
                arq_id=choice.arq.id,
                hostname=choice.binding.hostname,
                device_rp_uuid=choice.binding.device_rp_uuid,
                instance_uuid=choice.binding.instance_uuid,
                project_id=choice.binding.project_id or choice.arq.project_id,
                handle_id=choice.handle.id,
                deployable_id=choice.provider.deployable_id,
                job_id=job_ids.get(choice.provider.deployable_id),
            )
            for choice in choices
        ]
        if not arq_writes.bind(self._session, rows, event, event_due_at):
            raise Overtaken

    def _begin(
        self, started: Sequence[Choice], needed: Mapping[int, Program]
    ) -> tuple[list[jobs.Claimed], tuple[int, ...]]:
        """Jobs for the deployables of these choices, and the hosts that
        withhold some meanwhile."""
        by_id = {c.provider.deployable_id: c.provider for c in started}
        begun = []
        host_ids: tuple[int, ...] = ()
        if needed:
            begun += beginning.programs(
                self._session,
                [(by_id[key], needed[key]) for key in sorted(needed)],
                {choice.handle.id for choice in started},
                self._settings,
            )
            host_ids = hosts.owe(
                self._session,
                {by_id[key].hostname for key in needed},
                self._due_at,
            )
        made = [c for c in started if c.provider.deployable_id not in needed]
        if made:
            begun += beginning.prepares(self._session, made, self._settings)
        return begun, host_ids

    def _check_instances(
        self, instances: Collection[str], arqs: Mapping[str, StoredArq]
    ) -> None:
        others = arq_writes.others_bound(
            self._session, instances, {found.id for found in arqs.values()}
        )
        if others:
            raise exception.Conflict(
                f"instance {', '.join(others)} has other accelerator"
                " requests that are bound already"
            )


@engine.retried
def program(
    database: engine.Database,
    deployable_uuid: str,
    image_uuid: str,
    settings: Settings,
) -> Outcome:
    """Begins to program a deployable.  Raises NotFound or Conflict."""
    with database.writer() as session:
        found = hosts.providers(session, deployable_uuid=deployable_uuid)
        if not found:
            raise exception.NotFound(
                f"there is no deployable {deployable_uuid}"
            )
        provider = found[0]
        if provider.broken:
            raise exception.Conflict(
                f"{provider.name} cannot be used: {provider.broken}"
            )
        begun = beginning.programs(
            session, [(provider, Program(image_uuid, None))], (), settings
        )
        host_ids = hosts.owe(
            session, {provider.hostname}, clock.after(settings.grace)
        )
        return Outcome(jobs=tuple(begun), changed_hosts=host_ids)

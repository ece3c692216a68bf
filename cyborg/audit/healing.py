# SPDX-License-Identifier: Apache-2.0
"""One remedy each, as far as everything is still as it was found.

Services run meanwhile, and somebody else may heal as well: a remedy that
comes too late changes nothing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import logging
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import Protocol

from oslo_db import exception as db_exception

from cyborg import exception
from cyborg.audit.findings import Action
from cyborg.audit.findings import Finding
from cyborg.audit.findings import Kind
from cyborg.audit.state import State
from cyborg.audit.tree_checks import Allocation
from cyborg.clients.placement_survey import Entry
from cyborg.clients.placement_survey import Survey
from cyborg.conductor import departed
from cyborg.db import fleet
from cyborg.db import repairs
from cyborg.db.engine import Database
from cyborg.db.engine import retried

LOG = logging.getLogger(__name__)


class Result(str, enum.Enum):
    """What became of a finding."""

    HEALED = "healed"
    WOULD_HEAL = "would-heal"
    """What `--dry-run` says of one that would be healed."""
    REFUSED = "refused"
    ON_REQUEST = "on-request"
    """Its kind is not healed unless it is named."""
    CHANGED = "changed"
    """It is not as it was found: somebody else was faster."""
    FAILED = "failed"

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A finding and what became of it; `detail` says more."""

    finding: Finding
    result: Result
    detail: str = ""


class Syncs(Protocol):
    """What brings a host's rows to Placement."""

    def sync(self, host_id: int) -> None:
        """Brings what is owed of a host to Placement; raises
        PlacementUnavailable."""


class Trees(Protocol):
    """What removes our providers from a tree of Placement."""

    def remove(self, root_uuid: str, uuid: str) -> bool:
        """Removes one that is ours, or closes it while it is in use."""


class Healer:
    """Heals what was found in one state."""

    def __init__(
        self,
        database: Database,
        survey: Survey | None,
        trees: Trees | None,
        syncs: Syncs | None,
    ) -> None:
        self._database = database
        self._survey = survey
        self._trees = trees
        self._syncs = syncs
        self._synced: dict[int, str] = {}
        """Why a host could not be brought to Placement, empty where it
        was."""
        self._owed: set[int] = set()
        self._healers: Mapping[
            Action, Callable[[State, Finding], repairs.Repair | str]
        ] = {
            Action.DELETE_ARQ: self._row(repairs.delete_request),
            Action.FAIL_ARQ: lambda state, one: repairs.fail_request(
                database, one.facts, state.patience.settle
            ),
            Action.GIVE_BACK: self._row(repairs.give_back),
            Action.RELEASE_HANDLE: self._row(repairs.release_handle),
            Action.TAKE_HANDLE: self._row(repairs.take_handle),
            Action.KEEP_CLEANED: self._row(repairs.keep_cleaned),
            Action.FORGET_JOB: self._row(repairs.forget_job),
            Action.DROP_HANDLE: self._row(repairs.drop_handle),
            Action.SET_DEPLOYABLE: self._row(repairs.set_deployable),
            Action.FILL_PROJECT: lambda state, one: repairs.fill_project(
                database,
                one.facts,
                state.server(one.facts.instance_uuid).project_id or "",
            ),
            Action.END_JOB: self._row(repairs.end_job),
            Action.CANCEL_JOB: self._row(repairs.cancel_job),
            Action.FREE_DEPLOYABLE: self._row(repairs.free_deployable),
            Action.SHOW_STATE: self._row(repairs.show_state),
            Action.SYNC: self._sync,
            Action.REMOVE_PROVIDERS: self._remove_providers,
            Action.RELEASE_ALLOCATION: self._release,
            Action.ALLOCATE: self._allocate,
            Action.DROP_HOST: self._drop_host,
        }

    def heal(
        self, state: State, findings: Iterable[Finding], named: frozenset[Kind]
    ) -> list[Outcome]:
        """What became of each of these; `named`: the kinds that were asked
        for."""
        self._synced.clear()
        outcomes = [self._heal(state, one, named) for one in findings]
        for host_id in sorted(self._owed):
            self._follow(host_id)
        self._owed.clear()
        return outcomes

    def _heal(
        self, state: State, finding: Finding, named: frozenset[Kind]
    ) -> Outcome:
        planned = plan(finding, named)
        if planned.result is not Result.WOULD_HEAL or finding.action is None:
            return planned
        try:
            came = self._healers[finding.action](state, finding)
        except (exception.CyborgError, db_exception.DBError) as error:
            LOG.debug("%s could not be healed", finding, exc_info=True)
            return Outcome(finding, Result.FAILED, _said(error))
        if isinstance(came, str):
            return Outcome(finding, Result.REFUSED, came)
        self._owed.update(came.host_ids)
        if not came.done:
            return Outcome(
                finding, Result.CHANGED, "it is not as it was found any more"
            )
        return Outcome(
            finding,
            Result.HEALED,
            "its unit is cleaned first" if came.cleaning else "",
        )

    def _row(
        self, repair: Callable[[Database, Any], repairs.Repair]
    ) -> Callable[[State, Finding], repairs.Repair]:
        return lambda _, finding: repair(self._database, finding.facts)

    def _sync(self, _: State, finding: Finding) -> repairs.Repair | str:
        """Makes a host's providers right: once for all that is wrong."""
        host_id = finding.facts
        if self._syncs is None:
            return "there is no Placement"
        if host_id not in self._synced:
            if not repairs.owe(self._database, host_id):
                return repairs.OVERTAKEN
            self._synced[host_id] = ""
            try:
                self._syncs.sync(host_id)
            except exception.CyborgError as error:
                self._synced[host_id] = str(error)
        if self._synced[host_id]:
            raise exception.PlacementUnavailable(self._synced[host_id])
        return repairs.Repair(True)

    def _follow(self, host_id: int) -> None:
        """Lets Placement know of rows that were put right; where it cannot
        now, the host is owed, and a conductor makes it good."""
        if self._syncs is None:
            return
        try:
            self._syncs.sync(host_id)
        except exception.CyborgError as error:
            LOG.warning("Placement is still to follow: %s", error)

    def _remove_providers(
        self, _: State, finding: Finding
    ) -> repairs.Repair | str:
        if self._trees is None:
            return "there is no Placement"
        entry: Entry = finding.facts
        if _is_root(self._database, entry.root):
            return repairs.OVERTAKEN
        try:
            return repairs.Repair(self._trees.remove(entry.root, entry.uuid))
        except exception.NotFound:
            return repairs.OVERTAKEN

    def _release(self, _: State, finding: Finding) -> repairs.Repair | str:
        found: Allocation = finding.facts
        if self._survey is None:
            return "there is no Placement"
        return repairs.Repair(
            self._survey.release(found.consumer, found.provider, found.amounts)
        )

    def _allocate(self, _: State, finding: Finding) -> repairs.Repair | str:
        found: Allocation = finding.facts
        if self._survey is None:
            return "there is no Placement"
        if self._survey.add(
            found.consumer, found.provider, found.amounts, {found.root}
        ):
            return repairs.Repair(True)
        return (
            "the instance has nothing of this host in Placement (or has it"
            " now): nova-manage placement heal_allocations comes first"
        )

    def _drop_host(
        self, state: State, finding: Finding
    ) -> repairs.Repair | str:
        before = state.rows.now - dt.timedelta(seconds=state.patience.vanish)
        left = departed.remove(self._database, finding.facts, before)
        return left or repairs.Repair(True)


@retried
def _is_root(database: Database, provider_uuid: str) -> bool:
    """Whether a host has this root by now."""
    with database.reader() as session:
        return fleet.is_root(session, provider_uuid)


def plan(finding: Finding, named: frozenset[Kind]) -> Outcome:
    """What would become of a finding; changes nothing."""
    if finding.action is None:
        return Outcome(finding, Result.REFUSED, finding.refusal)
    if finding.on_request and finding.kind not in named:
        return Outcome(
            finding,
            Result.ON_REQUEST,
            f"only with --kind {finding.kind}: be sure that nobody needs it",
        )
    return Outcome(finding, Result.WOULD_HEAL, finding.action.value)


def _said(error: Exception) -> str:
    if isinstance(error, exception.CyborgError):
        return str(error)
    return f"the database refuses: {type(error).__name__}"

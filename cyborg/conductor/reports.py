# SPDX-License-Identifier: Apache-2.0
"""From an agent's report to the rows of its host.

What is stored, and what has to change, `report_check` and `report_plan`
decide; here it is done, in one transaction.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Collection
from collections.abc import Sequence

from oslo_db import exception as db_exception
from sqlalchemy import orm

from cyborg import exception
from cyborg import inventory
from cyborg.conductor import report_check
from cyborg.conductor import report_plan
from cyborg.db import clock
from cyborg.db import hosts
from cyborg.db import models
from cyborg.db import report_rows
from cyborg.db import reports as rows
from cyborg.db.engine import Database
from cyborg.db.engine import retried

LOG = logging.getLogger(__name__)

ATTEMPTS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """What became of a report."""

    host_id: int
    changed: bool


def store(
    database: Database,
    report: inventory.HostReport,
    down_time: float,
    grace: float,
) -> Stored:
    """Brings the host's rows to what was reported.

    `down_time`: seconds of silence after which another agent that had the
    same provider counts as gone.  `grace`: when another conductor should
    look at Placement, were this one to die now.
    """
    if not 0 < len(report.host) <= 255:
        raise exception.Invalid("host must have 1 to 255 characters")
    if not 0 < len(report.provider_name) <= inventory.MAX_PROVIDER_NAME:
        raise exception.Invalid("provider_name is empty or too long")
    devices, bad = report_check.check(report)
    for controlpath, fault in bad.items():
        LOG.warning(
            "Host %s: the report of device %s is not stored: %s",
            report.host,
            controlpath,
            fault,
        )
    storing = _Storing(report, down_time, clock.after(grace))
    return _store(database, storing, devices, bad)


@retried
def _store(
    database: Database,
    storing: _Storing,
    devices: Sequence[inventory.Device],
    unreadable: Collection[str],
) -> Stored:
    for _ in range(ATTEMPTS):
        try:
            with database.writer() as session:
                return storing.run(session, devices, unreadable)
        except (
            rows.Overtaken,
            db_exception.DBDuplicateEntry,
            db_exception.DBReferenceError,
        ) as error:
            LOG.debug("A report is stored again: %r", error)
    raise exception.Conflict("the host changes too fast to be stored")


class _Storing:
    """One transaction that stores a report."""

    def __init__(
        self,
        report: inventory.HostReport,
        down_time: float,
        due_at: clock.Moment,
    ) -> None:
        self._report = report
        self._down_time = down_time
        self._due_at = due_at

    def run(
        self,
        session: orm.Session,
        devices: Sequence[inventory.Device],
        unreadable: Collection[str],
    ) -> Stored:
        """Stores these devices; raises Overtaken where rows changed."""
        report = self._report
        host, hostnames = self._host(session)
        hostnames |= {report.host, report.provider_name}
        stored = report_rows.load(session, hostnames)
        changes = report_plan.plan(stored, devices, report, unreadable)
        self._settle_clashes(session, changes, hostnames)
        rows.apply(session, changes)
        self._log(changes)
        return self._note(session, host, changes)

    def _log(self, changes: report_rows.Plan) -> None:
        lost = [
            row
            for row in changes.device_changes.values()
            if row.get("lost_at") is not None
        ]
        counts = {
            "new": len(changes.devices),
            "gone": len(changes.gone_devices),
            "lost while in use": len(lost),
        }
        said = [f"{count} {what}" for what, count in counts.items() if count]
        if said:
            LOG.info(
                "Host %s: devices: %s", self._report.host, ", ".join(said)
            )

    def _host(
        self, session: orm.Session
    ) -> tuple[models.Host | None, set[str]]:
        """This host's row, locked, and the name that its devices have."""
        report = self._report
        found = rows.lock_hosts(session, report.host, report.provider_name)
        mine = next((one for one in found if one.name == report.host), None)
        others = [one for one in found if one is not mine]
        for other in others:
            if rows.is_alive(session, other, self._down_time):
                raise exception.Conflict(
                    f"the resource provider {report.provider_name} is that"
                    f" of the agent {other.name}, which is alive; host"
                    f" {report.host} needs its own"
                )
        if others:
            rows.delete_hosts(session, [one.id for one in others])
        return mine, {mine.provider_name} if mine is not None else set()

    def _settle_clashes(
        self,
        session: orm.Session,
        changes: report_rows.Plan,
        hostnames: Collection[str],
    ) -> None:
        """A provider that another host has is not offered here as well."""
        fresh = {row["rp_uuid"]: row for _, row in changes.deployables}
        for row in changes.deployable_changes.values():
            if "rp_uuid" in row:
                fresh[row["rp_uuid"]] = row
        if not fresh:
            return
        clashes = rows.taken_elsewhere(session, fresh, hostnames)
        for rp_uuid, hostname in clashes.items():
            fresh[rp_uuid]["rp_uuid"] = None
            changes.unsettled = True
            LOG.warning(
                "Host %s: a deployable has the same name as one of host %s,"
                " that of resource provider %s; it is listed and not"
                " scheduled",
                self._report.host,
                hostname,
                rp_uuid,
            )

    def _note(
        self,
        session: orm.Session,
        host: models.Host | None,
        changes: report_rows.Plan,
    ) -> Stored:
        report = self._report
        values: dict[str, object] = {
            "provider_name": report.provider_name,
            "provider_uuid": report.provider_uuid,
            "digest": None if changes.unsettled else report.digest(),
            "faults": json.dumps(
                [dataclasses.asdict(fault) for fault in report.faults]
            ),
            "last_seen_at": clock.after(0),
        }
        if host is None:
            values |= {
                "name": report.host,
                "revision": 1,
                "synced_revision": 0,
                "sync_due_at": self._due_at,
            }
            return Stored(rows.add_host(session, values).id, changed=True)
        renamed = host.provider_name != report.provider_name
        if report.provider_uuid is None and not renamed:
            # The agent could not ask; who finds it gone forgets it.
            values["provider_uuid"] = host.provider_uuid
        moved = host.provider_uuid != values["provider_uuid"]
        changed = bool(changes) or renamed or moved
        if changed:
            values["revision"] = host.revision + 1
            values["sync_due_at"] = self._due_at
        rows.change_host(session, host.id, values)
        return Stored(host.id, changed)


@retried
def remove_lost(database: Database, hostname: str, grace: float) -> int | None:
    """Removes lost devices of a host that nobody holds any more.

    The host's id where there were any.
    """
    with database.writer() as session:
        found = rows.lock_hosts(session, hostname, hostname)
        names = {
            name for one in found for name in (one.name, one.provider_name)
        }
        changes = report_rows.Plan()
        for device in report_rows.load(session, names | {hostname}):
            if device.lost and not device.held:
                report_plan.lose_device(changes, device)
        if not changes:
            return None
        rows.apply(session, changes)
        if not found:
            return None
        hosts.changed(session, [found[0].id], clock.after(grace))
        return found[0].id

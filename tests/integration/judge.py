# SPDX-License-Identifier: Apache-2.0
"""Whether a Cyborg is consistent: in itself, with Placement, and at any
moment since it began.

It reads the tables and Placement by itself and asks nothing of the code
that it judges.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from tests.integration import deployment

CONVERGE_SECONDS = 60
"""Within which everything is right again once no fault is left."""

PAUSE = 0.3

ARQS = "extended_accelerator_requests"
FINAL = ("Initial", "Unbound", "Bound", "BindFailed")

HISTORY = (
    """
    CREATE TABLE handle_history (
        id INTEGER PRIMARY KEY AUTO_INCREMENT,
        happened DATETIME(6) NOT NULL,
        handle_id INTEGER NOT NULL,
        arq_id INTEGER NULL,
        gain BOOLEAN NOT NULL
    )
    """,
    f"""
    CREATE TRIGGER arq_changed AFTER UPDATE ON {ARQS} FOR EACH ROW BEGIN
        IF NOT (OLD.attach_handle_id <=> NEW.attach_handle_id) THEN
            IF OLD.attach_handle_id IS NOT NULL THEN
                INSERT INTO handle_history (happened, handle_id, arq_id, gain)
                VALUES (SYSDATE(6), OLD.attach_handle_id, OLD.id, FALSE);
            END IF;
            IF NEW.attach_handle_id IS NOT NULL THEN
                INSERT INTO handle_history (happened, handle_id, arq_id, gain)
                VALUES (SYSDATE(6), NEW.attach_handle_id, NEW.id, TRUE);
            END IF;
        END IF;
    END
    """,
    f"""
    CREATE TRIGGER arq_deleted AFTER DELETE ON {ARQS} FOR EACH ROW BEGIN
        IF OLD.attach_handle_id IS NOT NULL THEN
            INSERT INTO handle_history (happened, handle_id, arq_id, gain)
            VALUES (SYSDATE(6), OLD.attach_handle_id, OLD.id, FALSE);
        END IF;
    END
    """,
    f"""
    CREATE TRIGGER arq_made AFTER INSERT ON {ARQS} FOR EACH ROW BEGIN
        IF NEW.attach_handle_id IS NOT NULL THEN
            INSERT INTO handle_history (happened, handle_id, arq_id, gain)
            VALUES (SYSDATE(6), NEW.attach_handle_id, NEW.id, TRUE);
        END IF;
    END
    """,
    """
    CREATE TRIGGER handle_made AFTER INSERT ON attach_handles
    FOR EACH ROW BEGIN
        IF NEW.in_use THEN
            INSERT INTO handle_history (happened, handle_id, arq_id, gain)
            VALUES (SYSDATE(6), NEW.id, NULL, TRUE);
        END IF;
    END
    """,
    """
    CREATE TRIGGER handle_deleted AFTER DELETE ON attach_handles
    FOR EACH ROW BEGIN
        IF OLD.in_use THEN
            INSERT INTO handle_history (happened, handle_id, arq_id, gain)
            VALUES (SYSDATE(6), OLD.id, NULL, FALSE);
        END IF;
    END
    """,
    """
    CREATE TRIGGER handle_changed AFTER UPDATE ON attach_handles
    FOR EACH ROW BEGIN
        IF NOT (OLD.in_use <=> NEW.in_use) THEN
            INSERT INTO handle_history (happened, handle_id, arq_id, gain)
            VALUES (SYSDATE(6), NEW.id, NULL, NEW.in_use);
        END IF;
    END
    """,
)
"""Every change of who has a handle, in the order in which it was made: the
rows are locked from a change to its commit, and one that is rolled back
takes its history with it."""


class Judge:
    """One deployment and the hosts (provider name -> root) it serves.

    Its database is MariaDB, reached past all proxies.
    """

    def __init__(
        self,
        cyborg: deployment.Deployment,
        roots: Mapping[str, str],
        database: str | None = None,
    ) -> None:
        self._cyborg = cyborg
        self._roots = roots
        self._engine = sa.create_engine(
            database or cyborg.database,
            poolclass=sa.pool.NullPool,
            isolation_level="READ COMMITTED",
        )

    def watch(self) -> None:
        """Note from now on who has which handle, without a gap."""
        with self._engine.begin() as connection:
            for statement in HISTORY:
                connection.exec_driver_sql(statement)

    def rows(self, statement: str) -> list[Any]:
        """What the database says."""
        with self._engine.connect() as connection:
            return list(connection.execute(sa.text(statement)))

    def converged(
        self,
        alive: Collection[str] = (),
        seconds: float = CONVERGE_SECONDS,
    ) -> float:
        """Waits till nothing is wrong; how long that took.

        `alive`: the instances that may have ARQs and allocations.  Raises
        AssertionError with all that is still wrong after `seconds`.
        """
        start = time.monotonic()
        while True:
            found = list(self.findings(alive))
            took = time.monotonic() - start
            if not found:
                return took
            if took > seconds:
                listed = "\n".join(found[:40])
                raise AssertionError(
                    f"after {seconds} s {len(found)} things are wrong:\n"
                    f"{listed}\n{self._cyborg.tails()}"
                )
            time.sleep(PAUSE)

    def findings(self, alive: Collection[str] = ()) -> Iterator[str]:
        """All that is wrong now, a line each."""
        yield from self._arqs(alive)
        yield from self._handles()
        yield from self._work()
        yield from self._providers(alive)

    def held_twice(self) -> list[str]:
        """Each moment since `watch` at which a handle was not rightly had:
        by two, by one though it was free, or free though one had it."""
        return list(
            _misuse(
                self.rows(
                    "SELECT id, happened, handle_id, arq_id, gain"
                    " FROM handle_history ORDER BY id"
                )
            )
        )

    def moments(self) -> int:
        """How many changes of who has a handle `watch` has seen."""
        return int(self.rows("SELECT count(*) FROM handle_history")[0][0])

    def units(self) -> list[str]:
        """Who has which unit now, for whoever has to find out why."""
        return [
            str(dict(row._mapping))
            for row in self.rows(
                "SELECT p.rp_uuid, p.name, h.id, h.in_use, h.lost_at, a.uuid,"
                " a.state, a.instance_uuid, a.updated_at FROM deployables p"
                " JOIN attach_handles h ON h.deployable_id = p.id"
                f" LEFT JOIN {ARQS} a ON a.attach_handle_id = h.id"
                " ORDER BY p.id, h.id"
            )
        ]

    def claims(self) -> list[str]:
        """What Placement says of each provider."""
        placement = self._cyborg.cloud.placement
        return [
            f"{one['name']}: {placement.inventory(one['uuid'])} "
            + str(
                placement.request(
                    "GET", f"/resource_providers/{one['uuid']}/allocations"
                )
            )
            for root in self._roots.values()
            for one in placement.children_of(root)
        ]

    def latest(self, number: int = 200) -> list[str]:
        """The last changes of who has a handle, the newest first."""
        return [
            str(tuple(row))
            for row in self.rows(
                "SELECT id, happened, handle_id, arq_id, gain"
                f" FROM handle_history ORDER BY id DESC LIMIT {number}"
            )
        ]

    def _arqs(self, alive: Collection[str]) -> Iterator[str]:
        for row in self.rows(
            "SELECT a.uuid, a.state, a.instance_uuid, a.attach_handle_id,"
            " a.deployable_id, a.hostname, a.event_due_at, a.job_id,"
            f" h.in_use, h.deployable_id AS owner FROM {ARQS} a"
            " LEFT JOIN attach_handles h ON h.id = a.attach_handle_id"
        ):
            name = f"ARQ {row.uuid} ({row.state})"
            if row.state not in FINAL:
                yield f"{name} is in no final state"
            if row.event_due_at is not None:
                yield f"{name}: Nova has yet to be told"
            if row.state in ("Initial", "Unbound"):
                if row.instance_uuid or row.attach_handle_id:
                    yield f"{name} holds something: {tuple(row)}"
                continue
            if row.instance_uuid not in alive:
                yield f"{name} is an orphan of instance {row.instance_uuid}"
            if row.state != "Bound":
                continue
            if not row.in_use:
                yield f"{name} has no handle that is in use: {tuple(row)}"
            if row.owner != row.deployable_id or not row.hostname:
                yield f"{name} has a handle of another: {tuple(row)}"

    def _handles(self) -> Iterator[str]:
        for row in self.rows(
            "SELECT h.uuid, h.in_use, h.job_id, COUNT(a.id) AS holders"
            " FROM attach_handles h"
            f" LEFT JOIN {ARQS} a ON a.attach_handle_id = h.id"
            " GROUP BY h.id, h.uuid, h.in_use, h.job_id"
        ):
            if row.holders > 1:
                yield f"handle {row.uuid} is held {row.holders} times"
            if bool(row.in_use) != bool(row.holders) and not row.job_id:
                yield (
                    f"handle {row.uuid}: in_use {row.in_use}, held by"
                    f" {row.holders}"
                )

    def _work(self) -> Iterator[str]:
        for row in self.rows(
            "SELECT uuid, kind, state FROM jobs"
            " WHERE state IN ('queued', 'running')"
        ):
            yield f"job {row.uuid} ({row.kind}) is {row.state}"
        for row in self.rows(
            "SELECT name, job_id FROM deployables WHERE job_id IS NOT NULL"
        ):
            yield f"deployable {row.name} is taken by job {row.job_id}"
        for row in self.rows(
            "SELECT name, revision, synced_revision FROM hosts"
            " WHERE revision <> synced_revision"
        ):
            yield f"host {row.name} owes Placement: {tuple(row)}"

    # -- Placement

    def _providers(self, alive: Collection[str]) -> Iterator[str]:
        wanted = self._wanted()
        placement = self._cyborg.cloud.placement
        for name, root in self._roots.items():
            found = {
                one["name"]: one["uuid"] for one in placement.children_of(root)
            }
            mine = {
                key: value
                for key, value in wanted.items()
                if value["hostname"] == name
            }
            for provider in sorted(found.keys() ^ mine.keys()):
                where = "Placement" if provider in found else "the rows"
                yield f"provider {provider} is in {where} alone"
            for provider in sorted(found.keys() & mine.keys()):
                yield from self._provider(
                    provider, found[provider], mine[provider], alive
                )

    def _provider(
        self,
        name: str,
        uuid: str,
        wanted: Mapping[str, Any],
        alive: Collection[str],
    ) -> Iterator[str]:
        placement = self._cyborg.cloud.placement
        if uuid != wanted["rp_uuid"]:
            yield f"provider {name} is {uuid}, not {wanted['rp_uuid']}"
        inventory = placement.inventory(uuid)
        amounts = {
            key: (one["total"], one["reserved"])
            for key, one in inventory.items()
        }
        if amounts != wanted["amounts"]:
            yield f"provider {name} has {amounts}, not {wanted['amounts']}"
        traits = placement.traits(uuid)
        if traits != wanted["traits"]:
            yield f"provider {name} is {traits}, not {wanted['traits']}"
        claims = placement.request(
            "GET", f"/resource_providers/{uuid}/allocations"
        )["allocations"]
        for consumer in claims.keys() - set(alive):
            yield f"provider {name} is allocated to {consumer}, an orphan"

    def _wanted(self) -> dict[str, dict[str, Any]]:
        """Provider name -> what the rows want of it."""
        attributes = collections.defaultdict(list)
        for row in self.rows(
            "SELECT deployable_id, `key`, value FROM attributes"
        ):
            attributes[row.deployable_id].append((row.key, row.value))
        wanted = {}
        for row in self.rows(
            "SELECT p.id, p.name, p.rp_uuid, p.num_accelerators, p.fault,"
            " p.job_id, d.hostname, d.status, d.fault AS broken, d.lost_at"
            " FROM deployables p JOIN devices d ON d.id = p.device_id"
        ):
            closed = (
                row.status != "enabled"
                or row.fault
                or row.broken
                or row.lost_at is not None
                or row.job_id is not None
            )
            total = row.num_accelerators
            pairs = attributes[row.id]
            wanted[row.name] = {
                "hostname": row.hostname,
                "rp_uuid": row.rp_uuid,
                "amounts": {
                    value: (total, total if closed else 0)
                    for key, value in pairs
                    if key == "rc"
                },
                "traits": {
                    "OWNER_CYBORG",
                    *(v for k, v in pairs if k.startswith("trait")),
                },
            }
        return wanted


def _misuse(history: Iterable[Any]) -> Iterator[str]:
    holders: dict[int, int] = {}
    taken: set[int] = set()
    for row in history:
        handle, arq = row.handle_id, row.arq_id
        when = f"change {row.id} at {row.happened}: handle {handle}"
        if arq is None:
            if bool(row.gain) == (handle in taken):
                yield f"{when} is said to be taken or free once more"
            if not row.gain and handle in holders:
                yield f"{when} is free while ARQ {holders[handle]} has it"
            (taken.add if row.gain else taken.discard)(handle)
        elif row.gain:
            if handle in holders:
                yield f"{when} goes to ARQ {arq}, {holders[handle]} has it"
            if handle not in taken:
                yield f"{when} goes to ARQ {arq} though it is not taken"
            holders[handle] = arq
        elif holders.pop(handle, None) != arq:
            yield f"{when} is given back by ARQ {arq}, which has it not"

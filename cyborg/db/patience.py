# SPDX-License-Identifier: Apache-2.0
"""Changing a table that others use, without making them queue behind us.

A change of a table waits for every transaction that has touched it, and
all who come later wait for the change: one client that sleeps in an open
transaction would stop the whole service.  So a change waits a moment only,
lets everybody pass, and comes again.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

import sqlalchemy as sa
from oslo_db import exception as db_exception

from cyborg.db import engine

LOG = logging.getLogger(__name__)

HOLD_UP_SECONDS = 1
"""How long, at most, one try of ours may hold up everybody else."""

INDEX_SECONDS = 30
"""How long an index may wait that is built beside everybody else."""

SECONDS = 300
"""How long a change tries, unless an operator says otherwise."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 5.0
"""Between two tries: others must get through meanwhile."""

SHOWN = 5
"""Holders of a table that a message names."""

_BUSY = frozenset({1205, 1213, "40P01", "55P03"})
"""Waited too long for a lock, or would have for ever."""

_WAIT = {
    "mysql": "SET SESSION lock_wait_timeout = {seconds}",
    "postgresql": "SET lock_timeout = '{seconds}s'",
}

_HOLDERS = {
    "mysql": (
        "SELECT p.id, p.user, p.host, "
        "timestampdiff(SECOND, t.trx_started, now()) "
        "FROM information_schema.innodb_trx t "
        "JOIN information_schema.processlist p "
        "ON p.id = t.trx_mysql_thread_id "
        "WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID() "
        "ORDER BY t.trx_started",
        # An account without the privilege PROCESS sees its own sessions.
        "SELECT id, user, host, time FROM information_schema.processlist "
        "WHERE db = DATABASE() AND id <> CONNECTION_ID() ORDER BY time DESC",
    ),
    "postgresql": (
        "SELECT a.pid, a.usename, a.client_addr, "
        "extract(epoch FROM now() - a.xact_start)::int "
        "FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
        "WHERE l.relation = to_regclass(:table) AND l.granted "
        "AND l.pid <> pg_backend_pid() ORDER BY a.xact_start",
    ),
}


class HeldError(Exception):
    """A table was never free; says who held it."""


def hold_up(connection: sa.Connection, seconds: int = HOLD_UP_SECONDS) -> None:
    """Let no statement of this session wait longer for a table."""
    wait = _WAIT.get(_dialect(connection))
    if wait is not None:
        connection.execute(sa.text(wait.format(seconds=seconds)))


@dataclasses.dataclass(frozen=True)
class Patience:
    """Tries a change again, for so many seconds."""

    seconds: float = SECONDS

    def change(
        self,
        connection: sa.Connection,
        table: str,
        step: Callable[[], object],
    ) -> None:
        """Do `step`, which changes `table` and may be done again.

        Raises HeldError, which says who holds the table, where it was
        never free; nothing of the step is done then.
        """
        end = time.monotonic() + self.seconds
        pause = FIRST_PAUSE
        while True:
            try:
                hold_up(connection)
                step()
            except (db_exception.DBError, sa.exc.DBAPIError) as error:
                if engine.server_code(error) not in _BUSY:
                    raise
            else:
                return
            held = f"{table} is held by {_holders(connection, table)}"
            if time.monotonic() + pause > end:
                raise HeldError(
                    f"{held}. Its change was given up after "
                    f"{self.seconds:g} s. End these transactions, then run "
                    "the command again: it goes on from there."
                )
            LOG.warning("%s; trying again in %g s.", held, pause)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _dialect(connection: sa.Connection) -> str:
    name = str(connection.dialect.name)
    return "mysql" if name == "mariadb" else name


def _holders(connection: sa.Connection, table: str) -> str:
    """The sessions that may hold a table, as far as we may see them."""
    for query in _HOLDERS.get(_dialect(connection), ()):
        try:
            found = connection.execute(
                sa.text(query), {"table": table} if ":table" in query else {}
            ).all()
        except (db_exception.DBError, sa.exc.DBAPIError):
            continue
        if found:
            return "; ".join(
                f"session {number} of {user} from {host or 'this machine'} "
                f"({seconds} s)"
                for number, user, host, seconds in found[:SHOWN]
            )
    return "a session that is not shown to us"

# SPDX-License-Identifier: Apache-2.0
"""An upgrade of the schema stops nobody: not by copying a table, and not by
queueing for one that somebody holds.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import urllib.parse
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg.db import engine
from cyborg.db import migration
from cyborg.db import patience
from tests import databases
from tests import deployed
from tests import rows
from tests.integration import children
from tests.integration import deployment
from tests.integration import resources

REQUESTS = "extended_accelerator_requests"
HELD = ("devices", REQUESTS)
SECONDS = 60
"""For what another process or thread should reach."""

BYSTANDER_SECONDS = 15
"""How long nobody may wait for a table: many times what we hold it up."""

_BYSTANDER = {
    "mysql": f"SET SESSION lock_wait_timeout = {BYSTANDER_SECONDS}",
    "postgresql": f"SET lock_timeout = '{BYSTANDER_SECONDS}s'",
}


@pytest.fixture(params=list(databases.SERVERS))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A deployed database of the older of its two revisions."""
    with databases.empty(request.param, tmp_path) as url:
        with databases.opened(url) as database:
            deployed.load(database, migration.ADOPTED[0])
        yield url


@contextlib.contextmanager
def held(url: str, table: str) -> Iterator[sa.Connection]:
    """A client that has read a table and sleeps in its transaction."""
    other = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with other.connect() as connection:
        connection.execute(sa.text(f"SELECT count(*) FROM {table}"))
        yield connection
        connection.rollback()


class Bystander:
    """A client that reads and writes a table all the time.

    Each statement is a transaction: one that reads before it writes may be
    chosen to end a deadlock with the upgrade, and would be done again.
    """

    def __init__(self, url: str, table: str) -> None:
        self._engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        self._table = table
        self._over = threading.Event()
        self.times = 0
        self._thread = futures.ThreadPoolExecutor(1)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Bystander]:
        """Raises at its end what the client met."""
        work = self._thread.submit(self._work)
        try:
            yield self
        finally:
            self._over.set()
            work.result(SECONDS)
            self._thread.shutdown()

    def _work(self) -> None:
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(sa.text(_BYSTANDER[connection.dialect.name]))
            while not self._over.is_set():
                connection.execute(
                    sa.text(f"SELECT max(id) FROM {self._table}")
                )
                connection.execute(
                    sa.text(f"UPDATE {self._table} SET updated_at = NULL")
                )
                self.times += 1


def test_no_step_copies_a_table_of_mariadb(tmp_path: Path) -> None:
    order = urllib.parse.quote("SET SESSION alter_algorithm='NOCOPY'")
    with databases.empty("mariadb", tmp_path) as url:
        with databases.opened(url) as database:
            deployed.load(database, migration.ADOPTED[0])
        with databases.opened(f"{url}?init_command={order}") as database:
            with (
                database.connection() as connection,
                pytest.raises(Exception, match="ALGORITHM=NOCOPY is not"),
            ):
                connection.exec_driver_sql(
                    "ALTER TABLE devices MODIFY vendor text NOT NULL"
                )
            migration.upgrade(database)
            assert migration.standing(database).current


def test_no_step_rewrites_a_table_of_postgresql(tmp_path: Path) -> None:
    query = sa.text(
        "SELECT relname, relfilenode FROM pg_class WHERE relkind = 'r' "
        "AND relnamespace = current_schema()::regnamespace"
    )
    with (
        databases.empty("postgresql", tmp_path) as url,
        databases.opened(url) as database,
    ):
        deployed.load(database, migration.ADOPTED[0])
        with database.engine.connect() as connection:
            before = dict(connection.execute(query).all())
        migration.upgrade(database)
        with database.engine.connect() as connection:
            after = dict(connection.execute(query).all())
        assert "devices" in before
        assert before.items() <= after.items()


@pytest.mark.parametrize("table", HELD)
def test_others_use_a_table_that_the_upgrade_waits_for(
    url: str, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        databases.opened(url) as database,
        futures.ThreadPoolExecutor(1) as pool,
        Bystander(url, table).at_work() as bystander,
    ):
        with held(url, table):
            upgrade = pool.submit(migration.upgrade, database)
            _wait_for_tries(caplog, table, 2)
            done = bystander.times
            _wait_for_tries(caplog, table, 4)
            assert bystander.times > done
            assert not upgrade.done()
        upgrade.result(SECONDS)
        assert migration.standing(database).current


def _wait_for_tries(
    caplog: pytest.LogCaptureFixture, table: str, count: int
) -> None:
    resources.wait_until(
        lambda: (
            sum(
                record.getMessage().startswith(f"{table} is held by session")
                for record in list(caplog.records)
            )
            >= count
        ),
        SECONDS,
        f"the upgrade has waited {count} times for {table}",
    )


def _dbsync(*words: str) -> list[str]:
    return [deployment.program("cyborg-dbsync"), *words]


def _environment(url: str) -> dict[str, str]:
    return {**os.environ, "OS_DATABASE__CONNECTION": url}


def test_whoever_holds_a_table_is_named_when_the_upgrade_gives_up(
    url: str,
) -> None:
    number = {
        "mysql": "SELECT connection_id()",
        "postgresql": "SELECT pg_backend_pid()",
    }
    command = _dbsync("upgrade", "--wait", "2")
    with held(url, REQUESTS) as holder:
        session = holder.scalar(sa.text(number[holder.dialect.name]))
        ended = children.finish(command, environment=_environment(url))
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()[-1:]
    assert re.search(
        rf"^cyborg-dbsync: {REQUESTS} is held by .*session {session} of ", line
    )
    assert "goes on from there" in line
    assert "Traceback" not in ended.stderr
    ended = children.finish(command, environment=_environment(url))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("table", [*HELD, "attach_handles"])
def test_an_upgrade_that_was_killed_half_way_is_run_again(
    url: str, table: str, tmp_path: Path
) -> None:
    """Where it stands when it is killed depends on what it waits for."""
    content = rows.rows_of(rows.dump(migration.ADOPTED[0]))
    with databases.opened(url) as database:
        with held(url, table):
            child = children.Child(
                _dbsync("upgrade"),
                tmp_path / "dbsync.log",
                _environment(url),
            )
            resources.wait_until(
                lambda: f"{table} is held by" in child.tail(),
                SECONDS,
                f"dbsync waits for {table}",
            )
            child.kill()
        assert not migration.standing(database).current
        ended = children.finish(
            _dbsync("upgrade"), environment=_environment(url)
        )
        assert ended.returncode == 0, ended.stderr
        assert migration.standing(database).current
        assert rows.stored(database, content) == content
        assert _invalid_indexes(database) == []


def test_an_index_whose_building_was_broken_off_is_built_again(
    tmp_path: Path,
) -> None:
    with (
        databases.empty("postgresql", tmp_path) as url,
        databases.opened(url) as database,
    ):
        deployed.load(database, migration.ADOPTED[0])
        with held(url, "deployables") as holder:
            holder.execute(sa.text("UPDATE deployables SET updated_at = NULL"))
            _break_off(database, "deployables_rp_uuid_idx", "deployables")
        assert _invalid_indexes(database) == ["deployables_rp_uuid_idx"]
        migration.upgrade(database)
        assert _invalid_indexes(database) == []


def _break_off(database: engine.Database, name: str, table: str) -> None:
    """Begin to build an index as an upgrade does, and give up."""
    with database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        patience.hold_up(connection, 1)
        with pytest.raises(Exception, match="lock timeout"):
            connection.exec_driver_sql(
                f"CREATE INDEX CONCURRENTLY {name} ON {table} (rp_uuid)"
            )
        connection.detach()


def _invalid_indexes(database: engine.Database) -> list[str]:
    if database.engine.dialect.name != "postgresql":
        return []
    with database.engine.connect() as connection:
        return list(
            connection.scalars(
                sa.text(
                    "SELECT indexrelid::regclass::text FROM pg_index "
                    "WHERE NOT indisvalid"
                )
            )
        )

# SPDX-License-Identifier: Apache-2.0
"""The schema: where a database stands, and how it is brought to our head.

A database of the deployed service stands at one of our own revisions, so
that adopting it is an ordinary upgrade.  One upgrade works at a time.  On
SQLite the whole of it is one transaction.  On the servers, where the older
services run meanwhile, each statement is committed by itself: a table is
locked for a moment, never until the end.  The session holds a named lock,
and each step looks before it adds, so that an upgrade that was killed is
simply run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import alembic.command
import alembic.config
import alembic.script
import alembic.util
import sqlalchemy as sa
from oslo_db import exception as db_exception

from cyborg.db import engine
from cyborg.db import models
from cyborg.db.patience import HeldError
from cyborg.db.patience import Patience
from cyborg.db.patience import hold_up

LOG = logging.getLogger(__name__)

HERE = Path(__file__).parent / "alembic"
ADOPTED = ("6c77bd6afea5", "b47c8f2d1e3a")
"""Revisions at which databases of the deployed service stand."""

LOCK_SECONDS = 600
LOCK_PAUSE = 0.2
_LOCK_KEY = 0x6379626F7267
_AT_WORK = "Another cyborg-dbsync is at work; try later."


class MigrationError(Exception):
    """Why the schema was left as it is, in one line."""


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where a database is, and whether an upgrade can lead it on."""

    revision: str | None
    head: str
    fault: str = ""
    """Why no upgrade is possible; empty where one is, or is not needed."""

    @property
    def current(self) -> bool:
        return self.revision == self.head


def _config() -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("file_template", "%%(slug)s_%%(rev)s")
    return config


def _scripts() -> alembic.script.ScriptDirectory:
    return alembic.script.ScriptDirectory.from_config(_config())


def head() -> str:
    """The newest revision."""
    return str(_scripts().get_current_head())


def _standing(connection: sa.Connection) -> Standing:
    scripts = _scripts()
    newest = str(scripts.get_current_head())
    inspector = sa.inspect(connection)
    if not inspector.has_table("alembic_version"):
        ours = set(models.Base.metadata.tables) & set(
            inspector.get_table_names()
        )
        fault = ""
        if ours:
            fault = (
                f"The database has tables ({', '.join(sorted(ours))}) but no "
                "revision; cyborg-dbsync stamp --revision R says which it is."
            )
        return Standing(None, newest, fault)
    found = connection.scalars(
        sa.text("SELECT version_num FROM alembic_version ORDER BY 1")
    ).all()
    known = {script.revision for script in scripts.walk_revisions()}
    strange = [revision for revision in found if revision not in known]
    if strange or len(found) > 1:
        return Standing(
            ", ".join(found),
            newest,
            f"The database stands at revision {', '.join(found)}, which this "
            "release does not know; it upgrades databases at "
            f"{', '.join(ADOPTED)} and its own revisions.",
        )
    return Standing(found[0] if found else None, newest)


def standing(database: engine.Database) -> Standing:
    """Where the database is.  Changes nothing."""
    with database.engine.connect() as connection:
        return _standing(connection)


@contextlib.contextmanager
def _alone(database: engine.Database) -> Iterator[sa.Connection]:
    """A connection; nobody else changes the schema while it is used."""
    if database.engine.dialect.name == "sqlite":
        with database.connection() as connection:
            yield connection
        return
    with database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        try:
            if connection.dialect.name == "postgresql":
                _take_advisory_lock(connection)
            else:
                _take_named_lock(connection)
            hold_up(connection)
            yield connection
        finally:
            # The lock and the settings of the session end with it.
            connection.invalidate()


def _take_advisory_lock(connection: sa.Connection) -> None:
    """PostgreSQL's.  Asked for again and again: a statement that waits
    would keep an index of the other upgrade from being finished."""
    end = time.monotonic() + LOCK_SECONDS
    query = sa.text("SELECT pg_try_advisory_lock(:key)")
    while not connection.scalar(query, {"key": _LOCK_KEY}):
        if time.monotonic() > end:
            raise MigrationError(_AT_WORK)
        time.sleep(LOCK_PAUSE)


def _take_named_lock(connection: sa.Connection) -> None:
    """That of MariaDB and MySQL."""
    database = str(connection.engine.url.database)
    name = hashlib.sha256(f"cyborg-dbsync {database}".encode()).hexdigest()
    try:
        taken = connection.scalar(
            sa.text("SELECT GET_LOCK(:name, :seconds)"),
            {"name": name[:48], "seconds": LOCK_SECONDS},
        )
    except db_exception.DBError:
        LOG.warning("The database has no GET_LOCK; upgrading without a lock.")
        return
    if taken != 1:
        raise MigrationError(_AT_WORK)


def _run(
    connection: sa.Connection,
    database: engine.Database,
    command: Callable[[alembic.config.Config], object],
    patience: Patience | None = None,
) -> None:
    config = _config()
    config.attributes["connection"] = connection
    config.attributes["mysql_engine"] = database.mysql_engine
    config.attributes["patience"] = patience or Patience()
    try:
        command(config)
    except (HeldError, alembic.util.CommandError) as error:
        raise MigrationError(str(error)) from error


def upgrade(
    database: engine.Database,
    revision: str | None = None,
    patience: Patience | None = None,
) -> None:
    """Bring the schema to `revision` (the newest); every row is kept.

    Raises MigrationError, before anything changed, where the database
    stands at a revision that we do not know; and where others held a table
    for longer than `patience` lasts.
    """
    with _alone(database) as connection:
        now = _standing(connection)
        if now.fault:
            raise MigrationError(now.fault)
        _run(
            connection,
            database,
            lambda config: alembic.command.upgrade(config, revision or "head"),
            patience,
        )


def stamp(database: engine.Database, revision: str | None = None) -> None:
    """Say that the database stands at `revision`, whatever it holds."""
    with _alone(database) as connection:
        _run(
            connection,
            database,
            lambda config: alembic.command.stamp(
                config, revision or "head", purge=True
            ),
        )


def create_schema(database: engine.Database) -> None:
    """Make the newest schema in an empty database."""
    with _alone(database) as connection:
        if sa.inspect(connection).has_table("alembic_version") or (
            _standing(connection).fault
        ):
            raise MigrationError(
                "The database has a schema already; use cyborg-dbsync upgrade."
            )
        _run(
            connection,
            database,
            lambda config: alembic.command.upgrade(config, "head"),
        )


def write_revision(
    database: engine.Database, message: str, autogenerate: bool
) -> None:
    """Write a new migration into the source tree (for developers)."""
    with _alone(database) as connection:
        _run(
            connection,
            database,
            lambda config: alembic.command.revision(
                config, message, autogenerate=autogenerate
            ),
        )

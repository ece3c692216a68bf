# SPDX-License-Identifier: Apache-2.0
"""Databases for tests: each its own, removed at the end.

MariaDB and PostgreSQL are those on this machine, at the addresses of
`CYBORG_TEST_MARIADB` and `CYBORG_TEST_POSTGRESQL` (URLs of their servers).
Where one is absent its tests are skipped, or fail with
`CYBORG_TEST_REQUIRE_SERVICES=1`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

import cyborg.conf
from cyborg.db import engine
from cyborg.db import migration
from cyborg.db import models

SERVERS = {
    "mariadb": os.environ.get(
        "CYBORG_TEST_MARIADB", "mysql+pymysql://root@127.0.0.1:3306/"
    ),
    "postgresql": os.environ.get(
        "CYBORG_TEST_POSTGRESQL",
        "postgresql+psycopg2://postgres@127.0.0.1:5432/postgres",
    ),
}
ALL = ("sqlite", *SERVERS)

_CREATE = {
    "mariadb": "CREATE DATABASE {name} {options}",
    "postgresql": "CREATE DATABASE {name} TEMPLATE template0 {options}",
}
_DROP = {
    "mariadb": "DROP DATABASE IF EXISTS {name}",
    "postgresql": "DROP DATABASE IF EXISTS {name} WITH (FORCE)",
}
_DEFAULT_OPTIONS = {
    "mariadb": "CHARACTER SET utf8mb4",
    "postgresql": "ENCODING 'utf8' LC_COLLATE 'C' LC_CTYPE 'C'",
}


def configuration(url: str | None) -> cfg.ConfigOpts:
    """A configuration with every option, and this database."""
    conf = cfg.ConfigOpts()
    cyborg.conf.register(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    if url is not None:
        conf.set_override("connection", url, "database")
    return conf


@functools.cache
def _fault(kind: str) -> str:
    """Why the server cannot be used, empty where it can."""
    try:
        with contextlib.closing(_Server(kind)) as server:
            server.run("SELECT 1")
    except (sa.exc.SQLAlchemyError, ImportError) as error:
        return f"no {kind} here: {type(error).__name__}"
    return ""


class _Server:
    def __init__(self, kind: str) -> None:
        self.engine = sa.create_engine(
            SERVERS[kind],
            isolation_level="AUTOCOMMIT",
            poolclass=sa.pool.NullPool,
        )

    def run(self, statement: str) -> None:
        with self.engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def close(self) -> None:
        self.engine.dispose()


def require(kind: str) -> None:
    """Skip the test where the server is absent, or fail it where asked."""
    if kind == "sqlite" or not _fault(kind):
        return
    if os.environ.get("CYBORG_TEST_REQUIRE_SERVICES") == "1":
        pytest.fail(_fault(kind))
    pytest.skip(_fault(kind))


@contextlib.contextmanager
def empty(
    kind: str, directory: Path, options: str | None = None, query: str = ""
) -> Iterator[str]:
    """The URL of a new, empty database of a name that nobody else has.

    `options` follows CREATE DATABASE, `query` the URL.
    """
    name = f"cyborg_test_{uuid.uuid4().hex[:20]}"
    if kind == "sqlite":
        yield f"sqlite:///{directory / name}.sqlite{query}"
        return
    require(kind)
    server = _Server(kind)
    chosen = _DEFAULT_OPTIONS[kind] if options is None else options
    server.run(_CREATE[kind].format(name=name, options=chosen))
    try:
        url = sa.make_url(SERVERS[kind]).set(database=name)
        yield url.render_as_string(hide_password=False) + query
    finally:
        server.run(_DROP[kind].format(name=name))
        server.close()


@contextlib.contextmanager
def opened(url: str, **options: Any) -> Iterator[engine.Database]:
    """The database of a URL, closed at the end."""
    conf = configuration(url)
    for name, value in options.items():
        conf.set_override(name, value, "database")
    database = engine.Database(conf)
    try:
        yield database
    finally:
        database.dispose()


@contextlib.contextmanager
def migrated(kind: str, directory: Path) -> Iterator[engine.Database]:
    """A new database with our newest schema."""
    with empty(kind, directory) as url, opened(url) as database:
        migration.upgrade(database)
        yield database


def load_dump(database: engine.Database, text: str) -> None:
    """Run a dump of MariaDB's client: each of its statements ends a line."""
    raw = database.engine.raw_connection()
    try:
        with contextlib.closing(raw.cursor()) as cursor:
            for statement in text.split(";\n"):
                if statement.strip():
                    cursor.execute(statement)
        raw.commit()
    finally:
        raw.invalidate()
        raw.close()


def clear(database: engine.Database) -> None:
    """Remove every row of ours, so that the next test starts from nothing."""
    tables = reversed(models.Base.metadata.sorted_tables)
    with database.connection() as connection:
        for table in tables:
            connection.execute(sa.delete(table))


@pytest.fixture(scope="session")
def shared_database(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engine.Database]:
    """One migrated database per kind and test process."""
    with migrated(kind, tmp_path_factory.mktemp("database")) as database:
        yield database


@pytest.fixture
def database(shared_database: engine.Database) -> Iterator[engine.Database]:
    """A migrated database without rows."""
    yield shared_database
    clear(shared_database)

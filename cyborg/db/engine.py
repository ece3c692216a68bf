# SPDX-License-Identifier: Apache-2.0
"""One database: its connections, its transactions, its failures.

oslo.db's enginefacade reads a process-wide configuration and has no place
for SQLite's two kinds of BEGIN, so that this uses what it is built from:
oslo.db's engines, error filters and retries, with the configuration passed
in.

Isolation.  Every connection runs READ COMMITTED, PostgreSQL's default;
MariaDB and MySQL are told so when they connect.  Under their own default,
REPEATABLE READ, a SELECT would show the snapshot of the transaction's first
read while an UPDATE acts on the newest rows: a conditional UPDATE could
succeed on a row whose old copy the next SELECT still shows.  It also avoids
most gap locks, hence most deadlocks.  What must not change between two
statements of a transaction is proven by a conditional UPDATE and its row
count, or read FOR UPDATE; a plain SELECT proves nothing.  SQLite has one
writer at a time: `writer()` takes its lock at BEGIN IMMEDIATE.

A transaction holds one connection and no code may open a second one within
it: deployments run with `max_pool_size = 1`.

oslo.db pings a pooled connection before each use (0.06 ms on MariaDB).
That stays on: a connection that a proxy or `wait_timeout` cut would else
cost a client its request.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import api as oslo_db_api
from oslo_db import exception as db_exception
from oslo_db import options
from oslo_db.sqlalchemy import engines
from oslo_db.sqlalchemy import exc_filters
from sqlalchemy import event
from sqlalchemy import orm

from cyborg import exception
from cyborg import notification

P = ParamSpec("P")
R = TypeVar("R")

_UNREADY = frozenset({1049, 1146, "3D000", "42P01"})
"""No such database or table."""

_OLDER = frozenset({1054, "42703"})
"""No such column."""

_UNFIT = frozenset({1267, 1271, 1300, 1366, 1406, 3854, 3988})
"""Text beyond the character set of an adopted table, or too long."""

RETRY_SECONDS = 10
"""After how long a transaction is not tried again."""

SQLITE_BUSY_SECONDS = 30
_WRITER = "cyborg_writer"

NOTICES = "cyborg.notices"
"""Key of a session's `info`: what is told once it is committed; not there
where nobody listens."""

_DRIVERS = {
    "mysql": ("MySQLdb", "pymysql"),
    "mariadb": ("MySQLdb", "pymysql"),
    "postgresql": ("psycopg2",),
}
"""Drivers for a URL that names none, the most wanted first."""


class Database:
    """The database that `[database]` names.

    Nothing is connected until the first transaction, so that a service
    starts while its database is still down.  Raises `cfg.Error` where the
    options cannot lead to a database.

    With `patience` a server that says nothing for so many seconds counts as
    down; without it one waits as long as the driver does, as a migration
    must.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, patience: int | None = None
    ) -> None:
        conf.register_opts(options.database_opts, "database")
        if not conf.database.connection:
            raise cfg.RequiredOptError("connection", cfg.OptGroup("database"))
        self.engine = _engine(conf, patience)
        self.mysql_engine: str = getattr(
            conf.database, "mysql_engine", "InnoDB"
        )
        self._writers = self.engine.execution_options(**{_WRITER: True})
        self.listener: Callable[[list[notification.Notice]], None] | None = (
            None
        )
        """Told what each transaction did, once it is committed."""

    @contextlib.contextmanager
    def reader(self) -> Iterator[orm.Session]:
        """One transaction that only reads."""
        with self.reading() as connection:
            # Begun here, so that the session leaves its end to us.
            connection.begin()
            with _session(connection) as session:
                yield session

    def reading(self) -> sa.Connection:
        """The same without a session, for plain rows: to be closed.

        A rollback ends it, which the pool would send in any case.
        """
        return self.engine.connect()

    @contextlib.contextmanager
    def writer(self) -> Iterator[orm.Session]:
        """One transaction: committed at the end, rolled back on an error."""
        listener = self.listener
        told: list[notification.Notice] = []
        with _session(self._writers) as session, session.begin():
            if listener is not None:
                session.info[NOTICES] = told
            yield session
        if listener is not None and told:
            listener(told)

    @contextlib.contextmanager
    def connection(self) -> Iterator[sa.Connection]:
        """One writing transaction without a session, for the schema."""
        with self._writers.begin() as connection:
            yield connection

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def _session(bind: sa.Engine | sa.Connection) -> orm.Session:
    return orm.Session(bind, expire_on_commit=False)


def _without_trace(record: logging.LogRecord) -> bool:
    """That retries were in vain is one line, not a traceback a request; so
    is that a connection was lost, which the pool says when it is returned."""
    record.exc_info = None
    return True


for _name in ("oslo_db.api", "sqlalchemy.pool.impl.QueuePool"):
    logging.getLogger(_name).addFilter(_without_trace)


def retried(function: Callable[P, R]) -> Callable[P, R]:
    """A whole transaction, tried again after a deadlock or a lost connection.

    The function must begin and end its transaction itself.  What cannot be
    cured by another try leaves as an error of ours (see `translated`).
    """
    again = oslo_db_api.wrap_db_retry(
        retry_interval=0.05,
        max_retries=5,
        inc_retry_interval=True,
        max_retry_interval=0.5,
        retry_on_disconnect=True,
        retry_on_deadlock=True,
        exception_checker=_not_connected,
    )(_until(function))

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with translated():
            end = time.monotonic() + RETRY_SECONDS
            result: R = again(end, *args, **kwargs)
            return result

    return wrapper


def _until(
    function: Callable[P, R],
) -> Callable[Concatenate[float, P], R]:
    """The function, which is not begun after a moment: each try may itself
    take long to find that nobody answers."""

    @functools.wraps(function)
    def attempt(end: float, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if time.monotonic() > end:
            raise exception.Unavailable("The database does not answer.")
        return function(*args, **kwargs)

    return attempt


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of the database as errors of ours, without its words.

    What a constraint refuses is left to the caller, who knows what it
    means.
    """
    try:
        yield
    except db_exception.DBDeadlock as error:
        raise exception.Unavailable(
            "The database is busy; try again."
        ) from error
    except (db_exception.DBConnectionError, sa.exc.TimeoutError) as error:
        raise exception.Unavailable("The database does not answer.") from error
    except (db_exception.DBError, sa.exc.DBAPIError) as error:
        known = _meaning(error)
        if known is None:
            raise
        raise known from error


def _meaning(
    error: db_exception.DBError | sa.exc.DBAPIError,
) -> exception.CyborgError | None:
    """What an error means that oslo.db has no class for."""
    code = server_code(error)
    if isinstance(error, db_exception.DBNonExistentTable) or code in _UNREADY:
        return exception.Unavailable(
            "The database is not set up: run cyborg-dbsync upgrade."
        )
    if code in _OLDER:
        return exception.Unavailable(
            "The database is of an older release: run cyborg-dbsync upgrade."
        )
    inner = getattr(error, "inner_exception", error)
    if isinstance(inner, sa.exc.DataError) or code in _UNFIT:
        return exception.Invalid(
            "A value is too long or has characters that the database "
            "cannot hold."
        )
    if isinstance(inner, sa.exc.OperationalError):
        return exception.Unavailable("The database does not answer.")
    return None


def server_code(error: BaseException) -> object:
    """The server's number (MariaDB) or SQLSTATE (PostgreSQL)."""
    inner = getattr(error, "inner_exception", None) or error
    origin = getattr(inner, "orig", None) or inner
    state = getattr(origin, "pgcode", None)
    return state or next(iter(origin.args), None)


def _not_connected(error: BaseException) -> bool:
    """psycopg2 could not connect: an error that no server numbered, which
    oslo.db does not know."""
    origin = getattr(error, "orig", None)
    return (
        isinstance(error, sa.exc.OperationalError)
        and getattr(origin, "pgcode", "") is None
    )


def _engine(conf: cfg.ConfigOpts, patience: int | None) -> sa.Engine:
    try:
        url = _with_driver(sa.make_url(conf.database.connection))
        if url.get_backend_name() == "sqlite":
            return _sqlite(url)
        if patience is not None:
            url = _impatient(url, patience)
        return _server(url, conf.database)
    except (
        sa.exc.ArgumentError,
        ImportError,
        ValueError,
    ) as error:
        raise cfg.ConfigFileValueError(
            "[database] connection names no database that can be used here: "
            f"{_reason(error)}."
        ) from error


def _reason(error: Exception) -> str:
    """What is wrong, without the URL and its password."""
    if isinstance(error, ImportError):
        return f"its driver is not installed ({error.name})"
    if isinstance(error, sa.exc.NoSuchModuleError):
        return "no such kind of database or plugin"
    if isinstance(error, sa.exc.ArgumentError):
        return "not a database URL"
    return str(error)


def _with_driver(url: sa.URL) -> sa.URL:
    """A URL without a driver gets one that is installed here.

    Library releases differ in which driver such a URL means.
    """
    for driver in _DRIVERS.get(url.drivername, ()):
        if importlib.util.find_spec(driver) is not None:
            name = "mysqldb" if driver == "MySQLdb" else driver
            return url.set(drivername=f"{url.drivername}+{name}")
    return url


def _impatient(url: sa.URL, seconds: int) -> sa.URL:
    """The URL with time limits, where it has none of its own."""
    limits = {"connect_timeout": seconds}
    if url.get_backend_name() == "postgresql":
        # libpq has none for an answer: this one is for lost hosts.
        limits["tcp_user_timeout"] = seconds * 1000
    else:
        limits |= {"read_timeout": seconds, "write_timeout": seconds}
    return url.update_query_dict(
        {
            name: str(value)
            for name, value in limits.items()
            if name not in url.query
        }
    )


def _server(url: sa.URL, section: Any) -> sa.Engine:
    engine: sa.Engine = engines.create_engine(
        url,
        mysql_sql_mode=section.mysql_sql_mode,
        mysql_wsrep_sync_wait=section.mysql_wsrep_sync_wait,
        connection_recycle_time=section.connection_recycle_time,
        connection_debug=section.connection_debug,
        connection_trace=section.connection_trace,
        max_pool_size=section.max_pool_size,
        max_overflow=section.max_overflow,
        pool_timeout=section.pool_timeout,
        connection_parameters=section.connection_parameters,
        thread_checkin=False,
        max_retries=0,
    )
    if engine.dialect.name in ("mysql", "mariadb"):
        event.listen(engine, "connect", _read_committed)
        if url.query.get("charset", "utf8") in ("utf8", "utf8mb3"):
            event.listen(engine, "connect", _all_of_unicode)
    return engine


def _read_committed(connection: Any, _record: object) -> None:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        )


def _all_of_unicode(connection: Any, _record: object) -> None:
    """MariaDB's `utf8` lacks characters above U+FFFF; to Python it is the
    same encoding.  A filter with one must find nothing, not fail."""
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute("SET NAMES utf8mb4")


def _sqlite(url: sa.URL) -> sa.Engine:
    """SQLite for one machine: threads and processes share its file.

    Connections are pooled, for the last one to close would fold the
    write-ahead log into the file each time.
    """
    if url.database in (None, "", ":memory:"):
        raise ValueError("SQLite needs a file")
    engine = sa.create_engine(
        url,
        connect_args={"timeout": SQLITE_BUSY_SECONDS},
        pool_size=32,
        poolclass=sa.pool.QueuePool,
    )
    event.listen(engine, "connect", _open_sqlite)
    event.listen(engine, "checkout", _refuse_inherited)
    event.listen(engine, "begin", _begin_sqlite)
    exc_filters.register_engine(engine)
    return engine


def _open_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    record.info["pid"] = os.getpid()


def _refuse_inherited(_connection: Any, record: Any, _proxy: Any) -> None:
    """A connection of the parent process is never used in its child."""
    if record.info["pid"] != os.getpid():
        raise sa.exc.DisconnectionError("opened by another process")


def _begin_sqlite(connection: sa.Connection) -> None:
    writer = connection.get_execution_options().get(_WRITER)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writer else "BEGIN")

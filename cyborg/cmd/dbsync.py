# SPDX-License-Identifier: Apache-2.0
"""`cyborg-dbsync`: makes and upgrades the database.

Needs `[database]` alone.  Only `online_data_migrations` may ask Nova, and
only where requests without a project belong to an instance.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exception

from cyborg import exception
from cyborg import service
from cyborg.clients import nova
from cyborg.clients import session
from cyborg.db import engine
from cyborg.db import migration
from cyborg.db import patience
from cyborg.db import projects

PROGRAM = "cyborg-dbsync"
DATA = "online_data_migrations"

DONE = 0
FAULT = 1
MORE_TO_DO = 1
DATA_FAULT = 2
"""What `online_data_migrations` ends with where it failed: its 1 means that
it should be run again."""

_FAULTS = (
    cfg.Error,
    exception.CyborgError,
    migration.MigrationError,
    db_exception.DBError,
    sa.exc.SQLAlchemyError,
    OSError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    fault_code = DATA_FAULT if DATA in arguments else FAULT
    try:
        with service.exits_on_mistake(PROGRAM):
            conf = _configure(arguments)
            return _run(conf)
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise
        print(error.code, file=sys.stderr)
    except _FAULTS as error:
        print(f"{PROGRAM}: {_told(error)}", file=sys.stderr)
    return fault_code


def _configure(arguments: Sequence[str]) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf.register_cli_opt(
        cfg.SubCommandOpt("command", title="Commands", handler=_add_commands)
    )
    conf(
        args=list(arguments),
        project=service.PROJECT,
        prog=PROGRAM,
        version=service.version(),
    )
    service.set_up(conf, PROGRAM)
    return conf


def _add_commands(subparsers: Any) -> None:
    upgrade = subparsers.add_parser(
        "upgrade", help="Bring the schema to the newest revision."
    )
    upgrade.add_argument("--revision", help="Stop at this revision.")
    upgrade.add_argument(
        "--wait",
        type=_positive,
        default=patience.SECONDS,
        metavar="SECONDS",
        help="How long each change waits, in short tries that hold nobody "
        f"up, for a table that somebody holds; {patience.SECONDS} if not "
        "given.",
    )
    subparsers.add_parser("version", help="Print where the schema stands.")
    stamp = subparsers.add_parser(
        "stamp", help="Say which revision the schema is, changing nothing."
    )
    stamp.add_argument("--revision", help="The revision; default the newest.")
    revision = subparsers.add_parser(
        "revision", help="Write a new migration (for developers)."
    )
    revision.add_argument("-m", "--message", required=True)
    revision.add_argument("--autogenerate", action="store_true")
    subparsers.add_parser(
        "create_schema", help="Make the newest schema in an empty database."
    )
    data = subparsers.add_parser(
        DATA, help="Fill in what older releases did not store."
    )
    data.add_argument(
        "--max-count",
        type=_positive,
        help="Change at most this many rows; exit code 1: more to do.",
    )


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError("not a number of 1 or more")
    return int(text)


def _run(conf: cfg.ConfigOpts) -> int:
    database = engine.Database(conf)
    try:
        code = _COMMANDS[conf.command.name](conf, database)
    finally:
        database.dispose()
    return DONE if code is None else code


def _upgrade(conf: cfg.ConfigOpts, database: engine.Database) -> None:
    migration.upgrade(
        database,
        conf.command.revision,
        patience.Patience(conf.command.wait),
    )
    print(f"The schema stands at {migration.standing(database).revision}.")


def _version(_conf: cfg.ConfigOpts, database: engine.Database) -> None:
    print(migration.standing(database).revision or "none")


def _stamp(conf: cfg.ConfigOpts, database: engine.Database) -> None:
    migration.stamp(database, conf.command.revision)


def _revision(conf: cfg.ConfigOpts, database: engine.Database) -> None:
    migration.write_revision(
        database, conf.command.message, conf.command.autogenerate
    )


def _create_schema(_conf: cfg.ConfigOpts, database: engine.Database) -> None:
    migration.create_schema(database)


def _migrate_data(conf: cfg.ConfigOpts, database: engine.Database) -> int:
    filled, more = projects.fill_projects(
        database, _project_lookup(conf), conf.command.max_count
    )
    print(f"{filled} accelerator requests got their project.")
    return MORE_TO_DO if more else DONE


def _project_lookup(conf: cfg.ConfigOpts) -> Callable[[str], str | None]:
    """Asks Nova; logs in to it only when first asked."""

    @functools.cache
    def client() -> nova.Nova:
        return nova.Nova(session.adapter(conf, "nova"))

    def project_of(instance_uuid: str) -> str | None:
        return client().project_of(instance_uuid)

    return project_of


_COMMANDS: dict[
    str, Callable[[cfg.ConfigOpts, engine.Database], int | None]
] = {
    "upgrade": _upgrade,
    "version": _version,
    "stamp": _stamp,
    "revision": _revision,
    "create_schema": _create_schema,
    DATA: _migrate_data,
}


def _told(error: BaseException) -> str:
    """One line for people: no SQL, no traceback."""
    if isinstance(error, db_exception.DBError):
        inner = error.inner_exception
        error = getattr(inner, "orig", None) or inner or error
    line = " ".join(str(error).split())
    return line[:500] or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())

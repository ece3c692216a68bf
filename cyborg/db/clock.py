# SPDX-License-Identifier: Apache-2.0
"""What time it is, for all conductors alike.

By their own clocks, one that is a minute ahead would end every job of the
others at once.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions

from cyborg.db import models

_MYSQL = sa.func.utc_timestamp(type_=sa.DateTime)
_CLOCKS = {
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "postgresql": sa.func.timezone(
        "utc", sa.func.clock_timestamp(), type_=sa.DateTime
    ),
}


def now(session: orm.Session) -> dt.datetime:
    """What time it is by the database's clock (1 statement).

    SQLite has none of its own, and nobody on another machine.
    """
    dialect = session.get_bind().dialect.name
    if dialect == "sqlite":
        return models.now()
    found = session.execute(sa.select(_CLOCKS[dialect])).scalar_one()
    moment: dt.datetime = found.replace(microsecond=0)
    return moment


class Moment(functions.FunctionElement[dt.datetime]):
    """A time by the database's clock, as a part of a statement: so many
    seconds from when that runs."""

    type = sa.DateTime()
    inherit_cache = True


def after(seconds: float) -> Moment:
    """That many seconds from now."""
    return Moment(sa.literal(float(seconds), sa.Float))


@compiler.compiles(Moment, "mysql")
@compiler.compiles(Moment, "mariadb")
def _mysql(element: Moment, compiled: Any, **options: Any) -> str:
    seconds = compiled.process(element.clauses, **options)
    return (
        "CAST(TIMESTAMPADD(MICROSECOND, 1000000 * "
        f"({seconds}), UTC_TIMESTAMP()) AS DATETIME)"
    )


@compiler.compiles(Moment, "postgresql")
def _postgresql(element: Moment, compiled: Any, **options: Any) -> str:
    """By the statement's beginning: what moved on within it would keep the
    planner from an index."""
    seconds = compiled.process(element.clauses, **options)
    return (
        "date_trunc('second', timezone('utc', statement_timestamp())"
        f" + ({seconds}) * interval '1 second')"
    )


@compiler.compiles(Moment, "sqlite")
def _sqlite(element: Moment, compiled: Any, **options: Any) -> str:
    """In the form in which SQLAlchemy stores times there."""
    seconds = compiled.process(element.clauses, **options)
    return (
        "strftime('%Y-%m-%d %H:%M:%S.000000', 'now',"
        f" ({seconds}) || ' seconds')"
    )

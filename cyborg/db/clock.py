# SPDX-License-Identifier: Apache-2.0
"""What time it is, for all conductors alike.

By their own clocks, one that is a minute ahead would end every job of the
others at once.
"""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from sqlalchemy import orm

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

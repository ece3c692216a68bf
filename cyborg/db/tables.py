# SPDX-License-Identifier: Apache-2.0
"""What every table has."""

from __future__ import annotations

import datetime
import uuid as uuid_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm


def now() -> datetime.datetime:
    """Naive UTC without a fraction, as every time in the database is."""
    return datetime.datetime.now(datetime.timezone.utc).replace(
        tzinfo=None, microsecond=0
    )


def new_uuid() -> str:
    return str(uuid_module.uuid4())


_OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}


class Base(orm.DeclarativeBase):
    """What every table has."""

    __table_args__: Any = _OPTIONS

    created_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime, default=now
    )
    updated_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime, onupdate=now
    )
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)


def uuid_column(**kwargs: Any) -> orm.MappedColumn[str]:
    """The column by which a row is known outside."""
    return orm.mapped_column(
        sa.String(36), default=new_uuid, nullable=False, **kwargs
    )


def table(*args: Any) -> tuple[Any, ...]:
    """The `__table_args__` of a table with these indexes."""
    return (*args, _OPTIONS)

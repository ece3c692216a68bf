# SPDX-License-Identifier: Apache-2.0
"""Steps of a migration that look before they add.

Each is committed by itself: a migration that was killed, or gave up because
somebody held a table, is run again from its start and finds half of its
work done.  None may copy a table or stop its users for longer than a
moment: new columns are nullable or have a constant default, enums get their
new values at the end, and indexes are built while others write.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from cyborg.db import patience


def _dialect() -> str:
    name = str(op.get_bind().dialect.name)
    return "mysql" if name == "mariadb" else name


def _inspector() -> sa.Inspector:
    return sa.inspect(op.get_bind())


def _patiently(table: str, step: Callable[[], object]) -> None:
    chosen: patience.Patience = op.get_context().opts["patience"]
    chosen.change(op.get_bind(), table, step)


def _table_options() -> dict[str, Any]:
    """A new table is utf8mb4; where older tables are so too, it has their
    collation, for MariaDB refuses to compare columns of two."""
    options = {
        "mysql_engine": op.get_context().opts["mysql_engine"],
        "mysql_charset": "utf8mb4",
    }
    if _dialect() == "mysql":
        collation = op.get_bind().scalar(
            sa.text(
                "SELECT table_collation FROM information_schema.tables WHERE "
                "table_schema = DATABASE() AND table_name = 'devices'"
            )
        )
        if collation and str(collation).startswith("utf8mb4_"):
            options["mysql_collate"] = str(collation)
    return options


def basic_columns() -> list[sa.Column[Any]]:
    """What every table has."""
    return [
        sa.Column("created_at", sa.DateTime),
        sa.Column("updated_at", sa.DateTime),
        sa.Column("id", sa.Integer, primary_key=True, nullable=False),
    ]


def unique_uuid() -> sa.Column[Any]:
    """The uuid of a row."""
    return sa.Column("uuid", sa.String(36), nullable=False, unique=True)


def foreign_key(
    name: str, target: str, *, nullable: bool = False, ondelete: str
) -> sa.Column[Any]:
    """An integer column that refers to `target`."""
    return sa.Column(
        name,
        sa.Integer,
        sa.ForeignKey(target, ondelete=ondelete),
        nullable=nullable,
    )


def enum(name: str, *values: str) -> sa.Enum:
    """An enum type; on PostgreSQL it is made here, once."""
    if _dialect() != "postgresql":
        return sa.Enum(*values, name=name)
    kind = postgresql.ENUM(*values, name=name, create_type=False)
    kind.create(op.get_bind(), checkfirst=True)
    return kind


def add_table(name: str, *parts: Any) -> None:
    """Create a table where it is missing; its indexes follow one by one."""

    def step() -> None:
        if not _inspector().has_table(name):
            op.create_table(name, *parts, **_table_options())

    _patiently(name, step)


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column where it is missing."""

    def step() -> None:
        present = {found["name"] for found in _inspector().get_columns(table)}
        if column.name not in present:
            op.add_column(table, column)

    _patiently(table, step)


def add_index(name: str, table: str, *columns: str) -> None:
    """Add an index where none of that name exists."""

    def step() -> None:
        present = {found["name"] for found in _inspector().get_indexes(table)}
        if name not in present:
            op.create_index(name, table, list(columns))

    if _dialect() == "postgresql":
        _patiently(table, lambda: _build_index(name, table, columns))
    else:
        _patiently(table, step)


def _build_index(name: str, table: str, columns: Sequence[str]) -> None:
    """Add PostgreSQL an index while others write.

    It waits for transactions, but nobody waits for it.  A build that was
    broken off leaves an index of that name which is not valid.
    """
    bind = op.get_bind()
    valid = bind.scalar(
        sa.text(
            "SELECT indisvalid FROM pg_index "
            "WHERE indexrelid = to_regclass(:name)"
        ),
        {"name": f'"{name}"'},
    )
    if valid:
        return
    if valid is False:
        op.drop_index(name, table, postgresql_concurrently=True)
    patience.hold_up(bind, patience.INDEX_SECONDS)
    op.create_index(name, table, list(columns), postgresql_concurrently=True)


def widen_enum(
    table: str, column: str, name: str, values: Sequence[str], **options: Any
) -> None:
    """Let an enum column hold all these values, and keep what it has.

    The three engines agree afterwards: MariaDB's column, PostgreSQL's type
    (which gets the name that the models use), and SQLite, which holds text.
    """
    if _dialect() == "postgresql":
        _patiently(table, lambda: _widen_type(table, column, name, values))
    elif _dialect() == "mysql":
        _patiently(
            table, lambda: _widen_column(table, column, values, **options)
        )


def _widen_type(
    table: str, column: str, name: str, values: Sequence[str]
) -> None:
    current = op.get_bind().scalar(
        sa.text(
            "SELECT udt_name FROM information_schema.columns WHERE "
            "table_schema = current_schema() AND table_name = :table "
            "AND column_name = :column"
        ),
        {"table": table, "column": column},
    )
    if current != name:
        op.execute(f'ALTER TYPE "{current}" RENAME TO "{name}"')
    for value in values:
        op.execute(f"ALTER TYPE \"{name}\" ADD VALUE IF NOT EXISTS '{value}'")


def _widen_column(
    table: str, column: str, values: Sequence[str], **options: Any
) -> None:
    (present,) = (
        getattr(found["type"], "enums", [])
        for found in _inspector().get_columns(table)
        if found["name"] == column
    )
    missing = [value for value in values if value not in present]
    if missing:
        op.alter_column(
            table,
            column,
            existing_type=sa.Enum(*present),
            type_=sa.Enum(*present, *missing),
            **options,
        )

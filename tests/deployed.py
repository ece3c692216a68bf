# SPDX-License-Identifier: Apache-2.0
"""A database as the deployed service left it, on MariaDB or PostgreSQL.

MariaDB's is the dump itself.  PostgreSQL's has the same tables, by the same
dump and the facts of the contract: native enum types, constraints and
indexes of the names that PostgreSQL gives them, sequences.  Our own
migrations have no part in it.
"""

from __future__ import annotations

import re

import sqlalchemy as sa

from cyborg.db import engine
from tests import databases
from tests import rows

ENUM_TYPES = {
    ("devices", "type"): "device_type",
    ("devices", "status"): "device_status",
    ("devices", "device_state"): "device_state",
    ("controlpath_ids", "cpid_type"): "cpid_type",
    ("attach_handles", "attach_type"): "attach_type",
    ("extended_accelerator_requests", "state"): "state",
    ("extended_accelerator_requests", "substate"): "substate",
}

UNUSED = ("quota_usages", "reservations")
"""What a foreign key of these does is not said."""

_TABLE = re.compile(r"CREATE TABLE `(\w+)` \((.*?)\n\) ENGINE", re.DOTALL)
_COLUMN = re.compile(r"`(\w+)` (\w+)(?:\(([^)]*)\))?(.*)")
_KEY = re.compile(r"KEY `(\w+)` \(`(\w+)`\)")
_UNIQUE = re.compile(r"UNIQUE KEY `(\w+)` \(`(\w+)`\)")
_REFERENCE = re.compile(
    r"CONSTRAINT `\w+` FOREIGN KEY \(`(\w+)`\) REFERENCES `(\w+)` "
    r"\(`(\w+)`\)(.*)"
)
_TYPES = {
    "int": "integer",
    "tinyint": "boolean",
    "datetime": "timestamp without time zone",
    "text": "text",
}


def load(database: engine.Database, revision: str) -> None:
    """Fill an empty database with what stood at `revision`."""
    text = rows.dump(revision)
    if database.engine.dialect.name == "mysql":
        databases.load_dump(database, text)
        return
    with database.connection() as connection:
        for statement in _statements(text):
            connection.exec_driver_sql(statement)
        connection.execute(
            sa.text("INSERT INTO alembic_version VALUES (:revision)"),
            {"revision": revision},
        )
    rows.fill(database, rows.rows_of(text))


def _statements(text: str) -> list[str]:
    """The schema of a dump in PostgreSQL's words."""
    types: list[str] = []
    tables: list[str] = []
    later: list[str] = []
    for table, body in _TABLE.findall(text):
        columns = []
        for line in body.strip().splitlines():
            entry = line.strip().rstrip(",")
            if column := _COLUMN.match(entry):
                columns.append(_column(table, column, types))
            elif not _is_of_mariadb_alone(entry):
                later.append(_constraint(table, entry))
        tables.append(f"CREATE TABLE {table} ({', '.join(columns)})")
    references = [one for one in later if "FOREIGN KEY" in one]
    keys = [one for one in later if one not in references]
    return [*types, *tables, *keys, *references]


def _column(table: str, column: re.Match[str], types: list[str]) -> str:
    name, kind, argument, rest = column.groups()
    null = " NOT NULL" if "NOT NULL" in rest else ""
    if "AUTO_INCREMENT" in rest:
        return f'"{name}" serial NOT NULL'
    if kind == "varchar":
        return f'"{name}" varchar({argument}){null}'
    if kind == "enum":
        enum = ENUM_TYPES[table, name]
        types.append(f"CREATE TYPE {enum} AS ENUM ({argument})")
        return f'"{name}" {enum}{null}'
    return f'"{name}" {_TYPES[kind]}{null}'


def _is_of_mariadb_alone(entry: str) -> bool:
    """The index that it makes for a foreign key, named after the column."""
    key = _KEY.match(entry)
    return key is not None and key[1] == key[2]


def _constraint(table: str, entry: str) -> str:
    alter = f"ALTER TABLE {table} ADD"
    if entry.startswith("PRIMARY KEY"):
        column = entry.split("`")[1]
        return f"{alter} PRIMARY KEY ({column})"
    if unique := _UNIQUE.match(entry):
        name, column = unique.groups()
        # MariaDB names what has no name after its column.
        chosen = f"{table}_{column}_key" if name == column else name
        return f'{alter} CONSTRAINT "{chosen}" UNIQUE ({column})'
    if key := _KEY.match(entry):
        name, column = key.groups()
        return f'CREATE INDEX "{name}" ON {table} ({column})'
    reference = _REFERENCE.match(entry)
    assert reference, entry
    column, target, other, rest = reference.groups()
    if not rest and table not in UNUSED:
        rest = " ON DELETE RESTRICT"  # MariaDB's default, not shown there
    return (
        f"{alter} FOREIGN KEY ({column}) REFERENCES {target} ({other}){rest}"
    )

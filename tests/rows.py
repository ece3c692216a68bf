# SPDX-License-Identifier: Apache-2.0
"""Rows for database tests, and the rows of the dumps that we adopt."""

from __future__ import annotations

import ast
import datetime
import re
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from cyborg.db import engine
from cyborg.db import models

CASES = Path(__file__).parent / "cases" / "adopt"


def dump(revision: str) -> str:
    """The text of a deployed database's dump."""
    return (CASES / f"mariadb-{revision}.sql").read_text(encoding="utf-8")


def rows_of(text: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a dump by table, each a value by column."""
    columns = {
        name: re.findall(r"^  `(\w+)`", body, re.MULTILINE)
        for name, body in re.findall(
            r"CREATE TABLE `(\w+)` \((.*?)\n\) ENGINE", text, re.DOTALL
        )
    }
    return {
        name: [
            dict(
                zip(
                    columns[name],
                    ast.literal_eval(
                        re.sub(r"(?<=[,(])NULL(?=[,)])", "None", line)
                    ),
                    strict=True,
                )
            )
            for line in body.split(",\n")
        ]
        for name, body in re.findall(
            r"INSERT INTO `(\w+)` VALUES\n(.*?);\n", text, re.DOTALL
        )
        if name != "alembic_version"
    }


def fill(
    database: engine.Database, rows: dict[str, list[dict[str, Any]]]
) -> None:
    """Insert the rows as an older service would have."""
    metadata = sa.MetaData()
    metadata.reflect(database.engine)
    with database.connection() as connection:
        for table in metadata.sorted_tables:
            for row in rows.get(table.name, []):
                connection.execute(table.insert(), typed(table, row))
            if connection.dialect.name == "postgresql" and (
                table.name in rows
            ):
                connection.execute(
                    sa.text(
                        f"SELECT setval(pg_get_serial_sequence("
                        f"'{table.name}', 'id'), "
                        f"(SELECT max(id) FROM {table.name}))"
                    )
                )


def typed(table: sa.Table, row: dict[str, Any]) -> dict[str, Any]:
    """A row of a dump as the table's types want it."""
    return {
        name: _value(table.c[name].type, value) for name, value in row.items()
    }


def _value(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, sa.DateTime):
        return datetime.datetime.fromisoformat(value)
    if isinstance(kind, sa.Boolean):
        return bool(value)
    return value


def stored(
    database: engine.Database, rows: dict[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """What the database holds now in the columns of `rows`."""
    metadata = sa.MetaData()
    metadata.reflect(database.engine)
    found = {}
    with database.engine.connect() as connection:
        for name, wanted in rows.items():
            table = metadata.tables[name]
            columns = [table.c[column] for column in wanted[0]]
            found[name] = [
                {key: _plain(value) for key, value in row.items()}
                for row in connection.execute(
                    sa.select(*columns).order_by(table.c.id)
                ).mappings()
            ]
    return found


def _plain(value: Any) -> Any:
    """As the dump writes it."""
    if isinstance(value, bool):
        return int(value)
    return str(value) if hasattr(value, "isoformat") else value


def add(database: engine.Database, *rows: models.Base) -> None:
    """Store rows, one after the other."""
    with database.writer() as session:
        for row in rows:
            session.add(row)
            session.flush()


def profile(**values: Any) -> models.DeviceProfile:
    """A device profile."""
    values.setdefault("name", "gpu")
    values.setdefault("profile_json", '{"groups": [{"resources:PGPU": "1"}]}')
    return models.DeviceProfile(uuid=models.new_uuid(), **values)


def device(**values: Any) -> models.Device:
    """A device of host compute-1."""
    defaults = {
        "type": "GPU",
        "vendor": "10de",
        "model": "card",
        "hostname": "compute-1",
    }
    return models.Device(uuid=models.new_uuid(), **(defaults | values))


def deployable(owner: models.Device, **values: Any) -> models.Deployable:
    """A deployable of a stored device."""
    defaults = {
        "name": f"compute-1_{models.new_uuid()}",
        "num_accelerators": 1,
        "device_id": owner.id,
    }
    return models.Deployable(uuid=models.new_uuid(), **(defaults | values))


def request(
    owner: models.DeviceProfile, **values: Any
) -> models.AcceleratorRequest:
    """An accelerator request for a stored profile."""
    defaults = {"device_profile_id": owner.id, "state": "Initial"}
    return models.AcceleratorRequest(
        uuid=models.new_uuid(), **(defaults | values)
    )

# SPDX-License-Identifier: Apache-2.0
"""One UPDATE for many rows that get different values.

An `executemany` UPDATE is N statements on the wire; a CASE over the primary
key is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import models


def by_id(
    session: orm.Session,
    column: orm.InstrumentedAttribute[Any],
    values: Mapping[int, object],
    rows: int | None = None,
) -> Any:
    """What to set `column` to, where row `id` gets `values[id]`.

    The plain value where all rows get the same; `rows` says how many the
    UPDATE has where `values` does not name them all.
    """
    found = list(values.values())
    everything = rows is None or rows == len(values)
    if everything and all(value == found[0] for value in found):
        return found[0]
    key = column.class_.id
    case = sa.case(
        *(
            (key == row_id, sa.literal(value, column.type))
            for row_id, value in values.items()
        ),
        else_=column,
    )
    if session.get_bind().dialect.name == "postgresql":
        # Its literals in a CASE are text, which is no enum.
        return sa.cast(case, column.type)
    return case


def update(
    session: orm.Session,
    model: type[models.Base],
    changes: Mapping[int, Mapping[str, object]],
) -> None:
    """Sets these columns of these rows; others keep what they have."""
    if not changes:
        return
    columns = {name: None for row in changes.values() for name in row}
    session.execute(
        sa.update(model)
        .where(model.id.in_(sorted(changes)))
        .values(
            {
                name: by_id(
                    session,
                    getattr(model, name),
                    {
                        row_id: row[name]
                        for row_id, row in changes.items()
                        if name in row
                    },
                    len(changes),
                )
                for name in columns
            }
        )
        .execution_options(synchronize_session=False)
    )


def matched(result: sa.Result[Any]) -> int:
    """How many rows an UPDATE or DELETE found."""
    return int(getattr(result, "rowcount", -1))

# SPDX-License-Identifier: Apache-2.0
"""What cleaning between tenants and microversion 2.4 need to know.

Columns alone, all of them nullable: a conductor of the release before works
on beside ours, and on large tables no database rewrites a row.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cyborg.db.alembic import steps

revision = "c3d1e86f40ab"
down_revision = "5fa3eea206c2"

COLUMNS: tuple[tuple[str, str, Any], ...] = (
    ("devices", "address", sa.String(32)),
    ("devices", "numa_node", sa.Integer),
    ("devices", "clean_seconds", sa.Integer),
    ("devices", "clean_error", sa.Text),
    ("devices", "disabled_reason", sa.Text),
    ("devices", "driver_fault", sa.Text),
    ("deployables", "fault", sa.Text),
    ("attach_handles", "job_id", sa.Integer),
)

INDEXES = (("attach_handles_job_id_idx", "attach_handles", "job_id"),)


def upgrade() -> None:
    for table, column, kind in COLUMNS:
        steps.add_column(table, sa.Column(column, kind))
    for name, table, column in INDEXES:
        steps.add_index(name, table, column)

# SPDX-License-Identifier: Apache-2.0
"""What this service adds: hosts, jobs, and columns that older code ignores.

Every column is nullable or has a default of the server, so that a service
of release 2026.2 works on while it is being replaced.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cyborg.db.alembic import steps

revision = "5fa3eea206c2"
down_revision = "b47c8f2d1e3a"

REQUESTS = "extended_accelerator_requests"

ENUMS = (
    (
        "devices",
        "type",
        "device_type",
        "GPU FPGA AICHIP QAT NIC SSD MDEV PCI NVME",
    ),
    ("devices", "status", "device_status", "enabled maintaining"),
    ("controlpath_ids", "cpid_type", "cpid_type", "PCI"),
    ("attach_handles", "attach_type", "attach_type", "PCI MDEV TEST_PCI"),
    (
        REQUESTS,
        "state",
        "state",
        "Initial BindStarted Bound Unbound BindFailed Deleting",
    ),
    (REQUESTS, "substate", "substate", "Initial"),
)

COLUMNS: tuple[tuple[str, str, Any], ...] = (
    ("devices", "driver", sa.String(100)),
    ("devices", "fault", sa.Text),
    ("devices", "lost_at", sa.DateTime),
    ("deployables", "retired_traits", sa.Text),
    ("deployables", "job_id", sa.Integer),
    ("attach_handles", "lost_at", sa.DateTime),
    (REQUESTS, "profile_group", sa.Text),
    (REQUESTS, "image_uuid", sa.String(36)),
    (REQUESTS, "job_id", sa.Integer),
    (REQUESTS, "last_error", sa.Text),
    (REQUESTS, "event_due_at", sa.DateTime),
)

INDEXES = (
    ("devices_hostname_idx", "devices", "hostname"),
    ("deployables_rp_uuid_idx", "deployables", "rp_uuid"),
    ("extArqs_event_due_at_idx", REQUESTS, "event_due_at"),
    ("extArqs_job_id_idx", REQUESTS, "job_id"),
    ("hosts_provider_name_idx", "hosts", "provider_name"),
    ("ix_hosts_sync_due_at", "hosts", "sync_due_at"),
    ("jobs_state_idx", "jobs", "state"),
    ("jobs_deployable_id_idx", "jobs", "deployable_id"),
)


def upgrade() -> None:
    for table, column, name, values in ENUMS:
        steps.widen_enum(
            table, column, name, values.split(), existing_nullable=False
        )
    for table, column, kind in COLUMNS:
        steps.add_column(table, sa.Column(column, kind))
    steps.add_column(
        "attributes",
        sa.Column(
            "source",
            sa.String(16),
            nullable=False,
            server_default="driver",
        ),
    )
    steps.add_column(
        REQUESTS,
        sa.Column(
            "event_attempts",
            sa.Integer,
            nullable=False,
            server_default="0",
        ),
    )
    _hosts()
    _jobs()
    for name, table, column in INDEXES:
        steps.add_index(name, table, column)


def _hosts() -> None:
    steps.add_table(
        "hosts",
        *steps.basic_columns(),
        steps.unique_uuid(),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("provider_name", sa.String(255), nullable=False),
        sa.Column("provider_uuid", sa.String(36)),
        sa.Column("digest", sa.String(64)),
        sa.Column("faults", sa.Text),
        sa.Column("last_seen_at", sa.DateTime),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("synced_revision", sa.Integer, nullable=False),
        sa.Column("sync_due_at", sa.DateTime),
        sa.UniqueConstraint("name", name="uniq_hosts0name"),
    )


def _jobs() -> None:
    steps.add_table(
        "jobs",
        *steps.basic_columns(),
        steps.unique_uuid(),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("deployable_id", sa.Integer),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("owner", sa.String(255)),
        sa.Column("lease_until", sa.DateTime),
        sa.Column("deadline", sa.DateTime, nullable=False),
        sa.Column("percent", sa.Integer, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("started_at", sa.DateTime),
        sa.Column("finished_at", sa.DateTime),
    )

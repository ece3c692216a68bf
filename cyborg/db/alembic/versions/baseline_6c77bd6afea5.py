# SPDX-License-Identifier: Apache-2.0
"""The schema of releases 2023.1 to 2026.1.

Databases in the field stand here; this makes the same from nothing.
"""

from __future__ import annotations

import sqlalchemy as sa

from cyborg.db.alembic import steps

revision = "6c77bd6afea5"
down_revision = None


def upgrade() -> None:
    _hardware()
    _attributes()
    _attach_handles()
    _device_profiles()
    _requests()
    _quotas()


def _hardware() -> None:
    steps.add_table(
        "devices",
        *steps.basic_columns(),
        steps.unique_uuid(),
        sa.Column(
            "type",
            steps.enum(
                "device_type", "GPU", "FPGA", "AICHIP", "QAT", "NIC", "SSD"
            ),
            nullable=False,
        ),
        sa.Column("vendor", sa.String(255), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("std_board_info", sa.Text),
        sa.Column("vendor_board_info", sa.Text),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column(
            "status",
            steps.enum("device_status", "enabled", "maintaining"),
            nullable=False,
        ),
    )
    steps.add_table(
        "deployables",
        *steps.basic_columns(),
        steps.unique_uuid(),
        steps.foreign_key(
            "parent_id", "deployables.id", nullable=True, ondelete="CASCADE"
        ),
        steps.foreign_key(
            "root_id", "deployables.id", nullable=True, ondelete="CASCADE"
        ),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("num_accelerators", sa.Integer, nullable=False),
        steps.foreign_key("device_id", "devices.id", ondelete="RESTRICT"),
        sa.Column("rp_uuid", sa.String(36)),
        sa.Column("driver_name", sa.String(100)),
        sa.Column("bitstream_id", sa.String(36)),
    )
    for column in ("parent_id", "root_id", "device_id"):
        steps.add_index(f"deployables_{column}_idx", "deployables", column)


def _attributes() -> None:
    steps.add_table(
        "attributes",
        *steps.basic_columns(),
        steps.unique_uuid(),
        steps.foreign_key(
            "deployable_id", "deployables.id", ondelete="RESTRICT"
        ),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )
    steps.add_index(
        "ix_attributes_deployable_id", "attributes", "deployable_id"
    )


def _attach_handles() -> None:
    steps.add_table(
        "controlpath_ids",
        *steps.basic_columns(),
        steps.unique_uuid(),
        steps.foreign_key("device_id", "devices.id", ondelete="RESTRICT"),
        sa.Column("cpid_type", steps.enum("cpid_type", "PCI"), nullable=False),
        sa.Column("cpid_info", sa.String(255), nullable=False),
    )
    steps.add_index(
        "ix_controlpath_ids_device_id", "controlpath_ids", "device_id"
    )
    steps.add_table(
        "attach_handles",
        *steps.basic_columns(),
        steps.unique_uuid(),
        steps.foreign_key(
            "deployable_id", "deployables.id", ondelete="RESTRICT"
        ),
        steps.foreign_key(
            "cpid_id", "controlpath_ids.id", ondelete="RESTRICT"
        ),
        sa.Column("in_use", sa.Boolean),
        sa.Column(
            "attach_type",
            steps.enum("attach_type", "PCI", "MDEV", "TEST_PCI"),
            nullable=False,
        ),
        sa.Column("attach_info", sa.String(255), nullable=False),
    )
    for column in ("deployable_id", "cpid_id"):
        steps.add_index(
            f"attach_handles_{column}_idx", "attach_handles", column
        )


def _device_profiles() -> None:
    steps.add_table(
        "device_profiles",
        *steps.basic_columns(),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("profile_json", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.UniqueConstraint("uuid", name="uniq_device_profiles0uuid"),
        sa.UniqueConstraint("name", name="uniq_device_profiles0name"),
    )


def _requests() -> None:
    table = "extended_accelerator_requests"
    steps.add_table(
        table,
        *steps.basic_columns(),
        steps.unique_uuid(),
        sa.Column("project_id", sa.String(255)),
        sa.Column(
            "state",
            steps.enum(
                "state",
                "Initial",
                "BindStarted",
                "Bound",
                "Unbound",
                "BindFailed",
                "Deleting",
            ),
            nullable=False,
        ),
        steps.foreign_key(
            "device_profile_id", "device_profiles.id", ondelete="RESTRICT"
        ),
        sa.Column("hostname", sa.String(255)),
        sa.Column("device_rp_uuid", sa.String(36)),
        steps.foreign_key(
            "attach_handle_id",
            "attach_handles.id",
            nullable=True,
            ondelete="RESTRICT",
        ),
        sa.Column(
            "substate", steps.enum("substate", "Initial"), nullable=False
        ),
        steps.foreign_key(
            "deployable_id",
            "deployables.id",
            nullable=True,
            ondelete="RESTRICT",
        ),
        sa.Column("device_profile_group_id", sa.Integer, nullable=False),
        sa.Column("instance_uuid", sa.String(36)),
    )
    _index_requests(table)


def _index_requests(table: str) -> None:
    for column in (
        "project_id",
        "device_profile_id",
        "device_rp_uuid",
        "instance_uuid",
        "attach_handle_id",
        "deployable_id",
    ):
        steps.add_index(f"extArqs_{column}_idx", table, column)


def _quotas() -> None:
    steps.add_table(
        "quota_usages",
        *steps.basic_columns(),
        sa.Column("project_id", sa.String(255)),
        sa.Column("user_id", sa.String(255)),
        sa.Column("resource", sa.String(255), nullable=False),
        sa.Column("in_use", sa.Integer, nullable=False),
        sa.Column("reserved", sa.Integer, nullable=False),
        sa.Column("until_refresh", sa.Integer),
    )
    steps.add_table(
        "reservations",
        *steps.basic_columns(),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column(
            "usage_id",
            sa.Integer,
            sa.ForeignKey("quota_usages.id"),
            nullable=False,
        ),
        sa.Column("project_id", sa.String(255)),
        sa.Column("user_id", sa.String(255)),
        sa.Column("resource", sa.String(255)),
        sa.Column("delta", sa.Integer, nullable=False),
        sa.Column("expire", sa.DateTime),
    )
    for table in ("quota_usages", "reservations"):
        for column in ("project_id", "user_id"):
            steps.add_index(f"ix_{table}_{column}", table, column)
    steps.add_index("reservations_uuid_idx", "reservations", "uuid")

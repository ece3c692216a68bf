# SPDX-License-Identifier: Apache-2.0
"""The schema of release 2026.2: three device types and the device's state."""

from __future__ import annotations

import sqlalchemy as sa

from cyborg.db.alembic import steps

revision = "b47c8f2d1e3a"
down_revision = "6c77bd6afea5"


def upgrade() -> None:
    steps.widen_enum(
        "devices",
        "type",
        "device_type",
        (
            "GPU",
            "FPGA",
            "AICHIP",
            "QAT",
            "NIC",
            "SSD",
            "MDEV",
            "PCI",
            "NVME",
        ),
        existing_nullable=False,
    )
    steps.add_column(
        "devices",
        sa.Column(
            "device_state",
            steps.enum(
                "device_state",
                "available",
                "allocated",
                "pending_cleaning",
                "cleaning",
                "error",
            ),
        ),
    )

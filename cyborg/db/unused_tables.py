# SPDX-License-Identifier: Apache-2.0
"""Tables that deployed databases have and nobody uses: kept as they are."""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import tables


class QuotaUsage(tables.Base):
    """Unused; deployed databases have it."""

    __tablename__ = "quota_usages"

    project_id: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(255), index=True
    )
    user_id: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(255), index=True
    )
    resource: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    in_use: orm.Mapped[int]
    reserved: orm.Mapped[int]
    until_refresh: orm.Mapped[int | None]


class QuotaReservation(tables.Base):
    """Unused; deployed databases have it under this name."""

    __tablename__ = "reservations"
    __table_args__ = tables.table(sa.Index("reservations_uuid_idx", "uuid"))

    uuid: orm.Mapped[str] = tables.uuid_column()
    usage_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("quota_usages.id")
    )
    project_id: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(255), index=True
    )
    user_id: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(255), index=True
    )
    resource: orm.Mapped[str | None] = orm.mapped_column(sa.String(255))
    delta: orm.Mapped[int]
    expire: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime
    )

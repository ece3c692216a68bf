# SPDX-License-Identifier: Apache-2.0
"""The tables, as deployed databases have them and as ours add to them.

Tables and columns of the baseline keep the names, lengths and indexes of
databases in the field; what is ours is said so.  Every relationship is
`lazy="raise"`: a query that forgets to load what it reads fails a test.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import tables
from cyborg.db import unused_tables
from cyborg.db.tables import table
from cyborg.db.tables import uuid_column

DEVICE_TYPES = (
    "GPU",
    "FPGA",
    "AICHIP",
    "QAT",
    "NIC",
    "SSD",
    "MDEV",
    "PCI",
    "NVME",
)
DEVICE_STATES = (
    "available",
    "allocated",
    "pending_cleaning",
    "cleaning",
    "error",
)
ARQ_STATES = (
    "Initial",
    "BindStarted",
    "Bound",
    "Unbound",
    "BindFailed",
    "Deleting",
)

String = sa.String
Text = sa.Text

Base = tables.Base
now = tables.now
new_uuid = tables.new_uuid
QuotaUsage = unused_tables.QuotaUsage


class Host(Base):
    """Ours: one agent, the provider name and uuid that belong to it, and
    how far its resource providers follow its rows.

    `revision` grows with every change that Placement should see; the host
    owes a sync while `synced_revision` is below it.
    """

    __tablename__ = "hosts"
    __table_args__ = table(
        sa.UniqueConstraint("name", name="uniq_hosts0name"),
        sa.Index("hosts_provider_name_idx", "provider_name"),
    )

    uuid: orm.Mapped[str] = uuid_column(unique=True)
    name: orm.Mapped[str] = orm.mapped_column(String(255))
    provider_name: orm.Mapped[str] = orm.mapped_column(String(255))
    provider_uuid: orm.Mapped[str | None] = orm.mapped_column(String(36))
    digest: orm.Mapped[str | None] = orm.mapped_column(String(64))
    faults: orm.Mapped[str | None] = orm.mapped_column(Text)
    """JSON text: a list of {"driver", "error"} of the last report."""
    last_seen_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime
    )
    revision: orm.Mapped[int] = orm.mapped_column(default=0)
    synced_revision: orm.Mapped[int] = orm.mapped_column(default=0)
    sync_due_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime, index=True
    )
    """When a conductor should look at its providers next; moved on by the
    one that takes it, so that others pass by."""


class Device(Base):
    __tablename__ = "devices"
    __table_args__ = table(sa.Index("devices_hostname_idx", "hostname"))

    uuid: orm.Mapped[str] = uuid_column(unique=True)
    type: orm.Mapped[str] = orm.mapped_column(
        sa.Enum(*DEVICE_TYPES, name="device_type")
    )
    vendor: orm.Mapped[str] = orm.mapped_column(String(255))
    model: orm.Mapped[str] = orm.mapped_column(String(255))
    std_board_info: orm.Mapped[str | None] = orm.mapped_column(Text)
    vendor_board_info: orm.Mapped[str | None] = orm.mapped_column(Text)
    hostname: orm.Mapped[str] = orm.mapped_column(String(255))
    status: orm.Mapped[str] = orm.mapped_column(
        sa.Enum("enabled", "maintaining", name="device_status"),
        default="enabled",
    )
    device_state: orm.Mapped[str | None] = orm.mapped_column(
        sa.Enum(*DEVICE_STATES, name="device_state")
    )
    """`pending_cleaning`, `cleaning` or `error` while a unit of it is
    cleaned or could not be; else null: whether it is available or allocated
    is what its attach handles say."""
    driver: orm.Mapped[str | None] = orm.mapped_column(String(100))
    """Ours: entry-point name of the driver that reports it."""
    fault: orm.Mapped[str | None] = orm.mapped_column(Text)
    """Ours: why nothing on it may be scheduled; null when healthy."""
    driver_fault: orm.Mapped[str | None] = orm.mapped_column(Text)
    """Ours: why its driver says nothing of it now; it stays as it was."""
    lost_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime
    )
    """Ours: since when no report has it, though ARQs still hold it."""
    address: orm.Mapped[str | None] = orm.mapped_column(String(32))
    """Ours: the PCI address of its control path, as the kernel writes it;
    null until a report has it."""
    numa_node: orm.Mapped[int | None]
    """Ours: the NUMA node of its host, null where unknown."""
    clean_seconds: orm.Mapped[int | None]
    """Ours: how long cleaning a unit that was given back may take; null
    where units are not cleaned."""
    clean_error: orm.Mapped[str | None] = orm.mapped_column(Text)
    """Ours: why a unit of it could not be cleaned."""
    disabled_reason: orm.Mapped[str | None] = orm.mapped_column(Text)
    """Ours: why an administrator disabled it."""

    deployables: orm.Mapped[list[Deployable]] = orm.relationship(
        back_populates="device", lazy="raise", viewonly=True
    )


class Deployable(Base):
    __tablename__ = "deployables"
    __table_args__ = table(
        sa.Index("deployables_parent_id_idx", "parent_id"),
        sa.Index("deployables_root_id_idx", "root_id"),
        sa.Index("deployables_device_id_idx", "device_id"),
        sa.Index("deployables_rp_uuid_idx", "rp_uuid"),
    )

    uuid: orm.Mapped[str] = uuid_column(unique=True)
    parent_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("deployables.id", ondelete="CASCADE")
    )
    root_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("deployables.id", ondelete="CASCADE")
    )
    name: orm.Mapped[str] = orm.mapped_column(String(255))
    num_accelerators: orm.Mapped[int]
    device_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("devices.id", ondelete="RESTRICT")
    )
    rp_uuid: orm.Mapped[str | None] = orm.mapped_column(String(36))
    driver_name: orm.Mapped[str | None] = orm.mapped_column(String(100))
    bitstream_id: orm.Mapped[str | None] = orm.mapped_column(String(36))
    retired_traits: orm.Mapped[str | None] = orm.mapped_column(Text)
    """Ours: JSON list of traits that we reported once and must take off its
    provider; cleared when that is done."""
    job_id: orm.Mapped[int | None]
    """Ours: the job that has it now (jobs.id); nothing is scheduled on it
    meanwhile.  Taken and freed by conditional UPDATE; no foreign key, since
    jobs outlive deployables and the reverse."""
    fault: orm.Mapped[str | None] = orm.mapped_column(Text)
    """Ours: why nothing on it may be scheduled though its device is
    healthy."""

    device: orm.Mapped[Device] = orm.relationship(
        back_populates="deployables", lazy="raise", viewonly=True
    )
    attributes: orm.Mapped[list[Attribute]] = orm.relationship(
        lazy="raise", viewonly=True, order_by="Attribute.id"
    )


class Attribute(Base):
    __tablename__ = "attributes"
    __table_args__ = table(
        sa.Index("ix_attributes_deployable_id", "deployable_id"),
    )

    uuid: orm.Mapped[str] = uuid_column(unique=True)
    deployable_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("deployables.id", ondelete="RESTRICT")
    )
    key: orm.Mapped[str] = orm.mapped_column(Text)
    value: orm.Mapped[str] = orm.mapped_column(Text)
    source: orm.Mapped[str] = orm.mapped_column(
        String(16), default="driver", server_default="driver"
    )
    """Ours: `driver`, or `operator` where it was set through the API and
    no report may touch it."""


class ControlpathID(Base):
    __tablename__ = "controlpath_ids"
    __table_args__ = table(
        sa.Index("ix_controlpath_ids_device_id", "device_id"),
    )

    uuid: orm.Mapped[str] = uuid_column(unique=True)
    device_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("devices.id", ondelete="RESTRICT")
    )
    cpid_type: orm.Mapped[str] = orm.mapped_column(
        sa.Enum("PCI", name="cpid_type"), default="PCI"
    )
    cpid_info: orm.Mapped[str] = orm.mapped_column(String(255))


class AttachHandle(Base):
    __tablename__ = "attach_handles"
    __table_args__ = table(
        sa.Index("attach_handles_deployable_id_idx", "deployable_id"),
        sa.Index("attach_handles_cpid_id_idx", "cpid_id"),
        sa.Index("attach_handles_job_id_idx", "job_id"),
    )

    uuid: orm.Mapped[str] = uuid_column(unique=True)
    deployable_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("deployables.id", ondelete="RESTRICT")
    )
    cpid_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("controlpath_ids.id", ondelete="RESTRICT")
    )
    in_use: orm.Mapped[bool | None] = orm.mapped_column(default=False)
    attach_type: orm.Mapped[str] = orm.mapped_column(
        sa.Enum("PCI", "MDEV", "TEST_PCI", name="attach_type")
    )
    attach_info: orm.Mapped[str] = orm.mapped_column(String(255))
    lost_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime
    )
    """Ours: since when no report has it, though an ARQ still holds it; it
    is not given to another."""
    job_id: orm.Mapped[int | None]
    """Ours: the job (jobs.id) that cleans it, or could not: it stays in use
    until one has."""


class DeviceProfile(Base):
    __tablename__ = "device_profiles"
    __table_args__ = table(
        sa.UniqueConstraint("uuid", name="uniq_device_profiles0uuid"),
        sa.UniqueConstraint("name", name="uniq_device_profiles0name"),
    )

    uuid: orm.Mapped[str] = uuid_column()
    name: orm.Mapped[str] = orm.mapped_column(String(255))
    profile_json: orm.Mapped[str] = orm.mapped_column(Text)
    """`{"groups": [...]}`"""
    description: orm.Mapped[str | None] = orm.mapped_column(Text)


class AcceleratorRequest(Base):
    __tablename__ = "extended_accelerator_requests"
    __table_args__ = table(
        sa.Index("extArqs_project_id_idx", "project_id"),
        sa.Index("extArqs_device_profile_id_idx", "device_profile_id"),
        sa.Index("extArqs_device_rp_uuid_idx", "device_rp_uuid"),
        sa.Index("extArqs_instance_uuid_idx", "instance_uuid"),
        sa.Index("extArqs_attach_handle_id_idx", "attach_handle_id"),
        sa.Index("extArqs_deployable_id_idx", "deployable_id"),
        sa.Index("extArqs_event_due_at_idx", "event_due_at"),
        sa.Index("extArqs_job_id_idx", "job_id"),
    )

    uuid: orm.Mapped[str] = uuid_column(unique=True)
    project_id: orm.Mapped[str | None] = orm.mapped_column(String(255))
    state: orm.Mapped[str] = orm.mapped_column(
        sa.Enum(*ARQ_STATES, name="state"), default="Initial"
    )
    device_profile_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("device_profiles.id", ondelete="RESTRICT")
    )
    hostname: orm.Mapped[str | None] = orm.mapped_column(String(255))
    device_rp_uuid: orm.Mapped[str | None] = orm.mapped_column(String(36))
    attach_handle_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("attach_handles.id", ondelete="RESTRICT")
    )
    substate: orm.Mapped[str] = orm.mapped_column(
        sa.Enum("Initial", name="substate"), default="Initial"
    )
    deployable_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("deployables.id", ondelete="RESTRICT")
    )
    device_profile_group_id: orm.Mapped[int] = orm.mapped_column(default=0)
    instance_uuid: orm.Mapped[str | None] = orm.mapped_column(String(36))
    profile_group: orm.Mapped[str | None] = orm.mapped_column(Text)
    """Ours: JSON text of the group that it was made from."""
    image_uuid: orm.Mapped[str | None] = orm.mapped_column(String(36))
    """Ours: the Glance image that the creator named."""
    job_id: orm.Mapped[int | None]
    """Ours: the job (jobs.id) whose end this ARQ waits for."""
    last_error: orm.Mapped[str | None] = orm.mapped_column(Text)
    """Ours: why its last bind failed."""
    event_due_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime
    )
    """Ours: Nova has yet to be told; when a conductor should (re)try."""
    event_attempts: orm.Mapped[int] = orm.mapped_column(
        default=0, server_default="0"
    )

    device_profile: orm.Mapped[DeviceProfile] = orm.relationship(
        lazy="raise", viewonly=True
    )
    attach_handle: orm.Mapped[AttachHandle | None] = orm.relationship(
        lazy="raise", viewonly=True
    )


class Job(Base):
    """Ours: slow work on a deployable: a row first, done by a conductor
    that holds its lease, ended by another when that one dies.

    `arguments` is JSON text for the one that runs it.
    """

    __tablename__ = "jobs"
    __table_args__ = table(
        sa.Index("jobs_state_idx", "state"),
        sa.Index("jobs_deployable_id_idx", "deployable_id"),
    )

    uuid: orm.Mapped[str] = uuid_column(unique=True)
    kind: orm.Mapped[str] = orm.mapped_column(String(32))
    state: orm.Mapped[str] = orm.mapped_column(String(16), default="queued")
    """queued, running, done, failed, cancelled"""
    hostname: orm.Mapped[str] = orm.mapped_column(String(255))
    """The agent's RPC server name (hosts.name)."""
    deployable_id: orm.Mapped[int | None]
    arguments: orm.Mapped[str] = orm.mapped_column(Text)
    owner: orm.Mapped[str | None] = orm.mapped_column(String(255))
    lease_until: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime
    )
    deadline: orm.Mapped[datetime.datetime] = orm.mapped_column(sa.DateTime)
    percent: orm.Mapped[int] = orm.mapped_column(default=0)
    error: orm.Mapped[str | None] = orm.mapped_column(Text)
    started_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime
    )
    finished_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime
    )

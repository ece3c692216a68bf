# SPDX-License-Identifier: Apache-2.0
"""Every kind of corruption that a heal cures, and how it comes about."""

from __future__ import annotations

import uuid

import sqlalchemy as sa

from cyborg.audit.findings import Kind
from cyborg.db import models
from tests.functional.audit.cloud import AS_NOVA
from tests.functional.audit.cloud import Arq
from tests.functional.audit.cloud import Deployable
from tests.functional.audit.cloud import Device
from tests.functional.audit.cloud import Handle
from tests.functional.audit.cloud import Host
from tests.functional.audit.cloud import Site
from tests.functional.audit.cloud import Spoil
from tests.functional.audit.cloud import ago


def orphaned_arq(site: Site) -> str:
    instance, arq = site.boot()
    del site.cloud.nova.servers[instance]
    site.cloud.placement.release(instance)
    return arq


def unheld_handle(site: Site) -> str:
    handle = site.handles()[0]
    site.change(Handle, handle, in_use=True, updated_at=ago(7200))
    return handle.uuid


def waits_for_ended_job(site: Site) -> str:
    handle = site.handles()[0]
    job = site.add_job("clean", "done")
    site.change(Handle, handle, in_use=True, job_id=job.id)
    return handle.uuid


def bound_to_free_handle(site: Site) -> str:
    _, arq = site.boot()
    row = site.cloud.world.arq(arq)
    site.cloud.world.execute(
        sa.update(Handle)
        .where(Handle.id == row.attach_handle_id)
        .values(in_use=False)
    )
    return arq


def duplicate_handle(site: Site) -> str:
    first = site.handles()[0]
    copy = models.new_uuid()
    site.cloud.world.execute(
        sa.insert(Handle).values(
            uuid=copy,
            deployable_id=first.deployable_id,
            cpid_id=first.cpid_id,
            in_use=False,
            attach_type=first.attach_type,
            attach_info=first.attach_info,
            created_at=ago(7200),
        )
    )
    return copy


def unbound_with_handle(site: Site) -> str:
    instance, arq = site.boot()
    row = site.cloud.world.arq(arq)
    site.change(
        Arq,
        row,
        state="Unbound",
        instance_uuid=None,
        device_rp_uuid=None,
        updated_at=ago(7200),
    )
    site.cloud.placement.release(instance)
    return arq


def free_with_ended_job(site: Site) -> str:
    handle = site.handles()[0]
    job = site.add_job("clean", "done")
    site.change(Handle, handle, job_id=job.id)
    return handle.uuid


def wrong_deployable(site: Site) -> str:
    _, arq = site.boot()
    site.change(Arq, site.cloud.world.arq(arq), deployable_id=None)
    return arq


def projectless(site: Site) -> str:
    _, arq = site.boot()
    site.change(Arq, site.cloud.world.arq(arq), project_id=None)
    return arq


def stuck_bind(site: Site) -> str:
    _, arq = site.boot()
    row = site.cloud.world.arq(arq)
    site.cloud.placement.release(row.instance_uuid or "")
    site.change(Arq, row, state="BindStarted", updated_at=ago(7200))
    return arq


def stuck_deletion(site: Site) -> str:
    instance, arq = site.boot()
    site.cloud.placement.release(instance)
    site.change(
        Arq,
        site.cloud.world.arq(arq),
        state="Deleting",
        updated_at=ago(7200),
    )
    return arq


def overdue_job(site: Site) -> str:
    job = site.add_job("program", "running", deadline=ago(3600))
    site.change(Deployable, site.deployable, job_id=job.id)
    site.cloud.sync()
    return job.uuid


def needless_cleaning(site: Site) -> str:
    return site.add_job("clean", "queued").uuid


def held_by_ended_job(site: Site) -> str:
    job = site.add_job("program", "failed")
    site.change(Deployable, site.deployable, job_id=job.id)
    owe(site)
    site.cloud.sync()
    return site.deployable.uuid


def wrong_state(site: Site) -> str:
    site.change(Device, site.device, device_state="cleaning")
    return site.device.uuid


def owe(site: Site) -> None:
    site.cloud.world.execute(
        sa.update(Host).values(revision=Host.revision + 1)
    )


def missing_provider(site: Site) -> str:
    site.cloud.placement.ask("DELETE", f"/resource_providers/{site.provider}")
    return site.provider


def unlisted_provider(site: Site) -> str:
    name = f"compute-1_gone_{site.number}"
    return site.cloud.placement.create_provider(
        name, site.cloud.root, str(uuid.uuid3(uuid.NAMESPACE_DNS, name))
    )


def wrong_inventory(site: Site) -> str:
    site.cloud.placement.set_inventories(
        site.provider, {"FPGA": {"total": 7, "reserved": 2}}
    )
    return site.provider


def reserved_inventory(site: Site) -> str:
    stored = site.cloud.placement.inventories(site.provider)["FPGA"]
    site.cloud.placement.set_inventories(
        site.provider, {"FPGA": {**stored, "reserved": 1}}
    )
    return site.provider


def wrong_class(site: Site) -> str:
    site.cloud.placement.set_inventories(site.provider, {"PGPU": {"total": 4}})
    return site.provider


def missing_trait(site: Site) -> str:
    site.cloud.placement.set_traits(site.provider, {"OWNER_CYBORG"})
    return site.provider


def stale_trait(site: Site) -> str:
    site.cloud.placement.set_traits(
        site.provider,
        site.cloud.placement.traits(site.provider) | {"CUSTOM_OLD"},
    )
    site.change(Deployable, site.deployable, retired_traits='["CUSTOM_OLD"]')
    return site.provider


def allocation_without_arq(site: Site) -> str:
    consumer = str(uuid.uuid4())
    site.allocate(consumer, root=False)
    return f"{site.provider}/{consumer}"


def arq_without_allocation(site: Site) -> str:
    instance, arq = site.boot()
    site.cloud.placement.ask("DELETE", f"/allocations/{instance}")
    site.cloud.placement.ask(
        "PUT",
        f"/allocations/{instance}",
        {
            "allocations": {
                site.cloud.root: {"resources": {"VCPU": 1}},
            },
            "project_id": str(uuid.UUID(int=1)),
            "user_id": str(uuid.UUID(int=2)),
            "consumer_generation": None,
        },
        version=AS_NOVA,
    )
    return arq


HEALED: dict[Spoil, Kind] = {
    orphaned_arq: Kind.ORPHANED_ARQ,
    unheld_handle: Kind.UNHELD_HANDLE,
    waits_for_ended_job: Kind.UNHELD_HANDLE,
    bound_to_free_handle: Kind.FREE_HANDLE_BOUND,
    duplicate_handle: Kind.DUPLICATE_HANDLE,
    unbound_with_handle: Kind.HANDLE_KEPT,
    free_with_ended_job: Kind.HALF_CLEANED,
    wrong_deployable: Kind.INCOMPLETE_ARQ,
    projectless: Kind.PROJECTLESS_ARQ,
    stuck_bind: Kind.STUCK_ARQ,
    stuck_deletion: Kind.STUCK_ARQ,
    overdue_job: Kind.STUCK_JOB,
    needless_cleaning: Kind.STUCK_JOB,
    held_by_ended_job: Kind.BUSY_DEPLOYABLE,
    wrong_state: Kind.DEVICE_STATE,
    missing_provider: Kind.MISSING_PROVIDER,
    unlisted_provider: Kind.UNLISTED_PROVIDER,
    wrong_inventory: Kind.INVENTORY,
    reserved_inventory: Kind.INVENTORY,
    wrong_class: Kind.INVENTORY,
    missing_trait: Kind.MISSING_TRAIT,
    stale_trait: Kind.STALE_TRAIT,
    allocation_without_arq: Kind.ALLOCATION_WITHOUT_ARQ,
    arq_without_allocation: Kind.ARQ_WITHOUT_ALLOCATION,
}


def bound_to_cleaned_handle(site: Site) -> str:
    _, arq = site.boot()
    handle = site.cloud.world.arq(arq).attach_handle_id
    job = site.add_job("clean", "queued")
    site.cloud.world.execute(
        sa.update(Handle).where(Handle.id == handle).values(job_id=job.id)
    )
    return arq


def failed_cleaning(site: Site) -> str:
    handle = site.handles()[0]
    job = site.add_job("clean", "failed", error="medium error")
    site.change(Handle, handle, in_use=True, job_id=job.id)
    return handle.uuid


def stuck_cleaning(site: Site) -> str:
    job = site.add_job("clean", "queued")
    site.change(Handle, site.handles()[0], in_use=True, job_id=job.id)
    site.cloud.world.execute(sa.update(Host).values(last_seen_at=ago(3600)))
    return job.uuid


REFUSED: dict[Spoil, Kind] = {
    bound_to_cleaned_handle: Kind.CLEANED_HANDLE_BOUND,
    failed_cleaning: Kind.FAILED_CLEANING,
    stuck_cleaning: Kind.STUCK_CLEANING,
}
"""What only an operator can cure."""

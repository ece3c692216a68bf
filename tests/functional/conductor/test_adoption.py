# SPDX-License-Identifier: Apache-2.0
"""A conductor on a deployed database that was adopted, odd rows and all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cyborg import inventory
from cyborg.db import migration
from cyborg.db import models
from tests import databases
from tests import rows
from tests.functional.conductor import world as worlds

REVISIONS = ("6c77bd6afea5", "b47c8f2d1e3a")
BOUND = "82b51b86-e772-57c7-9b1f-0f2443b59614"
STUCK = "7bdbf291-063d-5eab-8c81-57701b2d596f"
DELETING = "ad588108-4caa-5673-a68a-223fe434462a"


def gpu() -> inventory.Device:
    """The card that the adopted host compute-2 has at 3b:00.0."""
    address = inventory.pci_json("0000:3b:00.0")
    return inventory.Device(
        controlpath=address,
        type=inventory.DeviceType.GPU,
        vendor="10de",
        model="Tesla T4",
        driver="nvidia_gpu_driver",
        deployables=(
            inventory.Deployable(
                name="compute-2_0000:3b:00.0",
                num_accelerators=1,
                driver_name="NVIDIA",
                attributes=(("rc", "PGPU"), ("trait0", "OWNER_CYBORG")),
                attach_handles=(
                    inventory.AttachHandle(inventory.AttachType.PCI, address),
                ),
            ),
        ),
    )


@pytest.mark.parametrize("revision", REVISIONS)
def test_an_adopted_database_is_carried_on(
    revision: str, tmp_path: Path
) -> None:
    with (
        databases.empty("mariadb", tmp_path) as url,
        databases.opened(url) as database,
    ):
        databases.load_dump(database, rows.dump(revision))
        migration.upgrade(database)
        world = worlds.make(
            database, started=True, periodic_interval=1, bind_timeout=1
        )
        try:
            before = {row.uuid for row in world.all(worlds.Arq)}
            assert {BOUND, STUCK, DELETING} <= before
            worlds.wait_until(
                lambda: (
                    world.arq(STUCK).state == "BindFailed"
                    and DELETING
                    not in {row.uuid for row in world.all(worlds.Arq)}
                )
            )
            _report(world)
            assert {row.uuid for row in world.all(worlds.Arq)} == before - {
                DELETING
            }
            world.unbind(BOUND)
            world.delete(*(before - {DELETING}))
            assert world.all(worlds.Arq) == []
        finally:
            world.close()


def _report(world: worlds.World) -> None:
    """The agent of compute-2 reports one card while a driver fails."""
    names = {"host": "compute-2", "provider_name": "compute-2.example.org"}
    count = len(world.all(models.Device))
    card = {row.name: row for row in world.all(models.Deployable)}[
        "compute-2_0000:3b:00.0"
    ]
    world.report(
        gpu(), faults=[inventory.DriverFault("pci_driver", "x")], **names
    )
    now = {row.name: row for row in world.all(models.Deployable)}[
        "compute-2_0000:3b:00.0"
    ]
    assert (now.id, now.uuid, now.rp_uuid) == (
        card.id,
        card.uuid,
        card.rp_uuid,
    )
    assert len(world.all(models.Device)) == count
    assert world.arq(BOUND).attach_handle_id in world.used()
    world.report(gpu(), dataclasses.replace(gpu(), vendor="x"), **names)
    left = {
        row.hostname for row in world.all(models.Device) if not row.lost_at
    }
    assert left == {"compute-1", "compute-2.example.org"}

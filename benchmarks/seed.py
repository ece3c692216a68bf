# SPDX-License-Identifier: Apache-2.0
"""A fleet and its accelerator requests, put into the database in bulk."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from cyborg import inventory
from cyborg.db import models

DEVICES_PER_HOST = 8
HANDLES_PER_DEVICE = 8
PROFILE_SIZES = (1, 8)
PROJECTS = 25
BATCH = 4000


@dataclasses.dataclass(frozen=True)
class Place:
    """A device that can be bound on."""

    hostname: str
    provider: str
    device: str
    deployable_id: int
    first_handle: int


def profile_name(size: int) -> str:
    return f"fpga-{size}"


def group(size: int) -> dict[str, str]:
    return {
        "resources:FPGA": str(size),
        "trait:CUSTOM_FAKE_DEVICE": "required",
    }


def _insert(
    connection: sa.Connection,
    model: type[models.Base],
    rows: Iterator[dict[str, Any]],
) -> None:
    """Insert in batches; the times and uuids are the model's defaults."""
    waiting: list[dict[str, Any]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == BATCH:
            connection.execute(sa.insert(model), waiting)
            waiting = []
    if waiting:
        connection.execute(sa.insert(model), waiting)


def _address(number: int) -> str:
    return f"0000:{number + 0x10:02x}:00.0"


def _hosts(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        name = f"host-{number:05}"
        yield {
            "name": name,
            "provider_name": name,
            "provider_uuid": str(uuid.uuid4()),
            "last_seen_at": models.now(),
            "revision": 1,
            "synced_revision": 1,
        }


def _devices(places: Sequence[Place]) -> Iterator[dict[str, Any]]:
    for number, place in enumerate(places):
        yield {
            "id": number + 1,
            "uuid": place.device,
            "type": "FPGA",
            "vendor": "0xABCD",
            "model": "miss model info",
            "std_board_info": '{"class": "Fake class"}',
            "vendor_board_info": "fake_vendor_info",
            "hostname": place.hostname,
            "driver": "fake_driver",
        }


def deployable_name(places: Sequence[Place], number: int) -> str:
    """What the deployable of a place is called, and so its provider."""
    address = _address(number % DEVICES_PER_HOST)
    return f"{places[number].hostname}_{address}"


def _deployables(places: Sequence[Place]) -> Iterator[dict[str, Any]]:
    for number, place in enumerate(places):
        yield {
            "id": place.deployable_id,
            "name": deployable_name(places, number),
            "num_accelerators": HANDLES_PER_DEVICE,
            "device_id": number + 1,
            "rp_uuid": place.provider,
            "driver_name": "fake",
        }


def _attributes(places: Sequence[Place]) -> Iterator[dict[str, Any]]:
    for place in places:
        for key, value in (("traits1", "CUSTOM_FAKE_DEVICE"), ("rc", "FPGA")):
            yield {
                "deployable_id": place.deployable_id,
                "key": key,
                "value": value,
            }


def _control_paths(places: Sequence[Place]) -> Iterator[dict[str, Any]]:
    for number, _ in enumerate(places):
        yield {
            "id": number + 1,
            "device_id": number + 1,
            "cpid_type": "PCI",
            "cpid_info": inventory.pci_json(
                _address(number % DEVICES_PER_HOST)
            ),
        }


def _handles(places: Sequence[Place]) -> Iterator[dict[str, Any]]:
    for number, place in enumerate(places):
        address = _address(number % DEVICES_PER_HOST)[:-1]
        for function in range(HANDLES_PER_DEVICE):
            yield {
                "id": place.first_handle + function,
                "deployable_id": place.deployable_id,
                "cpid_id": number + 1,
                "in_use": False,
                "attach_type": "TEST_PCI",
                "attach_info": inventory.pci_json(f"{address}{function}"),
            }


def fleet(engine: sa.Engine, hosts: int) -> list[Place]:
    """Make hosts, devices and profiles; where something can be bound."""
    places = [
        Place(
            hostname=f"host-{number // DEVICES_PER_HOST:05}",
            provider=str(uuid.uuid4()),
            device=str(uuid.uuid4()),
            deployable_id=number + 1,
            first_handle=number * HANDLES_PER_DEVICE + 1,
        )
        for number in range(hosts * DEVICES_PER_HOST)
    ]
    with engine.begin() as connection:
        _insert(connection, models.Host, _hosts(hosts))
        _insert(connection, models.Device, _devices(places))
        _insert(connection, models.Deployable, _deployables(places))
        _insert(connection, models.Attribute, _attributes(places))
        _insert(connection, models.ControlpathID, _control_paths(places))
        _insert(connection, models.AttachHandle, _handles(places))
        _insert(
            connection,
            models.DeviceProfile,
            (
                {
                    "id": size,
                    "name": profile_name(size),
                    "profile_json": json.dumps({"groups": [group(size)]}),
                }
                for size in PROFILE_SIZES
            ),
        )
    return places


def bound_arqs(
    engine: sa.Engine, places: Sequence[Place], count: int
) -> list[str]:
    """Bind `count` new ARQs from the first place on, eight an instance;
    the instances.
    """
    full = places[: -(-count // HANDLES_PER_DEVICE)]
    instances = [str(uuid.uuid4()) for _ in full]

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(count):
            which, function = divmod(number, HANDLES_PER_DEVICE)
            place = full[which]
            yield {
                "project_id": f"{which % PROJECTS:032x}",
                "state": "Bound",
                "device_profile_id": HANDLES_PER_DEVICE,
                "hostname": place.hostname,
                "device_rp_uuid": place.provider,
                "attach_handle_id": place.first_handle + function,
                "deployable_id": place.deployable_id,
                "instance_uuid": instances[which],
                "profile_group": json.dumps(group(HANDLES_PER_DEVICE)),
            }

    last = full[-1].first_handle + HANDLES_PER_DEVICE
    with engine.begin() as connection:
        _insert(connection, models.AcceleratorRequest, rows())
        connection.execute(
            sa.update(models.AttachHandle)
            .where(models.AttachHandle.id >= full[0].first_handle)
            .where(models.AttachHandle.id < last)
            .values(in_use=True)
        )
    return instances

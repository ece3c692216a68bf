# SPDX-License-Identifier: Apache-2.0
"""Devices, deployables and attributes in the database."""

from __future__ import annotations

import json
from concurrent import futures

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db import device_changes
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from tests import rows


@pytest.fixture
def card(database: engine.Database) -> models.Device:
    made = rows.device()
    rows.add(database, made)
    return made


@pytest.fixture
def unit(database: engine.Database, card: models.Device) -> models.Deployable:
    made = rows.deployable(card)
    rows.add(database, made)
    return made


def hosts(database: engine.Database) -> list[models.Host]:
    with database.reader() as session:
        return list(
            session.scalars(sa.select(models.Host).order_by(models.Host.id))
        )


@pytest.mark.parametrize(
    "get", [devices.get_device, devices.get_deployable, devices.get_attribute]
)
@pytest.mark.parametrize("uuid", ["not-a-uuid", "", "\0", "x" * 5000])
def test_what_is_not_there_is_not_found(
    database: engine.Database, get: object, uuid: str
) -> None:
    with pytest.raises(exception.NotFound):
        get(database, uuid)  # type: ignore[operator]


def test_a_uuid_in_another_case_is_another(
    database: engine.Database, card: models.Device
) -> None:
    assert devices.get_device(database, card.uuid).model == "card"
    with pytest.raises(exception.NotFound):
        devices.get_device(database, card.uuid.upper())


def test_a_deployable_comes_with_its_attributes_in_order(
    database: engine.Database, unit: models.Deployable
) -> None:
    for number in range(12):
        device_changes.create_attribute(
            database, unit.id, f"key{number}", "value"
        )
    wanted = [f"key{number}" for number in range(12)]
    one = devices.get_deployable(database, unit.uuid)
    (listed,) = devices.list_deployables(database)
    for found in (one, listed):
        assert [pair.key for pair in found.attributes] == wanted


@pytest.mark.parametrize("source", ["driver", "operator"])
def test_a_drivers_attribute_that_is_deleted_is_asked_for_again(
    database: engine.Database, unit: models.Deployable, source: str
) -> None:
    attribute = models.Attribute(
        uuid=models.new_uuid(),
        deployable_id=unit.id,
        key="rc",
        value="FPGA",
        source=source,
    )
    rows.add(
        database,
        attribute,
        models.Host(
            name="compute-1", provider_name="compute-1", digest="known"
        ),
    )
    device_changes.delete_attribute(database, attribute.uuid)
    (host,) = hosts(database)
    assert host.digest == (None if source == "driver" else "known")


def test_disabling_twice_owes_one_sync(
    database: engine.Database, card: models.Device
) -> None:
    host, _ = device_changes.set_device_status(
        database, card.uuid, "maintaining"
    )
    assert (host.name, host.provider_name) == ("compute-1", "compute-1")
    assert host.revision > host.synced_revision
    assert host.sync_due_at is not None
    again, changed = device_changes.set_device_status(
        database, card.uuid, "maintaining"
    )
    assert not changed
    assert (again.id, again.revision) == (host.id, host.revision)
    assert devices.get_device(database, card.uuid).status == "maintaining"
    back, changed = device_changes.set_device_status(
        database, card.uuid, "enabled"
    )
    assert changed
    assert back.revision == host.revision + 1


def test_the_host_is_known_by_its_providers_name_before_its_own(
    database: engine.Database, card: models.Device
) -> None:
    rows.add(
        database,
        models.Host(name="compute-1", provider_name="other"),
        models.Host(name="agent-7", provider_name="compute-1"),
    )
    host, _ = device_changes.set_device_status(
        database, card.uuid, "maintaining"
    )
    assert host.name == "agent-7"
    assert host.revision == 1
    assert len(hosts(database)) == 2


def test_an_older_devices_host_is_known_by_its_own_name(
    database: engine.Database, card: models.Device
) -> None:
    rows.add(
        database, models.Host(name="compute-1", provider_name="c1.example")
    )
    host, _ = device_changes.set_device_status(
        database, card.uuid, "maintaining"
    )
    assert (host.provider_name, host.revision) == ("c1.example", 1)


def test_the_status_of_no_device_is_not_found(
    database: engine.Database,
) -> None:
    with pytest.raises(exception.NotFound):
        device_changes.set_device_status(
            database, models.new_uuid(), "enabled"
        )
    assert hosts(database) == []


@pytest.mark.parametrize("number", [0, -1, 999999, 2**31, 2**80])
def test_an_attribute_of_no_deployable_is_not_found(
    database: engine.Database, unit: models.Deployable, number: int
) -> None:
    with pytest.raises(exception.NotFound):
        device_changes.create_attribute(database, number, "key", "value")
    assert devices.list_attributes(database) == []


def test_the_same_key_and_value_is_refused_and_another_case_is_not(
    database: engine.Database, unit: models.Deployable
) -> None:
    made = device_changes.create_attribute(database, unit.id, "key", "value")
    assert made.source == "operator"
    with pytest.raises(exception.Conflict, match=made.uuid):
        device_changes.create_attribute(database, unit.id, "key", "value")
    for key, value in (("Key", "value"), ("key", "VALUE"), ("key", "value ")):
        device_changes.create_attribute(database, unit.id, key, value)
    assert len(devices.list_attributes(database)) == 4


def test_of_equal_attributes_made_at_once_one_is_stored(
    database: engine.Database, unit: models.Deployable
) -> None:
    def create(_: int) -> bool:
        try:
            device_changes.create_attribute(
                database, unit.id, "trait9", "CUSTOM_A"
            )
        except exception.Conflict:
            return False
        return True

    with futures.ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(create, range(8))) == 1
    assert [host.revision for host in hosts(database)] == [1]


def test_only_a_trait_owes_a_sync(
    database: engine.Database, unit: models.Deployable
) -> None:
    plain = device_changes.create_attribute(database, unit.id, "colour", "red")
    device_changes.delete_attribute(database, plain.uuid)
    assert hosts(database) == []
    trait = device_changes.create_attribute(
        database, unit.id, "trait0", "CUSTOM_A"
    )
    assert hosts(database)[0].revision == 1
    device_changes.delete_attribute(database, trait.uuid)
    assert hosts(database)[0].revision == 2


def test_a_trait_that_is_deleted_must_leave_its_provider(
    database: engine.Database, unit: models.Deployable
) -> None:
    made = [
        device_changes.create_attribute(database, unit.id, key, value)
        for key, value in (
            ("trait0", "CUSTOM_A"),
            ("trait1", "CUSTOM_B"),
            ("trait2", "CUSTOM_B"),
        )
    ]
    device_changes.delete_attribute(database, made[1].uuid)
    assert devices.get_deployable(database, unit.uuid).retired_traits is None
    device_changes.delete_attribute(database, made[2].uuid)
    device_changes.delete_attribute(database, made[0].uuid)
    found = devices.get_deployable(database, unit.uuid)
    assert json.loads(found.retired_traits or "") == ["CUSTOM_A", "CUSTOM_B"]


def test_an_attribute_is_deleted_once(
    database: engine.Database, unit: models.Deployable
) -> None:
    made = device_changes.create_attribute(database, unit.id, "key", "value")
    device_changes.delete_attribute(database, made.uuid)
    with pytest.raises(exception.NotFound):
        device_changes.delete_attribute(database, made.uuid)

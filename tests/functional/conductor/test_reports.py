# SPDX-License-Identifier: Apache-2.0
"""What reports do to the rows of a host."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg import inventory
from cyborg.db import device_changes
from cyborg.db import devices
from cyborg.db import models
from cyborg.db import query
from tests import databases
from tests.functional.conductor import world as worlds
from tests.functional.conductor.world import CONTEXT
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device
from tests.functional.conductor.world import provider_of
from tests.functional.conductor.world import report

Device = models.Device
Deployable = models.Deployable
Attribute = models.Attribute
Handle = models.AttachHandle
Host = models.Host

FAULT = inventory.DriverFault("fake_driver", "it hangs")


def changed(card: inventory.Device, **values: Any) -> inventory.Device:
    """The card with other values of its (only) deployable."""
    return dataclasses.replace(
        card,
        deployables=(dataclasses.replace(card.deployables[0], **values),),
    )


def attributes(world: World) -> list[tuple[str, str]]:
    return [(row.key, row.value) for row in world.all(Attribute)]


def test_a_first_report_stores_the_whole_tree(world: World) -> None:
    world.report(device(), device(bus=0x20, accelerators=2))
    assert [row.hostname for row in world.all(Device)] == [
        "compute-1.example.org"
    ] * 2
    first = world.all(Deployable)[0]
    assert first.name == "compute-1_0000:0c:00.0"
    assert first.rp_uuid == provider_of()
    assert first.num_accelerators == 16
    assert first.driver_name == "fake"
    assert attributes(world)[:2] == [
        ("trait0", "CUSTOM_FAKE_DEVICE"),
        ("rc", "FPGA"),
    ]
    assert len(world.all(Handle)) == 18
    paths = {row.id: row for row in world.all(models.ControlpathID)}
    owners = {row.id: row.device_id for row in world.all(Deployable)}
    for handle in world.all(Handle):
        assert paths[handle.cpid_id].device_id == owners[handle.deployable_id]
    host = world.all(Host)[0]
    assert (host.name, host.provider_name) == (
        "compute-1",
        "compute-1.example.org",
    )


def test_an_unchanged_report_changes_nothing(world: World) -> None:
    world.report(device())
    before = world.all(Host)[0]
    ids = [row.id for row in world.all(Handle)]
    assert world.endpoint.heartbeat(
        CONTEXT, "compute-1", report(device()).digest()
    )
    world.report(device())
    after = world.all(Host)[0]
    assert after.revision == before.revision
    assert [row.id for row in world.all(Handle)] == ids


def test_a_heartbeat_of_an_unknown_host_or_report_is_refused(
    world: World,
) -> None:
    digest = report(device()).digest()
    assert not world.endpoint.heartbeat(CONTEXT, "compute-1", digest)
    world.report(device())
    assert world.endpoint.heartbeat(CONTEXT, "compute-1", digest)
    assert not world.endpoint.heartbeat(CONTEXT, "compute-1", "0" * 64)


def test_changes_of_a_card_are_followed(world: World) -> None:
    world.report(device())
    first = world.all(Device)[0]
    card = changed(
        dataclasses.replace(device(), model="other", fault="too hot"),
        attributes=(("trait0", "CUSTOM_NEW"), ("rc", "PGPU")),
        driver_name="other",
    )
    world.report(card)
    row = world.all(Device)[0]
    assert (row.id, row.model, row.fault) == (first.id, "other", "too hot")
    assert attributes(world) == [("trait0", "CUSTOM_NEW"), ("rc", "PGPU")]
    deployable = world.all(Deployable)[0]
    assert json.loads(deployable.retired_traits) == ["CUSTOM_FAKE_DEVICE"]
    assert deployable.driver_name == "other"
    world.report(device())
    assert world.all(Device)[0].fault is None
    assert json.loads(world.all(Deployable)[0].retired_traits) == [
        "CUSTOM_NEW"
    ]


def test_many_cards_that_change_differently_are_each_followed(
    world: World,
) -> None:
    world.report(*(device(bus=bus, accelerators=2) for bus in range(1, 6)))
    world.report(
        *(
            dataclasses.replace(
                device(bus=bus, accelerators=bus),
                model=f"model {bus}",
                type=list(inventory.DeviceType)[bus],
            )
            for bus in range(1, 6)
        )
    )
    assert [row.model for row in world.all(Device)] == [
        f"model {bus}" for bus in range(1, 6)
    ]
    assert [row.type for row in world.all(Device)] == [
        one.value for one in list(inventory.DeviceType)[1:6]
    ]
    assert [row.num_accelerators for row in world.all(Deployable)] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert len(world.all(Handle)) == 15


def test_a_card_that_is_gone_goes_with_all_its_rows(world: World) -> None:
    world.report(device(), device(bus=0x20))
    world.report(device())
    assert len(world.all(Device)) == 1
    assert len(world.all(Handle)) == 16
    world.report()
    for model in (Device, Deployable, Attribute, Handle):
        assert world.all(model) == []
    assert world.all(models.ControlpathID) == []


def test_a_bound_card_that_is_gone_stays_until_it_is_given_back(
    world: World,
) -> None:
    world.report(device(), device(bus=0x20))
    arqs = world.arqs(2)
    world.bind(arqs)
    world.report(device(bus=0x20))
    lost = world.all(Device)[0]
    assert lost.lost_at is not None
    with pytest.raises(exception.Conflict, match="does not have it"):
        world.bind(world.arqs(1))
    world.unbind(arqs[0])
    assert len(world.all(Device)) == 2
    world.delete(arqs[1])
    worlds.wait_until(lambda: len(world.all(Device)) == 1)
    assert len(world.all(Handle)) == 16


def test_a_lost_card_that_comes_back_is_as_it_was(world: World) -> None:
    world.report(device())
    arqs = world.arqs(1)
    world.bind(arqs)
    used = world.used()
    world.report()
    world.report(device())
    assert world.all(Device)[0].lost_at is None
    assert world.used() == used
    assert len(world.all(Handle)) == 16
    world.bind(world.arqs(15))


def test_a_card_that_shrinks_keeps_what_is_in_use(world: World) -> None:
    world.report(device(accelerators=4))
    arqs = world.arqs(4)
    world.bind(arqs)
    world.unbind(*arqs[:2])
    world.report(device(accelerators=1))
    held = {world.arq(one).attach_handle_id for one in arqs[2:]}
    kept = {row.id for row in world.all(Handle)}
    assert held <= kept
    assert len(kept) <= 3
    assert world.all(Deployable)[0].num_accelerators == 1
    small = report(device(accelerators=1)).digest()
    assert not world.endpoint.heartbeat(CONTEXT, "compute-1", small)
    world.unbind(*arqs[2:])
    world.report(device(accelerators=1))
    assert len(world.all(Handle)) == 1
    assert world.endpoint.heartbeat(CONTEXT, "compute-1", small)


def test_a_renamed_deployable_never_offers_what_is_in_use(
    world: World,
) -> None:
    world.report(device(accelerators=2))
    arqs = world.arqs(1)
    world.bind(arqs)
    renamed = changed(device(accelerators=2), name="compute-1_new")
    world.report(renamed)
    rows = {row.name: row for row in world.all(Deployable)}
    assert rows["compute-1_0000:0c:00.0"].num_accelerators == 0
    assert rows["compute-1_new"].num_accelerators == 1
    infos = [row.attach_info for row in world.all(Handle)]
    assert len(infos) == len(set(infos)) == 2
    world.unbind(*arqs)
    world.report(renamed)
    assert [row.name for row in world.all(Deployable)] == ["compute-1_new"]
    assert world.all(Deployable)[0].num_accelerators == 2
    assert len(world.all(Handle)) == 2


def test_a_unit_that_its_card_lost_goes_to_nobody_else(world: World) -> None:
    world.report(device(accelerators=2))
    first, second = world.arqs(1), world.arqs(1)
    world.bind(first)
    world.bind(second)
    there = {
        world.arq(one[0]).attach_handle_id: one for one in (first, second)
    }
    kept, lost = (there[row.id] for row in world.all(Handle))
    world.report(device(accelerators=1))
    world.unbind(*lost)
    with pytest.raises(exception.Conflict, match="no free accelerator"):
        world.bind(lost)
    world.unbind(*kept)
    world.bind(kept)
    world.report(device(accelerators=2))
    world.bind(lost)


def test_a_unit_that_comes_back_while_it_is_bound_is_as_it_was(
    world: World,
) -> None:
    world.report(device(accelerators=2))
    arqs = world.arqs(2)
    world.bind(arqs)
    world.report(device(accelerators=1))
    world.report(device(accelerators=2))
    assert [row.lost_at for row in world.all(Handle)] == [None, None]
    whole = report(device(accelerators=2)).digest()
    assert world.endpoint.heartbeat(CONTEXT, "compute-1", whole)
    world.unbind(*arqs)
    world.bind(arqs)


def test_a_deployable_that_its_card_lost_is_bound_to_nobody_else(
    world: World,
) -> None:
    world.report(device(accelerators=1))
    arqs = world.arqs(1)
    world.bind(arqs)
    world.report(changed(device(accelerators=1), name="compute-1_new"))
    world.unbind(*arqs)
    with pytest.raises(exception.Conflict, match="no free accelerator"):
        world.bind(arqs)


def test_a_driver_that_failed_says_nothing_of_its_cards(
    world: World,
) -> None:
    other = device(bus=0x20, driver="pci_driver")
    world.report(device(), other)
    world.report(other, faults=[FAULT])
    assert len(world.all(Device)) == 2
    assert all(row.lost_at is None for row in world.all(Device))
    assert json.loads(world.all(Host)[0].faults) == [
        {"driver": "fake_driver", "error": "it hangs"}
    ]
    world.report(device(), faults=[FAULT])
    assert len(world.all(Device)) == 1
    world.report()
    assert world.all(Device) == []


def test_the_fault_of_a_driver_is_shown_on_its_cards_alone(
    world: World,
) -> None:
    other = device(bus=0x20, driver="pci_driver")

    def shown() -> dict[str | None, tuple[str, str | None]]:
        return {
            one.address: (one.status, one.status_reason)
            for one in devices.list_devices(world.database, query.Page(), True)
        }

    world.report(device(), other)
    for error in ("it hangs", "xbmgmt is not installed"):
        fault = inventory.DriverFault("fake_driver", error)
        world.report(other, faults=[fault])
        assert shown() == {
            "0000:0c:00.0": ("enabled", f"fake_driver: {error}"),
            "0000:20:00.0": ("enabled", None),
        }
    world.report(device(), other)
    assert {reason for _, reason in shown().values()} == {None}


def test_a_card_that_is_gone_in_use_shows_no_fault_of_its_driver(
    world: World,
) -> None:
    world.report(device())
    world.bind(world.arqs(1))
    world.report(faults=[FAULT])
    assert world.all(Device)[0].driver_fault == "fake_driver: it hangs"
    world.report()
    (row,) = world.all(Device)
    assert (row.driver_fault, row.lost_at is None) == (None, False)


def test_an_adopted_card_shows_every_fault_that_may_be_its_own(
    world: World,
) -> None:
    world.report(device())
    world.execute(sa.update(Device).values(driver=None))
    world.report(faults=[FAULT])
    (row,) = world.all(Device)
    assert row.driver_fault == "fake_driver: it hangs"
    world.report(device())
    (row,) = world.all(Device)
    assert row.driver_fault is None


def test_what_an_operator_set_survives_reports(world: World) -> None:
    world.report(device())
    row = world.all(Deployable)[0]
    device_changes.create_attribute(
        world.database, row.id, "trait9", "CUSTOM_MINE"
    )
    device_changes.create_attribute(world.database, row.id, "note", "rack 7")
    world.report(changed(device(), attributes=(("rc", "FPGA"),)))
    assert {
        (row.key, row.value)
        for row in world.all(Attribute)
        if row.source == "operator"
    } == {("trait9", "CUSTOM_MINE"), ("note", "rack 7")}
    retired = json.loads(world.all(Deployable)[0].retired_traits)
    assert retired == ["CUSTOM_FAKE_DEVICE"]


def test_the_bitstream_of_a_card_survives_reports(world: World) -> None:
    world.report(device())
    world.execute(sa.update(Deployable).values(bitstream_id="b" * 36))
    world.report(dataclasses.replace(device(), model="other"))
    assert world.all(Deployable)[0].bitstream_id == "b" * 36


def test_where_cards_are_and_how_they_are_cleaned_is_followed(
    world: World,
) -> None:
    def known() -> list[tuple[object, ...]]:
        parts = {row.device_id: row.fault for row in world.all(Deployable)}
        return [
            (row.address, row.numa_node, row.clean_seconds, parts[row.id])
            for row in world.all(Device)
        ]

    cards = [device(), device(bus=0x20), device(bus=0x30)]
    world.report(*cards)
    assert known() == [
        ("0000:0c:00.0", None, None, None),
        ("0000:20:00.0", None, None, None),
        ("0000:30:00.0", None, None, None),
    ]
    pairs = cards[1].deployables[0].attributes
    world.report(
        dataclasses.replace(cards[0], clean_seconds=120),
        changed(cards[1], attributes=(("numa_node", "1"), *pairs)),
        dataclasses.replace(
            changed(cards[2], fault="VFs are gone"), clean_seconds=900
        ),
    )
    assert known() == [
        ("0000:0c:00.0", None, 120, None),
        ("0000:20:00.0", 1, None, None),
        ("0000:30:00.0", None, 900, "VFs are gone"),
    ]
    world.report(*cards)
    assert {row[1:] for row in known()} == {(None, None, None)}


def bad_devices() -> list[inventory.Device]:
    card = device(bus=0x40)
    return [
        device(),
        changed(card, name="compute-1_0000:0c:00.0"),
        dataclasses.replace(card, vendor="v" * 256),
        dataclasses.replace(card, model="a\0b"),
        changed(card, name="n" * 201),
        changed(card, attributes=(("trait0", "CUSTOM_a b"), ("rc", "FPGA"))),
        changed(card, attributes=(("rc", "CUSTOM_foo bar"),)),
        changed(card, attributes=(("trait0", "NOT_KNOWN"), ("rc", "FPGA"))),
        changed(card, num_accelerators=3),
        changed(card, num_accelerators=-1),
        changed(card, attach_handles=device().deployables[0].attach_handles),
        changed(card, attach_handles=(worlds.handle(0x40, 1),) * 16),
        dataclasses.replace(card, controlpath=""),
        dataclasses.replace(card, controlpath="x" * 256),
        dataclasses.replace(card, clean_seconds=0),
        dataclasses.replace(card, clean_seconds=-5),
        dataclasses.replace(card, clean_seconds=2**31),
        changed(card, fault="x" * 70_000),
        changed(card, fault="a\0b"),
    ]


@pytest.mark.parametrize("number", range(len(bad_devices())))
def test_a_device_that_cannot_be_stored_does_not_poison_its_host(
    world: World, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.report(device(), bad_devices()[number], device(bus=0x50))
    assert [row.name for row in world.all(Deployable)] == [
        "compute-1_0000:0c:00.0",
        "compute-1_0000:50:00.0",
    ]
    assert "is not stored" in caplog.text


def test_a_card_whose_report_turns_bad_keeps_its_last_state(
    world: World,
) -> None:
    world.report(device())
    world.report(changed(device(), num_accelerators=3))
    assert world.all(Deployable)[0].num_accelerators == 16
    assert len(world.all(Handle)) == 16


def test_two_hosts_with_the_same_deployable_name_do_not_share_a_provider(
    world: World,
) -> None:
    card = changed(device(), name="Device_0000_3d_00_0")
    world.report(card)
    world.report(card, host="compute-2", provider_name="compute-2.org")
    assert [row.rp_uuid is None for row in world.all(Deployable)] == [
        False,
        True,
    ]
    second = {"host": "compute-2", "provider_name": "compute-2.org"}
    world.report(changed(card, driver_name="x"), **second)
    assert world.all(Deployable)[1].rp_uuid is None
    world.report()
    digest = report(changed(card, driver_name="x"), **second).digest()
    assert not world.endpoint.heartbeat(CONTEXT, "compute-2", digest)
    world.report(changed(card, driver_name="x"), **second)
    assert world.all(Deployable)[0].rp_uuid == inventory.provider_uuid(
        "Device_0000_3d_00_0"
    )
    assert world.endpoint.heartbeat(CONTEXT, "compute-2", digest)


def test_a_host_whose_provider_is_renamed_keeps_its_rows(
    world: World,
) -> None:
    world.report(device(), provider_name="compute-1")
    before = world.all(Device)[0]
    world.bind(world.arqs(1), host="compute-1")
    world.report(device())
    after = world.all(Device)[0]
    assert (after.id, after.hostname) == (before.id, "compute-1.example.org")
    assert len(world.all(Host)) == 1
    assert len(world.used()) == 1


@pytest.mark.parametrize("column", ["parent_id", "root_id"])
def test_an_adopted_deployable_in_use_outlives_its_parent(
    world: World, column: str
) -> None:
    whole = device(accelerators=1)
    region = dataclasses.replace(
        whole.deployables[0],
        name="compute-1_region",
        attach_handles=(worlds.handle(0x0C, 9),),
    )
    world.report(
        dataclasses.replace(whole, deployables=(whole.deployables[0], region))
    )
    parent, child = world.all(Deployable)
    world.execute(
        sa.update(Deployable)
        .where(Deployable.id == child.id)
        .values({column: parent.id})
    )
    arqs = world.arqs(1)
    world.bind(arqs, inventory.provider_uuid("compute-1_region"))
    renamed = changed(whole, name="compute-1_new")
    world.report(renamed)
    assert [row.name for row in world.all(Deployable)] == [
        "compute-1_region",
        "compute-1_new",
    ]
    world.delete(*arqs)
    world.report(renamed)
    assert [row.name for row in world.all(Deployable)] == ["compute-1_new"]


@pytest.mark.parametrize("faults", [(), (FAULT,)])
def test_a_card_that_is_away_when_its_host_is_renamed_is_known_again(
    world: World, faults: tuple[inventory.DriverFault, ...]
) -> None:
    world.report(device(accelerators=2))
    arqs = world.arqs(1)
    world.bind(arqs)
    world.report(provider_name="compute-1", faults=faults)
    world.report(provider_name="node.example.org", faults=faults)
    world.report(device(accelerators=2), provider_name="node.example.org")
    assert [row.hostname for row in world.all(Device)] == ["node.example.org"]
    assert len(world.all(Handle)) == 2
    assert world.all(Device)[0].lost_at is None


def test_an_agent_that_is_renamed_takes_over_its_host(world: World) -> None:
    world.report(device())
    with pytest.raises(exception.Conflict, match="alive"):
        world.report(device(), host="compute-one")
    long_ago = models.now() - dt.timedelta(hours=1)
    world.execute(sa.update(Host).values(last_seen_at=long_ago))
    world.report(device(), host="compute-one")
    assert [row.name for row in world.all(Host)] == ["compute-one"]
    assert len(world.all(Device)) == 1


def test_a_root_provider_that_the_agent_could_not_ask_for_is_kept(
    world: World,
) -> None:
    world.report(device(), provider_uuid="a" * 36)
    world.report(device())
    assert world.all(Host)[0].provider_uuid == "a" * 36


def test_an_adopted_card_is_recognised_and_completed(world: World) -> None:
    """Rows as a deployed database has them: JSON spaced otherwise, no
    driver, no provider, the host's short name, a handle that is in use
    though its row says otherwise."""
    card = device(accelerators=2)
    address = '{"function":"0","domain":"0000","device":"00","bus":"0c"}'
    with world.database.writer() as session:
        row = Device(
            type="FPGA",
            vendor="0xABCD",
            model="card",
            hostname="compute-1",
            std_board_info='{"device_id": "0xabcd"}',
        )
        session.add(row)
        session.flush()
        path = models.ControlpathID(device_id=row.id, cpid_info=address)
        deployable = Deployable(
            name=card.deployables[0].name,
            num_accelerators=2,
            device_id=row.id,
        )
        session.add_all([path, deployable])
        session.flush()
        handles = [
            Handle(
                deployable_id=deployable.id,
                cpid_id=path.id,
                attach_type="PCI",
                attach_info=one.attach_info.replace(" ", ""),
                in_use=None,
            )
            for one in card.deployables[0].attach_handles
        ]
        session.add_all(handles)
        session.flush()
        ids = [one.id for one in handles]
        row_id = row.id
    arqs = world.arqs(1)
    world.execute(
        sa.update(worlds.Arq).values(
            state="Bound",
            attach_handle_id=ids[0],
            deployable_id=deployable.id,
        )
    )
    world.report(card, faults=[inventory.DriverFault("pci_driver", "off")])
    stored = world.all(Device)[0]
    assert (stored.id, stored.driver) == (row_id, "fake_driver")
    assert stored.hostname == "compute-1.example.org"
    assert world.all(Deployable)[0].rp_uuid == provider_of()
    assert [one.id for one in world.all(Handle)] == ids
    more = world.arqs(1)
    world.bind(more)
    assert world.arq(more[0]).attach_handle_id == ids[1]
    world.report()
    assert world.all(Device)[0].lost_at is not None
    world.delete(*arqs, *more)
    worlds.wait_until(lambda: world.all(Device) == [])


def test_an_adopted_card_is_kept_while_any_driver_fails(
    world: World,
) -> None:
    world.report(device())
    world.execute(sa.update(Device).values(driver=None))
    world.report(faults=[inventory.DriverFault("nvidia_gpu_driver", "x")])
    assert len(world.all(Device)) == 1
    world.report()
    assert world.all(Device) == []


@pytest.mark.parametrize("name", ["mariadb", "postgresql"])
def test_servers_store_changes_as_sqlite_does(
    name: str, tmp_path: Any
) -> None:
    with databases.migrated(name, tmp_path) as database:
        world = worlds.make(database)
        test_many_cards_that_change_differently_are_each_followed(world)
        world.report()
        test_where_cards_are_and_how_they_are_cleaned_is_followed(world)
        world.report()
        test_a_report_that_shrinks_and_loses_a_bound_card_keeps_it(world)
        world.close()


def test_a_report_that_shrinks_and_loses_a_bound_card_keeps_it(
    world: World,
) -> None:
    world.report(device())
    world.bind(world.arqs(2))
    world.report(device(accelerators=1), device(bus=0x20))
    assert len(world.used()) == 2
    world.report()
    assert [row.lost_at is None for row in world.all(Device)] == [False]

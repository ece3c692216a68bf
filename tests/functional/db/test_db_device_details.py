# SPDX-License-Identifier: Apache-2.0
"""How devices are and where: derived, filtered and sorted by in one
statement, the same on every database."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from cyborg import exception
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import query
from tests import rows
from tests import statements

EARLIER = datetime.datetime(2026, 3, 1, 10, 0, 0)  # noqa: DTZ001
LATER = datetime.datetime(2026, 3, 2, 10, 0, 0)  # noqa: DTZ001
LOST = "the host does not have it any more"


@pytest.fixture
def fleet(database: engine.Database) -> list[models.Device]:
    """Devices in every state, of two hosts and of one that is unknown."""
    made = [
        rows.device(driver="pci_driver", address="0000:5e:00.0"),
        rows.device(numa_node=1, device_state="allocated"),
        rows.device(device_state="pending_cleaning", numa_node=0),
        rows.device(device_state="error", clean_error="sanitize failed"),
        rows.device(hostname="compute-2", disabled_reason="fan"),
        rows.device(hostname="nowhere", fault="hot", lost_at=LATER),
        rows.device(
            hostname="compute-2",
            device_state="available",
            driver_fault="pci_driver: x",
        ),
    ]
    rows.add(
        database,
        *made,
        models.Host(name="a", provider_name="compute-1", last_seen_at=EARLIER),
        models.Host(name="b", provider_name="compute-2", last_seen_at=LATER),
        models.Host(name="c", provider_name="compute-2", last_seen_at=EARLIER),
    )
    _use(database, made[1], in_use=True)
    _use(database, made[2], in_use=True)
    _use(database, made[6], in_use=False, fault="worn")
    _use(database, made[6], in_use=False, fault="too")
    return made


def _use(
    database: engine.Database, card: models.Device, in_use: bool, **values: Any
) -> None:
    unit = rows.deployable(card, **values)
    path = models.ControlpathID(device_id=card.id, cpid_info="{}")
    rows.add(database, unit, path)
    rows.add(
        database,
        models.AttachHandle(
            deployable_id=unit.id,
            cpid_id=path.id,
            in_use=in_use,
            attach_type="PCI",
            attach_info="{}",
        ),
    )


STATES = [
    "available",
    "allocated",
    "pending_cleaning",
    "error",
    "available",
    "available",
    "available",
]
REASONS = [
    None,
    None,
    None,
    "sanitize failed",
    "fan",
    f"{LOST}; hot",
    "worn; pci_driver: x",
]


def found(
    database: engine.Database, **page: Any
) -> list[devices.shown.Device]:
    return devices.list_devices(database, query.Page(**page), detailed=True)


def test_each_device_shows_how_it_is(
    database: engine.Database, fleet: list[models.Device]
) -> None:
    with statements.StatementCounter(database.engine) as counter:
        listed = found(database)
    assert (len(counter.statements), counter.transactions) == (1, 1)
    assert [one.uuid for one in listed] == [one.uuid for one in fleet]
    assert [one.device_state for one in listed] == STATES
    assert [one.status_reason for one in listed] == REASONS
    assert listed[0].address == "0000:5e:00.0"
    assert listed[0].driver_name == "pci_driver"
    assert [one.numa_node for one in listed[:3]] == [None, 1, 0]
    assert [one.last_seen_at for one in listed] == [
        *[EARLIER] * 4,
        *[LATER] * 3,
    ]
    with statements.StatementCounter(database.engine) as counter:
        one = devices.get_device(database, fleet[5].uuid, detailed=True)
    assert (len(counter.statements), counter.transactions) == (1, 1)
    assert one == listed[5]


def test_older_versions_ask_for_none_of_it(
    database: engine.Database, fleet: list[models.Device]
) -> None:
    with statements.StatementCounter(database.engine) as counter:
        plain = devices.list_devices(database)
        devices.get_device(database, fleet[0].uuid)
    assert all("hosts" not in text for text in counter.statements)
    assert all("attach_handles" not in text for text in counter.statements)
    assert {one.device_state for one in plain} == {None}
    for field in devices.DETAILS:
        with pytest.raises(exception.Invalid, match=field):
            devices.list_devices(database, query.Page(filters={field: "x"}))


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"device_state": "available"}, [0, 4, 5, 6]),
        ({"device_state": "allocated"}, [1]),
        ({"device_state": "error", "hostname": "compute-1"}, [3]),
        ({"device_state": "ERROR"}, []),
        ({"device_state": None}, []),
        ({"status_reason": "fan"}, [4]),
        ({"status_reason": "FAN"}, []),
        ({"status_reason": f"{LOST}; hot"}, [5]),
        ({"status_reason": None}, [0, 1, 2]),
        ({"status_reason": "\U0001f600"}, []),
        ({"address": "0000:5e:00.0"}, [0]),
        ({"driver_name": "pci_driver"}, [0]),
        ({"driver_name": None, "device_state": "error"}, [3]),
        ({"numa_node": "1"}, [1]),
        ({"numa_node": 0}, [2]),
        ({"last_seen_at": "2026-03-01T11:00:00+01:00"}, [0, 1, 2, 3]),
        ({"last_seen_at": "2026-03-02T10:00:00Z"}, [4, 5, 6]),
    ],
)
def test_a_filter_compares_what_is_derived_exactly(
    database: engine.Database,
    fleet: list[models.Device],
    filters: dict[str, object],
    wanted: list[int],
) -> None:
    listed = found(database, filters=filters)
    assert [one.uuid for one in listed] == [fleet[i].uuid for i in wanted]


@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("key", sorted(devices.DETAILS))
def test_pages_in_any_order_show_every_device_once(
    database: engine.Database,
    fleet: list[models.Device],
    key: str,
    direction: str,
) -> None:
    options = {"sort_key": key, "sort_dir": direction}
    whole = found(database, **options)
    values = [getattr(one, key) for one in whole]
    ordered = sorted(
        values,
        key=lambda value: (
            (value is not None, value or 0)
            if key == "numa_node"
            else (value is not None, str(value or ""))
        ),
        reverse=direction == "desc",
    )
    assert values == ordered
    walked: list[devices.shown.Device] = []
    marker = None
    while part := found(database, limit=2, marker=marker, **options):
        walked += part
        marker = part[-1].uuid
    assert walked == whole
    assert len(walked) == len(fleet)


def test_a_device_that_nobody_reports_was_never_seen(
    database: engine.Database,
) -> None:
    rows.add(database, rows.device(hostname="nowhere"))
    assert found(database)[0].last_seen_at is None


def test_a_part_says_why_it_is_not_offered(
    database: engine.Database, fleet: list[models.Device]
) -> None:
    listed = devices.list_deployables(
        database, query.Page(filters={"status_reason": "worn"})
    )
    assert [one.fault for one in listed] == ["worn"]
    assert devices.get_deployable(database, listed[0].uuid).fault == "worn"

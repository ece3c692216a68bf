# SPDX-License-Identifier: Apache-2.0
"""Filters, sorting and paging, the same on every database."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from cyborg import exception
from cyborg.db import arqs
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import profiles
from cyborg.db import query
from tests import rows

MOMENT = datetime.datetime(2026, 3, 1, 10, 0, 0)  # noqa: DTZ001


@pytest.fixture
def fleet(database: engine.Database) -> list[models.Device]:
    """Devices with equal, missing and oddly cased values."""
    made = [
        rows.device(vendor="10de", type="NIC", std_board_info=None),
        rows.device(vendor="10DE", type="GPU", std_board_info="b"),
        rows.device(vendor="10de ", type="FPGA", std_board_info=None),
        rows.device(vendor="8086", type="GPU", std_board_info="a"),
        rows.device(vendor="8086", type="SSD", std_board_info="a"),
        rows.device(vendor="", type="AICHIP", hostname="compute-2"),
        rows.device(vendor="\U0001f600", type="QAT", created_at=MOMENT),
    ]
    rows.add(database, *made)
    return made


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"vendor": "10de"}, [0]),
        ({"vendor": "10DE"}, [1]),
        ({"vendor": "10de "}, [2]),
        ({"vendor": ""}, [5]),
        ({"vendor": "\U0001f600"}, [6]),
        ({"vendor": "8086", "type": "SSD"}, [4]),
        ({"vendor": "%"}, []),
        ({"vendor": "1' OR '1'='1"}, []),
        ({"vendor": "\0"}, []),
        ({"vendor": "\ud800"}, []),
        ({"type": "GPU"}, [1, 3]),
        ({"type": "gpu"}, []),
        ({"type": "NPU"}, []),
        ({"type": ""}, []),
        ({"std_board_info": "a"}, [3, 4]),
        ({"std_board_info": None}, [0, 2, 5, 6]),
        ({"hostname": "compute-2"}, [5]),
        ({"status": "enabled", "type": "NIC"}, [0]),
        ({"status": "maintaining"}, []),
        ({"created_at": "2026-03-01T10:00:00+00:00"}, [6]),
        ({"created_at": "2026-03-01T11:00:00+01:00"}, [6]),
        ({"created_at": "2026-03-01T10:00:00Z"}, [6]),
    ],
)
def test_a_filter_compares_exactly(
    database: engine.Database,
    fleet: list[models.Device],
    filters: dict[str, object],
    wanted: list[int],
) -> None:
    found = devices.list_devices(database, query.Page(filters=filters))
    assert [one.uuid for one in found] == [fleet[i].uuid for i in wanted]


@pytest.mark.parametrize(
    ("page", "field"),
    [
        ({"filters": {"board": "x"}}, "board"),
        ({"filters": {"driver": "x"}}, "driver"),
        ({"filters": {"deployables": "x"}}, "deployables"),
        ({"filters": {"\ud800": "x"}}, "field"),
        ({"filters": {"vendor": 5}}, "vendor"),
        ({"filters": {"type": ["GPU"]}}, "type"),
        ({"filters": {"created_at": "yesterday"}}, "created_at"),
        ({"filters": {"created_at": "0001-01-01T00:00:00+23:00"}}, "created"),
        ({"sort_key": "board"}, "sort_key"),
        ({"sort_dir": "up"}, "sort_dir"),
        ({"limit": -1}, "limit"),
        ({"limit": True}, "limit"),
        ({"marker": "unknown"}, "marker"),
        ({"marker": ""}, "marker"),
        ({"marker": "\0"}, "marker"),
    ],
)
def test_a_page_that_means_nothing_is_refused_by_name(
    database: engine.Database,
    fleet: list[models.Device],
    page: dict[str, Any],
    field: str,
) -> None:
    with pytest.raises(exception.Invalid, match=field):
        devices.list_devices(database, query.Page(**page))


@pytest.mark.parametrize(
    "value", ["x", "1.5", "-", "", True, None, 1.5, "٣", [], "1 "]
)
def test_a_number_column_takes_numbers_alone(
    database: engine.Database, value: object
) -> None:
    page = query.Page(filters={"deployable_id": value})
    if value is None:
        assert devices.list_attributes(database, page) == []
        return
    with pytest.raises(exception.Invalid, match="deployable_id"):
        devices.list_attributes(database, page)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 5, "9" * 5000])
def test_a_number_beyond_the_column_finds_nothing(
    database: engine.Database, value: object
) -> None:
    page = query.Page(filters={"deployable_id": value})
    assert devices.list_attributes(database, page) == []


def test_limits_of_nothing_and_of_very_much_are_taken_as_they_are(
    database: engine.Database, fleet: list[models.Device]
) -> None:
    for limit, count in ((0, 0), (3, 3), (2**31, 7), (2**70, 7), (None, 7)):
        found = devices.list_devices(database, query.Page(limit=limit))
        assert len(found) == count


def walk(
    database: engine.Database, lister: Any, **options: Any
) -> list[models.Base]:
    """Every row, two at a time."""
    found: list[Any] = []
    marker = None
    while True:
        part = lister(database, query.Page(limit=2, marker=marker, **options))
        if not part:
            return found
        assert len(part) <= 2
        found += part
        marker = part[-1].uuid


@pytest.mark.parametrize("sort_dir", [None, "asc", "desc"])
@pytest.mark.parametrize("sort_key", [None, *devices.DEVICES.fields])
def test_pages_follow_each_other_without_gap_or_repetition(
    database: engine.Database,
    fleet: list[models.Device],
    sort_key: str | None,
    sort_dir: str | None,
) -> None:
    options = {"sort_key": sort_key, "sort_dir": sort_dir}
    whole = devices.list_devices(database, query.Page(**options))
    paged = walk(database, devices.list_devices, **options)
    assert len(whole) == 7
    assert [one.id for one in paged] == [one.id for one in whole]


def test_types_sort_by_name_and_null_comes_first(
    database: engine.Database, fleet: list[models.Device]
) -> None:
    by_type = devices.list_devices(database, query.Page(sort_key="type"))
    names = [one.type for one in by_type]
    assert names == sorted(names)
    page = query.Page(sort_key="std_board_info", sort_dir="desc")
    infos = [
        one.std_board_info for one in devices.list_devices(database, page)
    ]
    assert infos == ["b", "a", "a", None, None, None, None]


def test_filters_and_pages_go_together(
    database: engine.Database, fleet: list[models.Device]
) -> None:
    page = query.Page(limit=5, marker=fleet[1].uuid, filters={"type": "GPU"})
    found = devices.list_devices(database, page)
    assert [one.uuid for one in found] == [fleet[3].uuid]


@pytest.mark.parametrize("sort_dir", ["asc", "desc"])
@pytest.mark.parametrize("sort_key", list(arqs.SOURCE.fields))
def test_requests_page_by_every_field_of_theirs(
    database: engine.Database, sort_key: str, sort_dir: str
) -> None:
    plan, card = rows.profile(), rows.device()
    rows.add(database, plan, card)
    unit = rows.deployable(card)
    path = models.ControlpathID(device_id=card.id, cpid_info="{}")
    rows.add(database, unit, path)
    handles = [
        models.AttachHandle(
            deployable_id=unit.id,
            cpid_id=path.id,
            attach_type=kind,
            attach_info="not json",
        )
        for kind in ("PCI", "TEST_PCI")
    ]
    rows.add(database, *handles)
    rows.add(
        database,
        *(
            rows.request(
                plan,
                state=state,
                instance_uuid=instance,
                attach_handle_id=handle,
            )
            for state, instance, handle in (
                ("Bound", "b", handles[1].id),
                ("Initial", None, None),
                ("Bound", "a", handles[0].id),
                ("Unbound", None, None),
                ("BindFailed", "not-a-uuid", None),
            )
        ),
    )
    options = {"sort_key": sort_key, "sort_dir": sort_dir}
    whole = arqs.list_arqs(database, query.Page(**options))
    paged = walk(database, arqs.list_arqs, **options)
    assert len(whole) == 5
    assert [one.id for one in paged] == [one.id for one in whole]
    page = query.Page(filters={"attach_handle_type": "PCI"})
    assert [one.instance_uuid for one in arqs.list_arqs(database, page)] == [
        "a"
    ]


def test_the_list_of_names_is_paged_too(database: engine.Database) -> None:
    for name in ("a", "b", "c"):
        profiles.create(database, name, [{"resources:PGPU": "1"}])
    found = profiles.list_all(
        database, query.Page(limit=1, sort_dir="desc"), ["a", "b"]
    )
    assert [one.name for one in found] == ["b"]

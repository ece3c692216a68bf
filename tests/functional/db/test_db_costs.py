# SPDX-License-Identifier: Apache-2.0
"""How many statements and transactions a read costs, whatever there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cyborg.db import arqs
from cyborg.db import device_changes
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import profiles
from cyborg.db import query
from tests import rows
from tests import statements


@pytest.fixture(params=[1, 8, 64, 700])
def count(request: pytest.FixtureRequest, database: engine.Database) -> int:
    """So many of everything."""
    number = int(request.param)
    with database.writer() as session:
        plans = [rows.profile(name=f"p{i}") for i in range(number)]
        cards = [rows.device() for _ in range(number)]
        session.add_all([*plans, *cards])
        session.flush()
        units = [rows.deployable(card) for card in cards]
        session.add_all(units)
        session.flush()
        session.add_all(
            models.Attribute(
                uuid=models.new_uuid(),
                deployable_id=unit.id,
                key=f"trait{i}",
                value="CUSTOM_A",
            )
            for unit in units
            for i in range(2)
        )
        session.add_all(
            rows.request(plan, instance_uuid="i", state="Bound")
            for plan in plans
        )
    return number


def cost(
    database: engine.Database, function: Callable[[], object]
) -> tuple[int, int]:
    """Statements and transactions of a call."""
    with statements.StatementCounter(database.engine) as counter:
        function()
    return len(counter.statements), counter.transactions


def test_a_list_is_one_statement(
    database: engine.Database, count: int
) -> None:
    for lister in (
        arqs.list_arqs,
        devices.list_devices,
        devices.list_attributes,
        profiles.list_all,
    ):
        assert cost(database, lambda lister=lister: lister(database)) == (1, 1)
        found = lister(database)
        page = query.Page(marker=found[0].uuid, limit=5, sort_key="created_at")
        # An empty page asks whether its marker exists.
        bound = 1 if len(found) > 1 else 2
        assert cost(
            database, lambda lister=lister, page=page: lister(database, page)
        ) == (bound, 1)


def test_deployables_with_their_attributes_are_two_statements(
    database: engine.Database, count: int
) -> None:
    found = devices.list_deployables(database)
    assert len(found) == count
    assert all(len(one.attributes) == 2 for one in found)
    assert cost(database, lambda: devices.list_deployables(database)) == (2, 1)
    page = query.Page(limit=5, sort_key="name", sort_dir="desc")
    some = devices.list_deployables(database, page)
    assert all(len(one.attributes) == 2 for one in some)
    assert cost(
        database, lambda: devices.list_deployables(database, page)
    ) == (2, 1)


def test_novas_poll_is_one_statement(
    database: engine.Database, count: int
) -> None:
    assert cost(
        database,
        lambda: arqs.list_arqs(database, instance="i", resolved=True),
    ) == (1, 1)


def test_showing_one_thing_is_one_statement(
    database: engine.Database, count: int
) -> None:
    asked = (
        (arqs.get, arqs.list_arqs),
        (devices.get_device, devices.list_devices),
        (devices.get_deployable, devices.list_deployables),
        (devices.get_attribute, devices.list_attributes),
        (profiles.get, profiles.list_all),
    )
    for get, lister in asked:
        uuid = lister(database)[-1].uuid
        assert cost(
            database, lambda get=get, uuid=uuid: get(database, uuid)
        ) == (1, 1)


def test_disabling_a_device_is_three_statements(
    database: engine.Database, count: int
) -> None:
    uuid = devices.list_devices(database)[0].uuid
    device_changes.set_device_status(database, uuid, "maintaining")
    assert cost(
        database,
        lambda: device_changes.set_device_status(database, uuid, "enabled"),
    ) == (3, 1)
    assert cost(
        database,
        lambda: device_changes.set_device_status(database, uuid, "enabled"),
    ) == (2, 1)

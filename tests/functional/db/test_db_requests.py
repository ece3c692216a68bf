# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests as they are read."""

from __future__ import annotations

import pytest

from cyborg import exception
from cyborg.db import arqs
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import query
from tests import rows


@pytest.fixture
def plan(database: engine.Database) -> models.DeviceProfile:
    made = rows.profile()
    rows.add(database, made)
    return made


def test_a_project_sees_its_own_requests_alone(
    database: engine.Database, plan: models.DeviceProfile
) -> None:
    made = [
        rows.request(plan, project_id=project)
        for project in ("a", "A", "a ", None)
    ]
    rows.add(database, *made)
    (found,) = arqs.list_arqs(database, project_scope="a")
    assert found.uuid == made[0].uuid
    assert found.device_profile.name == "gpu"
    assert found.attach_handle is None
    assert len(arqs.list_arqs(database)) == 4
    for other in made[1:]:
        with pytest.raises(exception.NotFound):
            arqs.get(database, other.uuid, "a")
        assert arqs.get(database, other.uuid).uuid == other.uuid


def test_a_marker_of_another_project_is_unknown(
    database: engine.Database, plan: models.DeviceProfile
) -> None:
    made = [rows.request(plan, project_id=project) for project in "bab"]
    rows.add(database, *made)
    page = query.Page(marker=made[0].uuid)
    with pytest.raises(exception.Invalid, match="marker"):
        arqs.list_arqs(database, page, project_scope="a")


def test_many_are_read_in_the_order_asked_or_not_at_all(
    database: engine.Database, plan: models.DeviceProfile
) -> None:
    made = [rows.request(plan, project_id=project) for project in "aaab"]
    rows.add(database, *made)
    wanted = [made[2].uuid, made[0].uuid]
    found = arqs.get_many(database, wanted, "a")
    assert [one.uuid for one in found] == wanted
    assert arqs.get_many(database, []) == []
    with pytest.raises(exception.NotFound, match=made[3].uuid):
        arqs.get_many(database, [*wanted, made[3].uuid], "a")


@pytest.mark.parametrize("state", ["Bound", "BindFailed", "Deleting"])
def test_an_instance_is_resolved_when_each_of_its_requests_is(
    database: engine.Database, plan: models.DeviceProfile, state: str
) -> None:
    rows.add(
        database,
        rows.request(plan, instance_uuid="i", state="Bound"),
        rows.request(plan, instance_uuid="i", state=state),
        rows.request(plan, instance_uuid="j", state="BindStarted"),
        rows.request(plan, state="Initial"),
    )
    found = arqs.list_arqs(database, instance="i", resolved=True)
    assert len(found) == 2
    assert arqs.list_arqs(database, instance="none", resolved=True) == []
    assert len(arqs.list_arqs(database, instance="j")) == 1
    assert len(arqs.list_arqs(database, resolved=True)) == 2


@pytest.mark.parametrize("state", ["Initial", "BindStarted", "Unbound"])
def test_an_instance_with_an_unresolved_request_is_locked(
    database: engine.Database, plan: models.DeviceProfile, state: str
) -> None:
    rows.add(
        database,
        rows.request(plan, instance_uuid="i", state="Bound"),
        rows.request(plan, instance_uuid="i", state=state),
    )
    pages = (
        query.EVERYTHING,
        query.Page(limit=1),
        query.Page(filters={"state": "Bound"}),
        query.Page(sort_key="state"),
    )
    for page in pages:
        with pytest.raises(exception.NotResolved):
            arqs.list_arqs(database, page, instance="i", resolved=True)
    assert len(arqs.list_arqs(database, instance="i")) == 2


def test_an_instance_that_another_project_holds_is_not_seen(
    database: engine.Database, plan: models.DeviceProfile
) -> None:
    rows.add(
        database,
        rows.request(plan, instance_uuid="i", project_id="b"),
    )
    assert (
        arqs.list_arqs(
            database, instance="i", resolved=True, project_scope="a"
        )
        == []
    )


@pytest.mark.parametrize("instance", ["I", "i ", "", "\0", "x" * 300])
def test_an_instance_is_compared_exactly(
    database: engine.Database, plan: models.DeviceProfile, instance: str
) -> None:
    rows.add(database, rows.request(plan, instance_uuid="i"))
    assert arqs.list_arqs(database, instance=instance) == []

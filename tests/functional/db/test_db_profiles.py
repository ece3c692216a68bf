# SPDX-License-Identifier: Apache-2.0
"""Device profiles in the database."""

from __future__ import annotations

import json
from concurrent import futures

import pytest

from cyborg import exception
from cyborg.db import engine
from cyborg.db import profiles
from cyborg.db import query
from tests import rows

GROUPS = [{"resources:PGPU": "1"}]


def test_a_profile_is_found_by_its_name_and_by_its_uuid(
    database: engine.Database,
) -> None:
    made = profiles.create(database, "gpu", GROUPS, "a card")
    for key in ("gpu", made.uuid):
        found = profiles.get(database, key)
        assert found.uuid == made.uuid
        assert json.loads(found.profile_json) == {"groups": GROUPS}
        assert found.description == "a card"
        assert found.created_at is not None
        assert found.updated_at is None


@pytest.mark.parametrize(
    "key", ["GPU", "gpu ", " gpu", "", "gpu\0", "\ud800", "gp\U0001f600", "%"]
)
def test_only_the_exact_name_finds_a_profile(
    database: engine.Database, key: str
) -> None:
    profiles.create(database, "gpu", GROUPS)
    with pytest.raises(exception.NotFound):
        profiles.get(database, key)
    assert profiles.list_all(database, names=[key]) == []
    with pytest.raises(exception.NotFound):
        profiles.delete(database, [key])


def test_a_list_by_names_leaves_unknown_ones_out(
    database: engine.Database,
) -> None:
    for name in ("a", "b", "c"):
        profiles.create(database, name, GROUPS)
    found = profiles.list_all(database, names=["c", "a", "B", "x"])
    assert [profile.name for profile in found] == ["a", "c"]
    assert profiles.list_all(database, names=[]) == []


def test_a_uuid_finds_its_own_profile_before_one_that_is_so_named(
    database: engine.Database,
) -> None:
    made = profiles.create(database, "gpu", GROUPS)
    rows.add(database, rows.profile(name=made.uuid))
    assert profiles.get(database, made.uuid).name == "gpu"


@pytest.mark.parametrize("name", ["gpu", "GPU", "Gpu"])
def test_a_name_is_taken_whatever_its_case(
    database: engine.Database, name: str
) -> None:
    profiles.create(database, "gpu", GROUPS)
    with pytest.raises(exception.Conflict, match="gpu"):
        profiles.create(database, name, GROUPS)
    assert len(profiles.list_all(database)) == 1


def test_a_uuid_is_taken_once(database: engine.Database) -> None:
    made = profiles.create(database, "a", GROUPS)
    with pytest.raises(exception.Conflict, match=made.uuid):
        profiles.create(database, "b", GROUPS, uuid=made.uuid)


def test_of_names_that_differ_in_case_one_creation_at_a_time_wins(
    database: engine.Database,
) -> None:
    def create(name: str) -> bool:
        try:
            profiles.create(database, name, GROUPS)
        except exception.Conflict:
            return False
        return True

    names = ["gpu", "GPU", "Gpu", "gPu", "gpU", "GPu", "gPU", "gpu"]
    with futures.ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(create, names)) == 1
    assert len(profiles.list_all(database)) == 1


@pytest.mark.parametrize("text", ["\0", "\ud800"])
def test_text_that_no_database_holds_is_refused(
    database: engine.Database, text: str
) -> None:
    with pytest.raises(exception.Invalid):
        profiles.create(database, "gpu", GROUPS, text)


def test_every_character_of_unicode_can_be_stored(
    database: engine.Database,
) -> None:
    profiles.create(database, "gpu", [{"accel:x": "\U0001f600"}], "\U0001f600")
    assert profiles.get(database, "gpu").description == "\U0001f600"


def test_profiles_are_deleted_by_name_and_uuid_in_one_go(
    database: engine.Database,
) -> None:
    made = [profiles.create(database, name, GROUPS) for name in ("a", "b")]
    profiles.create(database, "c", GROUPS)
    profiles.delete(database, ["a", made[1].uuid, "a"])
    assert [one.name for one in profiles.list_all(database)] == ["c"]


def test_nothing_is_deleted_where_one_is_missing(
    database: engine.Database,
) -> None:
    profiles.create(database, "a", GROUPS)
    with pytest.raises(exception.NotFound, match="missing"):
        profiles.delete(database, ["a", "missing"])
    assert len(profiles.list_all(database)) == 1


def test_a_profile_in_use_stays_and_so_do_the_others(
    database: engine.Database,
) -> None:
    profiles.create(database, "a", GROUPS)
    used = profiles.create(database, "used", GROUPS)
    rows.add(database, rows.request(used))
    with pytest.raises(exception.Conflict, match="used is in use"):
        profiles.delete(database, ["a", "used"])
    assert len(profiles.list_all(database)) == 2


def test_a_profile_that_is_no_json_is_listed_and_deleted(
    database: engine.Database,
) -> None:
    rows.add(database, rows.profile(name="broken", profile_json="{not json"))
    assert profiles.list_all(database, query.EVERYTHING)[0].name == "broken"
    profiles.delete(database, ["broken"])
    assert profiles.list_all(database) == []

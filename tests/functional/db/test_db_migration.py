# SPDX-License-Identifier: Apache-2.0
"""The schema from nothing, from deployed databases, and from accidents."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import autogenerate
from alembic.runtime import migration as alembic_migration
from sqlalchemy import event

from cyborg.db import arqs
from cyborg.db import device_changes
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import migration
from cyborg.db import models
from cyborg.db import profiles
from cyborg.db import projects
from cyborg.db import query
from tests import databases
from tests import deployed
from tests import rows

OPTIONS = {
    "sqlite": [None],
    "mariadb": [
        "CHARACTER SET utf8",
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
    ],
    "postgresql": [None, "ENCODING 'utf8'"],
}


@pytest.fixture
def fresh(kind: str, tmp_path: Path) -> Iterator[engine.Database]:
    """An empty database."""
    with (
        databases.empty(kind, tmp_path) as url,
        databases.opened(url) as database,
    ):
        yield database


@pytest.fixture(params=migration.ADOPTED)
def adopted(
    request: pytest.FixtureRequest, fresh: engine.Database
) -> tuple[engine.Database, dict[str, list[dict[str, Any]]]]:
    """A database of the deployed service, and its rows."""
    content = rows.rows_of(rows.dump(request.param))
    if fresh.engine.dialect.name == "sqlite":
        # Nobody deployed the older service on it.
        migration.upgrade(fresh, request.param)
        rows.fill(fresh, content)
    else:
        deployed.load(fresh, request.param)
    assert migration.standing(fresh).revision == request.param
    return fresh, content


def differences(database: engine.Database) -> list[Any]:
    """Where the schema is not what the models say."""
    with database.engine.connect() as connection:
        context = alembic_migration.MigrationContext.configure(
            connection,
            opts={"compare_type": True, "compare_server_default": True},
        )
        return list(
            autogenerate.compare_metadata(context, models.Base.metadata)
        )


def shape(database: engine.Database) -> dict[str, Any]:
    """What matters of a schema, whatever order it was made in."""
    inspector = sa.inspect(database.engine)
    return {
        table: {
            "columns": {
                column["name"]: (
                    type(column["type"]).__name__,
                    getattr(column["type"], "length", None),
                    sorted(getattr(column["type"], "enums", [])),
                    column["nullable"],
                    column["default"],
                )
                for column in inspector.get_columns(table)
            },
            "indexes": {
                index["name"]: (index["column_names"], index["unique"])
                for index in inspector.get_indexes(table)
            },
            "keys": sorted(
                (
                    key["constrained_columns"],
                    key["referred_table"],
                    key["options"].get("ondelete") or "RESTRICT",
                )
                for key in inspector.get_foreign_keys(table)
            ),
        }
        for table in inspector.get_table_names()
    }


def test_an_upgrade_from_nothing_makes_what_the_models_say(
    fresh: engine.Database,
) -> None:
    assert migration.standing(fresh) == migration.Standing(
        None, migration.head()
    )
    migration.upgrade(fresh)
    assert migration.standing(fresh).current
    assert differences(fresh) == []
    migration.upgrade(fresh)
    assert migration.standing(fresh).current


def test_the_schema_is_made_only_in_an_empty_database(
    fresh: engine.Database,
) -> None:
    migration.create_schema(fresh)
    assert migration.standing(fresh).current
    with pytest.raises(migration.MigrationError, match="already"):
        migration.create_schema(fresh)


def test_the_first_two_revisions_are_those_of_deployed_databases(
    fresh: engine.Database,
) -> None:
    migration.upgrade(fresh, migration.ADOPTED[0])
    names = {
        column["name"]
        for column in sa.inspect(fresh.engine).get_columns("devices")
    }
    assert "device_state" not in names
    migration.upgrade(fresh, migration.ADOPTED[1])
    assert migration.standing(fresh).revision == migration.ADOPTED[1]
    assert "hosts" not in sa.inspect(fresh.engine).get_table_names()


def test_adoption_keeps_every_row_and_ends_where_a_new_database_does(
    kind: str,
    adopted: tuple[engine.Database, dict[str, list[dict[str, Any]]]],
    shared_database: engine.Database,
) -> None:
    database, content = adopted
    assert sum(map(len, content.values())) > 50
    migration.upgrade(database)
    assert differences(database) == []
    assert shape(database) == shape(shared_database)
    assert rows.stored(database, content) == content


def test_each_adopted_row_is_listed_and_shown(
    adopted: tuple[engine.Database, dict[str, list[dict[str, Any]]]],
) -> None:
    database, content = adopted
    migration.upgrade(database)
    for table, lister, get in (
        ("devices", devices.list_devices, devices.get_device),
        ("deployables", devices.list_deployables, devices.get_deployable),
        ("attributes", devices.list_attributes, devices.get_attribute),
        ("device_profiles", profiles.list_all, profiles.get),
        ("extended_accelerator_requests", arqs.list_arqs, arqs.get),
    ):
        wanted = [row["uuid"] for row in content[table]]
        assert [one.uuid for one in lister(database)] == wanted
        assert [get(database, uuid).uuid for uuid in wanted] == wanted
    page = query.Page(filters={"project_id": "not-a-uuid"})
    (odd,) = arqs.list_arqs(database, page, instance="not-a-uuid")
    assert odd.device_rp_uuid == "not-a-uuid"


def test_adopted_rows_can_be_changed_and_deleted(
    adopted: tuple[engine.Database, dict[str, list[dict[str, Any]]]],
) -> None:
    database, _content = adopted
    migration.upgrade(database)
    for attribute in devices.list_attributes(database):
        assert attribute.source == "driver"
        device_changes.delete_attribute(database, attribute.uuid)
    for device in devices.list_devices(database):
        host, _ = device_changes.set_device_status(
            database, device.uuid, "enabled"
        )
        assert host.provider_name == device.hostname
    profiles.create(database, "new", [{"resources:PGPU": "1"}])
    profiles.delete(database, ["new", "with-bitstream"])
    with database.writer() as session:
        session.execute(sa.delete(models.AcceleratorRequest))
    profiles.delete(database, ["odd", "gpu", "two-groups"])
    assert profiles.list_all(database) == []


def test_the_deployed_service_works_on_after_the_upgrade(
    fresh: engine.Database,
) -> None:
    content = rows.rows_of(rows.dump(migration.ADOPTED[1]))
    migration.upgrade(fresh, migration.ADOPTED[1])
    old = sa.MetaData()
    old.reflect(fresh.engine)
    migration.upgrade(fresh)
    with fresh.connection() as connection:
        for table in old.sorted_tables:
            for row in content.get(table.name, []):
                connection.execute(table.insert(), rows.typed(table, row))
        for table in old.sorted_tables:
            found = connection.execute(sa.select(table)).all()
            if table.name != "alembic_version":
                assert len(found) == len(content.get(table.name, []))
    assert rows.stored(fresh, content) == content


@pytest.mark.parametrize("revision", ["f50980397351", "0123456789ab"])
def test_an_unknown_revision_is_named_and_nothing_is_changed(
    fresh: engine.Database, revision: str
) -> None:
    migration.upgrade(fresh, migration.ADOPTED[0])
    with fresh.connection() as connection:
        connection.execute(
            sa.text("UPDATE alembic_version SET version_num = :revision"),
            {"revision": revision},
        )
    before = shape(fresh)
    with pytest.raises(migration.MigrationError, match=revision) as caught:
        migration.upgrade(fresh)
    assert migration.ADOPTED[1] in str(caught.value)
    assert shape(fresh) == before
    assert migration.standing(fresh).revision == revision
    assert migration.standing(fresh).fault


def test_two_revisions_at_once_are_refused(fresh: engine.Database) -> None:
    migration.upgrade(fresh, migration.ADOPTED[0])
    with fresh.connection() as connection:
        connection.execute(
            sa.text("INSERT INTO alembic_version VALUES (:revision)"),
            {"revision": migration.ADOPTED[1]},
        )
    with pytest.raises(migration.MigrationError, match="stands at"):
        migration.upgrade(fresh)


def test_tables_without_a_revision_are_refused_until_stamped(
    fresh: engine.Database,
) -> None:
    migration.upgrade(fresh, migration.ADOPTED[1])
    with fresh.connection() as connection:
        connection.execute(sa.text("DROP TABLE alembic_version"))
    with pytest.raises(migration.MigrationError, match="stamp"):
        migration.upgrade(fresh)
    migration.stamp(fresh, migration.ADOPTED[1])
    migration.upgrade(fresh)
    assert differences(fresh) == []


def test_two_upgrades_at_once_both_succeed(kind: str, tmp_path: Path) -> None:
    with databases.empty(kind, tmp_path) as url:

        def run(_: int) -> bool:
            with databases.opened(url) as database:
                migration.upgrade(database)
                return migration.standing(database).current

        with futures.ThreadPoolExecutor(3) as pool:
            assert all(pool.map(run, range(3)))
        with databases.opened(url) as database:
            assert differences(database) == []


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", [1, 2, 6, 20, 32, 38, 41, 44, 47])
def test_an_upgrade_that_was_killed_is_finished_by_the_next(
    fresh: engine.Database, after: int
) -> None:
    done = 0

    def kill(_connection: Any, _cursor: Any, text: str, *_rest: Any) -> None:
        nonlocal done
        if text.lstrip().upper().startswith(("CREATE", "ALTER")):
            done += 1
            if done > after:
                raise KilledError("killed")

    event.listen(fresh.engine, "before_cursor_execute", kill)
    try:
        with pytest.raises(KilledError):
            migration.upgrade(fresh)
    finally:
        event.remove(fresh.engine, "before_cursor_execute", kill)
    migration.upgrade(fresh)
    assert migration.standing(fresh).current
    assert differences(fresh) == []


def test_other_character_sets_and_locales_are_adopted_too(
    kind: str, tmp_path: Path
) -> None:
    for options in OPTIONS[kind]:
        extra = "?charset=utf8" if kind == "mariadb" else ""
        with (
            databases.empty(kind, tmp_path, options, extra) as url,
            databases.opened(url) as database,
        ):
            if kind == "mariadb":
                text = rows.dump(migration.ADOPTED[1])
                if "unicode" in str(options):
                    text = text.replace(
                        "CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci",
                        "CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci",
                    )
                databases.load_dump(database, text)
            migration.upgrade(database)
            assert differences(database) == []
            card = rows.device()
            rows.add(database, card)
            for status in ("maintaining", "enabled"):
                device_changes.set_device_status(database, card.uuid, status)
            assert arqs.list_arqs(database, project_scope="\U0001f600") == []


def test_projects_come_from_novas_instances(
    database: engine.Database,
) -> None:
    plan = rows.profile()
    rows.add(database, plan)
    known, unknown = models.new_uuid(), models.new_uuid()
    made = [
        rows.request(plan, instance_uuid=instance)
        for instance in (known, known, known, unknown, "not-a-uuid", None)
    ]
    kept = rows.request(plan, instance_uuid=known, project_id="kept")
    rows.add(database, *made, kept)
    asked = []

    def project_of(instance: str) -> str | None:
        asked.append(instance)
        return "project" if instance == known else None

    assert projects.projectless(database) == 6
    assert projects.fill_projects(database, project_of, 2) == (2, True)
    assert projects.fill_projects(database, project_of) == (1, False)
    assert projects.fill_projects(database, project_of) == (0, False)
    assert set(asked) == {known, unknown}
    found = {one.uuid: one.project_id for one in arqs.list_arqs(database)}
    wanted = ["project"] * 3 + [None] * 3
    assert [found[one.uuid] for one in made] == wanted
    assert found[kept.uuid] == "kept"


def test_nova_is_not_asked_where_no_instance_lacks_a_project(
    database: engine.Database,
) -> None:
    plan = rows.profile()
    rows.add(database, plan)
    rows.add(database, rows.request(plan))

    def project_of(instance: str) -> str | None:
        raise AssertionError(instance)

    assert projects.fill_projects(database, project_of) == (0, False)

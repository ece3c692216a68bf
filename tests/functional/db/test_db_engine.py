# SPDX-License-Identifier: Apache-2.0
"""Transactions, retries and failures of the database."""

from __future__ import annotations

import importlib.util
import socket
import time
from concurrent import futures
from pathlib import Path

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exception

import cyborg.conf
from cyborg import exception
from cyborg.db import arqs
from cyborg.db import device_changes
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import profiles
from tests import databases
from tests import rows

MYSQL_DRIVERS = ["mysql+pymysql"]
if importlib.util.find_spec("MySQLdb"):  # needs the client's C library
    MYSQL_DRIVERS.append("mysql+mysqldb")


def test_a_transaction_that_fails_leaves_nothing(
    database: engine.Database,
) -> None:
    def fail() -> None:
        with database.writer() as session:
            session.add(rows.device())
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert devices.list_devices(database) == []


def test_one_of_many_conditional_updates_wins(
    database: engine.Database,
) -> None:
    rows.add(database, rows.device())

    @engine.retried
    def take(_: int) -> int:
        with database.writer() as session:
            taken = session.execute(
                sa.update(models.Device)
                .where(models.Device.status == "enabled")
                .values(status="maintaining")
            )
            return int(taken.rowcount)

    with futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(32))) == 1


def test_readers_and_writers_of_many_threads_get_along(
    database: engine.Database,
) -> None:
    def work(number: int) -> int:
        profiles.create(database, f"p{number}", [{"resources:PGPU": "1"}])
        return len(profiles.list_all(database))

    with futures.ThreadPoolExecutor(8) as pool:
        assert max(pool.map(work, range(40))) == 40


def test_foreign_keys_hold(database: engine.Database) -> None:
    with pytest.raises(db_exception.DBReferenceError):
        rows.add(
            database,
            models.AcceleratorRequest(device_profile_id=999, state="Initial"),
        )


def test_one_connection_is_enough_for_everything(
    kind: str, shared_database: engine.Database, database: engine.Database
) -> None:
    url = shared_database.engine.url.render_as_string(hide_password=False)
    with databases.opened(
        url, max_pool_size=1, max_overflow=0, pool_timeout=1
    ) as narrow:
        card = rows.device()
        rows.add(narrow, card)
        unit = rows.deployable(card)
        rows.add(narrow, unit)
        made = device_changes.create_attribute(
            narrow, unit.id, "trait0", "CUSTOM_A"
        )
        device_changes.delete_attribute(narrow, made.uuid)
        device_changes.set_device_status(narrow, card.uuid, "maintaining")
        profiles.create(narrow, "gpu", [{"resources:PGPU": "1"}])
        profiles.delete(narrow, ["gpu"])
        assert len(devices.list_deployables(narrow)) == 1
        assert arqs.list_arqs(narrow) == []


def test_a_deadlock_is_tried_again_as_a_whole() -> None:
    calls = []

    @engine.retried
    def work() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise db_exception.DBDeadlock
        return "done"

    assert work() == "done"
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("kind_of_url", "url"),
    [
        ("mariadb", "mysql+pymysql://root@127.0.0.1:1/cyborg"),
        ("postgresql", "postgresql+psycopg2://postgres@127.0.0.1:1/cyborg"),
        ("sqlite", "sqlite:////nowhere/at/all.sqlite"),
    ],
)
def test_a_database_that_is_down_is_unavailable(
    kind_of_url: str, url: str
) -> None:
    with (
        databases.opened(url) as database,
        pytest.raises(exception.Unavailable),
    ):
        devices.list_devices(database)


def test_a_database_without_our_tables_is_unavailable(
    kind: str, tmp_path: Path
) -> None:
    with (
        databases.empty(kind, tmp_path) as url,
        databases.opened(url) as database,
        pytest.raises(exception.Unavailable, match="cyborg-dbsync"),
    ):
        devices.list_devices(database)


@pytest.mark.parametrize("driver", MYSQL_DRIVERS)
def test_a_server_that_says_nothing_is_a_database_that_does_not_answer(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "RETRY_SECONDS", 1)
    conf = cfg.ConfigOpts()
    cyborg.conf.register(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        conf.set_override(
            "connection", f"{driver}://u:p@127.0.0.1:{port}/c", "database"
        )
        database = engine.Database(conf, patience=1)
        began = time.monotonic()
        with pytest.raises(exception.Unavailable):
            devices.list_devices(database)
        assert time.monotonic() - began < 6


def test_the_limits_of_an_operator_come_first() -> None:
    url = sa.make_url("mysql+pymysql://u:p@h/c?read_timeout=77")
    assert dict(engine._impatient(url, 10).query) == {
        "connect_timeout": "10",
        "read_timeout": "77",
        "write_timeout": "10",
    }
    url = sa.make_url("postgresql+psycopg2://u:p@h/c")
    assert dict(engine._impatient(url, 10).query) == {
        "connect_timeout": "10",
        "tcp_user_timeout": "10000",
    }

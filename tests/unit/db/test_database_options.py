# SPDX-License-Identifier: Apache-2.0
"""From `[database]` to an engine, and from errors to what they mean."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exception

from cyborg import exception
from cyborg.db import engine
from cyborg.db import models
from cyborg.db import query
from tests import databases


def test_an_unset_connection_is_named() -> None:
    with pytest.raises(cfg.RequiredOptError, match="connection"):
        engine.Database(databases.configuration(None))


@pytest.mark.parametrize(
    "url",
    [
        "mysql+pymysql://u:secret@h/d?charset=utf8&plugin=no_such_plugin",
        "no_such_database://u:secret@h/d",
        "not a url secret",
        "sqlite://",
        "sqlite:///:memory:",
    ],
)
def test_a_connection_that_leads_nowhere_is_refused_without_its_password(
    url: str,
) -> None:
    with pytest.raises(cfg.ConfigFileValueError) as caught:
        engine.Database(databases.configuration(url))
    assert "[database] connection" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("mysql://u@h/d", "pymysql"),
        ("mysql+pymysql://u@h/d?charset=utf8&ssl_ca=/ca.pem", "pymysql"),
        ("postgresql://u@h/d?client_encoding=utf8", "psycopg2"),
    ],
)
def test_a_url_reaches_the_engine_unchanged_but_for_a_missing_driver(
    url: str, driver: str
) -> None:
    with databases.opened(url) as database:
        assert database.engine.dialect.driver == driver
        asked = sa.make_url(url)
        assert database.engine.url.query == asked.query
        assert database.engine.url.host == asked.host


def test_pool_options_are_honoured() -> None:
    with databases.opened(
        "mysql+pymysql://u@h/d", max_pool_size=1, max_overflow=0
    ) as database:
        assert database.engine.pool.size() == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (db_exception.DBDeadlock(), exception.Unavailable),
        (db_exception.DBConnectionError(), exception.Unavailable),
        (sa.exc.TimeoutError(), exception.Unavailable),
        (db_exception.DBNonExistentTable("x"), exception.Unavailable),
        (
            sa.exc.OperationalError("", {}, Exception(1267, "mix")),
            exception.Invalid,
        ),
        (
            sa.exc.DataError("", {}, Exception(1366, "text")),
            exception.Invalid,
        ),
        (
            sa.exc.OperationalError("", {}, Exception(1205, "lock")),
            exception.Unavailable,
        ),
        (
            db_exception.DBDuplicateEntry(Exception("x")),
            db_exception.DBDuplicateEntry,
        ),
    ],
)
def test_an_error_of_the_database_means_one_of_ours(
    error: Exception, meaning: type[Exception]
) -> None:
    with pytest.raises(meaning), engine.translated():
        raise error


def test_mariadb_compares_as_bytes_what_others_compare_plainly() -> None:
    condition = query.same(models.DeviceProfile.name, "gpu")
    with databases.opened("mysql+pymysql://u@h/d") as mariadb:
        text = str(condition.compile(mariadb.engine))
    assert "CAST(device_profiles.name AS BINARY)" in text
    with databases.opened("postgresql+psycopg2://u@h/d") as postgresql:
        text = str(condition.compile(postgresql.engine))
    assert "BINARY" not in text


def test_no_values_mean_no_row() -> None:
    condition = query.one_of(models.DeviceProfile.name, [])
    assert condition.compare(sa.false())

# SPDX-License-Identifier: Apache-2.0
"""What is due when, by the database's clock alone."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa

from cyborg.db import clock
from cyborg.db import engine
from cyborg.db import hosts
from cyborg.db import models

HOUR = 3600


def _host(database: engine.Database) -> int:
    with database.writer() as session:
        host = models.Host(
            uuid=models.new_uuid(),
            name="compute-1",
            provider_name="compute-1.example.org",
            provider_uuid=models.new_uuid(),
            revision=1,
        )
        session.add(host)
        session.flush()
        return host.id


def _due(database: engine.Database) -> list[int]:
    with database.reader() as session:
        return hosts.due(session, clock.after(0), 10)


@pytest.mark.parametrize("seconds", [0, 0.25, 90, -90, HOUR + 0.5])
def test_a_moment_is_so_many_seconds_from_now(
    database: engine.Database, seconds: float
) -> None:
    with database.reader() as session:
        before = clock.now(session)
        moment = session.scalar(sa.select(clock.after(seconds)))
        after = clock.now(session)
    second = dt.timedelta(seconds=1)
    assert moment is not None
    assert moment.microsecond == 0
    distance = dt.timedelta(seconds=seconds)
    assert before + distance - second <= moment <= after + distance + second


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_a_clock_that_is_wrong_puts_nothing_off(
    database: engine.Database, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    host_id = _host(database)
    real = models.now
    monkeypatch.setattr(
        models, "now", lambda: real() + dt.timedelta(seconds=ahead)
    )
    with database.writer() as session:
        hosts.postpone(session, host_id, clock.after(60))
    assert _due(database) == []
    with database.writer() as session:
        hosts.postpone(session, host_id, clock.after(-2))
    monkeypatch.undo()
    assert _due(database) == [host_id]
    with database.writer() as session:
        assert hosts.take(
            session,
            host_id,
            clock.after(0),
            next_at=clock.after(HOUR),
            owed_at=clock.after(-1),
        )
    assert _due(database) == [host_id]

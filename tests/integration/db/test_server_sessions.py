# SPDX-License-Identifier: Apache-2.0
"""What only a server does: several writers at once, and connections that
can be lost."""

from __future__ import annotations

import threading
from concurrent import futures

import sqlalchemy as sa

from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from tests import databases
from tests import rows


def test_a_writer_sees_what_was_committed_after_its_first_read(
    database: engine.Database,
) -> None:
    card = rows.device()
    rows.add(database, card)
    seen = sa.select(models.Device.model)
    with database.writer() as session:
        assert session.scalars(seen).one() == "card"
        with database.writer() as other:
            other.execute(sa.update(models.Device).values(model="new"))
        assert session.scalars(seen).one() == "new"


def test_a_real_deadlock_ends_well_for_both(
    database: engine.Database,
) -> None:
    cards = [rows.device(), rows.device()]
    rows.add(database, *cards)
    meeting = threading.Barrier(2, timeout=10)
    tries = []

    @engine.retried
    def work(order: tuple[int, int]) -> None:
        tries.append(order)
        with database.writer() as session:
            for place, number in enumerate(order):
                session.execute(
                    sa.update(models.Device)
                    .where(models.Device.id == cards[number].id)
                    .values(model=f"{order}")
                )
                if place == 0 and len(tries) <= 2:
                    meeting.wait()

    with futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [(0, 1), (1, 0)]))
    assert len(tries) > 2
    models_now = {one.model for one in devices.list_devices(database)}
    assert len(models_now) == 1


def test_a_lost_connection_is_replaced(
    kind: str, database: engine.Database
) -> None:
    with database.engine.connect() as connection:
        number = connection.scalar(
            sa.text(
                "SELECT CONNECTION_ID()"
                if kind == "mariadb"
                else "SELECT pg_backend_pid()"
            )
        )
    kill = (
        f"KILL {number}"
        if kind == "mariadb"
        else f"SELECT pg_terminate_backend({number})"
    )
    url = database.engine.url.render_as_string(hide_password=False)
    with databases.opened(url) as other, other.connection() as connection:
        connection.exec_driver_sql(kill)
    assert devices.list_devices(database) == []

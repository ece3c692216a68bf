# SPDX-License-Identifier: Apache-2.0
"""What is counted for the metrics, the same on every database."""

from __future__ import annotations

import datetime

from cyborg.db import clock
from cyborg.db import counts
from cyborg.db import engine
from cyborg.db import models
from tests import rows
from tests import statements


def _host(name: str, **values: object) -> models.Host:
    return models.Host(
        name=name, provider_name=name, **{"provider_uuid": name, **values}
    )


def test_nothing_is_counted_as_nothing(database: engine.Database) -> None:
    with database.reader() as session:
        assert counts.arqs(session) == {}
        assert counts.arqs_untold(session) == 0
        assert counts.devices(session) == {}
        assert counts.handles(session) == {}
        assert counts.jobs(session) == {}
        assert counts.agents(session, clock.after(0)) == {}
        assert counts.owed(session) == set()


def test_requests_are_counted_by_state(database: engine.Database) -> None:
    profile = rows.profile()
    rows.add(database, profile)
    made = [rows.request(profile) for _ in range(3)]
    made[0].state = "Bound"
    made[1].event_due_at = models.now()
    rows.add(database, *made)
    with database.reader() as session:
        assert counts.arqs(session) == {("Bound",): 1, ("Initial",): 2}
        assert counts.arqs_untold(session) == 1


def test_a_device_is_counted_once_by_the_worst_of_it(
    database: engine.Database,
) -> None:
    rows.add(
        database,
        rows.device(type="GPU"),
        rows.device(type="GPU", status="maintaining"),
        rows.device(type="GPU", fault="hot", lost_at=models.now()),
        rows.device(type="GPU", fault="hot"),
        rows.device(type="GPU", driver_fault="silent"),
        rows.device(type="SSD", device_state="pending_cleaning"),
        rows.device(type="SSD", device_state="error"),
        rows.device(type="SSD", device_state="allocated"),
    )
    with database.reader() as session:
        assert counts.devices(session) == {
            ("GPU", "enabled", "ok"): 1,
            ("GPU", "maintaining", "ok"): 1,
            ("GPU", "enabled", "lost"): 1,
            ("GPU", "enabled", "fault"): 2,
            ("SSD", "enabled", "pending_cleaning"): 1,
            ("SSD", "enabled", "error"): 1,
            ("SSD", "enabled", "ok"): 1,
        }


def test_handles_are_counted_by_resource_class_and_use(
    database: engine.Database,
) -> None:
    device = rows.device()
    rows.add(database, device)
    named, nameless = rows.deployable(device), rows.deployable(device)
    path = models.ControlpathID(device_id=device.id, cpid_info="{}")
    rows.add(database, named, nameless, path)
    rows.add(
        database,
        *(
            models.Attribute(deployable_id=named.id, key=key, value=value)
            for key, value in (
                ("rc", "PGPU"),
                ("rc", "PGPU"),
                ("trait0", "CUSTOM_A"),
            )
        ),
        *(
            models.AttachHandle(
                deployable_id=owner.id,
                cpid_id=path.id,
                attach_type="PCI",
                attach_info="{}",
                in_use=in_use,
                job_id=job,
            )
            for owner, in_use, job in (
                (named, False, None),
                (named, None, None),
                (named, True, None),
                (named, True, 7),
                (nameless, True, None),
            )
        ),
    )
    with database.reader() as session:
        assert counts.handles(session) == {
            ("PGPU", "free"): 2,
            ("PGPU", "used"): 1,
            ("PGPU", "cleaning"): 1,
            ("", "used"): 1,
        }


def test_jobs_are_counted_by_kind_and_state(
    database: engine.Database,
) -> None:
    rows.add(
        database,
        *(
            models.Job(
                kind=kind,
                state=state,
                hostname="h",
                arguments="{}",
                deadline=models.now(),
            )
            for kind, state in (
                ("program", "running"),
                ("program", "failed"),
                ("clean", "failed"),
                ("clean", "failed"),
            )
        ),
    )
    with database.reader() as session:
        assert counts.jobs(session) == {
            ("program", "running"): 1,
            ("program", "failed"): 1,
            ("clean", "failed"): 2,
        }


def test_an_agent_is_silent_after_a_moment_or_when_it_never_spoke(
    database: engine.Database,
) -> None:
    now = models.now()
    before = now - datetime.timedelta(seconds=60)
    rows.add(
        database,
        _host("a", last_seen_at=now, faults="[]"),
        _host("b", last_seen_at=now, faults='[{"driver": "d"}]'),
        _host("c", last_seen_at=before - datetime.timedelta(seconds=1)),
        _host("d"),
    )
    with database.reader() as session:
        assert counts.agents(session, clock.after(-55)) == {
            ("alive", "ok"): 1,
            ("alive", "fault"): 1,
            ("silent", "ok"): 2,
        }


def test_a_host_is_owed_what_its_root_does_not_have(
    database: engine.Database,
) -> None:
    late = _host("late", revision=5, synced_revision=3)
    rows.add(
        database,
        late,
        _host("even", revision=5, synced_revision=5),
        _host("no-root", revision=1, provider_uuid=None),
    )
    with database.reader() as session:
        assert counts.owed(session) == {(late.id, 3)}


def test_each_count_is_one_statement(database: engine.Database) -> None:
    with (
        statements.StatementCounter(database.engine) as counter,
        database.reader() as session,
    ):
        counts.handles(session)
        counts.devices(session)
    assert len(counter.statements) == 2

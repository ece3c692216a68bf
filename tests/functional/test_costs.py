# SPDX-License-Identifier: Apache-2.0
"""What the conductor's operations cost, in statements and calls.

Counts do not depend on the machine: each operation runs with N things and E
accelerator requests beside them, and costs the same for every N and E.
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.clients.placement import Placement
from cyborg.conductor import binding
from cyborg.conductor import job_rows
from cyborg.conductor import reports
from cyborg.conductor import requests
from cyborg.conductor.sync import Change
from cyborg.conductor.sync import Synchronizer
from cyborg.db import device_changes
from cyborg.db import engine
from cyborg.db import hosts
from cyborg.db import jobs
from cyborg.db import models
from cyborg.notification import Notice
from tests import databases
from tests.functional.conductor import world as worlds
from tests.functional.conductor.test_preparing import t4
from tests.functional.conductor.world import World
from tests.functional.conductor.world import device
from tests.functional.conductor.world import provider_of
from tests.placement import PlacementService
from tests.placement import placement
from tests.statements import StatementCounter

__all__ = ["placement"]

NUMBERS = (1, 8, 64)
EXISTING = (0, 10_000)


@pytest.fixture(scope="module", params=databases.ALL)
def crowded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], World]]:
    """Makes a conductor whose database has that many other ARQs."""
    directory = tmp_path_factory.mktemp("costs")
    with databases.migrated(request.param, directory) as database:

        def make(existing: int) -> World:
            databases.clear(database)
            _fill(database, existing)
            world = worlds.make(database)
            world.report(device(accelerators=64))
            return world

        yield make


def _fill(database: engine.Database, count: int) -> None:
    """ARQs of many instances, half of them bound elsewhere."""
    if not count:
        return
    with database.writer() as session:
        profile = models.DeviceProfile(
            name="other",
            profile_json='{"groups": [{"resources:PGPU": "1"}]}',
        )
        session.add(profile)
        session.flush()
        session.execute(
            sa.insert(models.AcceleratorRequest),
            [
                {
                    "uuid": str(uuid.uuid4()),
                    "state": "Bound" if number % 2 else "Initial",
                    "substate": "Initial",
                    "project_id": worlds.PROJECT,
                    "device_profile_id": profile.id,
                    "device_profile_group_id": 0,
                    "instance_uuid": str(uuid.uuid4()) if number % 2 else None,
                    "event_attempts": 0,
                }
                for number in range(count)
            ],
        )


def _counted(
    world: World, operation: Callable[[], object]
) -> StatementCounter:
    with StatementCounter(world.database.engine) as counter:
        operation()
    return counter


@dataclasses.dataclass(frozen=True)
class Bound:
    statements: int
    transactions: int = 1


@pytest.mark.parametrize("existing", EXISTING)
def test_requests_cost_the_same_however_many_there_are(
    crowded: Callable[[int], World], existing: int
) -> None:
    world = crowded(existing)
    costs: dict[str, set[int]] = {}
    bounds = {
        "create": 3,
        "bind": 7 if world.database.engine.name == "postgresql" else 6,
        "unbind": 5,
        "delete": 5,
    }
    for number in NUMBERS:
        name = f"profile-of-{number}"
        world.profile(name, {"resources:FPGA": str(number)})
        arqs: list[str] = []
        instance = str(uuid.uuid4())
        bindings = [
            worlds.Binding(
                "", "compute-1.example.org", provider_of(), instance
            )
        ]

        def create(name: str = name, arqs: list[str] = arqs) -> None:
            arqs += requests.create(
                world.database,
                name,
                request_id=str(uuid.uuid4()),
                group_id=None,
                image_uuid=None,
                project_id=worlds.PROJECT,
                limit=64,
                deadline=math.inf,
            )

        def bind(
            arqs: list[str] = arqs,
            first: worlds.Binding = bindings[0],
        ) -> None:
            binding.bind(
                world.database,
                [dataclasses.replace(first, arq_uuid=one) for one in arqs],
                None,
                world.work.settings,
            )

        steps = {
            "create": create,
            "bind": bind,
            "unbind": lambda: requests.unbind(world.database, arqs, None, 5),
        }
        for step, operation in steps.items():
            counter = _counted(world, operation)
            assert counter.transactions == 1, step
            costs.setdefault(step, set()).add(len(counter.statements))
        bind()
        counter = _counted(
            world,
            lambda: requests.delete_of_instance(
                world.database, instance, None, 5
            ),
        )
        assert counter.transactions == 1
        costs.setdefault("delete", set()).add(len(counter.statements))
        assert world.used() == []
    for step, found in costs.items():
        assert len(found) == 1, (step, found)
        assert found.pop() <= bounds[step], step


class _Costs:
    """Statements of each step, counted; one transaction each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.found: dict[str, set[int]] = {}

    def count(self, step: str, operation: Callable[[], Any]) -> Any:
        result = []
        counter = _counted(self._world, lambda: result.append(operation()))
        assert counter.transactions == 1, step
        self.found.setdefault(step, set()).add(len(counter.statements))
        return result[0]

    def clean(self, step: str, end: Callable[[jobs.Claimed], Any]) -> None:
        """Ends every job that cleans, each at the same cost."""
        database, settings = self._world.database, self._world.work.settings
        _, begun, _ = self.count(
            f"begin to {step}",
            lambda: job_rows.look(
                database, {}, settings.new_lease(), lambda chosen: set()
            ),
        )
        for job in begun:
            self.count(step, lambda job=job: end(job))


@pytest.mark.parametrize("existing", EXISTING)
def test_units_that_are_made_and_cleaned_cost_the_same_however_many(
    crowded: Callable[[int], World], existing: int
) -> None:
    world = crowded(existing)
    world.report(t4(64))
    database, settings = world.database, world.work.settings
    card = world.all(models.Device)[0].uuid
    costs = _Costs(world)
    for number in NUMBERS:
        name = f"profile-of-{number}"
        world.profile(name, {"resources:FPGA": str(number)})
        arqs = world.endpoint.create_arqs(worlds.CONTEXT, name, None, None)
        bindings = [
            worlds.Binding(
                one, "compute-1.example.org", provider_of(), "instance"
            )
            for one in arqs
        ]

        def bind(bindings: list[worlds.Binding] = bindings) -> jobs.Claimed:
            (job,) = binding.bind(database, bindings, None, settings).jobs
            return job

        def done(job: jobs.Claimed) -> None:
            result = worlds.CleanResult(done=True)
            assert job_rows.finish(database, job, result, 5)

        def failed(job: jobs.Claimed) -> None:
            assert job_rows.fail(database, job.id, job.kind, "no", 5)

        costs.count("bind", bind)
        costs.count("unbind", lambda: requests.unbind(database, arqs, None, 5))
        assert len(world.used()) == number
        costs.clean("clean", done)
        started = bind()
        costs.count("be refused", lambda: failed(started))
        costs.clean("fail", failed)
        assert len(world.used()) == number
        costs.count(
            "enable",
            lambda: device_changes.set_device_status(
                database, card, "enabled"
            ),
        )
        costs.clean("clean", done)
        requests.unbind(database, arqs, None, 5)
        made = bind()
        costs.count("be made", lambda: done(made))
        costs.count(
            "delete",
            lambda: requests.delete_of_instance(database, "instance", None, 5),
        )
        costs.clean("clean", done)
        assert world.used() == []
    bounds = {
        "bind": 12,
        "unbind": 14,
        "delete": 12,
        "be made": 3,
        "be refused": 12,
        "enable": 14,
        "clean": 7,
        "fail": 4,
        "begin to clean": 8,
        "begin to fail": 8,
    }
    for step, found in costs.found.items():
        assert len(found) == 1, (step, found)
        assert found.pop() <= bounds[step], step


@pytest.mark.parametrize("number", NUMBERS)
def test_a_hosts_reports_cost_the_same_however_many_devices_it_has(
    crowded: Callable[[int], World], number: int
) -> None:
    world = crowded(0)
    cards = [
        device(bus=bus, accelerators=4, host="compute-2")
        for bus in range(1, number + 1)
    ]
    first = worlds.report(
        *cards, host="compute-2", provider_name="compute-2.example.org"
    )

    def store(report: worlds.inventory.HostReport) -> int:
        counter = _counted(
            world, lambda: reports.store(world.database, report, 180, 5)
        )
        assert counter.transactions == 1
        return len(counter.statements)

    assert store(first) <= 12
    counter = _counted(
        world,
        lambda: world.endpoint.heartbeat(
            worlds.CONTEXT, "compute-2", first.digest()
        ),
    )
    assert (len(counter.statements), counter.transactions) == (1, 1)
    changed = dataclasses.replace(
        first,
        devices=(
            device(
                bus=1,
                accelerators=3,
                host="compute-2",
                traits=("CUSTOM_OTHER",),
                fault="hot",
            ),
            *cards[1:],
        ),
    )
    assert store(changed) <= 12
    assert store(dataclasses.replace(first, devices=())) <= 12


@pytest.mark.parametrize("number", NUMBERS)
def test_an_audit_of_a_host_where_nothing_is_wrong_costs_one_call(
    crowded: Callable[[int], World],
    placement: PlacementService,
    number: int,
) -> None:
    world = crowded(0)
    root = placement.create_provider("compute-2.example.org")
    world.report(
        *(
            device(bus=bus, accelerators=1, host="compute-2")
            for bus in range(1, number + 1)
        ),
        host="compute-2",
        provider_name="compute-2.example.org",
        provider_uuid=root,
    )
    client = Placement(placement.adapter())
    sync = Synchronizer(
        world.database,
        client,
        60,
        world.work._pool,
        lambda delay: None,
    )
    host = world.all(models.Host)[-1]
    with placement.counted() as calls:
        sync.sync(host.id)
    assert len(placement.providers(root)) == number + 1
    assert len(calls) <= 1 + 3 * number + 4
    world.execute(sa.update(models.Host).values(sync_due_at=models.now()))
    failures: list[int] = []
    with (
        placement.counted() as calls,
        StatementCounter(world.database.engine) as counter,
    ):
        sync._audit(host.id, failures)
    assert not failures
    assert (len(counter.statements), counter.transactions) == (2, 1)
    assert len(calls) == 1


@pytest.mark.parametrize("heard", [False, True], ids=["quiet", "heard"])
def test_enabling_and_disabling_costs_five_statements(
    crowded: Callable[[int], World],
    placement: PlacementService,
    heard: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = crowded(0)
    told: list[Notice] = []
    if heard:
        monkeypatch.setattr(world.database, "listener", told.extend)
    root = placement.create_provider("compute-1.example.org")
    world.report(device(accelerators=64), provider_uuid=root)
    sync = Synchronizer(
        world.database,
        Placement(placement.adapter()),
        60,
        world.work._pool,
        lambda delay: None,
    )
    sync.sync(world.all(models.Host)[0].id)
    row = world.all(models.Device)[0]
    cold = Synchronizer(
        world.database,
        Placement(placement.adapter()),
        60,
        world.work._pool,
        lambda delay: None,
    )
    for status, reserved in (("maintaining", 64), ("enabled", 0)):
        with (
            placement.counted() as calls,
            StatementCounter(world.database.engine) as counter,
        ):
            host, changed = device_changes.set_device_status(
                world.database, row.uuid, status
            )
            cold.sync(host.id, Change(row.uuid, host.revision))
        assert changed
        assert len(counter.statements) <= 5, counter.statements
        assert len(calls) <= 2 + 1
        assert [one.payload.uuid for one in told] == [row.uuid] * heard
        told.clear()
        inventory = placement.inventories(provider_of())["FPGA"]
        assert inventory["reserved"] == reserved
        assert inventory["max_unit"] == inventory["total"] == 64
    with world.database.reader() as session:
        state = hosts.offers(session, host.id)
    assert state is not None
    assert state.revision == state.synced_revision

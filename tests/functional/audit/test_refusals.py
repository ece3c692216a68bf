# SPDX-License-Identifier: Apache-2.0
"""What a heal leaves alone, and what it removes only when it is told to."""

from __future__ import annotations

import threading
import uuid
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg import inventory
from cyborg.audit import gathering
from cyborg.audit import running
from cyborg.audit.findings import Kind
from cyborg.audit.healing import Result
from cyborg.clients.nova_servers import Fate
from cyborg.clients.placement_survey import Claim
from cyborg.clients.placement_survey import Survey
from cyborg.db import models
from cyborg.db import repairs
from cyborg.db import suspects
from tests import placement as placement_module
from tests.functional.audit import corruptions
from tests.functional.audit.cloud import Arq
from tests.functional.audit.cloud import Cloud
from tests.functional.audit.cloud import Clouds
from tests.functional.audit.cloud import Device
from tests.functional.audit.cloud import Handle
from tests.functional.audit.cloud import Host
from tests.functional.audit.cloud import Job
from tests.functional.audit.cloud import ago
from tests.functional.conductor import world as worlds
from tests.placement import Answer
from tests.statements import StatementCounter


def results(healed: running.Heal) -> dict[Kind, Result]:
    return {one.finding.kind: one.result for one in healed.outcomes}


@pytest.mark.parametrize("silence", ["503", "blind", "no-migrations"])
def test_where_nova_does_not_tell_nothing_is_destroyed(
    clouds: Clouds, silence: str
) -> None:
    cloud = clouds("sqlite", 2)
    corruptions.orphaned_arq(cloud.sites[0])
    corruptions.allocation_without_arq(cloud.sites[1])
    if silence == "503":
        cloud.nova.failure = 503
    elif silence == "blind":
        cloud.nova.shows_all = False
    before = cloud.dump()
    unknown = {"servers": None} if silence == "no-migrations" else {}

    healed = cloud.heal(**unknown)

    assert results(healed) == {
        Kind.ALLOCATION_WITHOUT_ARQ: Result.REFUSED,
        Kind.ARQ_WITHOUT_ALLOCATION: Result.REFUSED,
    }
    assert cloud.dump() == before
    assert bool(healed.unchecked) == (silence != "no-migrations")
    cloud.nova.failure, cloud.nova.shows_all = None, True
    assert Kind.ORPHANED_ARQ in results(cloud.heal())
    assert cloud.world.all(Arq) == []


def test_a_migrations_allocation_stays(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    subject = corruptions.allocation_without_arq(cloud.sites[0])
    cloud.nova.migrations.add(subject.partition("/")[2])
    before = cloud.dump()
    assert results(cloud.heal()) == {
        Kind.ALLOCATION_WITHOUT_ARQ: Result.REFUSED
    }
    assert cloud.dump() == before


def test_another_clouds_nova_is_not_believed(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    cloud.sites[0].boot()
    # What happens where [nova] region_name is not set and there are two.
    cloud.nova.servers.clear()
    before = cloud.dump()

    healed = cloud.heal()

    assert results(healed) == {}
    (missed,) = healed.unchecked
    assert "region_name" in missed.why
    assert cloud.dump() == before


class Elsewhere(Survey):
    """The Placement of a region that has nothing of ours."""

    def tree(self, *_: Any) -> None:
        return None

    def root_called(self, _: str) -> None:
        return None

    def owned(self) -> list[Any]:
        return []

    def claim(self, _: str) -> Claim:
        return Claim("", frozenset())


def test_another_regions_nova_and_placement_are_not_believed(
    clouds: Clouds,
) -> None:
    """Where neither section says which region is ours."""
    cloud = clouds("sqlite", 1)
    corruptions.orphaned_arq(cloud.sites[0])

    healed = cloud.heal(survey=Elsewhere(cloud.placement.adapter()))

    assert Kind.ORPHANED_ARQ not in results(healed)
    assert any("region_name" in one.why for one in healed.unchecked)
    assert len(cloud.world.all(Arq)) == 1


def test_without_placement_nobody_is_taken_for_gone(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    corruptions.orphaned_arq(cloud.sites[0])
    before = cloud.dump()
    healed = cloud.heal(survey=None)
    assert Kind.ORPHANED_ARQ not in results(healed)
    assert any("without Placement" in one.why for one in healed.unchecked)
    assert cloud.dump() == before


def test_a_heal_says_what_it_could_not_look_at_again(
    clouds: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = clouds("sqlite", 1)
    corruptions.orphaned_arq(cloud.sites[0])
    gatherer = gathering.Gatherer(cloud.sources())
    healer = cloud.healer()
    heal = healer.heal

    def and_then_placement_is_away(*arguments: Any) -> Any:
        outcomes = heal(*arguments)
        monkeypatch.setattr(type(cloud.sources().survey), "tree", _unavailable)
        return outcomes

    monkeypatch.setattr(healer, "heal", and_then_placement_is_away)
    healed = running.heal(gatherer, healer, running.Choice(), lambda _: None)
    assert results(healed)[Kind.ORPHANED_ARQ] is Result.HEALED
    assert [one.what for one in healed.unchecked] == ["providers of 1 hosts"]


def _unavailable(*_: Any) -> None:
    raise exception.PlacementUnavailable("away")


def test_of_a_consumer_that_has_something_else_nothing_is_taken(
    clouds: Clouds,
) -> None:
    cloud = clouds("sqlite", 1)
    cloud.sites[0].allocate(str(uuid.uuid4()))
    before = cloud.dump()
    assert results(cloud.heal()) == {
        Kind.ALLOCATION_WITHOUT_ARQ: Result.REFUSED
    }
    assert cloud.dump() == before


def test_an_allocation_that_is_none_of_novas_stays(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    consumer = str(uuid.uuid4())
    cloud.placement.ask(
        "PUT",
        f"/allocations/{consumer}",
        {
            "allocations": {
                cloud.sites[0].provider: {"resources": {"FPGA": 1}}
            },
            "project_id": placement_module.PROJECT,
            "user_id": placement_module.USER,
            "consumer_generation": None,
            "consumer_type": "OPERATOR",
        },
    )
    before = cloud.dump()
    assert results(cloud.heal()) == {
        Kind.ALLOCATION_WITHOUT_ARQ: Result.REFUSED
    }
    assert cloud.dump() == before


def test_that_an_instance_is_gone_is_asked_twice(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    site = cloud.sites[0]
    instance, arq = site.boot()
    cloud.placement.release(instance)
    del cloud.nova.servers[instance]
    gatherer = gathering.Gatherer(cloud.sources())

    def come_back(_: float) -> None:
        cloud.nova.servers[instance] = worlds.PROJECT

    audit = running.audit(
        gatherer,
        running.Choice(frozenset({Kind.ORPHANED_ARQ})),
        come_back,
    )

    assert audit.findings == ()
    assert cloud.world.arq(arq).state == "Bound"


def test_what_may_have_to_be_cleaned_is_not_given_back(
    clouds: Clouds,
) -> None:
    cloud = clouds("sqlite", 2)
    corruptions.orphaned_arq(cloud.sites[0])
    corruptions.unbound_with_handle(cloud.sites[1])
    # As an adopted database has it whose agents are not upgraded yet.
    cloud.world.execute(sa.update(Device).values(driver=None))

    healed = cloud.heal()

    assert results(healed) == {
        Kind.ORPHANED_ARQ: Result.HEALED,
        Kind.HANDLE_KEPT: Result.HEALED,
        Kind.UNHELD_HANDLE: Result.REFUSED,
    }
    assert len([one for one in cloud.world.all(Handle) if one.in_use]) == 2

    cloud.world.execute(
        sa.update(Device).values(driver="fake_driver", clean_seconds=60)
    )
    assert results(cloud.heal()) == {Kind.UNHELD_HANDLE: Result.HEALED}
    assert [job.kind for job in cloud.world.all(Job)] == ["clean"] * 2


def test_a_unit_that_is_given_back_is_cleaned_first(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    site = cloud.sites[0]
    site.change(Device, site.device, clean_seconds=60)
    handle = corruptions.unheld_handle(site)

    healed = cloud.heal()

    (outcome,) = healed.outcomes
    assert (outcome.result, outcome.detail) == (
        Result.HEALED,
        "its unit is cleaned first",
    )
    (row,) = [one for one in cloud.world.all(Handle) if one.uuid == handle]
    (job,) = cloud.world.all(Job)
    assert (row.in_use, row.job_id, job.kind) == (True, job.id, "clean")
    assert cloud.audit().findings == ()


def test_hosts_that_are_gone_go_when_they_are_named(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    gone = cloud.placement.create_provider("gone.example.org")
    cloud.world.report(
        worlds.device(0x40, 2, "gone"),
        host="gone",
        provider_name="gone.example.org",
        provider_uuid=gone,
    )
    cloud.sync()
    adopted = models.new_uuid()
    cloud.world.execute(
        sa.insert(Device).values(
            uuid=adopted,
            type="GPU",
            vendor="10de",
            model="card",
            hostname="adopted",
        )
    )
    cloud.world.execute(
        sa.update(Host)
        .where(Host.name == "gone")
        .values(last_seen_at=ago(3 * 86400))
    )
    kinds = {one.kind for one in cloud.audit().findings}
    assert kinds == {Kind.UNKNOWN_HOST}
    for provider in cloud.placement.providers(gone).values():
        if provider["uuid"] != gone:
            cloud.placement.ask(
                "DELETE", f"/resource_providers/{provider['uuid']}"
            )
    cloud.placement.ask("DELETE", f"/resource_providers/{gone}")

    before = cloud.dump()
    assert results(cloud.heal()) == {
        Kind.UNKNOWN_HOST: Result.ON_REQUEST,
        Kind.VANISHED_HOST: Result.ON_REQUEST,
    }
    assert cloud.dump() == before

    healed = cloud.heal(Kind.UNKNOWN_HOST, Kind.VANISHED_HOST)

    assert set(results(healed).values()) == {Result.HEALED}
    assert [one.name for one in cloud.world.all(Host)] == ["compute-1"]
    assert {one.hostname for one in cloud.world.all(Device)} == {
        "compute-1.example.org"
    }
    assert cloud.audit().findings == ()


def test_providers_below_strange_roots_go_when_they_are_named(
    clouds: Clouds,
) -> None:
    cloud = clouds("sqlite", 1)
    other = cloud.placement.create_provider("other.example.org")
    name = "other_0000:0c:00.0"
    theirs = cloud.placement.create_provider(
        name, other, inventory.provider_uuid(name)
    )
    beside = "other_0000:0d:00.0"
    cloud.placement.create_provider(
        beside, other, inventory.provider_uuid(beside)
    )
    strange = cloud.placement.create_provider("strange", cloud.root)
    for provider in (theirs, strange):
        cloud.placement.set_traits(provider, {"OWNER_CYBORG"})

    assert results(cloud.heal()) == {
        Kind.FOREIGN_PROVIDER: Result.ON_REQUEST,
        Kind.FOREIGN_TRAIT: Result.REFUSED,
    }
    healed = cloud.heal(Kind.FOREIGN_PROVIDER)
    assert results(healed) == {Kind.FOREIGN_PROVIDER: Result.HEALED}
    assert set(cloud.placement.providers(other)) == {
        "other.example.org",
        beside,
    }
    assert {one.kind for one in cloud.audit().findings} == {Kind.FOREIGN_TRAIT}


def test_a_host_that_came_meanwhile_keeps_its_providers(
    clouds: Clouds,
) -> None:
    cloud = clouds("sqlite", 1)
    other = cloud.placement.create_provider("other.example.org")
    name = "other_0000:0c:00.0"
    theirs = cloud.placement.create_provider(
        name, other, inventory.provider_uuid(name)
    )
    cloud.placement.set_traits(theirs, {"OWNER_CYBORG"})
    found = cloud.audit(Kind.FOREIGN_PROVIDER)
    cloud.world.report(
        worlds.device(0x40, 2, "other"),
        host="other",
        provider_name="other.example.org",
        provider_uuid=other,
    )

    healed = cloud.healer().heal(
        found.state, found.findings, frozenset({Kind.FOREIGN_PROVIDER})
    )

    assert [one.result for one in healed] == [Result.CHANGED]
    assert name in cloud.placement.providers(other)


def test_a_root_that_is_gone_is_looked_for_again(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    cloud.placement.ask(
        "DELETE", f"/resource_providers/{cloud.sites[0].provider}"
    )
    cloud.placement.ask("DELETE", f"/resource_providers/{cloud.root}")
    assert results(cloud.heal()) == {Kind.MISSING_ROOT: Result.HEALED}
    (host,) = cloud.world.all(Host)
    assert (host.provider_uuid, host.digest) == (None, None)
    assert cloud.audit().findings == ()


def test_placement_down_is_said_and_rows_are_still_healed(
    clouds: Clouds,
) -> None:
    cloud = clouds("sqlite", 2)
    corruptions.unheld_handle(cloud.sites[0])
    corruptions.missing_trait(cloud.sites[1])
    cloud.placement.hook = lambda *_: Answer(503)
    healed = cloud.heal()
    assert results(healed) == {Kind.UNHELD_HANDLE: Result.HEALED}
    assert "providers of 1 hosts" in {one.what for one in healed.unchecked}
    cloud.placement.hook = None
    # The host is owed since: whoever syncs it next makes all right.
    cloud.sync()
    assert cloud.audit().findings == ()


def test_a_placement_that_fails_now_and_then_is_asked_again(
    clouds: Clouds,
) -> None:
    cloud = clouds("sqlite", 1)
    corruptions.missing_trait(cloud.sites[0])
    failures = iter([Answer(500)])
    cloud.placement.hook = lambda *_: next(failures, None)
    audit = cloud.audit()
    assert {one.kind for one in audit.findings} == {Kind.MISSING_TRAIT}
    assert audit.unchecked == ()


def test_a_placement_that_fails_while_it_is_healed_leaves_a_failure(
    clouds: Clouds,
) -> None:
    cloud = clouds("sqlite", 1)
    corruptions.missing_trait(cloud.sites[0])

    def refuse(method: str, *_: Any) -> Answer | None:
        return Answer(503) if method == "PUT" else None

    cloud.placement.hook = refuse
    assert results(cloud.heal()) == {Kind.MISSING_TRAIT: Result.FAILED}
    cloud.placement.hook = None
    assert results(cloud.heal()) == {Kind.MISSING_TRAIT: Result.HEALED}


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_of_two_that_give_back_one_unit_one_does_so(
    clouds: Clouds, kind: str
) -> None:
    cloud = clouds(kind, 1)
    site = cloud.sites[0]
    site.change(Device, site.device, clean_seconds=60)
    corruptions.unheld_handle(site)
    with cloud.database.reader() as session:
        (unit,) = suspects.units(session)
    at_once = threading.Barrier(4)

    def give_back() -> bool:
        at_once.wait(30)
        return repairs.give_back(cloud.database, unit).done

    with futures.ThreadPoolExecutor(4) as pool:
        done = [pool.submit(give_back) for _ in range(4)]
        assert sorted(one.result() for one in done) == [False] * 3 + [True]
    assert len(cloud.world.all(Job)) == 1


def test_a_request_that_is_another_instances_by_now_stays(
    clouds: Clouds,
) -> None:
    cloud = clouds("sqlite", 1)
    arq = corruptions.orphaned_arq(cloud.sites[0])
    with cloud.database.reader() as session:
        (found,) = suspects.requests(session)
    cloud.world.unbind(arq)
    cloud.world.bind([arq], cloud.sites[0].provider)
    assert not repairs.delete_request(cloud.database, found).done
    assert cloud.world.arq(arq).state == "Bound"


def test_the_database_costs_the_same_however_much_there_is(
    clouds: Clouds,
) -> None:
    cloud = clouds("sqlite", 6)

    def statements() -> int:
        with StatementCounter(cloud.database.engine) as counter:
            cloud.audit()
        return len(counter.statements)

    statements()  # connections are made
    few = statements()
    for site in cloud.sites:
        site.boot(4)
    assert statements() == few <= 14
    with cloud.placement.counted() as calls:
        cloud.audit()
    assert len(calls) == 3 + 3 * 6


def test_many_instances_are_listed_and_the_rest_asked_for(
    clouds: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "FEW", 2)
    cloud = clouds("sqlite", 1)
    site = cloud.sites[0]
    alive = [site.boot()[0] for _ in range(3)]
    cloud.nova.page = 2
    gone = corruptions.orphaned_arq(site)
    cloud.nova.requests.clear()

    audit = cloud.audit()

    assert {one.uuid for one in audit.findings} == {gone}
    asked = [
        one.path for one in cloud.nova.requests if "/servers/" in one.path
    ]
    # First only the one that is gone; then whoever is on its host.
    assert (len(asked), len(set(asked))) == (5, 4)
    assert {audit.state.servers[one].fate for one in alive} == {Fate.ALIVE}


def test_a_choice_is_kept_to(clouds: Clouds) -> None:
    cloud: Cloud = clouds("sqlite", 2)
    one = corruptions.unheld_handle(cloud.sites[0])
    other = corruptions.unheld_handle(cloud.sites[1])
    gatherer = gathering.Gatherer(cloud.sources())

    def uuids(**choice: Any) -> set[str]:
        chosen = {key: frozenset(value) for key, value in choice.items()}
        found = running.audit(
            gatherer, running.Choice(**chosen), lambda _: None
        )
        return {finding.uuid for finding in found.findings}

    assert uuids() == {one, other}
    assert uuids(uuids=[one]) == {one}
    assert uuids(hosts=["compute-1"]) == {one, other}
    assert uuids(hosts=["elsewhere"]) == set()
    assert uuids(kinds=[Kind.ORPHANED_ARQ]) == set()


def test_nova_is_asked_of_the_chosen_hosts_alone(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    cloud.sites[0].boot()
    cloud.nova.failure = 503
    cloud.nova.requests.clear()

    def look(host: str) -> running.Audit:
        return running.audit(
            gathering.Gatherer(cloud.sources()),
            running.Choice(hosts=frozenset({host})),
            lambda _: None,
        )

    assert look("elsewhere").unchecked == ()
    assert cloud.nova.requests == []
    (missed,) = look("compute-1").unchecked
    assert missed.what == "whether 1 instances still exist"


def test_a_database_that_is_down_is_an_error_of_ours(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    with cloud.database.connection() as connection:
        connection.execute(sa.text("ALTER TABLE jobs RENAME TO away"))
    try:
        with pytest.raises(exception.Unavailable):
            cloud.audit()
    finally:
        with cloud.database.connection() as connection:
            connection.execute(sa.text("ALTER TABLE away RENAME TO jobs"))


def test_an_instance_is_told_from_any_uuid(clouds: Clouds) -> None:
    cloud = clouds("sqlite", 1)
    servers = cloud.sources().servers
    assert servers is not None
    nobody = str(uuid.uuid4())
    assert servers.find(nobody).fate is Fate.GONE
    assert servers.find("no uuid").fate is Fate.UNTOLD
    cloud.nova.servers[nobody] = "p"
    assert servers.find(nobody).fate is Fate.ALIVE
    cloud.nova.tasks[nobody] = "deleting"
    assert servers.find(nobody).fate is Fate.BUSY

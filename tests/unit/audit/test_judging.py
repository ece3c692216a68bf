# SPDX-License-Identifier: Apache-2.0
"""What is found wrong in a state, and that a state put right has nothing."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import arq
from cyborg import inventory
from cyborg.audit import judging
from cyborg.audit.findings import Action
from cyborg.audit.findings import Finding
from cyborg.audit.findings import Kind
from cyborg.audit.state import Patience
from cyborg.audit.state import Rows
from cyborg.audit.state import State
from cyborg.clients.nova_servers import Fate
from cyborg.clients.nova_servers import Server
from cyborg.clients.placement_survey import Entry
from cyborg.clients.placement_survey import Seen
from cyborg.clients.placement_survey import Tree
from cyborg.clients.placement_values import Inventory
from cyborg.db.fleet import Holdings
from cyborg.db.fleet import HostRow
from cyborg.db.hosts import HostOffers
from cyborg.db.hosts import Offer
from cyborg.db.suspects import Request
from cyborg.db.suspects import Task
from cyborg.db.suspects import Twin
from cyborg.db.suspects import Unit

NOW = dt.datetime(2026, 11, 29, 12, tzinfo=dt.timezone.utc).replace(
    tzinfo=None
)
OLD = NOW - dt.timedelta(hours=2)
PATIENCE = Patience(settle=60, down=180, vanish=86400)
ROOT = "11111111-1111-1111-1111-111111111111"
NAME = "host_0000:0c:00.0"
PROVIDER = inventory.provider_uuid(NAME)
TRAITS = frozenset({"CUSTOM_A", inventory.OWNER_TRAIT})
RIGHT = Inventory(4, 0, 1, 4, 1, 1.0)
ALIVE = Server(Fate.ALIVE, "p")
GONE = Server(Fate.GONE)

HOST = HostRow(1, "h", "h.example.org", ROOT, NOW, 1, 1)
OFFERS = HostOffers(
    1,
    "h",
    "h.example.org",
    ROOT,
    1,
    1,
    (
        Offer(
            7,
            NAME,
            PROVIDER,
            4,
            False,
            (("rc", "FPGA"), ("trait1", "CUSTOM_A")),
            None,
            "device",
            4,
            0,
        ),
    ),
)


def request(**values: Any) -> Request:
    """One that is bound, as it should be."""
    given_values: dict[str, Any] = {
        "uuid": "arq-1",
        "state": "Bound",
        "instance_uuid": "i-1",
        "project_id": "p",
        "hostname": "h.example.org",
        "provider_uuid": PROVIDER,
        "deployable_id": 7,
        "handle_id": 3,
        "handle_uuid": "handle-3",
        "handle_in_use": True,
        "handle_job_id": None,
        "handle_deployable_id": 7,
        "job_state": None,
        "changed_at": OLD,
    }
    return Request(**(given_values | values))


def unit(**values: Any) -> Unit:
    given_values: dict[str, Any] = {
        "id": 3,
        "uuid": "handle-3",
        "hostname": "h.example.org",
        "in_use": True,
        "job_id": None,
        "job_state": None,
        "is_known": True,
        "is_lost": False,
        "changed_at": OLD,
    }
    return Unit(**(given_values | values))


def seen(**values: Any) -> Seen:
    given_values: dict[str, Any] = {
        "uuid": PROVIDER,
        "name": NAME,
        "inventories": {"FPGA": RIGHT},
        "traits": TRAITS,
        "allocations": {},
    }
    return Seen(**(given_values | values))


def state(
    *providers: Seen, servers: dict[str, Server] | None = None, **rows: Any
) -> State:
    return State(
        Rows(now=NOW, **({"hosts": (HOST,)} | rows)),
        PATIENCE,
        {1: OFFERS},
        {1: Tree(ROOT, providers or (seen(),))},
        servers={"i-1": ALIVE} if servers is None else servers,
        nova_silence="Nova is away",
    )


def only(found: State) -> Finding:
    (finding,) = judging.findings(found)
    return finding


def test_a_bound_request_and_its_allocation_are_right() -> None:
    used = seen(allocations={"i-1": {"FPGA": 1}})
    assert judging.findings(state(used, requests=(request(),))) == []


def test_an_instance_that_nova_does_not_tell_of_is_no_orphan() -> None:
    used = seen(allocations={"i-1": {"FPGA": 1}})
    for silent in ({}, {"i-1": Server(Fate.UNTOLD, why="500")}):
        assert (
            judging.findings(
                state(used, servers=silent, requests=(request(),))
            )
            == []
        )
    gone = only(state(seen(), servers={"i-1": GONE}, requests=(request(),)))
    assert (gone.kind, gone.action) == (
        Kind.ORPHANED_ARQ,
        Action.DELETE_ARQ,
    )


@pytest.mark.parametrize(
    ("server", "action", "said"),
    [
        (GONE, Action.RELEASE_ALLOCATION, ""),
        (ALIVE, None, "lives"),
        (Server(Fate.MIGRATION), None, "migration"),
        (None, None, "Nova is away"),
    ],
)
def test_only_the_allocation_of_a_gone_instance_is_taken(
    server: Server | None, action: Action | None, said: str
) -> None:
    servers = {} if server is None else {"i-2": server}
    found = only(
        state(seen(allocations={"i-2": {"FPGA": 1}}), servers=servers)
    )
    assert (found.kind, found.action) == (
        Kind.ALLOCATION_WITHOUT_ARQ,
        action,
    )
    assert said in found.refusal


def test_an_instance_that_is_being_built_may_have_no_request_yet() -> None:
    busy = {"i-2": Server(Fate.BUSY, "p")}
    assert (
        judging.findings(
            state(seen(allocations={"i-2": {"FPGA": 1}}), servers=busy)
        )
        == []
    )


def test_two_units_of_one_accelerator_are_allocated_once() -> None:
    each_two = dataclasses.replace(OFFERS.offers[0], handles=8)
    offers = dataclasses.replace(OFFERS, offers=(each_two,))
    both = (
        request(),
        request(uuid="arq-2", handle_id=4, handle_uuid="handle-4"),
    )
    found = only(
        dataclasses.replace(state(seen(), requests=both), offers={1: offers})
    )
    assert found.kind is Kind.ARQ_WITHOUT_ALLOCATION
    assert found.facts.amounts == {"FPGA": 1}


def test_what_is_new_may_be_work_in_progress() -> None:
    fresh = NOW - dt.timedelta(seconds=5)
    assert judging.findings(state(units=(unit(changed_at=fresh),))) == []
    begun = request(state="BindStarted", changed_at=fresh)
    assert judging.findings(state(requests=(begun,))) == []


def test_a_unit_of_which_no_agent_has_said_whether_it_is_cleaned_stays() -> (
    None
):
    found = only(state(units=(unit(is_known=False),)))
    assert found.action is None
    assert "start the agent" in found.refusal


def test_a_unit_that_could_not_be_cleaned_stays() -> None:
    found = only(state(units=(unit(job_id=5, job_state="failed"),)))
    assert (found.kind, found.action) == (Kind.FAILED_CLEANING, None)


def test_a_cleaning_that_waits_for_a_silent_host_is_not_given_up() -> None:
    task = Task(1, "job-1", "clean", "h", NOW, OLD, True, OLD)
    found = only(state(tasks=(task,)))
    assert (found.kind, found.action) == (Kind.STUCK_CLEANING, None)
    heard = dataclasses.replace(task, host_seen_at=NOW)
    assert judging.findings(state(tasks=(heard,))) == []


def test_guests_that_share_a_unit_are_left_to_the_operator() -> None:
    used = seen(allocations={"i-1": {"FPGA": 1}, "i-2": {"FPGA": 1}})
    both = (request(), request(uuid="arq-2", instance_uuid="i-2"))
    alive = {"i-1": ALIVE, "i-2": ALIVE}
    found = only(state(used, servers=alive, requests=both))
    assert (found.kind, found.action) == (Kind.SHARED_HANDLE, None)
    left = judging.findings(
        state(used, servers=alive | {"i-2": GONE}, requests=both)
    )
    assert {one.kind for one in left} == {
        Kind.ORPHANED_ARQ,
        Kind.ALLOCATION_WITHOUT_ARQ,
    }


@pytest.mark.parametrize("job_state", ["queued", "failed"])
def test_a_unit_that_is_cleaned_under_its_guest_is_left_to_the_operator(
    job_state: str,
) -> None:
    found = only(
        state(
            seen(allocations={"i-1": {"FPGA": 1}}),
            requests=(request(handle_job_id=5, job_state=job_state),),
        )
    )
    assert (found.kind, found.uuid) == (Kind.CLEANED_HANDLE_BOUND, "arq-1")
    assert found.action is None
    assert found.refusal is not None
    assert "i-1" in found.refusal


def test_an_operators_traits_are_left_alone() -> None:
    theirs = seen(traits=TRAITS | {"CUSTOM_THEIRS"})
    assert judging.findings(state(theirs)) == []


def test_a_trait_that_placement_has_not_is_not_missing() -> None:
    lacking = dataclasses.replace(
        state(seen(traits=TRAITS - {"CUSTOM_A"})),
        unknown_traits=frozenset({"CUSTOM_A"}),
    )
    assert judging.findings(lacking) == []


def test_a_provider_of_no_row_stays_while_it_is_used_and_closed() -> None:
    name = "host_gone"
    gone = seen(
        uuid=inventory.provider_uuid(name),
        name=name,
        inventories={"FPGA": RIGHT.closed()},
        allocations={"i-1": {"FPGA": 1}},
    )
    asked = request(provider_uuid=gone.uuid)
    assert judging.findings(state(seen(), gone, requests=(asked,))) == []
    still_open = dataclasses.replace(gone, inventories={"FPGA": RIGHT})
    found = only(state(seen(), still_open, requests=(asked,)))
    assert found.kind is Kind.UNLISTED_PROVIDER


def test_a_host_that_is_only_silent_has_not_vanished() -> None:
    long_ago = NOW - dt.timedelta(days=3)
    silent = dataclasses.replace(HOST, last_seen_at=long_ago)
    lost = dataclasses.replace(state(hosts=(silent,)), trees={1: None})
    assert judging.findings(lost) == []
    vanished = dataclasses.replace(lost, rootless=frozenset({1}))
    found = only(vanished)
    assert (found.kind, found.on_request) == (Kind.VANISHED_HOST, True)
    held = dataclasses.replace(
        vanished,
        rows=dataclasses.replace(
            vanished.rows,
            holdings={"h.example.org": Holdings("h.example.org", 1, 1, 1)},
        ),
    )
    assert only(held).action is None


def test_providers_of_others_are_not_touched_unasked() -> None:
    theirs = Entry(
        inventory.provider_uuid("other_x"), "other_x", "another-root"
    )
    foreign = Entry("not-by-name", "theirs", ROOT)
    found = dataclasses.replace(state(), owned=(theirs, foreign))
    by_kind = {one.kind: one for one in judging.findings(found)}
    assert by_kind[Kind.FOREIGN_PROVIDER].on_request
    assert by_kind[Kind.FOREIGN_TRAIT].action is None


def test_a_host_that_could_not_be_read_has_no_foreign_providers() -> None:
    ours = Entry(PROVIDER, NAME, ROOT)
    unread = dataclasses.replace(
        state(), owned=(ours, Entry("u", "n", ROOT)), offers={}, trees={}
    )
    assert judging.findings(unread) == []


requests_drawn = st.builds(
    request,
    state=st.sampled_from([one.value for one in arq.State]),
    instance_uuid=st.sampled_from(["i-1", "i-2", None]),
    project_id=st.sampled_from(["p", None]),
    provider_uuid=st.sampled_from([PROVIDER, None]),
    deployable_id=st.sampled_from([7, 8, None]),
    handle_id=st.sampled_from([3, 4, None]),
    handle_in_use=st.booleans(),
    handle_job_id=st.sampled_from([None, 5]),
    job_state=st.sampled_from([None, "running", "done"]),
    changed_at=st.sampled_from([OLD, NOW]),
)
units_drawn = st.builds(
    unit,
    in_use=st.booleans(),
    job_id=st.sampled_from([None, 5]),
    job_state=st.sampled_from([None, "done", "failed", "running"]),
    is_known=st.booleans(),
    is_lost=st.booleans(),
    changed_at=st.sampled_from([OLD, NOW]),
)
fates_drawn = st.sampled_from([ALIVE, GONE, Server(Fate.BUSY, "p")])
seen_drawn = st.builds(
    seen,
    inventories=st.sampled_from(
        [
            {"FPGA": RIGHT},
            {"FPGA": RIGHT._replace(total=5)},
            {"FPGA": RIGHT, "PGPU": RIGHT},
            {},
        ]
    ),
    traits=st.sampled_from([TRAITS, TRAITS - {"CUSTOM_A"}, None]),
    allocations=st.dictionaries(
        st.sampled_from(["i-1", "i-2"]), st.just({"FPGA": 1})
    ),
)


def put_right(found: State) -> State:
    """The state after every remedy, each as its action says."""
    for finding in judging.findings(found):
        found = _REMEDIES.get(finding.action, lambda s, _: s)(found, finding)
    return found


def _request(found: State, finding: Finding, **values: Any) -> State:
    kept = tuple(
        dataclasses.replace(one, **values) if one.uuid == finding.uuid else one
        for one in found.rows.requests
    )
    rows = dataclasses.replace(found.rows, requests=kept)
    return dataclasses.replace(found, rows=rows)


def _deleted(found: State, finding: Finding) -> State:
    kept = tuple(
        one for one in found.rows.requests if one.uuid != finding.uuid
    )
    rows = dataclasses.replace(found.rows, requests=kept)
    return dataclasses.replace(found, rows=rows)


def _given_back(found: State, finding: Finding) -> State:
    kept = tuple(one for one in found.rows.units if one != finding.facts)
    rows = dataclasses.replace(found.rows, units=kept)
    return dataclasses.replace(found, rows=rows)


def _synced(found: State, _: Finding) -> State:
    tree = found.trees[1]
    assert tree is not None
    providers = [
        dataclasses.replace(one, inventories={"FPGA": RIGHT}, traits=TRAITS)
        for one in tree.providers
    ] or [seen()]
    return dataclasses.replace(found, trees={1: Tree(ROOT, tuple(providers))})


def _allocations(found: State, finding: Finding, had: bool) -> State:
    tree = found.trees[1]
    assert tree is not None
    consumer = finding.facts.consumer
    providers = []
    for one in tree.providers:
        held = dict(one.allocations)
        held.pop(consumer, None)
        if not had:
            held[consumer] = finding.facts.amounts
        providers.append(dataclasses.replace(one, allocations=held))
    return dataclasses.replace(found, trees={1: Tree(ROOT, tuple(providers))})


_REMEDIES: dict[Any, Any] = {
    Action.DELETE_ARQ: _deleted,
    Action.FAIL_ARQ: lambda s, f: _request(
        s, f, state="BindFailed", handle_id=None, deployable_id=None
    ),
    Action.RELEASE_HANDLE: lambda s, f: _request(
        s, f, handle_id=None, deployable_id=None
    ),
    Action.TAKE_HANDLE: lambda s, f: _request(s, f, handle_in_use=True),
    Action.SET_DEPLOYABLE: lambda s, f: _request(s, f, deployable_id=7),
    Action.FILL_PROJECT: lambda s, f: _request(s, f, project_id="p"),
    Action.GIVE_BACK: _given_back,
    Action.KEEP_CLEANED: _given_back,
    Action.FORGET_JOB: _given_back,
    Action.SYNC: _synced,
    Action.RELEASE_ALLOCATION: lambda s, f: _allocations(s, f, True),
    Action.ALLOCATE: lambda s, f: _allocations(s, f, False),
}


@given(
    requests=st.lists(requests_drawn, max_size=4),
    units=st.lists(units_drawn, max_size=3),
    fates=st.tuples(fates_drawn, fates_drawn),
    providers=st.lists(seen_drawn, max_size=1),
)
def test_what_is_put_right_is_right(
    requests: list[Request],
    units: list[Unit],
    fates: tuple[Server, Server],
    providers: list[Seen],
) -> None:
    """As many rounds as a heal takes; then only refusals are left, and
    another heal changes nothing."""
    found = State(
        Rows(
            now=NOW,
            requests=tuple(
                dataclasses.replace(one, uuid=f"arq-{number}")
                for number, one in enumerate(requests)
            ),
            units=tuple(
                dataclasses.replace(one, id=number, uuid=f"unit-{number}")
                for number, one in enumerate(units)
            ),
            hosts=(HOST,),
        ),
        PATIENCE,
        {1: OFFERS},
        {1: Tree(ROOT, tuple(providers))},
        servers={"i-1": fates[0], "i-2": fates[1]},
    )
    for _ in range(3):
        found = put_right(found)
    left = judging.findings(found)
    assert [one for one in left if one.action is not None] == []
    assert all(one.refusal for one in left)
    assert put_right(found) == found


def test_a_copy_of_a_unit_in_use_goes_and_the_unit_stays() -> None:
    def twin(number: int, used: bool) -> Twin:
        return Twin(number, f"unit-{number}", "h", 7, "{}", used, None, used)

    found = judging.findings(
        state(twins=(twin(1, False), twin(2, True), twin(3, False)))
    )
    assert {one.uuid: one.action for one in found} == {
        "unit-1": Action.DROP_HANDLE,
        "unit-3": Action.DROP_HANDLE,
    }
    both = only(state(twins=(twin(1, True), twin(2, True))))
    assert both.action is None

# SPDX-License-Identifier: Apache-2.0
"""The Nova client against a server on loopback."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import pytest
from keystoneauth1 import adapter

from cyborg import exception
from cyborg.clients import nova as client
from tests.nova_stand_in import NovaStandIn

Adapters = Callable[..., adapter.Adapter]


def event(instance: str, status: str = "completed") -> client.BindEvent:
    return client.BindEvent(instance, str(uuid.uuid4()), status)


@pytest.fixture
def ours(nova_stand_in: NovaStandIn, adapter_for: Adapters) -> client.Nova:
    return client.Nova(adapter_for("nova", nova_stand_in.url))


def test_events_are_sent_in_one_call_as_nova_wants_them(
    nova_stand_in: NovaStandIn, ours: client.Nova
) -> None:
    done, failed = event("i1"), event("i2", "failed")

    assert ours.notify([done, failed]) == frozenset()

    (request,) = nova_stand_in.requests
    assert (request.method, request.path) == (
        "POST",
        "/os-server-external-events",
    )
    assert request.headers["OpenStack-API-Version"] == "compute 2.82"
    assert request.json() == {
        "events": [
            {
                "name": "accelerator-request-bound",
                "server_uuid": "i1",
                "tag": done.arq_uuid,
                "status": "completed",
            },
            {
                "name": "accelerator-request-bound",
                "server_uuid": "i2",
                "tag": failed.arq_uuid,
                "status": "failed",
            },
        ]
    }


def test_nothing_to_tell_is_no_call(
    nova_stand_in: NovaStandIn, ours: client.Nova
) -> None:
    assert ours.notify([]) == frozenset()
    assert nova_stand_in.requests == []


def test_an_instance_without_host_or_unknown_was_told_for_good(
    nova_stand_in: NovaStandIn, ours: client.Nova
) -> None:
    nova_stand_in.codes = {"no host": 422, "unknown": 404, "odd": 400}

    again = ours.notify(
        [event("no host"), event("unknown"), event("odd"), event("fine")]
    )

    assert again == frozenset()
    assert [each["server_uuid"] for each in nova_stand_in.events] == ["fine"]


def test_an_event_that_failed_inside_nova_is_to_be_sent_again_alone(
    nova_stand_in: NovaStandIn, ours: client.Nova
) -> None:
    nova_stand_in.codes = {"cell down": 500, "no host": 422}
    broken = event("cell down")

    again = ours.notify([broken, event("no host"), event("fine")])

    assert again == {broken.arq_uuid}


@pytest.mark.parametrize("status", [500, 502, 503, 504, 401, 403, 429])
def test_a_fault_of_nova_means_all_again_and_one_call(
    nova_stand_in: NovaStandIn, ours: client.Nova, status: int
) -> None:
    nova_stand_in.failure = status
    events = [event("i1"), event("i2")]

    again = ours.notify(events)

    assert again == {each.arq_uuid for each in events}
    assert len(nova_stand_in.requests) == 1


@pytest.mark.parametrize("status", [400, 404, 409])
def test_a_refusal_of_the_whole_call_is_not_repeated(
    nova_stand_in: NovaStandIn, ours: client.Nova, status: int
) -> None:
    nova_stand_in.failure = status

    assert ours.notify([event("i1")]) == frozenset()


def test_no_answer_is_given_up_in_time_and_means_again(
    nova_stand_in: NovaStandIn, adapter_for: Adapters
) -> None:
    nova_stand_in.failure = "never"
    ours = client.Nova(adapter_for("nova", nova_stand_in.url, timeout=1))
    one = event("i1")

    assert ours.notify([one]) == {one.arq_uuid}


def test_a_refused_connection_means_again(adapter_for: Adapters) -> None:
    with NovaStandIn() as stand_in:
        url = stand_in.url
    one = event("i1")

    ours = client.Nova(adapter_for("nova", url))

    assert ours.notify([one]) == {one.arq_uuid}


def test_very_many_events_go_in_bounded_calls_no_instance_split(
    nova_stand_in: NovaStandIn, ours: client.Nova
) -> None:
    events = [event(f"i{index % 20}") for index in range(1100)]

    assert ours.notify(events) == frozenset()

    seen: dict[str, int] = {}
    for number, request in enumerate(nova_stand_in.requests):
        sent = request.json()["events"]
        assert len(sent) <= client.EVENTS_PER_CALL
        for each in sent:
            assert seen.setdefault(each["server_uuid"], number) == number
    assert len(nova_stand_in.events) == 1100


def test_the_project_of_an_instance_is_its_tenant(
    nova_stand_in: NovaStandIn, ours: client.Nova
) -> None:
    nova_stand_in.servers = {"i1": "project-1"}

    assert ours.project_of("i1") == "project-1"
    assert ours.project_of("i2") is None


@pytest.mark.parametrize("status", [500, 503, 401, 403])
def test_a_project_that_nova_cannot_tell_now_is_unavailable(
    nova_stand_in: NovaStandIn, ours: client.Nova, status: int
) -> None:
    nova_stand_in.failure = status

    with pytest.raises(exception.Unavailable, match="Nova"):
        ours.project_of("i1")


def test_an_outage_is_in_the_log_once_and_so_is_its_end(
    nova_stand_in: NovaStandIn,
    ours: client.Nova,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "cyborg")
    nova_stand_in.failure = 503
    for _ in range(3):
        ours.notify([event("i1")])
    nova_stand_in.failure = None
    for _ in range(3):
        ours.notify([event("i1")])

    down, up = (record.getMessage() for record in caplog.records)
    assert down == "Nova answered 503"
    assert re.fullmatch(r"Nova answers again, after \d+ s", up)


def test_a_slow_answer_counts(
    nova_stand_in: NovaStandIn, ours: client.Nova
) -> None:
    nova_stand_in.pause = 0.5

    assert ours.notify([event("i1")]) == frozenset()
    assert len(nova_stand_in.events) == 1


def test_a_nova_that_comes_back_is_told_on_the_same_port(
    nova_stand_in: NovaStandIn, ours: client.Nova
) -> None:
    assert ours.notify([event("i1")]) == frozenset()  # a connection stays open
    one = event("i2")

    with nova_stand_in.refusing():
        assert ours.notify([one]) == {one.arq_uuid}

    assert ours.notify([one]) == frozenset()
    assert [each["server_uuid"] for each in nova_stand_in.events] == [
        "i1",
        "i2",
    ]

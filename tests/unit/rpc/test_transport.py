# SPDX-License-Identifier: Apache-2.0
"""Calls over the in-process transport: identity, errors, what is exposed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import kombu.exceptions
import oslo_messaging
import pytest
from oslo_config import cfg

from cyborg import context
from cyborg import exception
from cyborg import service
from cyborg.rpc import agent
from cyborg.rpc import codec
from cyborg.rpc import conductor
from cyborg.rpc import transport as rpc_transport


class Endpoint:
    """Answers what the test put into `answer`, and remembers the rest."""

    target = oslo_messaging.Target(version="1.0")

    def __init__(self) -> None:
        self.answer: Any = None
        self.seen: list[tuple[context.RequestContext, dict[str, Any]]] = []

    def _reply(self, asker: context.RequestContext, **arguments: Any) -> Any:
        self.seen.append((asker, arguments))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    @oslo_messaging.expose
    def heartbeat(self, context: Any, **arguments: Any) -> Any:
        return self._reply(context, **arguments)

    @oslo_messaging.expose
    def bind_arqs(self, context: Any, **arguments: Any) -> Any:
        return self._reply(context, **arguments)

    @oslo_messaging.expose
    def program(self, context: Any, **arguments: Any) -> Any:
        return self._reply(context, **arguments)

    @oslo_messaging.expose
    def set_device_status(self, context: Any, **arguments: Any) -> Any:
        return self._reply(context, **arguments)

    @oslo_messaging.expose
    def discover(self, context: Any, **arguments: Any) -> Any:
        return self._reply(context, **arguments)

    def delete_attribute(self, context: Any, **arguments: Any) -> Any:
        """Public in Python, but not exposed."""
        return self._reply(context, **arguments)


@pytest.fixture
def messaging(conf: cfg.ConfigOpts) -> oslo_messaging.RPCTransport:
    conf.set_override("transport_url", "fake://")
    transport = rpc_transport.get_transport(conf)
    # Queues of the in-process transport are the process's: take our own.
    conf.set_override("control_exchange", uuid.uuid4().hex)
    conf.set_override("rpc_response_timeout", 10)
    transport.cleanup()
    return rpc_transport.get_transport(conf)


@pytest.fixture
def endpoint(messaging: oslo_messaging.RPCTransport) -> Iterator[Endpoint]:
    endpoint = Endpoint()
    servers = [
        rpc_transport.get_server(
            messaging,
            oslo_messaging.Target(topic=topic, server="host-1"),
            [endpoint],
        )
        for topic in (conductor.TOPIC, agent.TOPIC)
    ]
    for server in servers:
        server.start()
    yield endpoint
    for server in servers:
        server.stop()
        server.wait()


@pytest.fixture
def client(
    messaging: oslo_messaging.RPCTransport,
    conf: cfg.ConfigOpts,
    endpoint: Endpoint,
) -> conductor.ConductorClient:
    return conductor.ConductorClient(messaging, conf)


def test_a_call_carries_who_asks_but_not_their_token(
    client: conductor.ConductorClient, endpoint: Endpoint
) -> None:
    asker = context.RequestContext(
        auth_token="secret",
        project_id="p1",
        roles=["member"],
        service_request=True,
    )
    endpoint.answer = True
    assert client.heartbeat(asker, "h", "d") is True
    seen, arguments = endpoint.seen[0]
    assert arguments == {"host": "h", "digest": "d"}
    assert seen.project_id == "p1"
    assert seen.roles == ["member"]
    assert seen.service_request is True
    assert seen.request_id == asker.request_id
    assert seen.auth_token is None


def test_bindings_arrive_as_they_were(
    client: conductor.ConductorClient, endpoint: Endpoint
) -> None:
    binding = conductor.Binding("a", "h", "r", "i", "p")
    client.bind_arqs(context.admin_context(), [binding], None)
    _, arguments = endpoint.seen[0]
    assert arguments["project_scope"] is None
    (data,) = arguments["bindings"]
    assert codec.decode(conductor.Binding, data) == binding


@pytest.mark.parametrize(
    "error",
    [
        exception.NotFound("no such thing"),
        exception.Conflict("taken"),
        exception.Forbidden("requires a service token"),
        exception.DeviceFailed("the card is on fire"),
        exception.PlacementUnavailable("down"),
    ],
)
def test_an_error_of_ours_comes_back_as_itself(
    client: conductor.ConductorClient,
    endpoint: Endpoint,
    error: exception.CyborgError,
) -> None:
    endpoint.answer = error
    with pytest.raises(exception.CyborgError) as caught:
        client.heartbeat(context.admin_context(), "h", "d")
    assert type(caught.value) is type(error)
    assert str(caught.value) == error.message
    assert caught.value.code == error.code


def test_a_method_that_is_not_exposed_cannot_be_called(
    client: conductor.ConductorClient, endpoint: Endpoint
) -> None:
    with pytest.raises(oslo_messaging.rpc.dispatcher.NoSuchMethod):
        client.delete_attribute(context.admin_context(), "u")
    assert endpoint.seen == []


def test_a_call_that_nobody_answers_is_a_timeout(
    messaging: oslo_messaging.RPCTransport, conf: cfg.ConfigOpts
) -> None:
    conf.set_override("rpc_response_timeout", 1)
    lonely = conductor.ConductorClient(messaging, conf)
    with pytest.raises(exception.Timeout, match="the conductor did not"):
        lonely.heartbeat(context.admin_context(), "h", "d")


def test_an_order_reaches_the_agent_of_its_host(
    messaging: oslo_messaging.RPCTransport,
    conf: cfg.ConfigOpts,
    endpoint: Endpoint,
) -> None:
    endpoint.answer = codec.encode(agent.ProgramResult("bits"))
    order = agent.ProgramOrder("j", "d", "c", "n", "i", None, 5.0)
    client = agent.AgentClient(messaging, conf)
    result = client.program(context.admin_context(), "host-1", order)
    assert result == agent.ProgramResult("bits")
    _, arguments = endpoint.seen[0]
    assert codec.decode(agent.ProgramOrder, arguments["order"]) == order


class NewerEndpoint(Endpoint):
    """An agent that makes and cleans units."""

    target = oslo_messaging.Target(version=agent.VERSION)

    @oslo_messaging.expose
    def prepare(self, context: Any, **arguments: Any) -> Any:
        return self._reply(context, **arguments)

    @oslo_messaging.expose
    def clean(self, context: Any, **arguments: Any) -> Any:
        return self._reply(context, **arguments)


@pytest.fixture
def newer(messaging: oslo_messaging.RPCTransport) -> Iterator[NewerEndpoint]:
    endpoint = NewerEndpoint()
    server = rpc_transport.get_server(
        messaging,
        oslo_messaging.Target(topic=agent.TOPIC, server="host-2"),
        [endpoint],
    )
    server.start()
    yield endpoint
    server.stop()
    server.wait()


UNITS = agent.UnitsOrder(
    "j", "d", "c", "n", (agent.Unit("u", "MDEV", "{}"),), 5.0
)


def test_units_are_ordered_from_the_agent_of_their_host(
    messaging: oslo_messaging.RPCTransport,
    conf: cfg.ConfigOpts,
    newer: NewerEndpoint,
) -> None:
    client = agent.AgentClient(messaging, conf)
    client.prepare(context.admin_context(), "host-2", UNITS)
    newer.answer = {"done": False, "percent": 40}
    result = client.clean(context.admin_context(), "host-2", UNITS)
    assert result == agent.CleanResult(done=False, percent=40)
    for _, arguments in newer.seen:
        assert codec.decode(agent.UnitsOrder, arguments["order"]) == UNITS
    assert len(newer.seen) == 2


@pytest.mark.parametrize("method", ["prepare", "clean"])
def test_an_older_agent_is_said_to_be_one(
    messaging: oslo_messaging.RPCTransport,
    conf: cfg.ConfigOpts,
    endpoint: Endpoint,
    method: str,
) -> None:
    client = agent.AgentClient(messaging, conf)
    with pytest.raises(exception.Conflict, match="host-1 is of an older"):
        getattr(client, method)(context.admin_context(), "host-1", UNITS)
    conf.set_override("agent", "1.0", "upgrade_levels")
    pinned = agent.AgentClient(messaging, conf)
    with pytest.raises(exception.Conflict, match="host-1 is of an older"):
        getattr(pinned, method)(context.admin_context(), "host-1", UNITS)
    assert endpoint.seen == []


@pytest.mark.parametrize(
    ("pin", "sent"), [("auto", True), (None, True), ("1.0", False)]
)
def test_auto_pins_nothing(
    messaging: oslo_messaging.RPCTransport, pin: str | None, sent: bool
) -> None:
    target = oslo_messaging.Target(topic="any", version="1.0")
    client = rpc_transport.get_client(messaging, target, pin)
    assert client.prepare(version="1.1").can_send_version() == sent


def test_one_behind_a_broker_is_said_to_be_older_too() -> None:
    with (
        pytest.raises(exception.Conflict, match="the agent is of an older"),
        rpc_transport.translated("the agent"),
    ):
        raise oslo_messaging.RemoteError("UnsupportedVersion", "x", [])


def test_an_agent_that_says_nothing_of_cleaning_is_away(
    messaging: oslo_messaging.RPCTransport,
    conf: cfg.ConfigOpts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf.set_override("rpc_response_timeout", 1)
    monkeypatch.setattr(agent, "CLEAN_WAIT", 0.0)
    client = agent.AgentClient(messaging, conf)
    with pytest.raises(exception.Unavailable, match="did not answer"):
        client.clean(context.admin_context(), "nowhere", UNITS)


def test_an_agent_that_cleans_for_too_long_says_so(
    messaging: oslo_messaging.RPCTransport,
    conf: cfg.ConfigOpts,
    newer: NewerEndpoint,
) -> None:
    newer.answer = exception.Timeout("it took more than 5 s")
    client = agent.AgentClient(messaging, conf)
    with pytest.raises(exception.Timeout, match="more than 5 s"):
        client.clean(context.admin_context(), "host-2", UNITS)


def test_a_reason_is_sent_only_where_there_is_one(
    client: conductor.ConductorClient, endpoint: Endpoint
) -> None:
    asker = context.admin_context()
    client.set_device_status(asker, "d", "maintaining")
    with pytest.raises(exception.Conflict, match="of an older release"):
        client.set_device_status(asker, "d", "maintaining", "a fan")
    assert [arguments for _, arguments in endpoint.seen] == [
        {"device_uuid": "d", "status": "maintaining"}
    ]


@pytest.mark.parametrize(
    "url",
    [
        "foo://user:secret@host/",
        "rabbit://h:x/",
        "rabbit://user:my%2Fsecret@host/",
        "rabbit:/user:secret@host/",
        "rabbit:///user:secret@host/",
    ],
)
def test_a_bad_transport_url_is_named_without_its_password(
    conf: cfg.ConfigOpts, url: str
) -> None:
    conf.set_override("transport_url", url)
    with pytest.raises(service.Mistake) as caught:
        rpc_transport.get_transport(conf)
    assert "[DEFAULT] transport_url" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "failure",
    [
        oslo_messaging.MessageDeliveryFailure,
        # As where a connection breaks while it is being made.
        kombu.exceptions.OperationalError,
    ],
)
def test_a_broker_that_is_gone_makes_the_other_side_unavailable(
    failure: type[Exception],
) -> None:
    with (
        pytest.raises(exception.Unavailable, match="the conductor cannot"),
        rpc_transport.translated("the conductor"),
    ):
        raise failure


def test_a_fault_of_the_other_side_does_not_tell_its_traceback() -> None:
    with (
        pytest.raises(exception.CyborgError) as caught,
        rpc_transport.translated("the conductor"),
    ):
        raise oslo_messaging.RemoteError("KeyError", "x", ["File ..."])
    assert str(caught.value) == "the conductor failed"


@pytest.mark.filterwarnings(
    "error::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_a_reply_queue_that_was_refused_is_made_at_the_next_call() -> None:
    outcomes: list[Exception | None] = [ConnectionResetError("cut"), None]

    def make() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    replies = rpc_transport._Replies(make)
    assert not replies.ready(0.2)
    assert replies.ready(5)
    assert outcomes == []

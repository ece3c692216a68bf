# SPDX-License-Identifier: Apache-2.0
"""RPC over a real RabbitMQ: answers, errors, and nobody there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from cyborg import context
from cyborg import exception
from cyborg.rpc import agent
from cyborg.rpc import codec
from cyborg.rpc import conductor
from cyborg.rpc import transport as rpc_transport
from tests.integration import resources

ANSWER_SECONDS = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[resources.Vhost]:
    with resources.vhost("rpc") as vhost:
        yield vhost


@pytest.fixture
def messaging(
    conf: cfg.ConfigOpts, broker: resources.Vhost
) -> Iterator[oslo_messaging.RPCTransport]:
    conf.set_override("transport_url", broker.url)
    conf.set_override("rpc_response_timeout", ANSWER_SECONDS)
    transport = rpc_transport.get_transport(conf)
    yield transport
    transport.cleanup()


class ConductorEndpoint:
    target = oslo_messaging.Target(version=conductor.VERSION)

    def __init__(self) -> None:
        self.release = threading.Event()

    @oslo_messaging.expose
    def heartbeat(self, context: Any, host: str, digest: str) -> bool:
        return digest == "known"

    @oslo_messaging.expose
    def delete_attribute(self, context: Any, uuid: str) -> None:
        raise exception.NotFound(f"attribute {uuid} does not exist")

    @oslo_messaging.expose
    def set_device_status(self, context: Any, **arguments: Any) -> None:
        raise KeyError("a fault of the program")


class AgentEndpoint:
    target = oslo_messaging.Target(version=agent.VERSION)

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = threading.Event()

    @oslo_messaging.expose
    def program(self, context: Any, order: dict[str, Any]) -> dict[str, Any]:
        wanted = codec.decode(agent.ProgramOrder, order)
        return {"bitstream_id": f"{self.name}:{wanted.image_uuid}"}

    @oslo_messaging.expose
    def discover(self, context: Any) -> None:
        self.asked.set()


def _serve(
    transport: oslo_messaging.RPCTransport,
    topic: str,
    name: str,
    endpoint: object,
) -> oslo_messaging.MessageHandlingServer:
    server = rpc_transport.get_server(
        transport, oslo_messaging.Target(topic=topic, server=name), [endpoint]
    )
    server.start()
    return server


@pytest.fixture
def conductors(messaging: oslo_messaging.RPCTransport) -> Iterator[None]:
    servers = [
        _serve(messaging, conductor.TOPIC, name, ConductorEndpoint())
        for name in ("one", "two")
    ]
    yield
    for server in servers:
        server.stop()
        server.wait()


@pytest.mark.usefixtures("conductors")
def test_answers_and_errors_cross_the_broker(
    messaging: oslo_messaging.RPCTransport, conf: cfg.ConfigOpts
) -> None:
    client = conductor.ConductorClient(messaging, conf)
    asker = context.admin_context()
    assert client.heartbeat(asker, "h", "known") is True
    assert client.heartbeat(asker, "h", "other") is False
    with pytest.raises(exception.NotFound) as caught:
        client.delete_attribute(asker, "u1")
    assert type(caught.value) is exception.NotFound
    assert str(caught.value) == "attribute u1 does not exist"
    with pytest.raises(exception.CyborgError) as caught_fault:
        client.set_device_status(asker, "d", "enabled")
    assert str(caught_fault.value) == "the service failed"


def test_an_order_goes_to_the_agent_of_its_host_alone(
    messaging: oslo_messaging.RPCTransport, conf: cfg.ConfigOpts
) -> None:
    agents = [AgentEndpoint("host-1"), AgentEndpoint("host-2")]
    servers = [
        _serve(messaging, agent.TOPIC, endpoint.name, endpoint)
        for endpoint in agents
    ]
    client = agent.AgentClient(messaging, conf)
    order = agent.ProgramOrder("j", "d", "c", "n", "image", None, 5.0)
    for name in ("host-2", "host-1"):
        result = client.program(context.admin_context(), name, order)
        assert result.bitstream_id == f"{name}:image"
    client.discover(context.admin_context(), "host-2")
    assert agents[1].asked.wait(ANSWER_SECONDS)
    assert not agents[0].asked.is_set()
    for server in servers:
        server.stop()
        server.wait()


def test_an_agent_that_never_was_is_unavailable_at_once(
    messaging: oslo_messaging.RPCTransport, conf: cfg.ConfigOpts
) -> None:
    client = agent.AgentClient(messaging, conf)
    order = agent.ProgramOrder("j", "d", "c", "n", "image", None, 60.0)
    begin = time.monotonic()
    with pytest.raises(exception.Unavailable, match="the agent of nowhere"):
        client.program(context.admin_context(), "nowhere", order)
    assert time.monotonic() - begin < ANSWER_SECONDS


def test_a_broker_that_is_away_is_unavailable_in_bounded_time(
    conf: cfg.ConfigOpts,
) -> None:
    port = resources.free_port()
    conf.set_override("transport_url", f"rabbit://u:p@127.0.0.1:{port}/")
    client = conductor.ConductorClient(rpc_transport.get_transport(conf), conf)
    begin = time.monotonic()
    with pytest.raises(exception.Unavailable):
        client.heartbeat(context.admin_context(), "h", "d")
    assert time.monotonic() - begin < ANSWER_SECONDS

# SPDX-License-Identifier: Apache-2.0
"""Conductors and a real agent over messages, with the real Placement."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import context as cyborg_context
from cyborg import exception
from cyborg import inventory
from cyborg.agent.service import AgentService
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Placement
from cyborg.conductor.service import ConductorService
from cyborg.db import arqs as stored_arqs
from cyborg.db import devices
from cyborg.db import engine
from cyborg.rpc import transport as rpc_transport
from cyborg.rpc.conductor import Binding
from cyborg.rpc.conductor import ConductorClient
from tests.functional.conductor import world as worlds
from tests.nova_stand_in import NovaStandIn
from tests.nova_stand_in import nova_stand_in
from tests.placement import PlacementService

__all__ = ["nova_stand_in"]

CONTEXT = cyborg_context.RequestContext(project_id=worlds.PROJECT)


class Cloud:
    """Two conductors and one agent that share a broker in this process."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: engine.Database,
        placement: PlacementService,
        nova: Any,
    ) -> None:
        self.database = database
        self.transport = rpc_transport.get_transport(conf)
        self.root = placement.create_provider("node.example.org")
        self.conductors = [
            ConductorService(
                conf,
                database,
                self.transport,
                placement=Placement(placement.adapter()),
                nova=nova,
            )
            for _ in range(2)
        ]
        self.agent = AgentService(
            conf, self.transport, Placement(placement.adapter())
        )
        self.client = ConductorClient(self.transport, conf)

    def start(self) -> None:
        for conductor in self.conductors:
            conductor.start()
        self.agent.start()

    def stop(self) -> None:
        self.agent.stop()
        for conductor in self.conductors:
            conductor.stop()
        self.transport.cleanup()


@pytest.fixture
def cloud(
    database: engine.Database,
    placement: PlacementService,
    nova_stand_in: NovaStandIn,
    adapter_for: Callable[..., Any],
    tmp_path: Path,
) -> Iterator[Cloud]:
    conf = worlds.configuration(
        transport_url="fake://",
        state_path=str(tmp_path),
        host="node",
        agent__resource_provider_name="node.example.org",
        periodic_interval=1,
    )
    made = Cloud(
        conf,
        database,
        placement,
        Nova(adapter_for("nova", nova_stand_in.url)),
    )
    made.start()
    yield made
    made.stop()


def test_an_accelerator_is_found_bound_and_given_back(
    cloud: Cloud, placement: PlacementService, nova_stand_in: NovaStandIn
) -> None:
    worlds.wait_until(lambda: len(placement.providers(cloud.root)) == 2)
    assert placement.providers(cloud.root).keys() >= {"node_FakeDevice"}
    provider = inventory.provider_uuid("node_FakeDevice")
    worlds.wait_until(lambda: "FPGA" in placement.inventories(provider))
    cloud.client.create_device_profile(
        CONTEXT, "fpga", [{"resources:FPGA": "2"}]
    )
    arqs = cloud.client.create_arqs(CONTEXT, "fpga")
    instance = str(uuid.uuid4())
    bindings = [
        Binding(one, "node.example.org", provider, instance) for one in arqs
    ]
    cloud.client.bind_arqs(CONTEXT, bindings, worlds.PROJECT)
    events = nova_stand_in.wait_for_events(2)
    assert {event["tag"] for event in events} == set(arqs)
    rows = stored_arqs.list_arqs(cloud.database, instance=instance)
    assert {row.state for row in rows} == {"Bound"}
    with pytest.raises(exception.Conflict):
        cloud.client.delete_device_profiles(CONTEXT, ["fpga"])
    cloud.client.delete_instance_arqs(CONTEXT, instance, None)
    cloud.client.delete_device_profiles(CONTEXT, ["fpga"])
    card = devices.list_devices(cloud.database)[0]
    cloud.client.set_device_status(CONTEXT, card.uuid, "maintaining")
    worlds.wait_until(
        lambda: placement.inventories(provider)["FPGA"]["reserved"] == 16
    )


def test_errors_come_back_as_themselves(cloud: Cloud) -> None:
    with pytest.raises(exception.NotFound, match="there is no device profile"):
        cloud.client.create_arqs(CONTEXT, "nothing")
    with pytest.raises(exception.NotFound, match="no accelerator request"):
        cloud.client.delete_arqs(CONTEXT, [str(uuid.uuid4())], None, True)
    with pytest.raises(exception.NotFound):
        cloud.client.program_deployable(
            CONTEXT, str(uuid.uuid4()), str(uuid.uuid4())
        )


def test_a_conductor_stops_in_time_and_leaves_the_rest_to_the_other(
    cloud: Cloud,
) -> None:
    began = time.monotonic()
    cloud.conductors[0].stop()
    assert time.monotonic() - began < 12
    cloud.client.create_device_profile(
        CONTEXT, "fpga", [{"resources:FPGA": "1"}]
    )
    assert len(cloud.client.create_arqs(CONTEXT, "fpga")) == 1

# SPDX-License-Identifier: Apache-2.0
"""From the card to the rows and to Placement: an agent and a conductor."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import context
from cyborg import exception
from cyborg import inventory
from cyborg import service as process
from cyborg.agent.service import AgentService
from cyborg.clients.placement import Placement
from cyborg.conductor.service import ConductorService
from cyborg.db import devices
from cyborg.db import engine
from cyborg.db import models
from cyborg.rpc import transport as rpc_transport
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ConductorClient
from tests import databases
from tests.glance_stand_in import GlanceStandIn
from tests.placement import PlacementService

WAIT = 15


@dataclasses.dataclass
class Cloud:
    """One conductor, one host, a Placement that knows the host."""

    conf: cfg.ConfigOpts
    database: engine.Database
    placement: PlacementService
    root: str
    devices: Path
    agent: AgentService
    calls: ConductorClient
    agents: AgentClient

    def look(self) -> None:
        """Have the agent look at its hardware now."""
        self.agents.discover(context.admin_context(), self.conf.host)

    def rows(self, model: type[models.Base]) -> list:
        with self.database.reader() as session:
            return list(session.scalars(sa.select(model)))

    def providers(self) -> set[str]:
        """The names of our providers."""
        return set(self.placement.providers(self.root)) - {"compute-1"}


def eventually(truth: Callable[[], bool]) -> None:
    """Returns once `truth()`; other processes' work has no event for us."""
    deadline = time.monotonic() + WAIT
    while not truth():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def cloud(
    tmp_path: Path,
    placement: PlacementService,
    glance_stand_in: GlanceStandIn,
):
    devices = tmp_path / "devices.yaml"
    devices.write_text("- {address: '0000:0c:00.0'}\n")
    file = tmp_path / "cyborg.conf"
    file.write_text(
        "[DEFAULT]\n"
        "host = compute-1\n"
        "transport_url = fake://\n"
        f"control_exchange = {uuid.uuid4().hex}\n"
        "periodic_interval = 3600\n"
        f"state_path = {tmp_path / 'state'}\n"
        f"[fake]\ninventory_file = {devices}\n"
        "[glance]\nauth_type = none\n"
        f"endpoint_override = {glance_stand_in.url}\n"
        "[nova]\nenabled = false\n"
    )
    conf = cfg.ConfigOpts()
    process.prepare(conf)
    conf([f"--config-file={file}"], project="cyborg", default_config_dirs=[])
    root = placement.create_provider("compute-1")
    client = Placement(placement.adapter())
    transport = rpc_transport.get_transport(conf)
    with databases.migrated("sqlite", tmp_path) as database:
        conductor = ConductorService(
            conf, database, transport, placement=client
        )
        agent = AgentService(conf, transport, client)
        conductor.start()
        agent.start()
        made = Cloud(
            conf,
            database,
            placement,
            root,
            devices,
            agent,
            ConductorClient(transport, conf),
            AgentClient(transport, conf),
        )
        eventually(lambda: len(made.providers()) == 1)
        yield made
        agent.stop()
        conductor.stop()


def test_a_card_becomes_rows_and_a_provider(cloud):
    (device,) = cloud.rows(models.Device)
    assert (device.hostname, device.driver) == ("compute-1", "fake_driver")
    (deployable,) = cloud.rows(models.Deployable)
    assert deployable.name == "compute-1_FakeDevice"
    assert deployable.driver_name == "fake"
    assert len(cloud.rows(models.AttachHandle)) == 16
    assert cloud.providers() == {"compute-1_FakeDevice"}
    provider = inventory.provider_uuid("compute-1_FakeDevice")
    eventually(lambda: bool(cloud.placement.inventories(provider)))
    assert cloud.placement.inventories(provider)["FPGA"]["total"] == 16


def test_plugging_and_unplugging_reach_placement(cloud):
    cloud.devices.write_text(
        "- {address: '0000:0c:00.0'}\n- {address: '0000:0d:00.0'}\n"
    )
    cloud.look()
    eventually(lambda: len(cloud.providers()) == 2)
    cloud.devices.write_text("- {address: '0000:0d:00.0'}\n")
    cloud.look()
    eventually(lambda: len(cloud.providers()) == 1)
    assert len(cloud.rows(models.Device)) == 1


def test_a_driver_that_fails_deletes_nothing(cloud):
    cloud.devices.write_text("nonsense: [")
    cloud.look()
    eventually(lambda: "fake_driver" in (cloud.rows(models.Host)[0].faults))
    assert len(cloud.providers()) == 1
    (shown,) = devices.list_devices(cloud.database, detailed=True)
    assert shown.status == "enabled"
    assert shown.status_reason is not None
    assert shown.status_reason.startswith("fake_driver: ")


def test_a_card_is_programmed_and_shows_what_is_on_it(cloud, glance_stand_in):
    image = glance_stand_in.add(b"bits")
    (deployable,) = cloud.rows(models.Deployable)
    cloud.calls.program_deployable(
        context.admin_context(), deployable.uuid, image
    )
    assert cloud.rows(models.Deployable)[0].bitstream_id == image


def test_a_missing_image_is_not_found_by_whoever_asked(cloud):
    (deployable,) = cloud.rows(models.Deployable)
    with pytest.raises(exception.NotFound):
        cloud.calls.program_deployable(
            context.admin_context(), deployable.uuid, str(uuid.uuid4())
        )
    assert cloud.rows(models.Deployable)[0].bitstream_id is None


def test_the_reason_of_a_card_that_refuses_comes_all_the_way(
    cloud, glance_stand_in
):
    cloud.conf.set_override("program_failure", True, "fake")
    image = glance_stand_in.add(b"bits")
    (deployable,) = cloud.rows(models.Deployable)
    with pytest.raises(exception.DeviceFailed, match="simulated failure"):
        cloud.calls.program_deployable(
            context.admin_context(), deployable.uuid, image
        )

# SPDX-License-Identifier: Apache-2.0
"""vGPUs from a bind to the kernel and back: a conductor, an agent with
NVIDIA's driver, and a T4 in a fake tree whose kernel makes the devices."""

from __future__ import annotations

import dataclasses
import fnmatch
import logging
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import oslo_messaging
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import context
from cyborg import inventory
from cyborg import service as process
from cyborg.agent.ledger import Ledger
from cyborg.agent.service import AgentService
from cyborg.conductor.service import ConductorService
from cyborg.db import engine
from cyborg.db import models
from cyborg.drivers.base import DriverHost
from cyborg.drivers.nvidia import NvidiaGpuDriver
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pciids import PciNames
from cyborg.hardware.writes import Writer
from cyborg.rpc import transport as rpc_transport
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import Binding
from cyborg.rpc.conductor import ConductorClient
from tests import databases
from tests.kernel import Kernel
from tests.sysfs import SysfsTree

WAIT = 30
CARD = "0000:af:00.0"
PROVIDER = inventory.provider_uuid(f"compute-1_{CARD}")
ADMIN = context.admin_context()


class Waiting(Kernel):
    """A kernel in which writes to some files take until a test says so."""

    def __init__(self, tree: SysfsTree, pattern: str) -> None:
        super().__init__(tree)
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self._pattern = pattern

    def write(self, path: str, value: str, timeout: float = 10.0) -> None:
        if fnmatch.fnmatch(path, self._pattern):
            self.begun.set()
            assert self.may_go_on.wait(WAIT)
        super().write(path, value, timeout)


class NoMonitor:
    """A host without events of the kernel."""

    def __call__(self) -> None:
        raise OSError("no events here")


@dataclasses.dataclass
class Cloud:
    """One conductor with its database, and a host whose agents come and
    go."""

    conf: cfg.ConfigOpts
    database: engine.Database
    tree: SysfsTree
    transport: oslo_messaging.RPCTransport
    calls: ConductorClient
    agents: list[AgentService] = dataclasses.field(default_factory=list)
    looks: list[list[str]] = dataclasses.field(default_factory=list)
    """The mediated devices there were at each look of the driver."""

    def start_agent(self, writer: Writer | None = None) -> AgentService:
        cloud = self

        class Watched(NvidiaGpuDriver):
            def discover(self):
                cloud.looks.append(cloud.mediated())
                return super().discover()

        agent = AgentService(
            self.conf,
            self.transport,
            NoPlacement(),
            drivers=lambda _: Watched,
            monitor=NoMonitor(),
            host=DriverHost(
                name="compute-1",
                sysfs=Sysfs(self.tree.root),
                conf=self.conf,
                names=PciNames(()),
                writer=writer or Kernel(self.tree),
            ),
        )
        self.agents.append(agent)
        agent.start()
        return agent

    def stop_agent(self) -> None:
        self.agents.pop().stop()

    def reboot(self) -> None:
        """What a host forgets while it is down."""
        for identity in self.mediated():
            self.tree.remove_mdev(identity)

    def mediated(self) -> list[str]:
        """The uuids of the mediated devices that exist."""
        place = self.tree.root / "bus" / "mdev" / "devices"
        return (
            sorted(p.name for p in place.iterdir()) if place.is_dir() else []
        )

    def recorded(self) -> list[str]:
        """The uuids that the next agent would make again."""
        kept = Ledger(self.conf.state_path, "compute-1")
        return sorted(entry.uuid for entry in kept.units())

    def rows(self, model: type[models.Base]) -> list:
        with self.database.reader() as session:
            return list(session.scalars(sa.select(model)))

    def used(self) -> list[str]:
        """The uuids of the handles that nobody else can have."""
        handles = self.rows(models.AttachHandle)
        return sorted(row.uuid for row in handles if row.in_use)

    def bind(self, count: int = 1) -> list[str]:
        """New accelerator requests of one instance, being bound."""
        name = f"vgpu-{uuid.uuid4().hex}"
        self.calls.create_device_profile(
            ADMIN, name, [{"resources:VGPU": str(count)}]
        )
        arqs = self.calls.create_arqs(context.admin_context(), name)
        instance = str(uuid.uuid4())
        self.calls.bind_arqs(
            ADMIN,
            [Binding(arq, "compute-1", PROVIDER, instance) for arq in arqs],
            None,
        )
        return arqs

    def unbind(self, arqs: list[str]) -> None:
        self.calls.unbind_arqs(ADMIN, arqs, None)

    def states(self, arqs: list[str]) -> set[str]:
        rows = self.rows(models.AcceleratorRequest)
        return {row.state for row in rows if row.uuid in arqs}

    def become(self, arqs: list[str], state: str) -> None:
        eventually(lambda: self.states(arqs) == {state})

    def device(self) -> models.Device:
        (found,) = self.rows(models.Device)
        return found


class NoPlacement:
    """Has no provider; these tests bind without it."""

    def find_provider(self, name: str) -> str | None:
        return None


def eventually(truth: Callable[[], bool]) -> None:
    """Returns once `truth()`; rows of a database have no event for us."""
    deadline = time.monotonic() + WAIT
    while not truth():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def configuration(directory: Path, bind_timeout: int) -> cfg.ConfigOpts:
    file = directory / "cyborg.conf"
    file.write_text(
        "[DEFAULT]\n"
        "host = compute-1\n"
        "transport_url = fake://\n"
        f"control_exchange = {uuid.uuid4().hex}\n"
        "periodic_interval = 3600\n"
        "rpc_response_timeout = 3\n"
        f"bind_timeout = {bind_timeout}\n"
        f"state_path = {directory / 'state'}\n"
        "[agent]\n"
        "resource_provider_name = compute-1\n"
        "enabled_drivers = nvidia_gpu_driver\n"
        "[gpu_devices]\nenabled_vgpu_types = nvidia-222\n"
        f"[vgpu_nvidia-222]\ndevice_addresses = {CARD}\n"
        "[nova]\nenabled = false\n"
        "[placement]\nenabled = false\n"
    )
    conf = cfg.ConfigOpts()
    process.prepare(conf)
    conf([f"--config-file={file}"], project="cyborg", default_config_dirs=[])
    return conf


@pytest.fixture
def cloud(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cloud]:
    """With a T4; its parameter is `[DEFAULT] bind_timeout`."""
    conf = configuration(tmp_path, getattr(request, "param", WAIT))
    tree = SysfsTree(tmp_path / "sys")
    tree.add_nvidia_t4(CARD)
    transport = rpc_transport.get_transport(conf)
    with databases.migrated("sqlite", tmp_path) as database:
        conductor = ConductorService(conf, database, transport)
        conductor.start()
        made = Cloud(
            conf,
            database,
            tree,
            transport,
            ConductorClient(transport, conf),
        )
        yield made
        for agent in made.agents:
            agent.stop()
        conductor.stop()


@pytest.fixture
def ready(cloud: Cloud) -> Cloud:
    """With an agent whose report is stored."""
    cloud.start_agent()
    eventually(lambda: len(cloud.rows(models.AttachHandle)) == 16)
    return cloud


def test_a_bound_unit_exists_under_its_handles_uuid(ready):
    arqs = ready.bind(3)
    ready.become(arqs, "Bound")
    assert len(ready.used()) == 3
    assert ready.mediated() == ready.used() == ready.recorded()


def test_a_unit_that_was_given_back_is_gone(ready):
    kept, gone = ready.bind(), ready.bind(2)
    ready.become(kept + gone, "Bound")
    ready.unbind(gone)
    eventually(lambda: len(ready.used()) == 1)
    ready.become(gone, "Unbound")
    assert ready.mediated() == ready.used() == ready.recorded()
    assert ready.device().device_state is None
    # A look that fell between two changes of the kernel may have had fewer.
    eventually(lambda: len(ready.rows(models.AttachHandle)) == 16)
    again = ready.bind(15)
    ready.become(again, "Bound")
    assert len(ready.mediated()) == 16


def test_units_are_the_same_in_the_report_whether_they_exist_or_not(ready):
    before = {row.uuid for row in ready.rows(models.AttachHandle)}
    arqs = ready.bind(16)
    ready.become(arqs, "Bound")
    eventually(lambda: len(ready.looks) > 1)
    assert {row.uuid for row in ready.rows(models.AttachHandle)} == before
    assert len(ready.mediated()) == 16


def test_a_kernel_that_refuses_ends_the_bind_and_leaves_nothing(cloud, caplog):
    kernel = Kernel(cloud.tree)
    cloud.start_agent(kernel)
    eventually(lambda: len(cloud.rows(models.AttachHandle)) == 16)
    kernel.fail("*/create", 28)
    with caplog.at_level(logging.WARNING):
        arqs = cloud.bind(2)
        cloud.become(arqs, "BindFailed")
    assert "No space left on device" in caplog.text
    assert cloud.mediated() == cloud.recorded() == []
    kernel.heal()
    cloud.unbind(arqs)
    eventually(lambda: cloud.used() == [])
    cloud.become(cloud.bind(16), "Bound")


def test_a_unit_that_a_guest_still_has_is_an_error_until_it_can_go(cloud):
    kernel = Kernel(cloud.tree)
    cloud.start_agent(kernel)
    eventually(lambda: len(cloud.rows(models.AttachHandle)) == 16)
    arqs = cloud.bind()
    cloud.become(arqs, "Bound")
    kernel.fail("*/remove", 16)
    cloud.unbind(arqs)
    eventually(lambda: cloud.device().device_state == "error")
    assert "busy" in cloud.device().clean_error.lower()
    assert cloud.mediated() == cloud.used() == cloud.recorded()
    kernel.heal()
    cloud.calls.set_device_status(ADMIN, cloud.device().uuid, "enabled")
    eventually(lambda: cloud.used() == [])
    assert cloud.mediated() == cloud.recorded() == []
    assert cloud.device().clean_error is None


@pytest.mark.parametrize("cloud", [1], indirect=True)
def test_a_bind_whose_host_hangs_fails_in_time_and_what_comes_late_goes(
    cloud,
):
    kernel = Waiting(cloud.tree, "*/create")
    cloud.start_agent(kernel)
    eventually(lambda: len(cloud.rows(models.AttachHandle)) == 16)
    arqs = cloud.bind()
    assert kernel.begun.wait(WAIT)
    cloud.become(arqs, "BindFailed")
    assert cloud.recorded() == cloud.used()
    kernel.may_go_on.set()
    eventually(lambda: cloud.recorded() == [] == cloud.mediated())


def test_a_bind_goes_on_when_its_agent_is_killed_in_the_middle(cloud):
    kernel = Waiting(cloud.tree, "*/create")
    cloud.start_agent(kernel)
    eventually(lambda: len(cloud.rows(models.AttachHandle)) == 16)
    arqs = cloud.bind(2)
    assert kernel.begun.wait(WAIT)
    cloud.stop_agent()
    cloud.start_agent()
    cloud.become(arqs, "Bound")
    assert cloud.mediated() == cloud.used() == cloud.recorded()
    assert len(cloud.used()) == 2


def test_cleaning_goes_on_when_its_agent_is_killed_in_the_middle(cloud):
    kernel = Waiting(cloud.tree, "*/remove")
    cloud.start_agent(kernel)
    eventually(lambda: len(cloud.rows(models.AttachHandle)) == 16)
    arqs = cloud.bind()
    cloud.become(arqs, "Bound")
    cloud.unbind(arqs)
    assert kernel.begun.wait(WAIT)
    cloud.stop_agent()
    assert len(cloud.used()) == 1
    cloud.start_agent()
    eventually(lambda: cloud.used() == [])
    assert cloud.mediated() == cloud.recorded() == []


def test_after_a_reboot_the_units_are_back_before_the_first_look(ready):
    arqs = ready.bind(3)
    ready.become(arqs, "Bound")
    units = ready.mediated()
    ready.stop_agent()
    ready.reboot()
    assert ready.mediated() == []
    ready.looks.clear()
    ready.start_agent()
    eventually(lambda: bool(ready.looks))
    assert ready.looks[0] == units
    assert ready.states(arqs) == {"Bound"}
    ready.unbind(arqs)
    eventually(lambda: ready.used() == [])
    assert ready.mediated() == []


def test_a_unit_given_back_while_the_host_was_down_does_not_come_back(ready):
    arqs = ready.bind(2)
    ready.become(arqs, "Bound")
    ready.stop_agent()
    ready.reboot()
    ready.unbind(arqs[:1])
    ready.start_agent()
    eventually(lambda: len(ready.used()) == 1)
    assert ready.mediated() == ready.used() == ready.recorded()


def test_a_vendors_driver_that_loads_late_at_boot_is_waited_for(ready):
    arqs = ready.bind()
    ready.become(arqs, "Bound")
    units = ready.mediated()
    ready.stop_agent()
    ready.reboot()
    kernel = Kernel(ready.tree)
    kernel.fail("*/create", 19)
    ready.start_agent(kernel)
    eventually(lambda: bool(kernel.writes))
    kernel.heal()

    def back() -> bool:
        AgentClient(ready.transport, ready.conf).discover(ADMIN, "compute-1")
        return ready.mediated() == units

    eventually(back)
    assert ready.states(arqs) == {"Bound"}

# SPDX-License-Identifier: Apache-2.0
"""A whole agent on the in-process transport: what a conductor hears of it,
and what it does when it is called."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import oslo_messaging
import pytest
from oslo_config import cfg

from cyborg import context
from cyborg import exception
from cyborg import inventory
from cyborg import service as process
from cyborg.agent import service
from cyborg.clients import placement as placement_client
from cyborg.drivers import base
from cyborg.drivers import fake
from cyborg.hardware.pci import Sysfs
from cyborg.rpc import agent as rpc_agent
from cyborg.rpc import codec
from cyborg.rpc import conductor as rpc_conductor
from cyborg.rpc import transport as rpc_transport
from tests.kernel import Kernel
from tests.placement import Answer
from tests.placement import PlacementService
from tests.sysfs import SysfsTree

WAIT = 15


class Conductor:
    """A conductor that only listens: each message goes into a queue."""

    def __init__(self, transport: oslo_messaging.RPCTransport) -> None:
        self.target = oslo_messaging.Target(version=rpc_conductor.VERSION)
        self.heard: queue.SimpleQueue = queue.SimpleQueue()
        self.known: str | None = None
        self._server = rpc_transport.get_server(
            transport,
            oslo_messaging.Target(topic=rpc_conductor.TOPIC, server="one"),
            [self],
        )

    @oslo_messaging.expose
    def report_host(self, context, report):
        decoded = codec.decode(inventory.HostReport, report)
        self.known = decoded.digest()
        self.heard.put(decoded)

    @oslo_messaging.expose
    def heartbeat(self, context, host, digest):
        self.heard.put(host)
        return digest == self.known

    def report(self) -> inventory.HostReport:
        """The next report, past any heartbeats."""
        while True:
            heard = self.heard.get(timeout=WAIT)
            if isinstance(heard, inventory.HostReport):
                return heard

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


class Host:
    """One agent's surroundings; `options` are `{group: {option: value}}`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = "compute-1"
        file = directory / "cyborg.conf"
        file.write_text(
            "[DEFAULT]\n"
            f"host = {self.host}\n"
            "transport_url = fake://\n"
            f"control_exchange = {uuid.uuid4().hex}\n"
            "rpc_response_timeout = 2\n"
            "periodic_interval = 3600\n"
            f"state_path = {directory / 'state'}\n"
            "[agent]\n"
            "resource_provider_name = compute-1.example.org\n"
        )
        self.conf = cfg.ConfigOpts()
        process.prepare(self.conf)
        self.conf(
            [f"--config-file={file}"], project="cyborg", default_config_dirs=[]
        )
        self.transport = rpc_transport.get_transport(self.conf)
        self.conductor = Conductor(self.transport)
        self.client = rpc_agent.AgentClient(self.transport, self.conf)
        self.agents: list[service.AgentService] = []

    def set(self, group: str | None, **options: object) -> None:
        for name, value in options.items():
            self.conf.set_override(name, value, group=group)

    def agent(self, placement: object = None, **seams: object):
        """A started agent."""
        agent = service.AgentService(
            self.conf, self.transport, placement, **seams
        )
        self.agents.append(agent)
        agent.start()
        return agent

    def program(self, **changes: object) -> rpc_agent.ProgramResult:
        fields: dict = {
            "job_uuid": str(uuid.uuid4()),
            "driver": "fake",
            "controlpath": inventory.pci_json("0000:0c:00.0"),
            "deployable_name": "compute-1_FakeDevice",
            "image_uuid": None,
            "function_id": None,
            "timeout": WAIT,
        }
        order = rpc_agent.ProgramOrder(**fields | changes)
        return self.client.program(context.admin_context(), self.host, order)

    def close(self) -> None:
        for agent in self.agents:
            agent.stop()
        self.conductor.stop()


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path)
    made.conductor.start()
    yield made
    made.close()


class NoPlacement:
    """A Placement that has nothing."""

    def find_provider(self, name: str) -> str | None:
        return None


def test_the_fake_device_is_reported_within_two_seconds_of_the_start(
    host, placement: PlacementService
):
    root = placement.create_provider("compute-1.example.org")
    start = time.monotonic()
    host.agent(placement_client.Placement(placement.adapter()))
    report = host.conductor.report()
    assert time.monotonic() - start < 2
    assert report.host == "compute-1"
    assert report.provider_name == "compute-1.example.org"
    assert report.provider_uuid == root
    assert report.faults == ()
    (device,) = report.devices
    assert device.controlpath == inventory.pci_json("0000:0c:00.0")
    assert device.driver == "fake_driver"
    (deployable,) = device.deployables
    assert deployable.name == "compute-1_FakeDevice"
    assert deployable.num_accelerators == 16
    assert len(deployable.attach_handles) == 16


def test_a_provider_under_the_short_name_is_taken(
    host, placement: PlacementService
):
    root = placement.create_provider("compute-1")
    host.agent(placement_client.Placement(placement.adapter()))
    report = host.conductor.report()
    assert (report.provider_name, report.provider_uuid) == ("compute-1", root)


def test_a_late_provider_is_found_without_help_and_never_made(
    host, placement: PlacementService, caplog
):
    host.set("agent", resource_provider_startup_retries=0)
    host.set(None, periodic_interval=0.1)
    host.agent(placement_client.Placement(placement.adapter()))
    assert host.conductor.report().provider_uuid is None
    root = placement.create_provider("compute-1.example.org")
    assert host.conductor.report().provider_uuid == root
    assert {call.method for call in placement.calls} == {"GET"}
    said = [
        r
        for r in caplog.records
        if "No root resource provider" in r.getMessage()
    ]
    assert len(said) == 1


def test_an_outage_of_placement_at_the_start_delays_nothing(
    host, placement: PlacementService
):
    placement.create_provider("compute-1.example.org")
    down = True
    placement.hook = lambda *_: Answer(503) if down else None
    host.set("agent", resource_provider_startup_retries=0)
    host.set(None, periodic_interval=0.1)
    host.agent(placement_client.Placement(placement.adapter()))
    report = host.conductor.report()
    assert (report.provider_uuid, len(report.devices)) == (None, 1)
    down = False
    assert host.conductor.report().provider_uuid is not None


@pytest.mark.parametrize(
    ("enabled", "words"),
    [(True, "[placement] auth_type"), (False, "without Placement")],
)
def test_an_agent_without_placement_in_its_configuration_reports(
    host, caplog, enabled, words
):
    host.set("placement", enabled=enabled)
    host.set("agent", resource_provider_startup_retries=0)
    host.agent()
    report = host.conductor.report()
    assert report.provider_name == "compute-1.example.org"
    assert report.provider_uuid is None
    assert len(report.devices) == 1
    assert words in caplog.text


class Events:
    """A monitor that has an event when a test says so."""

    def __init__(self) -> None:
        self.subsystem = "pci"
        self.device_path = "/devices/pci0000:00/0000:0c:00.0"
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)

    def event(self) -> None:
        os.write(self._writer, b"x")

    def fileno(self) -> int:
        return self._reader

    def poll(self, timeout: float | None = None):
        with contextlib.suppress(BlockingIOError):
            return self if os.read(self._reader, 1) else None
        return None


def test_a_kernel_event_brings_a_report_within_two_seconds(host, tmp_path):
    file = tmp_path / "devices.yaml"
    file.write_text("- {address: '0000:0c:00.0'}\n")
    host.set("fake", inventory_file=str(file))
    kernel = Events()
    host.agent(NoPlacement(), monitor=lambda: kernel)
    assert len(host.conductor.report().devices) == 1
    file.write_text("[]\n")
    start = time.monotonic()
    kernel.event()
    assert host.conductor.report().devices == ()
    assert time.monotonic() - start < 2


def test_a_device_that_is_plugged_or_broken_shows_when_asked_to_look(
    host, tmp_path
):
    file = tmp_path / "devices.yaml"
    file.write_text("- {address: '0000:0c:00.0'}\n")
    host.set("fake", inventory_file=str(file))
    host.agent(NoPlacement())
    assert len(host.conductor.report().devices) == 1
    file.write_text(
        "- {address: '0000:0c:00.0', health: too hot}\n"
        "- {address: '0000:0d:00.0'}\n"
    )
    host.client.discover(context.admin_context(), "compute-1")
    report = host.conductor.report()
    assert [device.fault for device in report.devices] == ["too hot", ""]


def test_a_driver_that_fails_keeps_its_devices_and_is_named(host, tmp_path):
    file = tmp_path / "devices.yaml"
    file.write_text("- {address: '0000:0c:00.0'}\n")
    host.set("fake", inventory_file=str(file))
    host.agent(NoPlacement())
    host.conductor.report()
    file.write_text("- {address: 12, nonsense: true}\n")
    host.client.discover(context.admin_context(), "compute-1")
    report = host.conductor.report()
    assert [fault.driver for fault in report.faults] == ["fake_driver"]


def test_unknown_drivers_are_faults_and_the_known_one_is_reported(host):
    host.set("agent", enabled_drivers=["fake_drvier", "fake_driver", ""])
    host.agent(NoPlacement())
    report = host.conductor.report()
    assert len(report.devices) == 1
    (fault,) = report.faults
    assert fault.driver == "fake_drvier"
    assert "[agent] enabled_drivers" in fault.error


def test_an_empty_list_of_drivers_is_an_idle_agent_that_lives(host):
    host.set("agent", enabled_drivers=[])
    host.agent(NoPlacement())
    report = host.conductor.report()
    assert (report.devices, report.faults) == ((), ())
    host.client.discover(context.admin_context(), "compute-1")
    assert host.conductor.heard.get(timeout=WAIT) == "compute-1"


def test_a_conductor_that_forgot_the_host_gets_the_whole_tree(host):
    host.agent(NoPlacement())
    first = host.conductor.report()
    host.conductor.known = None
    host.client.discover(context.admin_context(), "compute-1")
    assert host.conductor.report() == first


def test_who_hears_the_first_report_can_call_the_agent_at_once(host):
    class Asking(Conductor):
        @oslo_messaging.expose
        def report_host(self, context, report):
            host.client.discover(context, "compute-1")
            super().report_host(context, report)

    host.conductor.stop()
    host.conductor = Asking(host.transport)
    host.conductor.start()
    host.agent(NoPlacement())
    host.conductor.report()
    assert host.conductor.heard.get(timeout=WAIT) == "compute-1"


def test_without_a_conductor_the_agent_waits_for_one_and_stops_in_time(
    tmp_path,
):
    host = Host(tmp_path)
    host.set(None, rpc_response_timeout=60)
    agent = host.agent(NoPlacement())
    start = time.monotonic()
    agent.stop()
    assert time.monotonic() - start < 5


def test_a_conductor_that_comes_late_hears_everything(tmp_path):
    host = Host(tmp_path)
    host.set(None, rpc_response_timeout=1)
    host.agent(NoPlacement())
    threading.Timer(1.5, host.conductor.start).start()
    try:
        assert len(host.conductor.report().devices) == 1
    finally:
        host.close()


def test_a_stop_with_a_hanging_driver_is_bounded(host):
    held = threading.Event()
    asked = threading.Event()

    class Hanging:
        def __init__(self, host: base.DriverHost) -> None:
            self.name = "hanging"

        def discover(self):
            asked.set()
            held.wait(WAIT)
            return []

    host.set("agent", enabled_drivers=["hanging"])
    agent = host.agent(NoPlacement(), drivers=lambda _: Hanging)
    assert asked.wait(WAIT)
    start = time.monotonic()
    agent.stop()
    assert time.monotonic() - start < 5
    held.set()


@pytest.fixture
def kernel(host, tmp_path):
    """The kernel of a host with QAT cards that has just booted."""
    tree = SysfsTree(tmp_path / "sys")
    tree.add_intel_c62x("0000:3d:00.0")
    tree.add_intel_c62x("0000:da:00.0")
    host.set("agent", enabled_drivers=["intel_qat_driver"])
    return Kernel(tree)


def booted(host: Host, kernel: Kernel) -> inventory.HostReport:
    """The first report after the boot."""
    host.agent(
        NoPlacement(),
        host=base.DriverHost(
            host.host, Sysfs(kernel.tree.root), host.conf, writer=kernel
        ),
    )
    return host.conductor.report()


def units_of(report: inventory.HostReport, address: str) -> list[str]:
    (device,) = [
        one
        for one in report.devices
        if one.controlpath == inventory.pci_json(address)
    ]
    return [one.name for one in device.deployables]


def test_the_first_report_holds_the_virtual_functions_that_are_wanted(
    host, kernel, caplog
):
    host.set(
        "agent",
        virtual_functions=["0000:3d:00.0=max", "0000:99:00.0=1", "nonsense"],
    )
    report = booted(host, kernel)
    assert report.faults == ()
    assert len(units_of(report, "0000:3d:00.0")) == 16
    assert units_of(report, "0000:da:00.0") == ["compute-1_0000:da:00.0"]
    assert "[agent] virtual_functions: not a PCI address" in caplog.text
    assert "0000:99:00.0: there is no such PCI function" in caplog.text


def test_what_the_kernel_does_not_make_holds_up_no_report(
    host, kernel, caplog
):
    kernel.hang("*3d:00.0/sriov_numvfs")
    host.set("agent", virtual_functions=["0000:3d:00.0=16", "0000:da:00.0=16"])
    report = booted(host, kernel)
    assert units_of(report, "0000:3d:00.0") == ["compute-1_0000:3d:00.0"]
    assert len(units_of(report, "0000:da:00.0")) == 16
    assert "it is tried again" in caplog.text


@pytest.fixture
def image(host, glance_stand_in):
    """The uuid of an image in a Glance that the agent is configured for."""
    host.set("glance", auth_type="none", endpoint_override=glance_stand_in.url)
    return glance_stand_in.add(b"bits", {"accel:function_id": "adder"})


def test_a_deployable_is_programmed_with_an_image_of_glance(host, image):
    host.agent(NoPlacement())
    result = host.program(image_uuid=image)
    assert result.bitstream_id == image
    state = host.directory / "state"
    assert [path for path in state.rglob("*") if path.is_file()] == []


def test_a_deployable_is_programmed_with_a_function(host, image):
    host.agent(NoPlacement())
    assert host.program(function_id="adder").bitstream_id == image


def test_an_unknown_image_is_not_found(host, image):
    host.agent(NoPlacement())
    with pytest.raises(exception.NotFound):
        host.program(image_uuid=str(uuid.uuid4()))


def test_a_damaged_image_never_reaches_the_card(host, image, glance_stand_in):
    glance_stand_in.images[image].record["os_hash_value"] = "0" * 128
    host.agent(NoPlacement())
    with pytest.raises(exception.Invalid, match="damaged"):
        host.program(image_uuid=image)


def test_an_image_above_the_limit_is_refused(host, image):
    host.set("agent", max_image_bytes=3)
    host.agent(NoPlacement())
    with pytest.raises(exception.Invalid, match="max_image_bytes"):
        host.program(image_uuid=image)


def test_the_reason_of_a_card_that_refuses_reaches_the_caller(host, image):
    host.set("fake", program_failure=True)
    host.agent(NoPlacement())
    with pytest.raises(exception.DeviceFailed, match="simulated failure"):
        host.program(image_uuid=image)


def test_a_stop_with_a_card_being_written_is_bounded_and_answers(host, image):
    host.set("fake", program_seconds=600)
    begun = threading.Event()

    class Slow(fake.FakeDriver):
        def program(self, *arguments: object) -> None:
            begun.set()
            super().program(*arguments)

    agent = host.agent(NoPlacement(), drivers=lambda _: Slow)
    errors: queue.SimpleQueue = queue.SimpleQueue()

    def program() -> None:
        try:
            host.program(image_uuid=image)
        except exception.CyborgError as error:
            errors.put(error)

    threading.Thread(target=program).start()
    assert begun.wait(WAIT)
    start = time.monotonic()
    agent.stop()
    assert time.monotonic() - start < 10
    assert isinstance(
        errors.get(timeout=WAIT),
        (exception.DeviceFailed, exception.Unavailable),
    )


def test_the_agent_never_loads_the_database_layer_and_stays_small():
    code = (
        "import pathlib, sys\n"
        "import cyborg.agent.service\n"
        "import cyborg.drivers.fake, cyborg.drivers.pci\n"
        "bad = [n for n in sys.modules if n.startswith('cyborg.db')\n"
        "       or n.split('.')[0] in ('sqlalchemy', 'alembic', 'pecan')]\n"
        "assert not bad, bad[:5]\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(status.split('VmRSS:')[1].split()[0])\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(out.stdout) < 100 * 1024

# SPDX-License-Identifier: Apache-2.0
"""Deployers' check 8: a service with work in its hands is told to end.

Only its main process is signalled, as systemd does with KillMode=process;
whoever is left after fifteen seconds is killed.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.integration import children
from tests.integration import deployed
from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources

PROGRAM_SECONDS = 12
WORKERS = {"OS_API__API_WORKERS": "2", "OS_CONDUCTOR__WORKERS": "2"}
SERVICES = ("api", "conductor", "agent")


@pytest.fixture(scope="module")
def busy(deploy: deployment.Deploy) -> deployment.Deployment:
    """A Cyborg whose card takes long to program; workers where there may
    be some.
    """
    made = deploy(
        fake={"program_seconds": PROGRAM_SECONDS},
        bind_timeout=25,
        rpc_response_timeout=10,
    )
    _start(made)
    made.wait_for_providers(1, 60)
    return made


def _start(cyborg: deployment.Deployment) -> None:
    for service in SERVICES:
        cyborg.launch(service, environment=WORKERS)
    queues = {
        "conductor": "cyborg-conductor",
        "agent": f"cyborg-agent.{cyborg.host}",
    }
    ready = {
        "api": lambda: resources.answers(cyborg.port),
        "conductor": lambda: cyborg.vhost.consumers(queues["conductor"]) > 1,
        "agent": lambda: cyborg.vhost.consumers(queues["agent"]) > 0,
    }
    for service in SERVICES:
        resources.wait_until(
            ready[service], deployed.READY_SECONDS, f"{service} is ready"
        )


def _family(child: children.Child) -> list[psutil.Process]:
    return psutil.Process(child.pid).children(recursive=True)


@contextlib.contextmanager
def _slow_request(port: int) -> Iterator[socket.socket]:
    """A client that has sent half of its request."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(
            b"POST /v2/device_profiles HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n["
        )
        yield connection


def _binding(cyborg: deployment.Deployment, word: str) -> instance.Instance:
    """An instance whose card is being programmed."""
    image = cyborg.cloud.glance.add(b"bitstream " + word.encode())
    profile = cyborg.make_profile(
        [{**instance.FAKE_GROUP, "accel:bitstream_id": image}]
    )
    server = instance.Instance(cyborg, profile)
    server.schedule()
    server.request()
    server.bind()
    server.poll(423)
    return server


@pytest.mark.parametrize("how", ["SIGTERM", "killed"])
def test_a_service_ends_in_time_and_loses_nothing(
    busy: deployment.Deployment, how: str
) -> None:
    """In under ten seconds, workers included; and what a kill leaves
    behind is set right by the next start.
    """
    server = _binding(busy, how)
    main = {name: busy.processes[name] for name in SERVICES}
    families = {name: _family(child) for name, child in main.items()}
    assert len(families["api"]) >= 2
    assert len(families["conductor"]) >= 2
    with _slow_request(busy.port):
        began = time.monotonic()
        for child in main.values():
            child.process.send_signal(
                signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL
            )
        for name, child in main.items():
            code = child.stop(deployed.STOP_SECONDS)
            assert code == (0 if how == "SIGTERM" else -signal.SIGKILL), name
            left = deployed.STOP_SECONDS - (time.monotonic() - began)
            _, alive = psutil.wait_procs(families[name], timeout=max(0, left))
            assert not alive, f"{name} left {alive}"
    assert time.monotonic() - began < deployed.STOP_SECONDS

    _start(busy)
    (arq,) = server.wait_resolved()
    outcome = {"Bound": "completed", "BindFailed": "failed"}[arq["state"]]
    assert busy.handles_in_use() == (outcome == "completed")
    busy.cloud.nova.wait_for(server.uuid, 1, 60)
    (event,) = busy.cloud.nova.events_of(server.uuid)
    assert event["status"] == outcome
    server.delete()
    assert busy.handles_in_use() == 0
    assert busy.tracebacks() == {}

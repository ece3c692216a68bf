# SPDX-License-Identifier: Apache-2.0
"""Metrics and reports of real processes, in the main flow and in outages."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from collections.abc import Iterator

import pytest
import requests

from tests.integration import children
from tests.integration import cloud as cloud_module
from tests.integration import deployment
from tests.integration import identity
from tests.integration import resources

LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')
SECONDS = 60


class Numbers:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            matched = LINE.match(line)
            if matched and not line.startswith("#"):
                labels = dict(LABEL.findall(matched[2] or ""))
                self._found.append((matched[1], labels, float(matched[3])))

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of what has these labels; None where nothing has."""
        values = [
            value
            for found, has, value in self._found
            if found == name and labels.items() <= has.items()
        ]
        return sum(values) if values else None

    def names(self) -> set[str]:
        return {name for name, _, _ in self._found}


def scrape(port: int) -> Numbers:
    answer = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=20)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/plain")
    return Numbers(answer.text)


def until(port: int, condition: Callable[[Numbers], object]) -> Numbers:
    last: list[Numbers] = []

    def holds() -> object:
        with contextlib.suppress(requests.ConnectionError):
            last[:] = [scrape(port)]
        return last and condition(last[0])

    try:
        resources.wait_until(holds, SECONDS, "the numbers")
    except AssertionError as error:
        raise AssertionError(last[0].text if last else "none") from error
    return last[0]


@pytest.fixture(scope="module")
def ports(cloud: cloud_module.Cloud) -> dict[str, int]:
    """Where each service tells its numbers."""
    return {
        "api": cloud.api_port,
        "conductor": resources.free_port(),
        "agent": resources.free_port(),
    }


@pytest.fixture(scope="module")
def measured(
    deploy: deployment.Deploy, ports: dict[str, int]
) -> deployment.Deployment:
    """Two workers of API and conductor each, and an agent."""
    made = deploy()
    environment = {
        "OS_METRICS__CONDUCTOR_PORT": str(ports["conductor"]),
        "OS_METRICS__AGENT_PORT": str(ports["agent"]),
        "OS_METRICS__DATABASE_SECONDS": "1",
        "OS_CONDUCTOR__WORKERS": "2",
        "OS_API__API_WORKERS": "2",
    }
    for name in ("conductor", "agent", "api"):
        made.launch(name, environment=environment)
    for port in ports.values():
        resources.wait_until(
            lambda port=port: resources.answers(port), SECONDS, made.tails()
        )
    made.wait_for_providers(seconds=SECONDS)
    return made


def test_the_main_flow_is_counted_where_it_happens(
    measured: deployment.Deployment, ports: dict[str, int]
) -> None:
    admin = measured.caller("admin")
    profile = measured.make_profile([{"resources:FPGA": "1"}])
    made = admin.post(
        "/v2/accelerator_requests", {"device_profile_name": profile}
    )
    arq = made["arqs"][0]["uuid"]
    for _ in range(10):
        admin.get(f"/v2/accelerator_requests/{arq}")
    admin.get("/v2/devices")

    api = scrape(ports["api"])
    name = "cyborg_api_request_duration_seconds_count"
    assert (
        api.total(name, method="GET", route="/v2/accelerator_requests/{uuid}")
        == 10
    )
    assert api.total(name, method="POST", status="2xx") == 2
    assert arq not in api.text
    assert api.total("cyborg_metrics_complete") == 1
    assert (
        api.total(
            "cyborg_rpc_client_duration_seconds_count",
            topic="cyborg-conductor",
            outcome="ok",
        )
        == 2
    )
    assert "cyborg_arqs" not in api.names()

    conductor = until(
        ports["conductor"],
        lambda found: (
            found.total("cyborg_arqs", state="Initial") == 1
            and found.total("cyborg_reconcile_owed_hosts") == 0
        ),
    )
    assert conductor.total("cyborg_devices", status="enabled") == 1
    assert conductor.total("cyborg_attach_handles", use="free") == 16
    assert conductor.total("cyborg_agents", sign="alive") == 1
    assert conductor.total("cyborg_database_up") == 1
    assert conductor.total("cyborg_reconcile_oldest_owed_seconds") == 0
    served = conductor.total("cyborg_rpc_server_duration_seconds_count")
    assert served is not None
    assert served >= 3  # a report, a profile, requests
    requests_made = "cyborg_service_request_duration_seconds_count"
    assert conductor.total(requests_made, service="placement", method="PUT")

    agent = until(
        ports["agent"],
        lambda found: found.total("cyborg_agent_devices") == 1,
    )
    assert agent.total("cyborg_agent_driver_fault", driver="fake_driver") == 0
    told = agent.total("cyborg_agent_last_report_timestamp_seconds")
    assert told is not None
    assert abs(time.time() - told) < SECONDS
    assert agent.total("cyborg_agent_discovery_duration_seconds_count")
    admin.delete(f"/v2/accelerator_requests?arqs={arq}")


def test_names_are_as_prometheus_wants_them(ports: dict[str, int]) -> None:
    for port in ports.values():
        for name in scrape(port).names():
            assert name.startswith(("cyborg_", "process_", "python_")), name
        for kind, name in re.findall(
            r"^# TYPE (\S+) (\S+)$", scrape(port).text, re.MULTILINE
        ):
            if name == "counter":
                assert kind.endswith("_total"), kind
            if name == "histogram":
                assert kind.endswith("_seconds"), kind


def test_strangers_and_proxies_find_nothing(
    measured: deployment.Deployment, ports: dict[str, int]
) -> None:
    base = f"http://127.0.0.1:{ports['api']}"
    via = {"X-Forwarded-For": "127.0.0.1"}
    hidden = requests.get(f"{base}/metrics", headers=via, timeout=20)
    unknown = requests.get(f"{base}/nothing", headers=via, timeout=20)
    assert hidden.status_code == unknown.status_code == 401
    assert hidden.headers.keys() == unknown.headers.keys()
    via["X-Auth-Token"] = measured.cloud.keystone.token("admin")
    hidden = requests.get(f"{base}/metrics", headers=via, timeout=20)
    unknown = requests.get(f"{base}/nothing", headers=via, timeout=20)
    assert hidden.status_code == unknown.status_code == 404
    assert hidden.json().keys() == unknown.json().keys()
    for name in ("conductor", "agent"):
        other = f"http://127.0.0.1:{ports[name]}/metrics"
        assert requests.get(other, headers=via, timeout=20).status_code == 404


def test_a_placement_that_is_away_is_owed_until_it_is_back(
    measured: deployment.Deployment, ports: dict[str, int]
) -> None:
    admin = measured.caller("admin")
    device = admin.get("/v2/devices")["devices"][0]["uuid"]
    measured.cloud.placement.stop()
    try:
        admin.post(f"/v2/devices/{device}/disable", status=204)
        owed = until(
            ports["conductor"],
            lambda found: (
                (found.total("cyborg_reconcile_oldest_owed_seconds") or 0) > 1
            ),
        )
        assert owed.total("cyborg_reconcile_owed_hosts") == 1
        assert owed.total("cyborg_devices", status="maintaining") == 1
        failed = until(
            ports["conductor"],
            lambda found: found.total(
                "cyborg_service_request_duration_seconds_count",
                service="placement",
                outcome="none",
            ),
        )
        assert failed.total("cyborg_database_up") == 1
    finally:
        measured.cloud.placement.start()
        measured.cloud.placement.wait()
    admin.post(f"/v2/devices/{device}/enable", status=204)
    until(
        ports["conductor"],
        lambda found: found.total("cyborg_reconcile_owed_hosts") == 0,
    )


def test_the_port_outlives_the_worker_that_has_it(
    measured: deployment.Deployment, ports: dict[str, int]
) -> None:
    """What was counted before is still counted after."""
    name = "cyborg_rpc_server_duration_seconds_count"
    before = scrape(ports["conductor"]).total(name)
    assert before
    main = measured.processes["conductor"].pid
    workers = _children(main)
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        resources.wait_until(
            lambda worker=worker: (
                worker not in _children(main) and len(_children(main)) == 2
            ),
            SECONDS,
            "another worker",
        )
    after = until(ports["conductor"], lambda found: found.total(name)).total(
        name
    )
    assert after is not None
    assert after >= before


def _children(process: int) -> set[int]:
    path = f"/proc/{process}/task/{process}/children"
    with open(path) as file:  # noqa: PTH123
        return set(map(int, file.read().split()))


def test_a_port_that_is_taken_stops_no_service(
    measured: deployment.Deployment, ports: dict[str, int]
) -> None:
    child = measured.launch(
        "conductor",
        "conductor-second",
        {"OS_METRICS__CONDUCTOR_PORT": str(ports["agent"])},
    )
    resources.wait_until(
        lambda: "no metrics are served" in _log(child), SECONDS, "a warning"
    )
    assert child.stop() == 0
    assert _log(child).count("no metrics are served") == 1


def test_a_report_is_written_by_each_process_and_holds_no_secret(
    measured: deployment.Deployment, ports: dict[str, int]
) -> None:
    heads = {"api": 2, "conductor": 2, "agent": 1}
    before = {name: _reports(measured, name) for name in heads}
    for name in heads:
        measured.processes[name].process.send_signal(signal.SIGUSR2)
    for name, number in heads.items():
        resources.wait_until(
            lambda name=name, number=number: (
                _reports(measured, name) == before[name] + number
            ),
            SECONDS,
            f"{number} reports of {name}",
        )
        text = _log(measured.processes[name])
        report = text[text.index("Guru Meditation") :]
        # MariaDB's root has none, the broker's guest is called as it is.
        assert f"={identity.PASSWORD}" not in report
        assert identity.PASSWORD not in report
        assert "guest:guest" not in report
        assert "transport_url = ***" in report
        assert measured.processes[name].running
    assert measured.caller("admin").get("/v2/devices")["devices"]
    assert scrape(ports["agent"]).total("cyborg_agent_devices") == 1


def _reports(made: deployment.Deployment, name: str) -> int:
    text = _log(made.processes[name])
    return text.count("Configuration   ")


def _log(child: children.Child) -> str:
    return child.output.read_text(errors="replace")


@pytest.fixture
def early(measured: deployment.Deployment) -> Iterator[children.Child]:
    child = measured.launch("agent", "agent-early")
    yield child
    child.stop()


def test_no_signal_ends_a_service_that_is_still_loading(
    early: children.Child,
) -> None:
    """From the moment that its own code begins to run."""
    resources.wait_until(
        lambda: _catches(early.pid, signal.SIGUSR2), SECONDS, "it loads"
    )
    for _ in range(20):
        os.kill(early.pid, signal.SIGUSR2)
        os.kill(early.pid, signal.SIGHUP)
        time.sleep(0.02)
    resources.wait_until(
        lambda: not early.running or "runs." in _log(early), SECONDS, "it runs"
    )
    assert early.running, early.tail()


def _catches(process: int, number: signal.Signals) -> bool:
    with open(f"/proc/{process}/status") as file:  # noqa: PTH123
        caught = re.search(r"^SigCgt:\s*(\w+)$", file.read(), re.MULTILINE)
    return bool(caught and int(caught[1], 16) >> (number - 1) & 1)

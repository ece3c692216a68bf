# SPDX-License-Identifier: Apache-2.0
"""cyborg-standalone as the process that a person starts."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).parents[2]
SECONDS = 60
START = (sys.executable, "-W", "ignore", "-m", "cyborg.cmd.standalone")
HIDING_PLACEMENT = (
    "import sys; sys.modules['placement'] = None;"
    "from cyborg.cmd import standalone; standalone.main()"
)
BARE = (sys.executable, "-W", "ignore", "-c", HIDING_PLACEMENT)
"""The same in an environment without the extra `standalone`."""


class Process:
    """A running cyborg-standalone."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        command: tuple[str, ...] = START,
    ) -> None:
        self.port, self.placement_port = free_ports()
        self._log = directory.with_name(f"{self.port}.log")
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *command,
                    f"--state-dir={directory}",
                    "--host-name=laptop",
                    f"--port={self.port}",
                    f"--placement-port={self.placement_port}",
                    *arguments,
                ],
                cwd=directory.parent,
                env=environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def get(self, path: str, port: int | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port or self.port}{path}",
            headers={"OpenStack-API-Version": "placement 1.26"},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    def wait_for(self, path: str, key: str, port: int | None = None) -> Any:
        """The answer once `key` in it is not empty."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            with contextlib.suppress(urllib.error.URLError, OSError):
                found = self.get(path, port)
                if found[key]:
                    return found[key]
            time.sleep(0.05)  # nothing tells from outside when it is up
        raise AssertionError(self.log())

    def log(self) -> str:
        return self._log.read_text()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(15)


def environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OS_")
    }


def free_ports() -> tuple[int, int]:
    """Two different ports that nobody listens on."""
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextlib.contextmanager
def started(*arguments: Any, **options: Any) -> Iterator[Process]:
    process = Process(*arguments, **options)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def test_a_device_is_on_the_api_and_in_placement_and_a_restart_keeps_it(
    tmp_path: Path,
) -> None:
    state = tmp_path / "a state's directory"
    seen = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with started(state) as service:
            (device,) = service.wait_for("/v2/devices", "devices")
            (deployable,) = service.get("/v2/deployables")["deployables"]
            inventories = service.wait_for(
                f"/resource_providers/{deployable['rp_uuid']}/inventories",
                "inventories",
                service.placement_port,
            )
            (root,) = service.get(
                "/resource_providers?name=laptop", service.placement_port
            )["resource_providers"]
            assert service.end(number) == 0, service.log()
        assert device["hostname"] == "laptop"
        assert inventories["FPGA"]["total"] == 16
        seen.append((device["uuid"], deployable["rp_uuid"], root["uuid"]))
        assert "Traceback" not in service.log()
    assert seen[0] == seen[1]
    assert state.stat().st_mode & 0o077 == 0


def test_without_the_extra_it_says_so_once_and_runs(tmp_path: Path) -> None:
    with started(tmp_path / "state", command=BARE) as service:
        (device,) = service.wait_for("/v2/devices", "devices")
        assert service.end(signal.SIGTERM) == 0

    assert device["hostname"] == "laptop"
    assert service.log().count("There is no Placement") == 1
    assert "Traceback" not in service.log()


def test_a_second_one_on_the_same_state_is_refused_in_words(
    tmp_path: Path,
) -> None:
    with started(tmp_path / "state") as first:
        first.wait_for("/", "versions")
        with started(tmp_path / "state") as second:
            assert second.process.wait(SECONDS) == 1, second.log()

    assert "another cyborg-standalone uses" in second.log()
    assert "Traceback" not in first.log(), first.log()
    assert "Traceback" not in second.log()


@pytest.mark.parametrize(
    ("option", "said"),
    [("port", "[api] host_ip, port"), ("placement-port", "--placement-port")],
)
def test_a_taken_port_is_said_in_words(
    tmp_path: Path, option: str, said: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with started(tmp_path / "state", f"--{option}={number}") as service:
            assert service.process.wait(SECONDS) == 1, service.log()

    assert said in service.log()
    assert str(number) in service.log()
    assert "Traceback" not in service.log()


def test_a_mistake_in_the_file_ends_it_with_the_options_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.conf"
    path.write_text("[agent]\ndriver_timeout = soon\n")
    with started(tmp_path / "state", f"--config-file={path}") as service:
        assert service.process.wait(SECONDS) == 1, service.log()

    assert "driver_timeout" in service.log()
    assert "Traceback" not in service.log()


def test_it_refuses_to_serve_everybody_on_the_network(tmp_path: Path) -> None:
    path = tmp_path / "mine.conf"
    path.write_text("[api]\nhost_ip = 0.0.0.0\n")
    with started(tmp_path / "state", f"--config-file={path}") as service:
        assert service.process.wait(SECONDS) == 1, service.log()

    assert "noauth" in service.log()


def test_a_state_directory_that_cannot_be_made_is_said_in_words(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    beyond = f"--state-dir={tmp_path / 'file' / 'state'}"
    with started(tmp_path / "state", beyond) as service:
        assert service.process.wait(SECONDS) == 1, service.log()

    assert "--state-dir" in service.log()


def test_the_quickstarts_walk_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, str(TOP / "tools" / "quickstart_walk.py"), "--exit"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every step went as it should." in done.stdout


def test_the_quickstart_leaves_a_port_that_another_took_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(TOP / "tools"))
    quickstart = importlib.import_module("quickstart_service")
    look = quickstart.free_port
    with socket.create_server(("127.0.0.1", 0)) as another:
        taken = another.getsockname()[1]
        monkeypatch.setattr(
            quickstart, "free_port", lambda port: taken if port else look(0)
        )
        with quickstart.running(quickstart.Nova()) as service:
            url = f"{service.urls['cyborg']}/v2"
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.status == 200

# SPDX-License-Identifier: Apache-2.0
"""cyborg-standalone as a child process, and a place for Nova's events."""

# A tool, not a package: it prints, and lies beside its script.
# ruff: noqa: INP001, T201

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import os
import queue
import signal
import socket
import subprocess  # nosec B404
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
HOST_NAME = "quickstart-host"
PORTS = {"cyborg": 6666, "placement": 8778}
START_SECONDS = 90
LISTENS = "The API listens on"
TAKEN = "cannot listen on"


class WalkError(Exception):
    """A step did not do what it should; the text says which and how."""


class Nova(http.server.ThreadingHTTPServer):
    """Where the conductor sends its events, since there is no Nova here."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), _NovaHandler)
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _NovaHandler(http.server.BaseHTTPRequestHandler):
    server: Nova

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        events = json.loads(self.rfile.read(length))["events"]
        answer = {"events": [{**event, "code": 200} for event in events]}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        for event in events:
            self.server.events.put(event)

    def log_message(self, *_: object) -> None:
        """The walk prints what matters."""


@dataclasses.dataclass
class Standalone:
    """The process that runs API, conductor, agent and Placement."""

    process: subprocess.Popen[bytes]
    log: Path
    urls: dict[str, str]

    def check(self) -> None:
        """Raise WalkError where it has ended."""
        code = self.process.poll()
        if code is not None:
            raise WalkError(f"cyborg-standalone ended with code {code}")

    def listens(self) -> bool:
        """Wait until it does; False where somebody took its port.

        A port is looked at before, but another may take it meanwhile, and
        would be asked in its place.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            said = self.log.read_text(errors="replace")
            if LISTENS in said:
                break
            if ended:
                return TAKEN not in said
            time.sleep(0.1)
        return True

    def stop(self) -> int:
        """Ask it to end, as an operator would; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def free_port(preferred: int) -> int:
    """`preferred`, or any free one where somebody listens there."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return int(probe.getsockname()[1])
    raise WalkError("no port is free on this machine")


def start(directory: Path, nova: Nova, wanted: dict[str, int]) -> Standalone:
    """Start the service on free ports; returns before it answers."""
    ports = {name: free_port(port) for name, port in wanted.items()}
    configuration = directory / "quickstart.conf"
    configuration.write_text(
        "[nova]\n"
        "auth_type = none\n"
        f"endpoint_override = http://{HOST}:{nova.server_address[1]}\n"
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OS_")
    }
    log = directory / "standalone.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # nosec B603
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "cyborg.cmd.standalone",
                f"--config-file={configuration}",
                f"--state-dir={directory}",
                f"--host-name={HOST_NAME}",
                f"--port={ports['cyborg']}",
                f"--placement-port={ports['placement']}",
            ],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours; we stop it in order
        )
    urls = {name: f"http://{HOST}:{port}" for name, port in ports.items()}
    return Standalone(process, log, urls)


@contextlib.contextmanager
def running(nova: Nova) -> Iterator[Standalone]:
    """The service in a directory of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="cyborg-quickstart-") as name:
        service = start(Path(name), nova, PORTS)
        try:
            if not service.listens():
                service = start(Path(name), nova, dict.fromkeys(PORTS, 0))
                service.listens()
            yield service
        except WalkError:
            log = service.log.read_text(errors="replace").splitlines()
            print("\nThe end of the service's log:", *log[-25:], sep="\n  ")
            raise
        finally:
            service.stop()


def check(holds: bool, otherwise: str) -> None:
    """Raise WalkError unless a step went as it should."""
    if not holds:
        raise WalkError(otherwise)

# SPDX-License-Identifier: Apache-2.0
"""A cloud under the load of many agents, over time.

`python -m benchmarks.fleet`, from the source tree, in the tests' environment:
real Keystone, Placement, MariaDB and RabbitMQ; an API, a conductor and an
agent as processes, and `--hosts` simulated agents of 8 devices beside them.
It measures what clients get meanwhile, what the processes' memory is after
an hour's worth of reports, and how long Placement takes to be right again
after it was away.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks import agents
from benchmarks import load
from benchmarks import seed
from tests import databases
from tests.integration import cloud as cloud_module
from tests.integration import deployment
from tests.integration import resources

PERIOD = 10.0
"""Seconds between two reports of an agent."""
HOUR = 3600.0
CHANGE_EVERY = 30
"""One report of so many tells of a change: each host one in five minutes."""
SETTLE_SECONDS = 300
SAMPLES = 6


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet")
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument(
        "--clients", type=int, default=4, help="clients of the API at once"
    )
    parser.add_argument(
        "--measure",
        type=float,
        default=60,
        help="seconds for which clients are measured",
    )
    parser.add_argument(
        "--hours",
        type=float,
        default=1.0,
        help="how many hours' worth of reports the memory is watched over",
    )
    parser.add_argument(
        "--faster",
        type=float,
        default=6.0,
        help="by how much these reports come faster than they would",
    )
    parser.add_argument(
        "--outage",
        type=float,
        default=300,
        help="seconds for which Placement is away",
    )
    return parser.parse_args()


class Fleet:
    """A running Cyborg and its simulated hosts."""

    def __init__(
        self, cyborg: deployment.Deployment, hosts: Sequence[agents.Host]
    ) -> None:
        self.cyborg = cyborg
        self.hosts = hosts
        self._engine = sa.create_engine(
            cyborg.database, poolclass=sa.pool.NullPool
        )

    def memory(self) -> dict[str, float]:
        """MiB that each process, with its children, has in memory."""
        return {
            name: _resident(child.pid) / 1024
            for name, child in self.cyborg.processes.items()
        }

    def owed(self) -> int:
        """Hosts whose rows Placement does not have yet."""
        return self._count(
            "SELECT count(*) FROM hosts WHERE provider_uuid"
            " IS NOT NULL AND revision <> synced_revision"
        )

    def known(self) -> int:
        """Hosts of which a conductor has a report."""
        return self._count("SELECT count(*) FROM hosts")

    def _count(self, statement: str) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(sa.text(statement)).scalar_one())

    def wrong(self) -> list[str]:
        """Hosts of which Placement has something else than it should."""
        placement = self.cyborg.cloud.placement
        return [host.name for host in self.hosts if _wrong(placement, host)]


def _wrong(placement: cloud_module.Placement, host: agents.Host) -> bool:
    for number in range(agents.DEVICES):
        inventory = placement.inventory(host.provider(number))
        total = agents.ACCELERATORS
        reserved = total if number == host.broken else 0
        found = inventory.get("FPGA", {})
        if (found.get("total"), found.get("reserved")) != (total, reserved):
            return True
    return False


def _resident(pid: int) -> int:
    """KiB of a process and its children."""
    status = Path(f"/proc/{pid}/status").read_text()
    own = next(
        int(line.split()[1])
        for line in status.splitlines()
        if line.startswith("VmRSS")
    )
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(_resident(int(child)) for child in children)


@contextlib.contextmanager
def fleet(count: int) -> Iterator[Fleet]:
    """Services that run, on databases and a vhost of their own."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("cloud", "cyborg"):
            (folder / name).mkdir()
        cloud = stack.enter_context(cloud_module.running(folder / "cloud"))
        cyborg = deployment.Deployment(
            cloud,
            stack.enter_context(databases.empty("mariadb", folder / "cyborg")),
            stack.enter_context(resources.vhost("benchmark")),
            folder / "cyborg",
        )
        stack.callback(cyborg.stop)
        _slow_down(cyborg.configuration)
        cyborg.prepare()
        cyborg.start()
        names = [f"simulated-{number:05}" for number in range(count)]
        yield Fleet(
            cyborg,
            [
                agents.Host(name, cloud.placement.make_root(name))
                for name in names
            ],
        )


def _slow_down(configuration: Path) -> None:
    """The periods of a real cloud, and no debug log."""
    text = configuration.read_text()
    for option, value in (
        ("debug = true", "debug = false"),
        ("periodic_interval = 2", f"periodic_interval = {PERIOD:.0f}"),
        ("reconcile_interval = 2", "reconcile_interval = 60"),
        ("service_down_time = 6", "service_down_time = 180"),
    ):
        if option not in text:
            raise SystemExit(f"the tests' configuration lacks {option}")
        text = text.replace(option, value)
    configuration.write_text(text)


class Client:
    """A client that makes, binds, polls and deletes requests till told to
    stop; `seconds`: operation -> how long each took."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        keystone = fleet.cyborg.cloud.keystone
        self._hosts = fleet.hosts
        self._client = load.Client(
            fleet.cyborg.port,
            {
                "X-Auth-Token": keystone.token("admin"),
                "X-Service-Token": keystone.token("nova"),
            },
        )
        self._random = random.Random(number)
        self.seconds: dict[str, list[float]] = {}
        self.failure: Exception | None = None

    def run(self, stopped: threading.Event) -> None:
        try:
            while not stopped.is_set():
                self._cycle()
        except Exception as error:  # noqa: BLE001 - shown by who waits
            self.failure = error
        finally:
            self._client.close()

    def _cycle(self) -> None:
        host = self._random.choice(self._hosts)
        well = [n for n in range(agents.DEVICES) if n != host.broken]
        provider = host.provider(self._random.choice(well))
        instance = str(uuid.uuid4())
        made = self._send(
            "create 1",
            load.Request(
                "POST",
                "/v2/accelerator_requests",
                201,
                {"device_profile_name": seed.profile_name(1)},
            ),
        )
        values = {
            "hostname": host.name,
            "device_rp_uuid": provider,
            "instance_uuid": instance,
        }
        patch = [
            {"op": "add", "path": f"/{key}", "value": value}
            for key, value in values.items()
        ]
        path = f"/v2/accelerator_requests?instance={instance}"
        # A device may break between our choice and the bind.
        self._send(
            "bind 1",
            load.Request(
                "PATCH",
                "/v2/accelerator_requests",
                (202, 409),
                {arq["uuid"]: patch for arq in made["arqs"]},
            ),
        )
        self._send("poll", load.Request("GET", path, 200))
        self._send("delete 1", load.Request("DELETE", path, 204))
        self._send(
            "list 100 devices",
            load.Request("GET", "/v2/devices?limit=100", 200),
        )

    def _send(self, name: str, request: load.Request) -> Any:
        before = time.perf_counter()
        answer = self._client.send(request)
        self.seconds.setdefault(name, []).append(time.perf_counter() - before)
        return json.loads(answer) if answer else None


def wait_until(
    condition: Callable[[], bool], seconds: float, what: str
) -> float:
    """How many seconds it took to come true; ends the program where it does
    not in time."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.25)
    return time.monotonic() - began


def said(counts: agents.Counts, elapsed: float) -> str:
    """What the agents did, on one line."""
    calls = load.timing(counts.seconds, elapsed)
    return (
        f"agents: {calls.rate:.1f} calls/s ({counts.heartbeats} heartbeats, "
        f"{counts.reports} reports, {counts.failures} failed), "
        f"p50 {calls.p50 * 1000:.1f} ms, p99 {calls.p99 * 1000:.1f} ms, "
        f"at most {counts.late:.2f} s late"
    )


def clients_beside(
    fleet: Fleet, simulated: agents.Agents, clients: int, seconds: float
) -> None:
    """What the API's clients get while the agents report."""
    simulated.counts()
    stopped = threading.Event()
    made = [Client(fleet, number) for number in range(clients)]
    threads = [
        threading.Thread(target=one.run, args=(stopped,)) for one in made
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    stopped.wait(seconds)
    stopped.set()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    for one in made:
        if one.failure is not None:
            raise one.failure
    print(f"{clients} clients beside {len(fleet.hosts)} hosts:")
    print(f"    {'operation':20}{'requests/s':>11}{'p50 ms':>9}{'p99 ms':>9}")
    for name in made[0].seconds:
        taken = [value for one in made for value in one.seconds[name]]
        timing = load.timing(taken, elapsed)
        print(
            f"    {name:20}{timing.rate:11.1f}{timing.p50 * 1000:9.1f}"
            f"{timing.p99 * 1000:9.1f}"
        )
    print(f"    {said(simulated.counts(), elapsed)}", flush=True)


def memory_over(
    fleet: Fleet, simulated: agents.Agents, hours: float, faster: float
) -> None:
    """What is in memory while so many hours' reports come faster."""
    simulated.counts()
    simulated.period = PERIOD / faster
    print(f"memory, MiB, while {hours:g} h of reports come in:")
    print(f"    {'h':>5}", *(f"{n:>10}" for n in fleet.cyborg.processes))
    began = time.monotonic()
    for sample in range(SAMPLES + 1):
        at = hours * sample / SAMPLES
        time.sleep(max(0, began + at * HOUR / faster - time.monotonic()))
        sizes = fleet.memory().values()
        print(
            f"    {at:5.2f}", *(f"{size:10.1f}" for size in sizes), flush=True
        )
    counts = simulated.counts()
    simulated.period = PERIOD
    print(f"    {said(counts, time.monotonic() - began)}", flush=True)


def outage(fleet: Fleet, simulated: agents.Agents, seconds: float) -> None:
    """How long Placement is wrong after it was away, while every host
    reported changes."""
    placement = fleet.cyborg.cloud.placement
    placement.stop()
    simulated.change_all()
    time.sleep(seconds)
    owed = fleet.owed()
    simulated.stop()  # what is right must stand still to be compared
    placement.start()
    placement.wait()
    taken = wait_until(
        lambda: fleet.owed() == 0, SETTLE_SECONDS, "nothing is owed"
    )
    wrong = fleet.wrong()
    print(
        f"after {seconds:.0f} s without Placement {owed} of "
        f"{len(fleet.hosts)} hosts were owed; {taken:.1f} s after it served "
        f"again none was, and {len(wrong)} were wrong"
    )


def main() -> None:
    options = arguments()
    began = time.monotonic()
    with fleet(options.hosts) as made:
        made.cyborg.caller("admin").post(
            "/v2/device_profiles",
            [{"name": seed.profile_name(1), "groups": [seed.group(1)]}],
        )
        simulated = agents.Agents(
            made.cyborg.configuration, made.hosts, PERIOD, CHANGE_EVERY
        )
        simulated.start()
        try:
            wait_until(
                lambda: made.known() > options.hosts and made.owed() == 0,
                SETTLE_SECONDS,
                "every host is known and in Placement",
            )
            print(
                f"{options.hosts} hosts of {agents.DEVICES} devices known "
                f"after {time.monotonic() - began:.0f} s"
            )
            clients_beside(made, simulated, options.clients, options.measure)
            memory_over(made, simulated, options.hours, options.faster)
            outage(made, simulated, options.outage)
        finally:
            simulated.stop()
    print(f"all of it took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The operations that are timed, one line of the table each."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import counted
from benchmarks import load
from benchmarks import seed
from cyborg import context
from cyborg import inventory
from cyborg import service
from cyborg.rpc import conductor
from cyborg.rpc import transport

REPORTED_DEVICES = 256
HEADING = (
    f"{'operation':34}{'requests/s':>11}{'p50 ms':>9}{'p99 ms':>9}"
    f"{'statements':>11}{'transactions':>13}"
)


@dataclasses.dataclass(frozen=True)
class Bench:
    """Running services, and devices on which nothing is bound yet."""

    port: int
    counters: Path
    configuration: Path
    places: Sequence[seed.Place]


@dataclasses.dataclass(frozen=True)
class Cost:
    """SQL for each request."""

    statements: float
    transactions: float


def measured(bench: Bench, count: int, work: Callable[[], Any]) -> Any:
    """What `work` returns, and what each of its `count` requests cost."""
    before = counted.total(bench.counters)
    result = work()
    after = counted.total(bench.counters)
    return result, Cost(
        (after[0] - before[0]) / count, (after[1] - before[1]) / count
    )


def show_line(name: str, alone: load.Timing, rate: float, cost: Cost) -> None:
    print(
        f"{name:34}{rate:11.0f}{alone.p50 * 1000:9.2f}"
        f"{alone.p99 * 1000:9.2f}{cost.statements:11.2f}"
        f"{cost.transactions:13.2f}",
        flush=True,
    )


def run(
    bench: Bench,
    name: str,
    requests: Sequence[load.Request],
    clients: int,
) -> None:
    """Half of the requests one by one, for the latency and the cost, the
    other half by several clients, for the rate.
    """
    half = len(requests) // 2
    alone, cost = measured(
        bench, half, lambda: load.one_by_one(bench.port, requests[:half])
    )
    rate = load.together(bench.port, requests[half:], clients).rate
    show_line(name, alone, rate, cost)


@dataclasses.dataclass
class Prepared:
    """ARQs of one instance and where they are to be bound."""

    instance: str
    arqs: list[str]
    place: seed.Place

    def bind(self) -> load.Request:
        values = {
            "hostname": self.place.hostname,
            "device_rp_uuid": self.place.provider,
            "instance_uuid": self.instance,
        }
        patch = [
            {"op": "add", "path": f"/{key}", "value": value}
            for key, value in values.items()
        ]
        return self._patch(patch)

    def unbind(self) -> load.Request:
        patch = [
            {"op": "remove", "path": f"/{key}"}
            for key in ("hostname", "device_rp_uuid", "instance_uuid")
        ]
        return self._patch(patch)

    def _patch(self, patch: list[dict[str, str]]) -> load.Request:
        return load.Request(
            "PATCH",
            "/v2/accelerator_requests",
            202,
            dict.fromkeys(self.arqs, patch),
        )

    def delete(self) -> load.Request:
        return load.Request(
            "DELETE",
            f"/v2/accelerator_requests?instance={self.instance}",
            204,
        )


def creation(size: int) -> load.Request:
    return load.Request(
        "POST",
        "/v2/accelerator_requests",
        201,
        {"device_profile_name": seed.profile_name(size)},
    )


def prepare(bench: Bench, size: int, count: int) -> list[Prepared]:
    """Instances whose `size` ARQs exist and are not bound."""
    answers = load.send_all(bench.port, [creation(size)] * count)
    return [
        Prepared(
            str(uuid.uuid4()),
            [arq["uuid"] for arq in json.loads(answer)["arqs"]],
            place,
        )
        for answer, place in zip(answers, bench.places, strict=False)
    ]


def bind_cost(bench: Bench) -> float:
    """Statements of binding one ARQ; everything is given back."""
    prepared = prepare(bench, 1, 20)
    # The first bind of a process may read what later ones know.
    load.send_all(bench.port, [prepared[0].bind()])
    _, cost = measured(
        bench,
        len(prepared) - 1,
        lambda: load.send_all(bench.port, [p.bind() for p in prepared[1:]]),
    )
    load.send_all(bench.port, [p.delete() for p in prepared])
    return float(cost.statements)


def _device(number: int) -> inventory.Device:
    address = f"0000:{number // 32 + 0x10:02x}:{number % 32:02x}.0"
    return inventory.Device(
        controlpath=inventory.pci_json(address),
        type=inventory.DeviceType.GPU,
        vendor="10de",
        model="benchmark",
        driver="pci_driver",
        deployables=(
            inventory.Deployable(
                name=f"reporting_{address}",
                num_accelerators=1,
                driver_name="NVIDIA",
                attributes=(("rc", "PGPU"), ("trait0", "CUSTOM_BENCHMARK")),
                attach_handles=(
                    inventory.AttachHandle(
                        inventory.AttachType.PCI,
                        inventory.pci_json(address),
                    ),
                ),
            ),
        ),
    )


def reports(bench: Bench, repeat: float) -> None:
    """A host of 256 devices: its first report, and unchanged ones."""
    conf = service.configure(
        ["--config-file", str(bench.configuration)], "cyborg-agent"
    )
    bus = transport.get_transport(conf)
    client = conductor.ConductorClient(bus, conf)
    who = context.admin_context()
    report = inventory.HostReport(
        host="reporting",
        provider_name="reporting",
        provider_uuid=str(uuid.uuid4()),
        devices=tuple(_device(number) for number in range(REPORTED_DEVICES)),
    )
    # Connects, so that the report alone is timed.
    client.heartbeat(who, report.host, "")
    first, cost = measured(
        bench,
        1,
        lambda: load.serially([lambda: client.report_host(who, report)]),
    )
    show_line("first report of 256 devices", first, first.rate, cost)
    count = int(100 * repeat)
    digest = report.digest()
    for name, call in (
        (
            "unchanged report, whole",
            lambda: client.report_host(who, report),
        ),
        (
            "unchanged report, digest",
            lambda: client.heartbeat(who, report.host, digest),
        ),
    ):
        alone, cost = measured(
            bench, count, lambda call=call: load.serially([call] * count)
        )
        show_line(name, alone, alone.rate, cost)
    bus.cleanup()


def reads(
    bench: Bench, instances: Sequence[str], repeat: float, clients: int
) -> None:
    shown = [f"/v2/devices/{place.device}" for place in bench.places]
    polls = [
        f"/v2/accelerator_requests?instance={one}&bind_state=resolved"
        for one in instances
    ]
    for name, paths, count in (
        ("show a device", shown, 3000),
        ("list 100 devices", ["/v2/devices?limit=100"], 800),
        ("list all devices", ["/v2/devices"], 16),
        ("list 100 deployables", ["/v2/deployables?limit=100"], 400),
        ("list all deployables", ["/v2/deployables"], 8),
        ("poll an instance of 8 ARQs", polls, 2000),
    ):
        wanted = max(4, int(count * repeat))
        run(
            bench,
            name,
            [
                load.Request("GET", paths[number % len(paths)], 200)
                for number in range(wanted)
            ],
            clients,
        )


def writes(bench: Bench, repeat: float, clients: int) -> None:
    count = min(len(bench.places), max(4, int(600 * repeat)))
    for size in seed.PROFILE_SIZES:
        run(bench, f"create {size} ARQs", [creation(size)] * count, clients)
        prepared = prepare(bench, size, count)
        run(bench, f"bind {size}", [p.bind() for p in prepared], clients)
        run(bench, f"unbind {size}", [p.unbind() for p in prepared], clients)
        load.send_all(bench.port, [p.bind() for p in prepared])
        run(
            bench,
            f"delete an instance of {size}",
            [p.delete() for p in prepared],
            clients,
        )


def report(
    bench: Bench, instances: Sequence[str], repeat: float, clients: int
) -> None:
    """Print a line for each operation."""
    print(HEADING)
    reads(bench, instances, repeat, clients)
    writes(bench, repeat, clients)
    reports(bench, repeat)

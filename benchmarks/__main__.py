# SPDX-License-Identifier: Apache-2.0
"""Fill a database, start the services, and time each operation.

`python -m benchmarks`, from the source tree, in the tests' environment.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from benchmarks import operations
from benchmarks import seed
from tests import databases
from tests.integration import children
from tests.integration import resources

READY_SECONDS = 30
FEW_ARQS = 10
HERE = Path(__file__).parent

CONFIGURATION = """\
[DEFAULT]
auth_strategy = noauth
host = benchmark
transport_url = {broker}
state_path = {folder}
periodic_interval = 3600
[api]
port = {port}
[conductor]
reconcile_interval = 3600
[database]
connection = {database}
[oslo_concurrency]
lock_path = {folder}
[placement]
enabled = false
[nova]
enabled = false
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--arqs", type=int, default=50_000)
    parser.add_argument(
        "--repeat",
        type=float,
        default=1.0,
        help="scale how often each operation is done",
    )
    parser.add_argument(
        "--clients",
        type=int,
        default=4,
        help="clients at once where requests per second are measured",
    )
    return parser.parse_args()


def start(
    stack: contextlib.ExitStack,
    folder: Path,
    configuration: Path,
    port: int,
    vhost: resources.Vhost,
) -> None:
    """One API and one conductor, ready, ended with the stack."""
    for name in ("conductor", "api"):
        child = children.Child(
            [
                sys.executable,
                str(HERE / "counted.py"),
                str(folder / "counters"),
                f"cyborg.cmd.{name}",
                "--config-file",
                str(configuration),
            ],
            folder / f"{name}.log",
            {"PYTHONPATH": str(HERE.parent)},
        )
        stack.callback(child.kill)

        def ready(name: str = name) -> bool:
            if name == "api":
                return resources.answers(port)
            return vhost.consumers("cyborg-conductor") > 0

        resources.wait_until(
            lambda child=child, ready=ready: not child.running or ready(),
            READY_SECONDS,
            f"{name} is ready",
        )
        if not child.running:
            raise SystemExit(child.tail())


@contextlib.contextmanager
def bench(hosts: int) -> Iterator[tuple[operations.Bench, sa.Engine]]:
    """Services on a new database that holds the fleet."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(databases.empty("mariadb", folder))
        vhost = stack.enter_context(resources.vhost("benchmark"))
        port = resources.free_port()
        configuration = folder / "cyborg.conf"
        configuration.write_text(
            CONFIGURATION.format(
                broker=vhost.url, folder=folder, port=port, database=url
            )
        )
        (folder / "counters").mkdir()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "cyborg.cmd.dbsync",
                "--config-file",
                str(configuration),
                "upgrade",
            ],
            check=True,
            capture_output=True,
            cwd=HERE.parent,
        )
        engine = sa.create_engine(url)
        stack.callback(engine.dispose)
        places = seed.fleet(engine, hosts)
        start(stack, folder, configuration, port, vhost)
        yield (
            operations.Bench(
                port=port,
                counters=folder / "counters",
                configuration=configuration,
                places=places,
            ),
            engine,
        )


def main() -> None:
    options = arguments()
    began = time.monotonic()
    with bench(options.hosts) as (made, engine):
        seed.bound_arqs(engine, made.places, FEW_ARQS)
        used = FEW_ARQS // seed.HANDLES_PER_DEVICE + 1
        unused = dataclasses.replace(made, places=made.places[used:])
        few = operations.bind_cost(unused)
        instances = seed.bound_arqs(
            engine, unused.places, options.arqs - FEW_ARQS
        )
        with engine.begin() as connection:
            connection.execute(
                sa.text(
                    "ANALYZE TABLE attach_handles,"
                    " extended_accelerator_requests"
                )
            )
        full = dataclasses.replace(
            unused, places=unused.places[len(instances) :]
        )
        many = operations.bind_cost(full)
        print(
            f"{options.hosts} hosts, {len(made.places)} devices, "
            f"{options.arqs} ARQs; seeded and started in "
            f"{time.monotonic() - began:.0f} s"
        )
        print(
            f"bind of one ARQ: {few:g} statements with {FEW_ARQS} ARQs, "
            f"{many:g} with {options.arqs}"
        )
        operations.report(full, instances, options.repeat, options.clients)
    print(f"all of it took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Time `cyborg-manage audit` of a fleet in which nothing is wrong.

`python -m benchmarks.audit`, from the source tree, in the tests' environment;
Placement and Keystone are real, of one process each.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks import seed
from cyborg.db import models
from tests import databases
from tests.integration import cloud as cloud_module
from tests.integration import deployment
from tests.integration import identity

CLASS = "FPGA"
TRAITS = ("OWNER_CYBORG", "CUSTOM_FAKE_DEVICE")

CONFIGURATION = """\
[DEFAULT]
state_path = {folder}
[database]
connection = {database}
[oslo_concurrency]
lock_path = {folder}
[placement]
{credentials}
valid_interfaces = internal
[nova]
{credentials}
valid_interfaces = internal
"""


def placement_engine(folder: Path) -> sa.Engine:
    """Placement's own database."""
    parser = configparser.ConfigParser()
    parser.read(folder / "placement" / "placement.conf")
    return sa.create_engine(parser["placement_database"]["connection"])


class Seeder:
    """Fills Placement's tables as its API would, but in bulk."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._metadata = sa.MetaData()
        self._metadata.reflect(engine)

    def fill(
        self,
        roots: dict[str, str],
        places: Sequence[seed.Place],
        instances: Sequence[str],
    ) -> None:
        with self._engine.begin() as connection:
            self._fill(connection, roots, places, instances)

    def _add(
        self, connection: sa.Connection, name: str, rows: Sequence[Any]
    ) -> None:
        table = self._metadata.tables[name]
        for start in range(0, len(rows), seed.BATCH):
            connection.execute(
                sa.insert(table),
                [
                    {**row, "created_at": models.now()}
                    for row in rows[start : start + seed.BATCH]
                ],
            )

    def _ids(
        self, connection: sa.Connection, name: str, key: str
    ) -> dict[str, int]:
        table = self._metadata.tables[name]
        rows = connection.execute(sa.select(table.c[key], table.c.id))
        return {row[0]: row[1] for row in rows}

    def _fill(
        self,
        connection: sa.Connection,
        roots: dict[str, str],
        places: Sequence[seed.Place],
        instances: Sequence[str],
    ) -> None:
        add = self._add
        if TRAITS[1] not in self._ids(connection, "traits", "name"):
            add(connection, "traits", [{"name": TRAITS[1]}])
        add(
            connection,
            "resource_providers",
            [
                {"uuid": root, "name": name, "generation": 1}
                for name, root in roots.items()
            ],
        )
        connection.execute(
            sa.text("UPDATE resource_providers SET root_provider_id = id")
        )
        providers = self._ids(connection, "resource_providers", "uuid")
        add(
            connection,
            "resource_providers",
            [
                {
                    "uuid": place.provider,
                    "name": seed.deployable_name(places, number),
                    "generation": 2,
                    "root_provider_id": providers[roots[place.hostname]],
                    "parent_provider_id": providers[roots[place.hostname]],
                }
                for number, place in enumerate(places)
            ],
        )
        providers = self._ids(connection, "resource_providers", "uuid")
        classes = self._ids(connection, "resource_classes", "name")
        traits = self._ids(connection, "traits", "name")
        add(
            connection,
            "inventories",
            [
                {
                    "resource_provider_id": providers[place.provider],
                    "resource_class_id": classes[CLASS],
                    "total": seed.HANDLES_PER_DEVICE,
                    "reserved": 0,
                    "min_unit": 1,
                    "max_unit": seed.HANDLES_PER_DEVICE,
                    "step_size": 1,
                    "allocation_ratio": 1.0,
                }
                for place in places
            ],
        )
        add(
            connection,
            "resource_provider_traits",
            [
                {
                    "trait_id": traits[trait],
                    "resource_provider_id": providers[place.provider],
                }
                for place in places
                for trait in TRAITS
            ],
        )
        for name in ("projects", "users"):
            add(connection, name, [{"external_id": str(uuid.uuid4())}])
        add(
            connection,
            "consumers",
            [
                {
                    "uuid": instance,
                    "project_id": 1,
                    "user_id": 1,
                    "generation": 1,
                }
                for instance in instances
            ],
        )
        add(
            connection,
            "allocations",
            [
                {
                    "resource_provider_id": providers[place.provider],
                    "consumer_id": instance,
                    "resource_class_id": classes[CLASS],
                    "used": seed.HANDLES_PER_DEVICE,
                }
                for place, instance in zip(places, instances, strict=False)
            ],
        )


def audit(configuration: Path, concurrency: int) -> None:
    """Run it once, and say what it cost."""
    began = time.monotonic()
    done = subprocess.run(
        [
            deployment.program("cyborg-manage"),
            "--config-file",
            str(configuration),
            "audit",
            "--concurrency",
            str(concurrency),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"audit: code {done.returncode}, {seconds:.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} s of CPU at most, "
        f"{used.ru_maxrss // 1024} MiB; {done.stdout.splitlines()[:3]}"
    )
    if done.returncode:
        raise SystemExit(done.stdout[:2000] + done.stderr[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit")
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--arqs", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cloud = stack.enter_context(cloud_module.running(folder))
        url = stack.enter_context(databases.empty("mariadb", folder))
        configuration = folder / "cyborg.conf"
        configuration.write_text(
            CONFIGURATION.format(
                folder=folder,
                database=url,
                credentials=deployment.CREDENTIALS.format(
                    auth_url=cloud.keystone.auth_url,
                    password=identity.PASSWORD,
                    region=identity.REGION,
                ),
            )
        )
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
        )
        engine = sa.create_engine(url)
        places = seed.fleet(engine, options.hosts)
        instances = seed.bound_arqs(engine, places, options.arqs)
        with engine.connect() as connection:
            roots = dict(
                connection.execute(
                    sa.select(
                        models.Host.provider_name, models.Host.provider_uuid
                    )
                ).all()
            )
        engine.dispose()
        Seeder(placement_engine(folder)).fill(roots, places, instances)
        cloud.nova.servers.update(dict.fromkeys(instances, "project"))
        print(
            f"{options.hosts} hosts, {len(places)} devices, "
            f"{options.arqs} ARQs of {len(instances)} instances"
        )
        audit(configuration, options.concurrency)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The virtual environments of the services and clients around us.

Keystone, Placement, Nova's Cyborg client, `openstack` and its accelerator
commands need libraries that must not mix with ours, nor all with each other,
so they live beside us in few environments of their own: each made when it is
first asked for and kept at `.venv-<name>` of the source tree.
`CYBORG_TEST_VENVS` names another folder for all of them, and
`CYBORG_TEST_<NAME>_VENV` the very place of one.

`python -m tests.integration.side_environment` makes them all beforehand.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import subprocess
import sys
from concurrent import futures
from pathlib import Path

from tests.integration import resources


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment and what pip is told to install there."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        everything = os.environ.get("CYBORG_TEST_VENVS", SOURCE_TREE)
        return Path(
            os.environ.get(
                f"CYBORG_TEST_{self.name.upper()}_VENV",
                Path(everything) / f".venv-{self.name}",
            )
        ).absolute()


SOURCE_TREE = Path(__file__).parents[2]
CLOUD = Environment(
    "cloud",
    (
        "cheroot",
        "keystone",
        "nova",
        "openstack-placement",
        "psycopg2-binary",
        "PyMySQL",
        "python-cyborgclient>=3.0.0",
        "python-memcached",
        # Newer ones have accelerator commands of their own, of the same names.
        "python-openstackclient<10.3",
    ),
)
NEWEST = Environment(
    "newest",
    (
        "cyborg-tempest-plugin==2.8.0",
        "python-openstackclient>=10.5",
    ),
)
"""The accelerator commands built into `openstack`, and tempest."""
STABLE = Environment(
    "stable",
    (
        "openstacksdk==4.10.0",
        "python-cyborgclient==3.0.0",
        "python-openstackclient<10",
    ),
)
"""Clients over the openstacksdk that stable/2026.1 is constrained to."""
ALL = (CLOUD, NEWEST, STABLE)


def _install(environment: Environment) -> None:
    folder = environment.folder
    for command, seconds in (
        (["-m", "venv", "--clear", "--without-pip", str(folder)], 120),
        (
            [
                *("-m", "pip", "--python", str(folder / "bin" / "python")),
                # Most of it is never imported.
                *("install", "--quiet", "--no-compile"),
                "--disable-pip-version-check",
                *environment.packages,
            ],
            900,
        ),
    ):
        subprocess.run(
            [sys.executable, *command],
            check=True,
            capture_output=True,
            text=True,
            timeout=seconds,
        )


def programs(environment: Environment = CLOUD) -> Path:
    """The `bin` folder of the environment, which exists when this returns.

    Several test workers may ask at once: one makes it, the others wait.
    """
    folder = environment.folder
    complete = folder / "complete"
    wanted = "\n".join((f"python {sys.version}", *environment.packages))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists() or complete.read_text() != wanted:
            try:
                _install(environment)
            except subprocess.SubprocessError as error:
                text = getattr(error, "stderr", None) or str(error)
                resources.missing(
                    f"the environment {environment.name} cannot be made: "
                    f"{text}"
                )
            complete.write_text(wanted)
    return folder / "bin"


def main() -> None:
    with futures.ThreadPoolExecutor() as pool:
        for folder in pool.map(programs, ALL):
            print(folder)


if __name__ == "__main__":
    main()

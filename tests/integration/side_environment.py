# SPDX-License-Identifier: Apache-2.0
"""The virtual environment of the services and clients around us.

Keystone, Placement, Nova's Cyborg client, `openstack` and its accelerator
plug-in need libraries that must not mix with ours, so they live beside us
in an environment of their own: made when it is first asked for, kept at
`.venv-cloud` of the source tree (or `CYBORG_TEST_CLOUD_VENV`).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.integration import resources

PACKAGES = (
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
)
SOURCE_TREE = Path(__file__).parents[2]


def _install(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    subprocess.run(
        [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *PACKAGES,
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
    )


def programs() -> Path:
    """The `bin` folder of the environment, which exists when this returns.

    Several test workers may ask at once: one makes it, the others wait.
    """
    folder = Path(
        os.environ.get("CYBORG_TEST_CLOUD_VENV", SOURCE_TREE / ".venv-cloud")
    ).absolute()
    complete = folder / "complete"
    wanted = "\n".join((f"python {sys.version}", *PACKAGES))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists() or complete.read_text() != wanted:
            try:
                _install(folder)
            except subprocess.SubprocessError as error:
                text = getattr(error, "stderr", None) or str(error)
                resources.missing(
                    f"the cloud's environment cannot be made: {text}"
                )
            complete.write_text(wanted)
    return folder / "bin"

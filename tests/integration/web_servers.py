# SPDX-License-Identifier: Apache-2.0
"""The web servers that deployers put the API into, with our samples.

uwsgi and gunicorn come with the tests' requirements.  Apache and logrotate
are the system's; where one is missing, and the services must be there
(CYBORG_TEST_REQUIRE_SERVICES=1), root installs it from Debian's packages.
mod_wsgi is built for the Python of the tests, once, and kept at
`.venv-servers` of the source tree.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tests.integration import resources
from tests.integration import side_environment

SAMPLES = side_environment.SOURCE_TREE / "etc"
FOLDER = Path(
    os.environ.get(
        "CYBORG_TEST_SERVERS", side_environment.SOURCE_TREE / ".venv-servers"
    )
)


def edited(name: str, folder: Path, changes: dict[str, str]) -> Path:
    """One of our samples as an operator edits it; each text that is
    changed must be there."""
    text = (SAMPLES / name).read_text()
    for before, after in changes.items():
        assert before in text, f"{name} has no {before!r}"
        text = text.replace(before, after)
    path = folder / Path(name).name
    path.write_text(text)
    return path


def apache() -> str:
    """The path of Apache's program."""
    _of_debian("apxs", "apache2-dev")
    return _of_debian("apache2", "apache2")


def logrotate() -> str:
    """The path of logrotate."""
    return _of_debian("logrotate", "logrotate")


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _of_debian(program: str, package: str) -> str:
    """The path of a program, from its package where that must be there."""
    with _locked():
        found = shutil.which(program, path=_PATH)
        if found is None and _may_install():
            _install(package)
            found = shutil.which(program, path=_PATH)
    if found is None:
        resources.missing(f"{program} (Debian: {package}) is not installed")
    return found


def _may_install() -> bool:
    return (
        os.environ.get("CYBORG_TEST_REQUIRE_SERVICES") == "1"
        and os.geteuid() == 0
        and shutil.which("apt-get") is not None
    )


def _install(package: str) -> None:
    print("Installing Debian's package", package, file=sys.stderr)
    for words in (["update"], ["install", "--yes", package]):
        subprocess.run(
            ["apt-get", "-qq", *words],
            check=False,
            capture_output=True,
            timeout=600,
            env={
                **os.environ,
                "DEBIAN_FRONTEND": "noninteractive",
                # It must not be started, nor take port 80.
                "RUNLEVEL": "1",
            },
        )


def mod_wsgi() -> Path:
    """mod_wsgi for this Python."""
    apache()
    with _locked():
        _build_mod_wsgi()
    found = sorted(FOLDER.glob("mod_wsgi/server/mod_wsgi-*.so"))
    if not found:
        resources.missing(
            f"mod_wsgi could not be built for this Python, see {FOLDER}/log"
        )
    return found[0]


def _build_mod_wsgi() -> None:
    stamp = FOLDER / f"python-{sys.version_info.minor}"
    if stamp.exists():
        return
    with (FOLDER / "log").open("wb") as log:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet"),
                *("--disable-pip-version-check", "--upgrade"),
                *("--target", str(FOLDER), "mod_wsgi"),
            ],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=600,
            env={**os.environ, "PATH": _PATH},
        )
    if done.returncode == 0:
        stamp.touch()


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One test process at a time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def library_path() -> str:
    """Where libpython is, for a program that loads it."""
    return str(sysconfig.get_config_var("LIBDIR"))

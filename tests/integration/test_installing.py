# SPDX-License-Identifier: Apache-2.0
"""Deployers' check 11: what a built distribution holds, and that it installs
with OpenStack's constraints and works there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import venv
import zipfile
from concurrent import futures
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSTRAINTS = sorted((ROOT / "tests" / "constraints").glob("*.txt"))
BUILD_TOOLS = ("pbr", "setuptools>=75,<81")
"""loci's builders have no newer setuptools."""
SECONDS = 900

# One after the other: the second takes what the first has built.
BUILD = """
import os, sys
from pbr import build
where = sys.argv[1]
os.chdir(sys.argv[2])
print(getattr(build, "build_" + sys.argv[3])(where))
"""


def _run(*words: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=cwd,
        env={
            "HOME": str(cwd),
            "PATH": "/usr/bin:/bin",
            **_package_index(),
            **variables,
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _package_index() -> dict[str, str]:
    """How pip reaches its index on this machine."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith("_proxy")
    }


def _environment(folder: Path, constraints: Path) -> Path:
    """The Python of a new environment with the tools to build."""
    # A copy may be "busy": other threads start processes while it is written.
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    _pip(python, constraints, *BUILD_TOOLS)
    return python


def _pip(python: Path, constraints: Path, *what: str) -> None:
    _run(
        *(python, "-m", "pip", "install", "--quiet", "--no-compile"),
        *("--disable-pip-version-check", "--constraint", constraints),
        *what,
        cwd=python.parents[1],
        HOME=str(Path.home()),
    )


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Constraints -> an environment for each, made at the same time."""
    folder = tmp_path_factory.mktemp("installed")
    with futures.ThreadPoolExecutor() as pool:
        made = {
            path.stem: pool.submit(_environment, folder / path.stem, path)
            for path in CONSTRAINTS
        }
    return {name: future.result() for name, future in made.items()}


@pytest.fixture(scope="module")
def built(
    places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The sdist of this checkout, and the wheel made from that alone."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    shutil.copytree(
        ROOT,
        source,
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".venv*", ".*_cache", "*.egg-info", "__pycache__", "build", ".tox"
        ),
    )
    python = places["2026.1"]
    for kind, where in (("sdist", source), ("wheel", folder / "unpacked")):
        _run(python, "-c", BUILD, folder, where, kind, cwd=folder)
        if kind == "sdist":
            (sdist,) = folder.glob("*.tar.gz")
            with tarfile.open(sdist) as archive:
                archive.extractall(folder, filter="data")
            sdist_top = folder / sdist.name.removesuffix(".tar.gz")
            sdist_top.rename(folder / "unpacked")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def test_the_sdist_has_what_deployers_take_from_the_source(
    built: tuple[Path, Path],
) -> None:
    """Kolla copies etc/, validates by tools/config/; devstack has a plugin."""
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {
        "PKG-INFO",
        "devstack/lib/cyborg",
        "devstack/plugin.sh",
        "devstack/settings",
        "devstack/upgrade/upgrade.sh",
        "etc/cyborg/api-paste.ini",
        "etc/cyborg/policy.yaml",
        "requirements.txt",
        "setup.cfg",
        "tools/config/cyborg-config-generator.conf",
    }


def test_the_wheel_has_the_files_that_are_named_by_path(
    built: tuple[Path, Path],
) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        names = set(archive.namelist())
    data = {
        name.partition(".data/data/")[2] for name in names if ".data/" in name
    }
    assert data >= {"etc/cyborg/api-paste.ini", "etc/cyborg/policy.yaml"}
    assert names >= {
        "cyborg/api/app.py",
        "cyborg/api/middleware/auth_token.py",
        "cyborg/db/alembic/script.py.mako",
        "cyborg/py.typed",
        "cyborg/wsgi/api.py",
    }
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "cyborg").rglob("*.py")
    }
    assert here <= names
    assert not [name for name in names if name.startswith("tests")]


@pytest.mark.parametrize("name", [path.stem for path in CONSTRAINTS])
def test_it_installs_with_openstacks_constraints_and_works(
    name: str, places: dict[str, Path], built: tuple[Path, Path]
) -> None:
    """Its programs run, and the WSGI file as mod_wsgi runs it."""
    python = places[name]
    constraints = ROOT / "tests" / "constraints" / f"{name}.txt"
    _pip(python, constraints, f"openstack-cyborg[mysql] @ {built[1].as_uri()}")
    home = python.parents[1]
    _run(python, "-m", "pip", "check", cwd=home)
    assert (home / "etc/cyborg/api-paste.ini").is_file()
    conf = home / "cyborg.conf"
    conf.write_text(
        "[DEFAULT]\ntransport_url = fake://\n"
        f"[database]\nconnection = sqlite:///{home}/cyborg.sqlite\n"
        "[keystone_authtoken]\nauth_type = password\n"
        "auth_url = http://127.0.0.1:9\nmemcached_servers = 127.0.0.1:9\n"
        "memcache_security_strategy = ENCRYPT\nmemcache_secret_key = key\n"
    )
    words = ("--config-file", conf)
    said = _run(home / "bin/cyborg-dbsync", *words, "upgrade", cwd=home)
    assert "The schema stands at" in said
    _run(home / "bin/cyborg-manage", *words, "hardware", cwd=home)
    for program in ("api", "conductor", "agent"):
        _run(home / f"bin/cyborg-{program}", "--version", cwd=home)
    said = _run(
        python,
        "-c",
        "import runpy, sys, webob\n"
        "import cyborg.wsgi\n"
        "sys.argv = ['mod_wsgi']\n"
        "path = list(cyborg.wsgi.__path__)[0] + '/api.py'\n"
        "application = runpy.run_path(path)['application']\n"
        "for path in ('/', '/v2', '/v2/devices'):\n"
        "    request = webob.Request.blank(path)\n"
        "    print(request.get_response(application).status_int)\n",
        cwd=home,
        OS_CYBORG_CONFIG_FILES=str(conf),
    )
    assert said.split()[-3:] == ["200", "200", "401"]

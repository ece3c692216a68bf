# SPDX-License-Identifier: Apache-2.0
"""The example of a driver out of our tree, installed and tested as its
vendor would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cyborg.drivers.testing

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "doc" / "example_driver"

# A vendor does not have our tests: nothing may need them.
RUN = """\
import sys
import pytest
status = pytest.main(sys.argv[1:])
ours = [name for name in sys.modules if name.partition(".")[0] == "tests"]
sys.exit(status or bool(ours))
"""


def _install(site: Path) -> None:
    """What `pip install` would leave in `site`; it needs no network."""
    text = (EXAMPLE / "pyproject.toml").read_text()
    name, version = (
        re.search(rf'^{key} = "(.+)"$', text, re.MULTILINE)
        for key in ("name", "version")
    )
    group, points = re.search(
        r'^\[project\.entry-points\."(.+)"\]\n((?:.+\n)+)', text, re.MULTILINE
    ).groups()
    information = site / "acme_cyborg_driver-1.0.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name[1]}\nVersion: {version[1]}\n"
    )
    (information / "entry_points.txt").write_text(
        f"[{group}]\n{points.replace(chr(34), '')}"
    )
    shutil.copy(EXAMPLE / "acme_cyborg_driver.py", site)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    _install(site)
    return site


def _run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "XDG_CACHE_HOME": str(site.parent / "cache"),
    }
    return subprocess.run(
        [
            sys.executable,
            "-c",
            RUN,
            "-p",
            "no:cacheprovider",
            "-p",
            "cyborg.drivers.testing",
            *arguments,
        ],
        cwd=site.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_example_keeps_the_promises_of_drivers(
    site: Path, tmp_path: Path
) -> None:
    shutil.copy(EXAMPLE / "test_acme_driver.py", tmp_path)

    done = _run(site, "test_acme_driver.py")

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b2\d passed", done.stdout)


def test_the_example_is_tested_on_the_hardware_of_a_host(
    site: Path, tmp_path: Path
) -> None:
    from cyborg.drivers.testing.cards import Card
    from cyborg.drivers.testing.tree import SysfsTree

    tree = SysfsTree(tmp_path / "sys")
    tree.add_function(Card("0000:3b:00.0", "1234:abcd", "120000"))
    wrong = tmp_path / "cyborg.conf"
    wrong.write_text("[acme_driver]\ngrade = tin\n")
    arguments = (
        "--pyargs",
        "cyborg.drivers.testing.on_host",
        "--cyborg-driver=acme_driver",
        f"--cyborg-sysfs={tree.root}",
    )

    good = _run(site, *arguments)
    bad = _run(site, *arguments, f"--cyborg-config={wrong}")

    assert good.returncode == 0, good.stdout + good.stderr
    assert "6 passed" in good.stdout
    assert bad.returncode == 1
    assert "[acme_driver] grade" in bad.stdout


def test_the_example_is_short() -> None:
    lines = sum(
        len(path.read_text().splitlines())
        for path in EXAMPLE.iterdir()
        if path.is_file()
    )

    assert lines < 100


def test_the_kit_needs_nothing_of_our_tests() -> None:
    for path in Path(cyborg.drivers.testing.__file__).parent.glob("*.py"):
        assert not re.search(
            r"^\s*(from|import) tests", path.read_text(), re.MULTILINE
        )

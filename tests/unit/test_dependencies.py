# SPDX-License-Identifier: Apache-2.0
"""What we depend on has no hole that is known, and a licence to take."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging import version

TOOL = Path(__file__).parents[2] / "tools" / "audit_dependencies.py"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    specification = importlib.util.spec_from_file_location("audit", TOOL)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["audit"] = module
    specification.loader.exec_module(module)
    return module


def test_nothing_is_to_be_said_of_our_dependencies() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_all_that_the_service_imports_is_looked_at(audit: ModuleType) -> None:
    names = audit.closure("openstack-cyborg", ["mysql"])
    direct = audit.lower_bounds(audit.REQUIREMENTS.read_text().splitlines())
    assert names >= set(direct)
    # Drawn in by others, and by an extra of ours.
    assert names >= {"urllib3", "jinja2", "amqp", "pymysql"}
    assert len(names) > 60


def test_a_release_with_a_hole_is_found(audit: ModuleType) -> None:
    known = audit.advisories()
    assert len(known) > 20
    found = list(
        audit.vulnerable({"requests": "2.31.0"}, known, "the lower bound")
    )
    assert found == [
        "requests: the lower bound 2.31.0 has CVE-2024-35195, fixed in 2.32.0",
        "requests: the lower bound 2.31.0 has CVE-2024-47081, fixed in 2.32.4",
    ]
    assert not list(audit.vulnerable({"requests": "2.32.4"}, known, "x"))


def test_the_table_is_in_order_and_no_line_is_there_twice(
    audit: ModuleType,
) -> None:
    known = audit.advisories()
    keys = [(one.package, one.fixed, one.identifier) for one in known]
    assert len(set(keys)) == len(keys)
    assert [one[0] for one in keys] == sorted(one[0] for one in keys)
    assert all(one.fixed > version.Version("0") for one in known)


@pytest.mark.parametrize(
    ("said", "good"),
    [
        ("Apache-2.0", True),
        ("License :: OSI Approved :: MIT License", True),
        ("BSD-3-Clause", True),
        ("LGPL-2.1-or-later", True),
        ("GPL-3.0-only", False),
        ("AGPL-3.0", False),
        ("License :: Other/Proprietary License", False),
        ("", False),
    ],
)
def test_a_licence_is_one_to_take_or_not(
    said: str, good: bool, audit: ModuleType
) -> None:
    assert bool(audit.LICENCES.search(said)) == good

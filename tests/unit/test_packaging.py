# SPDX-License-Identifier: Apache-2.0
"""What deployment tools read out of the source tree."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTION = "openstack-cyborg"

PROGRAMS = {
    "cyborg-agent",
    "cyborg-api",
    "cyborg-conductor",
    "cyborg-dbsync",
    "cyborg-manage",
    "cyborg-standalone",
    "cyborg-status",
}


def test_devstack_reads_the_name_from_setup_cfg() -> None:
    result = subprocess.run(
        ["awk", "/^name.*=/ {print $3}", "setup.cfg"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"{DISTRIBUTION}\n"


def test_devstack_reads_the_name_from_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r"^name =.*$", text, re.MULTILINE) == [
        f'name = "{DISTRIBUTION}"'
    ]


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("oslo.config.opts", {"cyborg"}),
        ("oslo.policy.policies", {"cyborg.api"}),
        ("oslo.policy.enforcer", {"cyborg"}),
        ("cyborg.accelerator.driver", {"fake_driver", "pci_driver"}),
        ("console_scripts", PROGRAMS),
    ],
)
def test_every_entry_point_leads_somewhere(
    group: str, names: set[str]
) -> None:
    points = [
        point
        for point in importlib.metadata.distribution(DISTRIBUTION).entry_points
        if point.group == group
    ]
    assert {point.name for point in points} >= names
    for point in points:
        assert callable(point.load())


@pytest.mark.parametrize(
    "path",
    [
        "cyborg.wsgi.api:application",
        "cyborg.api.app:app_factory",
        "cyborg.api.middleware.auth_token:AuthTokenMiddleware",
    ],
)
def test_paths_in_deployers_files_exist(path: str) -> None:
    module, _, name = path.partition(":")
    if module == "cyborg.wsgi.api":
        # Importing it makes the application; that it is there is enough.
        text = (ROOT / "cyborg" / "wsgi" / "api.py").read_text()
        assert re.search(r"^application\b", text, re.MULTILINE)
        return
    assert hasattr(importlib.import_module(module), name)


def test_the_shipped_policy_changes_nothing() -> None:
    lines = (ROOT / "etc" / "cyborg" / "policy.yaml").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []

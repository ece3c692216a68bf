# SPDX-License-Identifier: Apache-2.0
"""What deployment tools read out of the source tree: deployers' checks 3
and 11, as far as nothing need be built.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from packaging import requirements
from packaging import utils

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
    """Check 3."""
    result = subprocess.run(
        ["awk", "/^name.*=/ {print $3}", "setup.cfg"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"{DISTRIBUTION}\n"


def test_devstack_reads_the_name_from_pyproject() -> None:
    """Check 3: without its quotes."""
    result = subprocess.run(
        ["awk", '/^name =/ {gsub(/"/, "", $3); print $3}', "pyproject.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"{DISTRIBUTION}\n"


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
    assert yaml.safe_load("\n".join(lines)) is None


CONSTRAINTS = sorted((ROOT / "tests" / "constraints").glob("*.txt"))
ELSEWHERE = {
    "cheroot",
    "cryptography",
    "futurist",
    "jsonschema",
    "kombu",  # oslo.messaging's own
    "oslo-serialization",
    "prometheus-client",  # oslo.messaging brings it
    "pyudev",
    "pyyaml",
    "requests",
    "setuptools",
}
"""In upper-constraints too, or brought by what is; not pinned in our files."""


def _wanted() -> list[requirements.Requirement]:
    """All that is needed to build, to run, and for a database."""
    metadata = importlib.metadata.distribution(DISTRIBUTION).metadata
    lines = [
        line
        for line in metadata.get_all("Requires-Dist") or []
        if "extra ==" not in line or "mysql" in line or "postgresql" in line
    ]
    built = re.search(
        r"^requires = \[(.*)\]$",
        (ROOT / "pyproject.toml").read_text(),
        re.MULTILINE,
    )
    assert built
    lines += re.findall(r'"([^"]+)"', built.group(1))
    return [requirements.Requirement(line) for line in lines]


@pytest.mark.parametrize("path", CONSTRAINTS, ids=lambda path: path.stem)
def test_openstacks_constraints_satisfy_every_requirement(path: Path) -> None:
    """Check 11: master's, and those of the release before."""
    pins = {
        utils.canonicalize_name(name): version
        for name, _, version in (
            line.partition("===")
            for line in path.read_text().splitlines()
            if not line.startswith("#")
        )
    }
    wanted = _wanted()
    assert len(wanted) > 30
    for requirement in wanted:
        name = utils.canonicalize_name(requirement.name)
        if name not in pins:
            assert name in ELSEWHERE, f"{name} is not in upper-constraints"
            continue
        assert requirement.specifier.contains(pins[name]), requirement
    names = {utils.canonicalize_name(each.name) for each in wanted}
    assert {"python-memcached", "cryptography"} <= names

# SPDX-License-Identifier: Apache-2.0
"""The API tests of cyborg-tempest-plugin, unmodified, on a real cloud.

Tempest makes its own people in Keystone, one for each persona.  Its scenario
tests boot guests and are not API tests.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import deployment
from tests.integration import identity
from tests.integration import side_environment

SECONDS = 1200
pytestmark = pytest.mark.timeout(SECONDS + 300)

CONFIGURATION = """\
[DEFAULT]
log_file = {folder}/tempest.log
[auth]
use_dynamic_credentials = true
create_isolated_networks = false
admin_username = admin
admin_password = {password}
admin_project_name = admin
admin_domain_name = Default
[identity]
auth_version = v3
uri_v3 = {auth_url}
region = {region}
[oslo_concurrency]
lock_path = {folder}/locks
[service_available]
cinder = false
cyborg = true
glance = false
neutron = false
nova = false
swift = false
[cyborg_policy]
enforce_new_defaults = true
"""

PREFIX = "cyborg_tempest_plugin.tests.api"

NEGATIVE = f"{PREFIX}.test_device_profile_negative.DeviceProfileNegativeTest"

DEMANDED_FAULTS = {
    f"{NEGATIVE}.test_create_device_profile_server_fault": (
        "Conflict",
        "a uuid that exists already is a conflict (409)",
    ),
    f"{NEGATIVE}.test_create_device_profile_name_is_null": (
        "BadRequest",
        "an empty name is a bad request (400)",
    ),
    f"{NEGATIVE}.test_create_device_profile_name_to_long": (
        "BadRequest",
        "a name of 256 characters is a bad request (400)",
    ),
}
"""The tests that want a 5xx of a bad request: what they meet instead, by
tempest's name, and why.  Nothing that a client sends ends in a 5xx here.
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: str
    details: str


@pytest.fixture(scope="module")
def programs() -> Path:
    return side_environment.programs(side_environment.NEWEST)


@pytest.fixture(scope="module")
def plugin(programs: Path) -> Path:
    """The folder that the plugin is installed in."""
    (found,) = programs.parent.glob(
        "lib/python3*/site-packages/cyborg_tempest_plugin"
    )
    return found


@pytest.fixture(scope="module")
def outcomes(
    running_cyborg: deployment.Deployment, programs: Path, plugin: Path
) -> Iterator[dict[str, Outcome]]:
    """Test -> outcome, of all the plugin's API tests in one run."""
    folder = running_cyborg.folder / "tempest"
    folder.mkdir()
    (folder / "tempest.conf").write_text(
        CONFIGURATION.format(
            folder=folder,
            password=identity.PASSWORD,
            auth_url=running_cyborg.cloud.keystone.auth_url,
            region=identity.REGION,
        )
    )
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "TEMPEST_CONFIG": "tempest.conf",
        "TEMPEST_CONFIG_DIR": str(folder),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [
            str(programs / "stestr"),
            *("--test-path", str(plugin / "tests" / "api")),
            *("--top-dir", str(plugin.parent)),
            *("run", "--serial", "--subunit"),
        ],
        check=False,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
    )
    read = subprocess.run(
        [
            str(programs / "python"),
            str(deployment.HERE / "subunit_reader.py"),
        ],
        check=True,
        input=done.stdout,
        capture_output=True,
        timeout=60,
    )
    found = [json.loads(line) for line in read.stdout.splitlines()]
    outcomes = {
        test["id"].partition("[")[0]: Outcome(test["status"], test["details"])
        for test in found
    }
    assert any(name.startswith(PREFIX) for name in outcomes), (
        done.stdout + done.stderr
    )
    yield outcomes
    assert running_cyborg.tracebacks() == {}


def test_tempests_api_tests_pass(outcomes: dict[str, Outcome]) -> None:
    judged = {
        name: outcome
        for name, outcome in outcomes.items()
        if name not in DEMANDED_FAULTS
    }
    unwell = {
        name: outcome
        for name, outcome in judged.items()
        if outcome.status != "success"
    }
    assert unwell == {}
    assert len(judged) > 0


def test_all_of_the_plugins_api_tests_ran(
    outcomes: dict[str, Outcome], plugin: Path
) -> None:
    written = {
        f"{PREFIX}.{file.stem}.{suite}.{test.name}"
        for file in (plugin / "tests" / "api").glob("test_*.py")
        for suite, test in _tests(file)
    }
    assert set(outcomes) == written


def test_those_that_demand_a_fault_of_ours_fail_for_that_alone(
    outcomes: dict[str, Outcome],
) -> None:
    for name, (met, _) in DEMANDED_FAULTS.items():
        assert outcomes[name].status == "fail", name
        (raised,) = (
            line
            for line in outcomes[name].details.splitlines()
            if line.startswith("tempest.lib.exceptions.")
        )
        assert raised.startswith(f"tempest.lib.exceptions.{met}"), raised


def test_no_other_test_demands_a_fault_of_ours(plugin: Path) -> None:
    demanding = {
        f"{PREFIX}.{file.stem}.{suite}.{test.name}"
        for file in (plugin / "tests" / "api").glob("test_*.py")
        for suite, test in _tests(file)
        if "lib_exc.ServerFault" in ast.unparse(test)
    }
    assert demanding == set(DEMANDED_FAULTS)


def _tests(file: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Each test of a module with its class's name."""
    for suite in ast.parse(file.read_text()).body:
        if isinstance(suite, ast.ClassDef):
            for member in suite.body:
                if isinstance(
                    member, ast.FunctionDef
                ) and member.name.startswith("test_"):
                    yield suite.name, member

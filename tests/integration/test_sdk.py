# SPDX-License-Identifier: Apache-2.0
"""Every accelerator call of openstacksdk: of the release that we run with,
and of the one that stable/2026.1 is constrained to.

Which calls there are the library tells, so that one without a test fails.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration import children
from tests.integration import deployment
from tests.integration import identity
from tests.integration import instance
from tests.integration import side_environment

SECONDS = 300


def _ours() -> Path:
    return Path(sys.executable)


def _stable() -> Path:
    return side_environment.programs(side_environment.STABLE) / "python"


RECURSION = "update_deployable calls itself"
SILENCE = "disable_device and enable_device tell no error"


@pytest.mark.parametrize(
    ("python", "version", "broken", "faults"),
    [
        # From 4.14 on a deprecated call calls itself instead of the new one.
        (
            _ours,
            importlib.metadata.version("openstacksdk"),
            {"update_deployable"},
            [SILENCE, RECURSION],
        ),
        (_stable, "4.10.0", set(), []),
    ],
    ids=["newest", "stable"],
)
def test_every_call_does_what_it_says(
    cyborg: deployment.Deployment,
    tmp_path: Path,
    python: Callable[[], Path],
    version: str,
    broken: set[str],
    faults: list[str],
) -> None:
    people = [*identity.PERSONAS.values(), identity.ADMIN]
    (provider,) = cyborg.providers().values()
    task = tmp_path / "task.json"
    task.write_text(
        json.dumps(
            {
                "auth_url": cyborg.cloud.keystone.auth_url,
                "region": identity.REGION,
                "password": identity.PASSWORD,
                "projects": {one.user: one.project for one in people},
                "groups": [instance.FAKE_GROUP],
                "hostname": cyborg.provider_name,
                "provider": provider,
                "accelerators": 16,
                "images": [
                    cyborg.cloud.glance.add(content)
                    for content in (b"a bitstream", b"another one")
                ],
            }
        )
    )
    done = children.finish(
        [str(python()), str(deployment.HERE / "sdk_walk.py"), str(task)],
        SECONDS,
    )
    assert done.returncode == 0, done.stderr[-8000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["version"] == version
    assert len(seen["calls"]) > 0
    assert set(seen["calls"]) - set(seen["worked"]) == broken
    assert seen["faults"] == faults
    events = cyborg.cloud.nova.wait_for(seen["server"], 1)
    assert {event["status"] for event in events} == {"completed"}
    assert cyborg.handles_in_use() == 0
    assert cyborg.tracebacks() == {}

# SPDX-License-Identifier: Apache-2.0
"""The clients that people and services use, against the real service."""

from __future__ import annotations

import json
import subprocess
import uuid
from typing import Any

from tests.integration import children
from tests.integration import deployment
from tests.integration import identity
from tests.integration import instance


def _environment(cyborg: deployment.Deployment, user: str) -> dict[str, str]:
    people = {**identity.PERSONAS, "admin": identity.ADMIN}
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(cyborg.folder),
        "OS_AUTH_URL": cyborg.cloud.keystone.auth_url,
        "OS_USERNAME": user,
        "OS_PASSWORD": identity.PASSWORD,
        "OS_PROJECT_NAME": people[user].project,
        "OS_USER_DOMAIN_NAME": "Default",
        "OS_PROJECT_DOMAIN_NAME": "Default",
        "OS_REGION_NAME": identity.REGION,
        "OS_IDENTITY_API_VERSION": "3",
    }


def _run(
    cyborg: deployment.Deployment, user: str, *words: str
) -> subprocess.CompletedProcess[str]:
    return children.finish(
        [
            str(cyborg.cloud.programs / "openstack"),
            "--os-accelerator-api-version",
            "2.3",
            "accelerator",
            *words,
        ],
        60,
        _environment(cyborg, user),
    )


def _openstack(
    cyborg: deployment.Deployment, user: str, *words: str, output: bool = True
) -> Any:
    """The JSON that `openstack accelerator …` prints."""
    done = _run(cyborg, user, *words, *(["-f", "json"] if output else []))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if output else None


def test_the_command_line_client_does_all_of_its_main_commands(
    cyborg: deployment.Deployment,
) -> None:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    groups = json.dumps([{**instance.FAKE_GROUP, "resources:FPGA": 1}])
    made = _openstack(
        cyborg,
        "admin",
        *("device", "profile", "create", name, groups),
        *("--description", "made by hand"),
    )
    assert made["name"] == name
    listed = _openstack(cyborg, "demo-reader", "device", "profile", "list")
    assert name in {profile["name"] for profile in listed}
    shown = _openstack(
        cyborg, "demo-reader", "device", "profile", "show", name
    )
    assert shown["uuid"] == made["uuid"]

    (device,) = _openstack(cyborg, "admin", "device", "list")
    shown = _openstack(cyborg, "admin", "device", "show", device["uuid"])
    assert shown["hostname"] == cyborg.provider_name
    _openstack(
        cyborg, "admin", "device", "disable", device["uuid"], output=False
    )
    _openstack(
        cyborg, "admin", "device", "enable", device["uuid"], output=False
    )
    (deployable,) = _openstack(cyborg, "admin", "deployable", "list")
    shown = _openstack(
        cyborg, "admin", "deployable", "show", deployable["uuid"]
    )
    assert shown["name"] == f"{cyborg.host}_FakeDevice"
    attributes = _openstack(
        cyborg, "admin", "device", "attribute", "list", "--long"
    )
    assert "CUSTOM_FAKE_DEVICE" in json.dumps(attributes)

    arq = _openstack(cyborg, "demo-member", "arq", "create", name)
    assert arq["state"] == "Initial"
    (listed,) = _openstack(cyborg, "demo-member", "arq", "list")
    assert listed["uuid"] == arq["uuid"]
    refused = _run(
        cyborg,
        "demo-member",
        *("arq", "bind", arq["uuid"], cyborg.provider_name),
        *(str(uuid.uuid4()), next(iter(cyborg.providers().values())), "x"),
    )
    assert refused.returncode != 0
    assert "requires a service token" in refused.stdout + refused.stderr
    _openstack(
        cyborg, "demo-member", "arq", "delete", arq["uuid"], output=False
    )
    _openstack(
        cyborg,
        "admin",
        *("device", "profile", "delete", made["uuid"]),
        output=False,
    )

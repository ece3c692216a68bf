# SPDX-License-Identifier: Apache-2.0
"""The clients that people and services use, against the real service."""

from __future__ import annotations

import json
import subprocess
import uuid
from typing import Any

import openstack
import pytest
from keystoneauth1 import identity as ksa_identity
from keystoneauth1 import service_token
from keystoneauth1 import session as ksa_session
from openstack import connection as sdk
from openstack import exceptions as sdk_exceptions

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


def _connection(
    cyborg: deployment.Deployment, user: str, service: str | None = None
) -> sdk.Connection:
    """openstacksdk as `user`, with the service's token if named."""

    def password(name: str) -> ksa_identity.Password:
        people = {**identity.PERSONAS, "admin": identity.ADMIN}
        return ksa_identity.Password(
            auth_url=cyborg.cloud.keystone.auth_url,
            username=name,
            password=identity.PASSWORD,
            project_name=people[name].project,
            user_domain_id="default",
            project_domain_id="default",
        )

    auth: Any = password(user)
    if service is not None:
        auth = service_token.ServiceTokenAuthWrapper(
            user_auth=auth, service_auth=password(service)
        )
    return sdk.Connection(
        session=ksa_session.Session(auth=auth),
        region_name=identity.REGION,
        accelerator_default_microversion="2.3",
    )


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


def test_the_sdk_shows_devices_deployables_and_attributes(
    cyborg: deployment.Deployment,
) -> None:
    cloud = _connection(cyborg, "admin").accelerator
    (device,) = cloud.devices()
    assert isinstance(device, openstack.accelerator.v2.device.Device)
    assert cloud.get_device(device.id).hostname == cyborg.provider_name
    (deployable,) = cloud.deployables()
    shown = cloud.get_deployable(deployable.id)
    assert shown.num_accelerators == 16
    made = cloud.create_attribute(
        deployable_id=device_number(cyborg), key="note", value="by sdk"
    )
    assert cloud.get_attribute(made.id).value == "by sdk"
    assert made.id in {one.id for one in cloud.attributes()}
    cloud.delete_attribute(made.id, ignore_missing=False)
    cloud.disable_device(device)
    assert cloud.get_device(device.id).status == "maintaining"
    cloud.enable_device(device)
    assert cloud.get_device(device.id).status == "enabled"


def device_number(cyborg: deployment.Deployment) -> int:
    """The integer id that attributes name their deployable by."""
    found = cyborg.caller("admin").get("/v2/attributes")["attributes"]
    return int(found[0]["deployable_id"])


def test_the_sdk_takes_an_accelerator_request_through_its_life(
    cyborg: deployment.Deployment,
) -> None:
    admin = _connection(cyborg, "admin").accelerator
    profile = admin.create_device_profile(
        name=f"sdk-{uuid.uuid4().hex[:8]}", groups=[instance.FAKE_GROUP]
    )
    cloud = _connection(cyborg, "demo-member", "nova").accelerator
    arq = cloud.create_accelerator_request(device_profile_name=profile.name)
    assert arq.state == "Initial"
    server = str(uuid.uuid4())
    cloud.patch_accelerator_request(
        arq.id,
        deployment.bind_patch(
            next(iter(cyborg.providers().values())),
            server,
            cyborg.provider_name,
        ),
    )
    bound = cloud.get_accelerator_request(arq.id)
    assert bound.state == "Bound"
    assert bound.instance_uuid == server
    assert bound.attach_handle_info["bus"] == "0c"
    (found,) = cloud.accelerator_requests(instance_uuid=server)
    assert found.id == arq.id
    with pytest.raises(sdk_exceptions.ConflictException):
        admin.delete_device_profile(profile.id)
    cloud.delete_accelerator_request(arq.id, ignore_missing=False)
    admin.delete_device_profile(profile.id, ignore_missing=False)
    assert cyborg.handles_in_use() == 0


def test_the_sdk_programs_a_deployable(cyborg: deployment.Deployment) -> None:
    image = cyborg.cloud.glance.add(b"a bitstream")
    cloud = _connection(cyborg, "admin").accelerator
    (deployable,) = cloud.deployables()
    cloud.patch_deployable(
        deployable.id,
        [
            {
                "path": "/program",
                "op": "replace",
                "value": [{"image_uuid": image}],
            }
        ],
    )
    admin = cyborg.caller("admin")
    shown = admin.get(f"/v2/deployables/{deployable.id}")
    assert shown["bitstream_id"] == image


NOVA_CONFIGURATION = """\
[DEFAULT]
log_file = {folder}/nova.log
[accelerator]
[cyborg]
service_type = accelerator
valid_interfaces = internal
region_name = {region}
[keystone]
auth_url = {auth_url}
[service_user]
send_service_user_token = true
auth_type = password
auth_url = {auth_url}
username = nova
password = {password}
project_name = service
user_domain_name = Default
project_domain_name = Default
"""


def test_novas_own_client_binds_and_gives_back(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    keystone = cyborg.cloud.keystone
    token = keystone.token("demo-member")
    configuration = cyborg.folder / "nova.conf"
    configuration.write_text(
        NOVA_CONFIGURATION.format(
            folder=cyborg.folder,
            region=identity.REGION,
            auth_url=keystone.auth_url,
            password=identity.PASSWORD,
        )
    )
    server = str(uuid.uuid4())
    (provider,) = cyborg.providers().values()
    task = cyborg.folder / "task.json"
    task.write_text(
        json.dumps(
            {
                "configuration": str(configuration),
                "token": token,
                "catalogue": [
                    {
                        "type": "accelerator",
                        "name": "cyborg",
                        "endpoints": [
                            {
                                "region": identity.REGION,
                                "internalURL": cyborg.cloud.api_url,
                                "publicURL": cyborg.cloud.api_url,
                            }
                        ],
                    }
                ],
                "user_id": "demo-member",
                "project_id": keystone.projects["demo"],
                "profile": profile,
                "provider": provider,
                "hostname": cyborg.provider_name,
                "instance": server,
            }
        )
    )
    done = children.finish(
        [
            str(cyborg.cloud.programs / "python"),
            str(deployment.HERE / "nova_client.py"),
            str(task),
        ]
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["groups"] == [
        {
            "requester_id": "device_profile_0",
            "resources": {"FPGA": 1},
            "required": ["CUSTOM_FAKE_DEVICE"],
        }
    ]
    (bound,) = seen["bound"]
    assert bound["state"] == "Bound"
    assert bound["device_rp_uuid"] == provider
    assert seen["one"]["instance_uuid"] == server
    assert cyborg.handles_in_use() == 0
    cyborg.cloud.nova.wait_for(server, 1)

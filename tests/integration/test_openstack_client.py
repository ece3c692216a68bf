# SPDX-License-Identifier: Apache-2.0
"""Every accelerator command of `openstack`: those of python-cyborgclient and
those built into newer releases of python-openstackclient.

Which commands there are the client's own entry points tell, so that one
without a test fails.  No client can ask for a service token, which binding
needs; an authentication plugin of ours adds it, as Nova's credentials would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import children
from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources
from tests.integration import side_environment
from tests.integration.openstack_client import OpenStack

Groups = list[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A client, and where its words differ."""

    name: str
    environment: side_environment.Environment
    groups: Callable[[Groups], list[str]]
    """A profile's groups as words."""
    bind: tuple[str, ...]
    """Which words follow the ARQ's uuid."""
    faults: dict[str, str] = dataclasses.field(default_factory=dict)
    """Commands that cannot work by a fault of the client's own library, and
    what proves that it is theirs."""


def _as_json(groups: Groups) -> list[str]:
    return [json.dumps(groups)]


def _as_options(groups: Groups) -> list[str]:
    return [
        word
        for group in groups
        for word in (
            "--group",
            ",".join(f"{key}={value}" for key, value in group.items()),
        )
    ]


CYBORGCLIENT = Kind(
    "cyborgclient",
    side_environment.CLOUD,
    _as_json,
    ("host", "instance", "provider", "project"),
    {
        # From openstacksdk 4.14 on `update_deployable` calls itself.
        "accelerator deployable program": "in update_deployable\n"
        "    return self.update_deployable(uuid, patch)",
    },
)
BUILT_IN = Kind(
    "built in",
    side_environment.NEWEST,
    _as_options,
    ("host", "instance", "provider"),
)


class Scene:
    """A client and the deployment that it talks to."""

    def __init__(
        self, kind: Kind, client: OpenStack, cyborg: deployment.Deployment
    ) -> None:
        self.kind = kind
        self.client = client
        self.cyborg = cyborg
        self.admin = cyborg.caller("admin")
        self.do = client.do
        self.show = client.show
        self.run = client.run

    def new_name(self) -> str:
        return f"cli-{uuid.uuid4().hex[:12]}"

    def make_profile(self) -> str:
        return self.cyborg.make_profile([instance.FAKE_GROUP])

    def device(self) -> dict[str, Any]:
        (device,) = self.admin.get("/v2/devices")["devices"]
        return dict(device)

    def deployable(self) -> dict[str, Any]:
        (deployable,) = self.admin.get("/v2/deployables")["deployables"]
        return dict(deployable)

    def bind_words(self, arq: str, server: str) -> list[str]:
        """The words after `arq bind`."""
        (provider,) = self.cyborg.providers().values()
        words = {
            "host": self.cyborg.provider_name,
            "instance": server,
            "provider": provider,
            "project": self.cyborg.cloud.keystone.projects["demo"],
        }
        return [arq, *(words[word] for word in self.kind.bind)]

    def wait_for_reserved(self, provider: str, number: int) -> None:
        placement = self.cyborg.cloud.placement
        resources.wait_until(
            lambda: (
                placement.inventory(provider)["FPGA"]["reserved"] == number
            ),
            30,
            f"{number} of the provider are reserved",
        )

    def arqs(self) -> dict[str, dict[str, Any]]:
        found = self.admin.get("/v2/accelerator_requests")["arqs"]
        return {arq["uuid"]: arq for arq in found}


@pytest.fixture(
    scope="module", params=(CYBORGCLIENT, BUILT_IN), ids=lambda kind: kind.name
)
def made(
    request: pytest.FixtureRequest, running_cyborg: deployment.Deployment
) -> Iterator[Scene]:
    kind = request.param
    client = OpenStack(
        running_cyborg, side_environment.programs(kind.environment)
    )
    with contextlib.closing(client):
        yield Scene(kind, client, running_cyborg)


@pytest.fixture
def scene(
    made: Scene,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> Iterator[Scene]:
    """Judged, and each test leaves no request and no bound handle."""
    judged(made.cyborg)
    yield made
    assert made.arqs() == {}
    assert made.cyborg.handles_in_use() == 0
    assert made.cyborg.tracebacks() == {}


def test_every_command_does_what_it_says(scene: Scene) -> None:
    for walk in (_requests, _profiles, _devices, _deployables, _attributes):
        walk(scene)
    for command, proof in scene.kind.faults.items():
        assert command not in scene.client.worked, f"{command} works now"
        assert proof
    assert scene.client.commands, "the client has no such commands at all"
    assert (
        scene.client.worked | set(scene.kind.faults) == scene.client.commands
    )


def _profiles(scene: Scene) -> None:
    name, other = scene.new_name(), scene.new_name()
    groups = [
        {"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"},
        {"resources:CUSTOM_THING": "1", "trait:HW_GPU_API_DXVA": "forbidden"},
    ]
    made = scene.show(
        "admin",
        *("device", "profile", "create", name, *scene.kind.groups(groups)),
        *("--description", "made by hand"),
    )
    stored = scene.admin.get(f"/v2/device_profiles/{made['uuid']}")
    profile = stored["device_profile"]
    assert profile["name"] == made["name"] == name
    assert profile["groups"] == made["groups"] == groups
    assert profile["description"] == made["description"] == "made by hand"

    for words in ((), ("--long",)):
        listed = scene.show("demo-reader", "device", "profile", "list", *words)
        (mine,) = (one for one in listed if one["uuid"] == made["uuid"])
        assert (mine["name"], mine["groups"]) == (name, groups)
        assert ("created_at" in mine) == bool(words)
    for wanted in (name, made["uuid"]):
        shown = scene.show("demo-reader", "device", "profile", "show", wanted)
        assert shown == made

    second = scene.show(
        "admin",
        "device",
        "profile",
        "create",
        other,
        *scene.kind.groups(groups),
    )
    scene.do(
        "admin", "device", "profile", "delete", made["uuid"], second["uuid"]
    )
    left = scene.admin.get("/v2/device_profiles")["device_profiles"]
    assert not {made["uuid"], second["uuid"]} & {one["uuid"] for one in left}


def _devices(scene: Scene) -> None:
    device = scene.device()
    (provider,) = scene.cyborg.providers().values()
    (listed,) = scene.show("admin", "device", "list")
    assert listed["uuid"] == device["uuid"]
    assert listed["hostname"] == scene.cyborg.provider_name
    (listed,) = scene.show("admin", "device", "list", "--long")
    assert listed["model"] == device["model"]
    shown = scene.show("admin", "device", "show", device["uuid"])
    assert shown["vendor_board_info"] == device["vendor_board_info"]

    for command, status, reserved in (
        ("disable", "maintaining", 16),
        ("enable", "enabled", 0),
    ):
        scene.do("admin", "device", command, device["uuid"])
        assert scene.device()["status"] == status
        scene.wait_for_reserved(provider, reserved)


def _deployables(scene: Scene) -> None:
    deployable = scene.deployable()
    (listed,) = scene.show("admin", "deployable", "list")
    assert listed["uuid"] == deployable["uuid"]
    assert listed["name"] == f"{scene.cyborg.host}_FakeDevice"
    (listed,) = scene.show("admin", "deployable", "list", "--long")
    assert listed["num_accelerators"] == 16
    shown = scene.show("admin", "deployable", "show", deployable["uuid"])
    assert shown["name"] == deployable["name"]

    image = scene.cyborg.cloud.glance.add(b"a bitstream")
    words = ("deployable", "program", deployable["uuid"], image)
    proof = scene.kind.faults.get("accelerator deployable program")
    if proof is None:
        shown = scene.show("admin", *words)
        assert shown["uuid"] == deployable["uuid"]
        assert scene.deployable()["bitstream_id"] == image
    else:
        ended = scene.run("admin", *words, "--debug")
        assert ended.status == 1
        assert "RecursionError" in ended.said
        assert proof in ended.said
        assert "/program" not in ended.said


def _attributes(scene: Scene) -> None:
    listed = scene.show("admin", "device", "attribute", "list")
    number = next(
        str(one["deployable_id"])
        for one in scene.admin.get("/v2/attributes")["attributes"]
    )
    assert "CUSTOM_FAKE_DEVICE" in {one["value"] for one in listed}
    made = [
        scene.show("admin", "device", "attribute", "create", number, key, "v")
        for key in ("note", "remark")
    ]
    for one in made:
        shown = scene.show("admin", "device", "attribute", "show", one["uuid"])
        assert shown == one
        stored = scene.admin.get(f"/v2/attributes/{one['uuid']}")
        assert (stored["key"], stored["value"]) == (one["key"], "v")
        assert str(stored["deployable_id"]) == number
    uuids = {one["uuid"] for one in made}
    listed = scene.show("admin", "device", "attribute", "list", "--long")
    assert uuids <= {one["uuid"] for one in listed}
    assert "created_at" in listed[0]
    scene.do("admin", "device", "attribute", "delete", *uuids)
    left = scene.admin.get("/v2/attributes")["attributes"]
    assert not uuids & {one["uuid"] for one in left}


def _requests(scene: Scene) -> None:
    profile = scene.make_profile()
    server = str(uuid.uuid4())
    nova = scene.cyborg.cloud.nova
    nova.servers[server] = scene.cyborg.cloud.keystone.projects["demo"]
    arq, other = (
        scene.show("demo-member", "arq", "create", profile) for _ in range(2)
    )
    assert arq["state"] == "Initial"
    assert arq["device_profile_name"] == profile
    assert set(scene.arqs()) == {arq["uuid"], other["uuid"]}
    listed = scene.show("demo-member", "arq", "list")
    assert {one["uuid"] for one in listed} == set(scene.arqs())
    (listed, *_) = scene.show("demo-member", "arq", "list", "--long")
    assert "device_rp_uuid" in listed

    as_nova = {"service": "nova"}
    words = scene.bind_words(arq["uuid"], server)
    bound = scene.show("demo-member", "arq", "bind", *words, **as_nova)
    assert bound["state"] == "Bound"
    assert bound["instance_uuid"] == server
    assert bound["attach_handle_info"]["bus"] == "0c"
    assert scene.arqs()[arq["uuid"]]["state"] == "Bound"
    assert scene.cyborg.handles_in_use() == 1
    shown = scene.show("demo-member", "arq", "show", arq["uuid"])
    assert shown == bound
    assert {
        (event["tag"], event["status"]) for event in nova.wait_for(server, 1)
    } == {(arq["uuid"], "completed")}

    words = ["arq", "unbind", arq["uuid"]]
    unbound = scene.show("demo-member", *words, **as_nova)
    assert unbound["state"] == "Unbound"
    assert unbound["instance_uuid"] is None
    assert scene.cyborg.handles_in_use() == 0
    scene.do("demo-member", "arq", "delete", arq["uuid"], other["uuid"])
    assert scene.arqs() == {}


NOBODY = str(uuid.UUID(int=0x5EED))
"""A uuid that nothing has."""


def _errors(scene: Scene) -> Iterator[tuple[str, list[str], str]]:
    """User, words, and what the command must say as it fails."""
    name = scene.make_profile()
    groups = scene.kind.groups([instance.FAKE_GROUP])
    wrong = scene.kind.groups([{"resources:FPGA": "many"}])
    deployable = scene.deployable()["uuid"]
    create = ["device", "profile", "create"]
    for thing in (
        "arq",
        "deployable",
        "device",
        "device attribute",
        "device profile",
    ):
        yield "admin", [*thing.split(), "show", NOBODY], NOBODY
    for thing in ("arq", "device attribute", "device profile"):
        yield "admin", [*thing.split(), "delete", NOBODY], NOBODY
    yield "admin", [*create, name, *groups], name
    yield "admin", [*create, scene.new_name(), *wrong], "resources:FPGA"
    yield "admin", [*create, "no spaces", *groups], "name must be"
    yield "admin", create, "required"
    yield "admin", ["deployable", "program", NOBODY, NOBODY], NOBODY
    yield (
        "admin",
        ["device", "attribute", "create", "987654321", "key", "value"],
        "987654321",
    )
    yield "demo-member", ["arq", "create", "no-such-profile"], "no-such-prof"
    not_allowed = "ForbiddenException: 403"
    yield "demo-member", [*create, scene.new_name(), *groups], not_allowed
    yield "demo-member", ["device", "profile", "delete", name], "403"
    yield "demo-member", ["device", "list"], not_allowed
    yield "demo-member", ["deployable", "show", deployable], "Policy"
    yield "demo-reader", ["arq", "create", name], not_allowed
    yield "demo-nobody", ["arq", "list"], not_allowed


def test_every_error_is_told_and_ends_in_a_status(scene: Scene) -> None:
    wrong = []
    for user, words, said in _errors(scene):
        ended = scene.run(user, *words)
        if ended.status not in {1, 2} or said not in ended.said:
            wrong.append((user, words, said, ended))
    assert wrong == []


def test_what_device_disable_met_only_the_exchange_tells(
    scene: Scene,
) -> None:
    """A fault of openstacksdk, which does not look at the answer."""
    device = scene.device()["uuid"]
    for user, wanted, code in (
        ("admin", NOBODY, 404),
        ("demo-member", device, 403),
    ):
        for command in ("disable", "enable"):
            ended = scene.run(user, "device", command, wanted, "--debug")
            assert ended.status == 0, "openstacksdk looks at the answer now"
            assert f"RESP: [{code}]" in ended.said
    assert scene.device()["status"] == "enabled"


def test_a_bind_without_a_service_token_is_refused(scene: Scene) -> None:
    server = str(uuid.uuid4())
    nova = scene.cyborg.cloud.nova
    nova.servers[server] = scene.cyborg.cloud.keystone.projects["demo"]
    arq = scene.show("demo-member", "arq", "create", scene.make_profile())
    ended = scene.run(
        "demo-member", "arq", "bind", *scene.bind_words(arq["uuid"], server)
    )
    assert ended.status == 1
    assert "requires a service token" in ended.said
    assert scene.arqs()[arq["uuid"]]["state"] == "Initial"
    ended = scene.run("demo-member", "arq", "unbind", arq["uuid"])
    assert ended.status == 1
    assert "requires a service token" in ended.said
    scene.do("demo-member", "arq", "delete", arq["uuid"])


def test_deleting_one_that_is_gone_and_one_that_is_not(scene: Scene) -> None:
    arq = scene.show("demo-member", "arq", "create", scene.make_profile())
    ended = scene.run("demo-member", "arq", "delete", NOBODY, arq["uuid"])
    assert ended.status == 1
    assert NOBODY in ended.said
    assert scene.arqs() == {}


def test_a_wrong_password_is_told(scene: Scene) -> None:
    ended = scene.run("demo-member", "arq", "list", OS_PASSWORD="wrong")
    assert ended.status == 1
    assert "401" in ended.said


def test_the_console_script_itself_prints_a_table(scene: Scene) -> None:
    done = children.finish(
        [
            str(scene.client.programs / "openstack"),
            *("accelerator", "device", "list"),
        ],
        120,
        scene.client.environment("admin"),
    )
    assert done.returncode == 0, done.stderr
    device = scene.device()
    (row,) = (
        line for line in done.stdout.splitlines() if device["uuid"] in line
    )
    # The columns that both clients have.
    assert {device["hostname"], device["type"]} <= set(row.split())


def test_cyborgclient_programs_where_its_library_can(
    cyborg: deployment.Deployment,
) -> None:
    """Over the openstacksdk of stable/2026.1, which has no fault there (but
    knows no call to disable a device)."""
    client = OpenStack(
        cyborg, side_environment.programs(side_environment.STABLE)
    )
    scene = Scene(CYBORGCLIENT, client, cyborg)
    with contextlib.closing(client):
        wanted = scene.deployable()["uuid"]
        image = cyborg.cloud.glance.add(b"another bitstream")
        shown = scene.show("admin", "deployable", "program", wanted, image)
        assert shown["uuid"] == wanted
        assert scene.deployable()["bitstream_id"] == image
        ended = scene.run("admin", "device", "disable", scene.device()["uuid"])
        assert ended.status == 1
        assert "no attribute 'disable_device'" in ended.said

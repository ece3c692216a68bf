# SPDX-License-Identifier: Apache-2.0
"""The recorded exchanges with tokens of a real Keystone, over HTTP, where
real agents, conductors and Placement stand behind the answers.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import requests

from tests.functional.api import test_wire as wire
from tests.integration import deployment
from tests.integration import instance

USERS = {"admin": "admin", "member": "demo-member", None: None}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came, with the names that the recorder asks for."""

    came: requests.Response

    @property
    def status_int(self) -> int:
        return self.came.status_code

    @property
    def headers(self) -> Any:
        return self.came.headers

    @property
    def body(self) -> bytes:
        return self.came.content

    @property
    def text(self) -> str:
        return self.came.text

    @property
    def json(self) -> Any:
        return self.came.json()


class Recorder(wire.Recorder):
    """The values behind the placeholders, of a deployment."""

    def __init__(self, cyborg: deployment.Deployment) -> None:
        self.cyborg = cyborg
        self.lab = self
        admin = cyborg.caller("admin")
        profile = admin.post(
            "/v2/device_profiles",
            [{"name": "dp-one", "groups": [instance.FAKE_GROUP]}],
        )
        (device,) = admin.get("/v2/devices")["devices"]
        (deployable,) = admin.get("/v2/deployables")["deployables"]
        self.known = {
            "<base>": f"http://127.0.0.1:{cyborg.port}",
            # There the host and its provider had one name.
            "<compute>_FakeDevice": f"{cyborg.host}_FakeDevice",
            "<compute>": device["hostname"],
            "<project:demo>": cyborg.cloud.keystone.projects["demo"],
            "<dp-one.uuid>": profile["uuid"],
            "<dev.uuid>": device["uuid"],
            "<dep.uuid>": deployable["uuid"],
            "<dep.rp_uuid>": deployable["rp_uuid"],
            "<instance1>": str(uuid.uuid4()),
            "<instance6>": str(uuid.uuid4()),
        }

    def call(
        self,
        method: str,
        path: str,
        body: Any,
        *,
        persona: str | None,
        service_token: str | None,
        version: str | None,
        headers: dict[str, str],
    ) -> Answer:
        caller = self.cyborg.caller(USERS[persona], service_token)
        return Answer(caller.request(method, path, body, version, headers))


def test_the_recorded_exchanges_have_the_same_answers(
    cyborg: deployment.Deployment,
) -> None:
    recorder = Recorder(cyborg)
    for case in wire.CASES:
        wire.replay(case, recorder)

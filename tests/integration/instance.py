# SPDX-License-Identifier: Apache-2.0
"""What Nova does for one instance with accelerators, step by step."""

from __future__ import annotations

import uuid
from typing import Any

from tests.integration import deployment
from tests.integration import resources

FAKE_GROUP = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
RESOLVE_SECONDS = 180


class Instance:
    """An instance of the demo project, asked for by its member."""

    def __init__(
        self, cyborg: deployment.Deployment, profile: str, port: int = 0
    ) -> None:
        self.cyborg = cyborg
        self.profile = profile
        self.uuid = str(uuid.uuid4())
        self.arqs: list[dict[str, Any]] = []
        self.providers: dict[int, str] = {}
        port = port or cyborg.port
        self.member = cyborg.caller("demo-member", None, port)
        self.nova = cyborg.caller("demo-member", "nova", port)

    def schedule(self) -> None:
        """Claim the first candidate that Placement offers."""
        placement = self.cyborg.cloud.placement
        found = self.nova.get(f"/v2/device_profiles?name={self.profile}")
        (profile,) = found["device_profiles"]
        candidates = placement.candidates(profile["groups"], self.cyborg.root)
        assert candidates, "Placement offers nothing"
        placement.allocate(
            self.uuid,
            candidates[0],
            self.cyborg.cloud.keystone.projects["demo"],
        )
        self.providers = {
            int(suffix.rpartition("_")[2]): providers[0]
            for suffix, providers in candidates[0]["mappings"].items()
        }

    def request(self) -> list[str]:
        """Make the ARQs of the profile; their uuids."""
        self.arqs = self.nova.post(
            "/v2/accelerator_requests", {"device_profile_name": self.profile}
        )["arqs"]
        return self.arq_uuids

    @property
    def arq_uuids(self) -> list[str]:
        return [arq["uuid"] for arq in self.arqs]

    def patch(self) -> dict[str, list[dict[str, str]]]:
        """The body that binds all its ARQs."""
        return {
            arq["uuid"]: deployment.bind_patch(
                self.providers[arq["device_profile_group_id"]],
                self.uuid,
                self.cyborg.provider_name,
            )
            for arq in self.arqs
        }

    def bind(self, status: int = 202) -> None:
        self.nova.patch("/v2/accelerator_requests", self.patch(), status)

    def poll(self, status: int = 200) -> list[dict[str, Any]]:
        """The resolved ARQs, as nova-compute asks for them."""
        found = self.nova.get(
            f"/v2/accelerator_requests?instance={self.uuid}"
            "&bind_state=resolved",
            status,
        )
        return list(found["arqs"]) if status == 200 else []

    def wait_resolved(self) -> list[dict[str, Any]]:
        """The ARQs once none of them is being bound any more."""

        def resolved() -> bool:
            answer = self.nova.request(
                "GET",
                f"/v2/accelerator_requests?instance={self.uuid}"
                "&bind_state=resolved",
            )
            return answer.status_code == 200

        resources.wait_until(
            resolved, RESOLVE_SECONDS, f"{self.uuid} is resolved"
        )
        return self.poll()

    def delete(self) -> None:
        """Give everything back."""
        self.nova.delete(f"/v2/accelerator_requests?instance={self.uuid}")
        self.cyborg.cloud.placement.release(self.uuid)

    def boot(self) -> list[dict[str, Any]]:
        """All of the way to a running instance; its bound ARQs."""
        self.schedule()
        self.request()
        self.bind()
        return self.wait_resolved()

# SPDX-License-Identifier: Apache-2.0
"""The process of `nova_client.py`, and the instances that it boots."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.integration import children
from tests.integration import deployment
from tests.integration import identity

CREDENTIALS = """\
auth_type = password
auth_url = {auth_url}
username = nova
password = {password}
project_name = service
user_domain_name = Default
project_domain_name = Default
region_name = {region}
"""

CONFIGURATION = """\
[DEFAULT]
log_file = {folder}/nova.log
debug = true
arq_binding_timeout = 60
[cyborg]
service_type = accelerator
valid_interfaces = internal
region_name = {region}
[keystone]
auth_url = {auth_url}
[placement]
{credentials}
valid_interfaces = internal
[service_user]
send_service_user_token = true
{credentials}
"""


class RefusedError(Exception):
    """What Nova's code raised, by name and text."""


class NovaProcess:
    """Nova's code in a process of its own, asked one thing at a time."""

    def __init__(self, cyborg: deployment.Deployment) -> None:
        self.cyborg = cyborg
        keystone = cyborg.cloud.keystone
        words = {
            "auth_url": keystone.auth_url,
            "password": identity.PASSWORD,
            "region": identity.REGION,
        }
        configuration = cyborg.folder / "nova.conf"
        configuration.write_text(
            CONFIGURATION.format(
                folder=cyborg.folder,
                credentials=CREDENTIALS.format(**words),
                **words,
            )
        )
        self._process = children.Dialogue(
            [
                str(cyborg.cloud.programs / "python"),
                str(Path(__file__).with_name("nova_client.py")),
                str(configuration),
            ],
            cyborg.folder / "nova.err",
        )
        self.close = self._process.close

    def __call__(self, what: str, **words: Any) -> Any:
        """What Nova's code returned.  Raises RefusedError."""
        answer = self._process.ask({"do": what, **words})
        if "error" in answer:
            raise RefusedError(answer["error"])
        return answer["done"]


class Server:
    """An instance of the demo project in Nova's hands.

    `profile`: of its flavor; `ports`: port -> device profile.
    """

    def __init__(
        self,
        nova: NovaProcess,
        profile: str | None = None,
        ports: Mapping[str, str] | None = None,
    ) -> None:
        self._nova = nova
        cloud = nova.cyborg.cloud
        self.uuid = str(uuid.uuid4())
        endpoint = {
            "region": identity.REGION,
            "internalURL": cloud.api_url,
            "publicURL": cloud.api_url,
        }
        self.groups = nova(
            "boot",
            instance=self.uuid,
            profile=profile,
            ports=dict(ports or {}),
            user_id=cloud.keystone.users["demo-member"],
            project_id=cloud.keystone.projects["demo"],
            token=cloud.keystone.token("demo-member"),
            catalogue=[
                {
                    "type": "accelerator",
                    "name": "cyborg",
                    "endpoints": [endpoint],
                }
            ],
        )

    def __call__(self, what: str, **words: Any) -> Any:
        """One step; see `nova_client.py`."""
        return self._nova(what, instance=self.uuid, **words)

    def schedule(self, node: str, root: str) -> dict[str, list[str]]:
        """Request group -> providers that are claimed for it."""
        return dict(self("schedule", node=node, root=root))

    def relay(self, number: int = 1) -> list[dict[str, Any]]:
        """Hand Nova's compute manager the events that came for it, once
        there are so many; each event, though it was told twice."""
        came = self._nova.cyborg.cloud.nova.wait_for(self.uuid, number)
        events = list(
            {(event["tag"], event["status"]): event for event in came}.values()
        )
        for event in events:
            self("deliver", event=event)
        return events

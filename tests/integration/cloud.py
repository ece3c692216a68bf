# SPDX-License-Identifier: Apache-2.0
"""The cloud around us: Keystone, Placement, and stand-ins for Nova and
Glance, all in one catalogue.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

from tests import databases
from tests import glance_stand_in
from tests import nova_stand_in
from tests.integration import children
from tests.integration import identity
from tests.integration import resources
from tests.integration import side_environment

PLACEMENT_VERSION = "1.36"

PLACEMENT_CONFIGURATION = """\
[DEFAULT]
use_stderr = true
[api]
auth_strategy = keystone
[placement_database]
connection = {database}
sync_on_startup = true
max_pool_size = 4
[keystone_authtoken]
auth_type = password
auth_url = {auth_url}
www_authenticate_uri = {auth_url}
project_domain_id = default
user_domain_id = default
project_name = service
username = cyborg
password = {password}
"""


class Placement:
    """Placement on a loopback port; it can go away and come back."""

    def __init__(
        self, programs: Path, folder: Path, keystone: identity.Keystone
    ) -> None:
        self._programs = programs
        self._folder = folder
        self._keystone = keystone
        self._port = resources.free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.log = folder / "placement.out"
        self._session = requests.Session()
        self._child: children.Child | None = None

    def configure(self, database: str) -> None:
        (self._folder / "placement.conf").write_text(
            PLACEMENT_CONFIGURATION.format(
                database=database,
                auth_url=self._keystone.auth_url,
                password=identity.PASSWORD,
            )
        )

    def start(self) -> None:
        self._child = children.Child(
            [
                str(self._programs / "python"),
                str(Path(__file__).with_name("serve.py")),
                "placement",
                str(self._port),
            ],
            self.log,
            {"OS_PLACEMENT_CONFIG_DIR": str(self._folder)},
        )

    def wait(self) -> None:
        """Until it serves."""
        child = self._child
        assert child is not None
        resources.wait_until(
            lambda: not child.running or resources.answers(self._port),
            identity.START_SECONDS,
            "Placement serves",
        )
        assert child.running, child.tail()

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        params: dict[str, str] | None = None,
    ) -> Any:
        """The JSON answer to the administrator's request, None for none."""
        answer = self._session.request(
            method,
            f"{self.url}{path}",
            json=body,
            params=params,
            headers={
                "X-Auth-Token": self._keystone.token("admin"),
                "OpenStack-API-Version": f"placement {PLACEMENT_VERSION}",
            },
            timeout=30,
        )
        assert answer.ok, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    def make_root(self, name: str) -> str:
        """A compute node's provider as nova-compute makes it; its uuid."""
        provider = self.request(
            "POST",
            "/resource_providers",
            {"name": name, "uuid": str(uuid.uuid4())},
        )["uuid"]
        self.request(
            "PUT",
            f"/resource_providers/{provider}/inventories",
            {
                "resource_provider_generation": 0,
                "inventories": {
                    "VCPU": {"total": 16},
                    "MEMORY_MB": {"total": 65536},
                },
            },
        )
        return str(provider)

    def children_of(self, root: str) -> list[dict[str, Any]]:
        """The providers below the root."""
        tree = self.request("GET", f"/resource_providers?in_tree={root}")
        return [
            provider
            for provider in tree["resource_providers"]
            if provider["uuid"] != root
        ]

    def inventory(self, provider: str) -> dict[str, Any]:
        answer = self.request(
            "GET", f"/resource_providers/{provider}/inventories"
        )
        return dict(answer["inventories"])

    def traits(self, provider: str) -> set[str]:
        answer = self.request("GET", f"/resource_providers/{provider}/traits")
        return set(answer["traits"])

    def candidates(
        self, groups: list[dict[str, str]], root: str
    ) -> list[dict[str, Any]]:
        """Allocation requests for a profile's groups in the host's tree,
        asked for as Nova does: one numbered group each.
        """
        query = {"group_policy": "none"}
        for number, group in enumerate(groups):
            suffix = f"_device_profile_{number}"
            query[f"in_tree{suffix}"] = root
            wanted = {
                key.removeprefix("resources:"): value
                for key, value in group.items()
                if key.startswith("resources:")
            }
            query[f"resources{suffix}"] = ",".join(
                f"{name}:{amount}" for name, amount in wanted.items()
            )
            traits = [
                key.removeprefix("trait:")
                if value == "required"
                else f"!{key.removeprefix('trait:')}"
                for key, value in group.items()
                if key.startswith("trait:")
            ]
            if traits:
                query[f"required{suffix}"] = ",".join(traits)
        answer = self.request("GET", "/allocation_candidates", params=query)
        return list(answer["allocation_requests"])

    def allocate(
        self, consumer: str, request: dict[str, Any], project: str
    ) -> None:
        """Claim a candidate for the instance `consumer`."""
        self.request(
            "PUT",
            f"/allocations/{consumer}",
            {
                "allocations": request["allocations"],
                "mappings": request["mappings"],
                "consumer_generation": None,
                "project_id": project,
                "user_id": "tests",
            },
        )

    def try_allocate(
        self, consumer: str, request: dict[str, Any], project: str
    ) -> bool:
        """Whether the candidate could be claimed; another may be faster."""
        try:
            self.allocate(consumer, request, project)
        except AssertionError:
            return False
        return True

    def release(self, consumer: str) -> None:
        """Give back what the instance has claimed, if anything."""
        if self.request("GET", f"/allocations/{consumer}")["allocations"]:
            self.request("DELETE", f"/allocations/{consumer}")


class Nova(nova_stand_in.NovaStandIn):
    """Nova's endpoint for events, by instance."""

    def events_of(self, instance: str) -> list[dict[str, Any]]:
        """The events of the instance that it took, in order."""
        return [
            event
            for event in list(self.events)
            if event["server_uuid"] == instance
        ]

    def wait_for(
        self, instance: str, count: int, seconds: float = 180
    ) -> list[dict[str, Any]]:
        """The instance's events once there are so many."""
        with self._came:
            came = self._came.wait_for(
                lambda: len(self.events_of(instance)) >= count, seconds
            )
        assert came, f"{self.events_of(instance)} within {seconds} s"
        return self.events_of(instance)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Answer everything with 503 meanwhile."""
        self.failure = 503
        try:
            yield
        finally:
            self.failure = None


class Cloud:
    """Everything that Cyborg talks to but its database and broker."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs = programs
        for name in ("identity", "placement"):
            (folder / name).mkdir()
        self.keystone = identity.Keystone(programs, folder / "identity")
        self.placement = Placement(
            programs, folder / "placement", self.keystone
        )
        self.nova = Nova()
        self.glance = glance_stand_in.GlanceStandIn()
        self.api_port = resources.free_port()
        """Where the catalogue says that Cyborg's API is."""

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}/v2"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cloud]:
    """A cloud that serves, and is gone afterwards."""
    cloud = Cloud(side_environment.programs(), folder)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(databases.empty("mariadb", folder))
        cloud.placement.configure(database)
        stack.callback(cloud.nova.close)
        stack.callback(cloud.glance.close)
        stack.callback(cloud.keystone.stop)
        stack.callback(cloud.placement.stop)
        cloud.placement.start()
        cloud.keystone.start()
        for service_type, name, url in (
            ("placement", "placement", cloud.placement.url),
            ("accelerator", "cyborg", cloud.api_url),
            ("compute", "nova", f"{cloud.nova.url}/v2.1"),
            ("image", "glance", cloud.glance.url),
        ):
            cloud.keystone.add_endpoint(service_type, name, url)
        cloud.placement.wait()
        yield cloud

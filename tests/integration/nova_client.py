# SPDX-License-Identifier: Apache-2.0
"""Nova's own code around accelerators, told step by step what to do.

Run by the Python of the cloud's own environment: `nova_client.py FILE`,
where FILE is a nova.conf.  Reads a JSON object with `do` and arguments per
line, writes one with `done` or `error` for each.  It imports nothing of
ours.  What decides is Nova's: its request groups, its Placement client, the
methods of its conductor and compute manager (on objects without the rest of
those services, which would want a database and a broker), its Cyborg client.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from typing import Any

import nova.conf
from nova import context
from nova import exception
from nova import objects
from nova.accelerator import cyborg
from nova.compute import manager as compute_manager
from nova.compute import utils as compute_utils
from nova.conductor import manager as conductor_manager
from nova.network import neutron
from nova.scheduler import utils as scheduler_utils
from nova.scheduler.client import report

CONF = nova.conf.CONF


class Server:
    """An instance on its way through Nova's services."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.context = context.RequestContext(
            user_id=task["user_id"],
            project_id=task["project_id"],
            auth_token=task["token"],
            service_catalog=task["catalogue"],
        )
        profile = task.get("profile")
        self.flavor = objects.Flavor(
            vcpus=1,
            memory_mb=64,
            root_gb=0,
            ephemeral_gb=0,
            swap=0,
            extra_specs={"accel:device_profile": profile} if profile else {},
        )
        self.instance = objects.Instance(
            uuid=task["instance"], flavor=self.flavor
        )
        self.networks = objects.NetworkRequestList(
            objects=[
                objects.NetworkRequest(port_id=port, device_profile=name)
                for port, name in task.get("ports", {}).items()
            ]
        )
        self.specification = objects.RequestSpec(
            flavor=self.flavor,
            project_id=task["project_id"],
            user_id=task["user_id"],
            request_level_params=objects.RequestLevelParams(),
        )
        self.accelerators: list[str] = []
        self.waiter: threading.Thread | None = None
        self.waited: dict[str, Any] = {}


class Nodes:
    """What the scheduler reads of Nova's database: the compute nodes, whose
    uuids are those of their providers."""

    def __init__(self, name: str, root: str) -> None:
        self._node = objects.ComputeNode(
            uuid=root, host=name, hypervisor_hostname=name
        )

    def get_compute_nodes_by_host_or_node(
        self, *_: Any, **__: Any
    ) -> list[objects.ComputeNode]:
        return [self._node]


class Driver:
    """What a line may ask for, by its method's name."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}
        self._placement = report.SchedulerReportClient()
        self._conductor = object.__new__(conductor_manager.ComputeTaskManager)
        self._compute = object.__new__(compute_manager.ComputeManager)
        self._compute.reportclient = self._placement
        self._compute.instance_events = compute_manager.InstanceEvents()
        self._compute.virtapi = compute_manager.ComputeVirtAPI(self._compute)

    def boot(self, **task: Any) -> list[dict[str, Any]]:
        """nova-api: the request groups of the flavor's profile and of the
        ports'."""
        server = self._servers[task["instance"]] = Server(task)
        groups = []
        if task.get("profile"):
            groups += cyborg.get_device_profile_request_groups(
                server.context, task["profile"]
            )
        client = cyborg.get_client(server.context)
        for port, name in task.get("ports", {}).items():
            wanted = client.get_device_profile_groups(name)
            if cyborg.get_device_amount_of_dp_groups(wanted) != 1:
                raise ValueError("nova takes one device for a port")
            groups += client.get_device_request_groups(wanted, port)
        server.specification.requested_resources = groups
        return [
            {
                "requester_id": group.requester_id,
                "resources": group.resources,
                "required": sorted(group.required_traits),
                "forbidden": sorted(group.forbidden_traits),
            }
            for group in groups
        ]

    def schedule(
        self, instance: str, node: str, root: str
    ) -> dict[str, list[str]]:
        """nova-scheduler: candidates on the node, and a claim to the first;
        the mapping of request groups to providers."""
        server = self._servers[instance]
        server.specification.requested_destination = objects.Destination(
            node=node
        )
        wanted = scheduler_utils.resources_from_request_spec(
            server.context, server.specification, Nodes(node, root)
        )
        candidates, _, version = self._placement.get_allocation_candidates(
            server.context, wanted
        )
        if not candidates:
            raise LookupError("no valid host was found")
        chosen = candidates[0]
        claimed = scheduler_utils.claim_resources(
            server.context,
            self._placement,
            server.specification,
            instance,
            chosen,
            version,
        )
        if not claimed:
            raise LookupError("the claim was refused")
        scheduler_utils.fill_provider_mapping(
            server.specification,
            objects.Selection(allocation_request=json.dumps(chosen)),
        )
        return dict(server.specification.get_request_group_mapping())

    def bind(self, instance: str, hostname: str) -> list[str]:
        """nova-conductor: make and bind the ARQs of flavor and ports."""
        server = self._servers[instance]
        server.accelerators = (
            self._conductor._create_and_bind_arq_for_instance(
                server.context,
                server.instance,
                hostname,
                server.specification,
                server.networks,
            )
        )
        return server.accelerators

    def start_waiting(self, instance: str) -> None:
        """nova-compute: begin to wait for the ARQs; see `stop_waiting`."""
        server = self._servers[instance]

        def wait() -> None:
            try:
                server.waited["done"] = self._compute._get_bound_arq_resources(
                    server.context, server.instance, server.accelerators
                )
            except exception.NovaException as error:
                server.waited["error"] = f"{type(error).__name__}: {error}"

        server.waiter = threading.Thread(target=wait, daemon=True)
        server.waiter.start()

    def deliver(self, instance: str, event: dict[str, str]) -> None:
        """nova-api and nova-compute: an external event came."""
        server = self._servers[instance]
        self._compute._process_instance_event(
            server.instance,
            objects.InstanceExternalEvent(
                instance_uuid=event["server_uuid"],
                name=event["name"],
                status=event["status"],
                tag=event["tag"],
            ),
        )

    def stop_waiting(self, instance: str) -> dict[str, Any]:
        """How the wait ended, once it has: `done` with ARQs, or `error`."""
        server = self._servers[instance]
        assert server.waiter is not None
        server.waiter.join(CONF.arq_binding_timeout + 10)
        return server.waited

    def port_profiles(
        self, instance: str, arqs: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """What goes into the binding profile of each port."""
        server = self._servers[instance]
        _, port_arqs = self._compute._split_network_arqs(arqs, server.networks)
        profiles = {}
        for network in server.networks:
            request: dict[str, Any] = {"port": {}}
            neutron.API()._populate_neutron_binding_profile(
                server.instance, None, request, port_arqs[network.arq_uuid]
            )
            profiles[network.port_id] = request["port"]["binding:profile"]
        return profiles

    def arqs(self, instance: str, resolved: bool = False) -> Any:
        """nova-compute: the instance's ARQs, as at a reboot."""
        server = self._servers[instance]
        return cyborg.get_client(server.context).get_arqs_for_instance(
            instance, only_resolved=resolved
        )

    def arq(self, instance: str, uuid: str) -> Any:
        return self._client(instance).get_arq_by_uuid(uuid)

    def arq_uuids(self, instance: str) -> Any:
        server = self._servers[instance]
        return self._client(instance).get_arq_uuids_for_instance(
            server.instance
        )

    def delete_arqs(self, instance: str, uuids: list[str]) -> None:
        """What unbinding a port does, and cleaning up a failed bind."""
        self._client(instance).delete_arqs_by_uuid(uuids)

    def destroy(self, instance: str) -> bool:
        """nova-compute: unbind the ports, delete the ARQs and the
        allocation; whether there was one."""
        server = self._servers[instance]
        for network in server.networks:
            if network.arq_uuid:
                self.delete_arqs(instance, [network.arq_uuid])
        compute_utils.delete_arqs_if_needed(server.context, server.instance)
        return bool(
            self._placement.delete_allocation_for_instance(
                server.context, instance
            )
        )

    def _client(self, instance: str) -> Any:
        return cyborg.get_client(self._servers[instance].context)


def main() -> None:
    CONF([], project="nova", default_config_files=[sys.argv[1]])
    objects.register_all()
    driver = Driver()
    for line in sys.stdin:
        words = json.loads(line)
        try:
            answer = {"done": getattr(driver, words.pop("do"))(**words)}
        except (LookupError, exception.NovaException) as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

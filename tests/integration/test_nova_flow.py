# SPDX-License-Identifier: Apache-2.0
"""Nova 34's own code drives the whole life of instances' accelerators.

What is asked, in which order and with which words is Nova's; we look at
Placement, the events and the database in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import deployment
from tests.integration import instance
from tests.integration.nova_process import NovaProcess
from tests.integration.nova_process import RefusedError
from tests.integration.nova_process import Server
from tests.nova_stand_in import NovaStandIn
from tests.sysfs import SysfsTree

NIC_GROUP = {"resources:CUSTOM_NIC": "1", "trait:CUSTOM_VF": "required"}
PORTS = 4
"""Virtual functions of the host with the NIC, two for each of its ports."""
PROGRAM_SECONDS = 3


@dataclasses.dataclass(frozen=True)
class Scene:
    """A cloud with Nova's code, and two hosts: one has the fake device that
    must be programmed for a bitstream, the other has a NIC."""

    cyborg: deployment.Deployment
    nova: NovaProcess
    network_host: deployment.Host

    def server(self, **words: Any) -> Server:
        return Server(self.nova, **words)

    def profile(self, *groups: dict[str, str]) -> str:
        return self.cyborg.make_profile(list(groups))

    def usages(self, providers: Any) -> dict[str, dict[str, int]]:
        """What Placement says is claimed of each provider, if anything."""
        placement = self.cyborg.cloud.placement
        found = {
            provider: placement.request(
                "GET", f"/resource_providers/{provider}/usages"
            )["usages"]
            for provider in providers
        }
        return {
            provider: usages
            for provider, usages in found.items()
            if any(usages.values())
        }


@pytest.fixture(scope="module")
def made(deploy: deployment.Deploy) -> Iterator[Scene]:
    cyborg = deploy(fake={"program_seconds": PROGRAM_SECONDS})
    cyborg.start()
    tree = SysfsTree(cyborg.folder / "network" / "sys")
    tree.add_intel_x710(vfs=PORTS // 2)
    network_host = cyborg.add_host(
        agent__enabled_drivers="intel_nic_driver",
        agent__sysfs_root=str(tree.root),
        nic_devices__enabled_nic_types="x710",
        x710__physical_device_mappings="physnet1:eth2|eth3",
    )
    cyborg.wait_for_providers()
    cyborg.wait_for_providers(PORTS, root=network_host.root)
    with contextlib.closing(NovaProcess(cyborg)) as nova:
        yield Scene(cyborg, nova, network_host)


@pytest.fixture
def scene(
    made: Scene,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> Iterator[Scene]:
    """Judged, and nothing may be left of any instance."""
    judged(made.cyborg)
    yield made
    left = made.cyborg.caller("admin").get("/v2/accelerator_requests")["arqs"]
    for arq in left:  # of a test that failed
        made.cyborg.caller("admin", "nova").delete(
            f"/v2/accelerator_requests?arqs={arq['uuid']}"
        )
    assert left == []
    assert made.cyborg.handles_in_use() == 0
    every = {
        **made.cyborg.providers(),
        **made.cyborg.providers(made.network_host.root),
    }
    assert made.usages(every.values()) == {}
    assert made.cyborg.tracebacks() == {}


def test_a_flavors_profile_goes_all_of_novas_way(scene: Scene) -> None:
    cyborg = scene.cyborg
    wanted = {**instance.FAKE_GROUP, "resources:FPGA": "2", "accel:note": "x"}
    server = scene.server(profile=scene.profile(wanted))
    assert server.groups == [
        {
            "requester_id": "device_profile_0",
            "resources": {"FPGA": 2},
            "required": ["CUSTOM_FAKE_DEVICE"],
            "forbidden": [],
        }
    ]

    (provider,) = cyborg.providers().values()
    mapping = server.schedule(cyborg.provider_name, cyborg.root)
    assert mapping == {"device_profile_0": [provider]}
    assert scene.usages([provider]) == {provider: {"FPGA": 2}}

    bound = server("bind", hostname=cyborg.provider_name)
    assert len(bound) == 2
    server("start_waiting")
    waited = server("stop_waiting")["done"]
    assert sorted(arq["uuid"] for arq in waited) == sorted(bound)
    for arq in waited:
        assert arq["state"] == "Bound"
        assert arq["device_rp_uuid"] == provider
        assert arq["hostname"] == cyborg.provider_name
        assert arq["instance_uuid"] == server.uuid
        assert arq["attach_handle_type"] == "TEST_PCI"
    assert len({str(arq["attach_handle_info"]) for arq in waited}) == 2

    events = cyborg.cloud.nova.wait_for(server.uuid, 2)
    assert {
        (event["name"], event["tag"], event["status"]) for event in events
    } == {("accelerator-request-bound", uuid, "completed") for uuid in bound}
    again = server("arqs", resolved=True)
    assert [_lasting(arq) for arq in again] == [
        _lasting(arq) for arq in waited
    ]
    assert sorted(server("arq_uuids")) == sorted(bound)
    one = server("arq", uuid=waited[0]["uuid"])
    assert _lasting(one) == _lasting(waited[0])

    assert server("destroy") is True
    assert server("destroy") is False
    with pytest.raises(RefusedError, match="AcceleratorRequestOpFailed"):
        server("arqs")


def _lasting(arq: dict[str, Any]) -> dict[str, Any]:
    """Without the time of the last change: that Nova was told is one."""
    return {key: arq[key] for key in arq if key != "updated_at"}


def test_nova_compute_waits_for_the_event_of_a_card_that_is_programmed(
    scene: Scene,
) -> None:
    cyborg = scene.cyborg
    image = cyborg.cloud.glance.add(b"a bitstream")
    server = scene.server(
        profile=scene.profile(
            {**instance.FAKE_GROUP, "accel:bitstream_id": image}
        )
    )
    server.schedule(cyborg.provider_name, cyborg.root)
    (bound,) = server("bind", hostname=cyborg.provider_name)
    assert server("arq", uuid=bound)["state"] == "BindStarted"
    assert server("arqs", resolved=True) == []
    server("start_waiting")
    (event,) = server.relay()
    assert (event["tag"], event["status"]) == (bound, "completed")
    (arq,) = server("stop_waiting")["done"]
    assert (arq["uuid"], arq["state"]) == (bound, "Bound")
    server("destroy")


def test_nova_compute_hears_of_a_bind_that_failed(scene: Scene) -> None:
    cyborg = scene.cyborg
    server = scene.server(
        profile=scene.profile(
            {
                **instance.FAKE_GROUP,
                "accel:bitstream_id": cyborg.cloud.glance.add(
                    b"another content", {"os_hash_value": "0" * 128}
                ),
            }
        )
    )
    server.schedule(cyborg.provider_name, cyborg.root)
    (bound,) = server("bind", hostname=cyborg.provider_name)
    server("start_waiting")
    (event,) = server.relay()
    assert (event["tag"], event["status"]) == (bound, "failed")
    assert "Instance event failed" in server("stop_waiting")["error"]
    (arq,) = server("arqs", resolved=True)
    assert arq["state"] == "BindFailed"
    assert cyborg.handles_in_use() == 0
    server("destroy")


def test_a_ports_profile_ends_in_its_binding_profile(scene: Scene) -> None:
    cyborg = scene.cyborg
    host = scene.network_host
    profile = scene.profile(NIC_GROUP)
    port, other = str(uuid.uuid4()), str(uuid.uuid4())
    server = scene.server(ports={port: profile, other: profile})
    assert [group["requester_id"] for group in server.groups] == [
        f"device_profile_0{port}",
        f"device_profile_0{other}",
    ]

    mapping = server.schedule(host.provider_name, host.root)
    providers = {found[0] for found in mapping.values()}
    assert scene.usages(cyborg.providers(host.root).values()) == {
        provider: {"CUSTOM_NIC": 1} for provider in providers
    }

    bound = server("bind", hostname=host.provider_name)
    server("start_waiting")
    arqs = server("stop_waiting")["done"]
    assert {arq["attach_handle_type"] for arq in arqs} == {"PCI"}
    profiles = server("port_profiles", arqs=arqs)
    assert set(profiles) == {port, other}
    for name, found in profiles.items():
        assert found["physical_network"] == "physnet1"
        assert found["arq_uuid"] in bound
        (arq,) = (one for one in arqs if one["uuid"] == found["arq_uuid"])
        assert arq["device_rp_uuid"] == mapping[f"device_profile_0{name}"][0]
        info = arq["attach_handle_info"]
        assert found["pci_slot"] == (
            f"{info['domain']}:{info['bus']}:{info['device']}"
            f".{info['function']}"
        )
        assert found["pci_slot"].startswith("0000:05:")
    assert len({one["pci_slot"] for one in profiles.values()}) == 2
    cyborg.cloud.nova.wait_for(server.uuid, 2)
    assert server("destroy") is True


def test_a_flavors_and_a_ports_profile_are_bound_at_once(
    scene: Scene,
) -> None:
    cyborg = scene.cyborg
    host = scene.network_host
    profile = scene.profile(NIC_GROUP)
    port = str(uuid.uuid4())
    server = scene.server(profile=profile, ports={port: profile})
    mapping = server.schedule(host.provider_name, host.root)
    requests = len(cyborg.cloud.nova.requests)
    bound = server("bind", hostname=host.provider_name)
    assert len(bound) == 2
    server("start_waiting")
    arqs = server("stop_waiting")["done"]
    assert {arq["state"] for arq in arqs} == {"Bound"}
    assert {arq["device_rp_uuid"] for arq in arqs} == {
        mapping["device_profile_0"][0],
        mapping[f"device_profile_0{port}"][0],
    }
    cyborg.cloud.nova.wait_for(server.uuid, 2)
    told = cyborg.cloud.nova.requests[requests].json()["events"]
    assert {event["tag"] for event in told} == set(bound)

    (found,) = server("port_profiles", arqs=arqs).values()
    server("delete_arqs", uuids=[found["arq_uuid"]])  # the port is detached
    (left,) = server("arqs", resolved=True)
    assert left["uuid"] in set(bound) - {found["arq_uuid"]}
    server("destroy")


def test_two_instances_keep_their_own(scene: Scene) -> None:
    cyborg = scene.cyborg
    profile = scene.profile(instance.FAKE_GROUP)
    servers = [scene.server(profile=profile) for _ in range(2)]
    bound = {}
    for server in servers:
        server.schedule(cyborg.provider_name, cyborg.root)
        (bound[server],) = server("bind", hostname=cyborg.provider_name)
    places = set()
    for server in servers:
        (arq,) = server("arqs", resolved=True)
        assert arq["uuid"] == bound[server]
        places.add(str(arq["attach_handle_info"]))
        events = cyborg.cloud.nova.wait_for(server.uuid, 1)
        assert {event["tag"] for event in events} == {bound[server]}
    assert len(places) == 2

    first, second = servers
    first("destroy")
    (arq,) = second("arqs", resolved=True)
    assert arq["state"] == "Bound"
    second("destroy")


@contextlib.contextmanager
def _failing(nova: NovaStandIn) -> Iterator[None]:
    nova.failure = 500
    try:
        yield
    finally:
        nova.failure = None


@contextlib.contextmanager
def _slow(nova: NovaStandIn) -> Iterator[None]:
    nova.pause = 3
    try:
        yield
    finally:
        nova.pause = 0


@pytest.mark.parametrize("trouble", [_failing, _slow, NovaStandIn.refusing])
def test_nova_hears_of_a_bind_even_if_it_was_not_well(
    scene: Scene,
    trouble: Callable[[NovaStandIn], contextlib.AbstractContextManager[None]],
) -> None:
    cyborg = scene.cyborg
    server = scene.server(profile=scene.profile(instance.FAKE_GROUP))
    server.schedule(cyborg.provider_name, cyborg.root)
    with trouble(cyborg.cloud.nova):
        (bound,) = server("bind", hostname=cyborg.provider_name)
        (arq,) = server("arqs", resolved=True)
        assert (arq["uuid"], arq["state"]) == (bound, "Bound")
    events = cyborg.cloud.nova.wait_for(server.uuid, 1)
    assert {(event["tag"], event["status"]) for event in events} == {
        (bound, "completed")
    }
    server("destroy")


def test_what_nova_cannot_take_yet_holds_up_nobody_else(scene: Scene) -> None:
    """One of two instances is on no host: 207, and a code for each."""
    cyborg = scene.cyborg
    nova = cyborg.cloud.nova
    profile = scene.profile(instance.FAKE_GROUP)
    early, other = (scene.server(profile=profile) for _ in range(2))
    nova.codes[early.uuid] = 422
    for server in (early, other):
        server.schedule(cyborg.provider_name, cyborg.root)
        server("bind", hostname=cyborg.provider_name)
    nova.wait_for(other.uuid, 1)
    assert nova.events_of(early.uuid) == []
    (arq,) = early("arqs", resolved=True)
    assert arq["state"] == "Bound"
    early("destroy")
    other("destroy")


def test_a_bind_that_is_refused_leaves_no_request(scene: Scene) -> None:
    """Nova's conductor cleans up what it made when we refuse the bind."""
    cyborg = scene.cyborg
    server = scene.server(profile=scene.profile(instance.FAKE_GROUP))
    server.schedule(cyborg.provider_name, cyborg.root)
    with pytest.raises(RefusedError, match="AcceleratorRequestBindingFailed"):
        server("bind", hostname=scene.network_host.provider_name)
    with pytest.raises(RefusedError, match="no accelerator requests"):
        server("arqs")
    server("destroy")


def test_deleting_requests_of_which_one_is_gone_deletes_the_others(
    scene: Scene,
) -> None:
    cyborg = scene.cyborg
    wanted = {**instance.FAKE_GROUP, "resources:FPGA": "3"}
    server = scene.server(profile=scene.profile(wanted))
    server.schedule(cyborg.provider_name, cyborg.root)
    first, second, third = server("bind", hostname=cyborg.provider_name)
    server("delete_arqs", uuids=[second])
    answer = cyborg.caller("demo-member", "nova").request(
        "DELETE", f"/v2/accelerator_requests?arqs={first},{second}"
    )
    assert answer.status_code == 404
    assert second in deployment.faultstring(answer)
    assert server("arq_uuids") == [third]
    server("delete_arqs", uuids=[second, third])
    with pytest.raises(RefusedError, match="no accelerator requests"):
        server("arqs")
    server("destroy")


def test_nova_refuses_a_profile_that_is_not_there(scene: Scene) -> None:
    with pytest.raises(RefusedError, match="Expected 1 device profile"):
        scene.server(profile="no-such-profile")

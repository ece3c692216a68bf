# SPDX-License-Identifier: Apache-2.0
"""The main job, from a discovered device to a handle given back.

Four processes of the console scripts and one cyborg.conf, on a real
database, broker, Keystone and Placement.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources


@pytest.fixture(scope="module", params=["mariadb", "postgresql"])
def either(
    request: pytest.FixtureRequest, deploy: deployment.Deploy
) -> Iterator[deployment.Deployment]:
    """Cyborg on each of the two databases."""
    made = deploy(request.param)
    made.start()
    made.wait_for_providers()
    yield made
    made.stop()


@pytest.fixture
def cyborg(
    either: deployment.Deployment,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> deployment.Deployment:
    return judged(either)


def test_a_discovered_device_is_a_provider_below_its_host(
    cyborg: deployment.Deployment,
) -> None:
    name = f"{cyborg.host}_FakeDevice"
    providers = cyborg.wait_for_providers()
    expected = str(uuid.uuid3(uuid.NAMESPACE_DNS, name))
    assert providers == {name: expected}
    placement = cyborg.cloud.placement
    assert placement.inventory(expected) == {
        "FPGA": {
            "total": 16,
            "max_unit": 16,
            "min_unit": 1,
            "step_size": 1,
            "allocation_ratio": 1.0,
            "reserved": 0,
        }
    }
    assert placement.traits(expected) == {
        "CUSTOM_FAKE_DEVICE",
        "OWNER_CYBORG",
    }


def test_a_device_is_listed_with_its_deployable(
    cyborg: deployment.Deployment,
) -> None:
    admin = cyborg.caller("admin")
    (device,) = admin.get("/v2/devices")["devices"]
    assert device["hostname"] == cyborg.provider_name
    assert device["type"] == "FPGA"
    assert device["status"] == "enabled"
    (deployable,) = admin.get("/v2/deployables")["deployables"]
    assert deployable["num_accelerators"] == 16
    assert deployable["rp_uuid"] in cyborg.providers().values()


def test_an_allocation_leads_to_a_bound_arq_and_one_event(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    server = instance.Instance(cyborg, profile)
    server.schedule()
    (arq,) = server.request()
    server.bind()

    (bound,) = server.poll()
    assert bound["uuid"] == arq
    assert bound["state"] == "Bound"
    assert bound["device_rp_uuid"] == server.providers[0]
    assert bound["device_rp_uuid"] in cyborg.providers().values()
    assert bound["instance_uuid"] == server.uuid
    assert bound["hostname"] == cyborg.provider_name
    assert bound["attach_handle_type"] == "TEST_PCI"
    assert set(bound["attach_handle_info"]) == {
        "domain",
        "bus",
        "device",
        "function",
    }
    assert cyborg.handles_in_use() == 1
    cyborg.cloud.nova.wait_for(server.uuid, 1)
    assert cyborg.cloud.nova.events_of(server.uuid) == [
        {
            "name": "accelerator-request-bound",
            "server_uuid": server.uuid,
            "tag": arq,
            "status": "completed",
        }
    ]

    server.delete()
    assert cyborg.handles_in_use() == 0
    server.nova.get(f"/v2/accelerator_requests/{arq}", 404)
    left = server.member.get("/v2/accelerator_requests")["arqs"]
    assert arq not in {one["uuid"] for one in left}
    assert len(cyborg.cloud.nova.events_of(server.uuid)) == 1


def test_a_profile_of_two_groups_binds_all_of_an_instance_at_once(
    cyborg: deployment.Deployment,
) -> None:
    pair = {**instance.FAKE_GROUP, "resources:FPGA": "2"}
    profile = cyborg.make_profile([instance.FAKE_GROUP, pair])
    server = instance.Instance(cyborg, profile)
    bound = server.boot()
    assert [arq["state"] for arq in bound] == ["Bound"] * 3
    assert len({arq["attach_handle_uuid"] for arq in bound}) == 3
    groups = [arq["device_profile_group_id"] for arq in server.arqs]
    assert groups == [0, 1, 1]
    cyborg.cloud.nova.wait_for(server.uuid, 3)
    tags = {e["tag"] for e in cyborg.cloud.nova.events_of(server.uuid)}
    assert tags == set(server.arq_uuids)
    server.delete()
    assert cyborg.handles_in_use() == 0


def test_repeating_a_bind_is_taken_and_tells_nova_again(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    server = instance.Instance(cyborg, profile)
    server.boot()
    cyborg.cloud.nova.wait_for(server.uuid, 1)
    server.bind()
    cyborg.cloud.nova.wait_for(server.uuid, 2)
    assert cyborg.handles_in_use() == 1
    server.delete()


def test_a_disabled_device_reserves_all_of_its_inventory(
    cyborg: deployment.Deployment,
) -> None:
    admin = cyborg.caller("admin")
    (device,) = admin.get("/v2/devices")["devices"]
    (provider,) = cyborg.providers().values()
    placement = cyborg.cloud.placement

    def reserved() -> int:
        return int(placement.inventory(provider)["FPGA"]["reserved"])

    admin.post(f"/v2/devices/{device['uuid']}/disable", status=204)
    resources.wait_until(lambda: reserved() == 16, 5, "all is reserved")
    assert placement.candidates([instance.FAKE_GROUP], cyborg.root) == []
    admin.post(f"/v2/devices/{device['uuid']}/enable", status=204)
    resources.wait_until(lambda: reserved() == 0, 5, "nothing is reserved")


def test_an_unbound_arq_gives_its_handle_back(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    server = instance.Instance(cyborg, profile)
    server.boot()
    unbind = {
        arq: [
            {"path": f"/{field}", "op": "remove"}
            for field in ("hostname", "device_rp_uuid", "instance_uuid")
        ]
        for arq in server.arq_uuids
    }
    server.nova.patch("/v2/accelerator_requests", unbind)
    assert cyborg.handles_in_use() == 0
    (arq,) = server.arq_uuids
    shown = server.nova.get(f"/v2/accelerator_requests/{arq}")
    assert shown["state"] == "Unbound"
    assert shown["attach_handle_info"] == {}
    server.bind()
    assert cyborg.handles_in_use() == 1
    server.delete()


def test_no_process_printed_a_traceback(
    cyborg: deployment.Deployment,
) -> None:
    """Last on purpose: it judges what the tests above left in the logs."""
    assert cyborg.tracebacks() == {}

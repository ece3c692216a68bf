# SPDX-License-Identifier: Apache-2.0
"""Placement or Nova away for a while: what is owed is made good."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures

import pytest
import sqlalchemy as sa

from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources

RECOVERY = 2 * deployment.PERIOD + 8
"""Two periods, and what a slow machine takes for the calls."""


@pytest.fixture
def no_placement(cyborg: deployment.Deployment) -> Iterator[None]:
    cyborg.cloud.placement.stop()
    yield
    _placement_is_back(cyborg)


def _placement_is_back(cyborg: deployment.Deployment) -> None:
    placement = cyborg.cloud.placement
    if not placement.running:
        placement.start()
        placement.wait()


def test_a_device_disabled_while_placement_is_away_is_reserved_later(
    cyborg: deployment.Deployment, no_placement: None
) -> None:
    admin = cyborg.caller("admin")
    (device,) = admin.get("/v2/devices")["devices"]
    admin.post(f"/v2/devices/{device['uuid']}/disable", status=204)
    shown = admin.get(f"/v2/devices/{device['uuid']}")
    assert shown["status"] == "maintaining"

    _placement_is_back(cyborg)
    (provider,) = cyborg.providers().values()

    def reserved() -> int:
        inventory = cyborg.cloud.placement.inventory(provider)
        return int(inventory["FPGA"]["reserved"])

    resources.wait_until(lambda: reserved() == 16, RECOVERY, "reserved")
    admin.post(f"/v2/devices/{device['uuid']}/enable", status=204)
    resources.wait_until(lambda: reserved() == 0, RECOVERY, "given back")


def test_binding_needs_no_placement(
    cyborg: deployment.Deployment, no_placement: None
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    _placement_is_back(cyborg)
    server = instance.Instance(cyborg, profile)
    server.schedule()
    cyborg.cloud.placement.stop()
    server.request()
    server.bind()
    (arq,) = server.poll()
    assert arq["state"] == "Bound"
    _placement_is_back(cyborg)
    server.delete()
    assert cyborg.handles_in_use() == 0


def test_a_bind_holds_while_nova_is_away_and_nova_hears_of_it_later(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    server = instance.Instance(cyborg, profile)
    with cyborg.cloud.nova.away():
        server.boot()
        (arq,) = server.poll()
        assert arq["state"] == "Bound"
        assert cyborg.cloud.nova.events_of(server.uuid) == []
    cyborg.cloud.nova.wait_for(server.uuid, 1, 30)
    (event,) = cyborg.cloud.nova.events_of(server.uuid)
    assert event["status"] == "completed"
    assert event["tag"] == arq["uuid"]
    server.delete()


def _cut_connections(cyborg: deployment.Deployment) -> int:
    """Close every connection to the deployment's database; how many."""
    url = sa.make_url(cyborg.database)
    engine = sa.create_engine(
        url.set(database="information_schema"),
        isolation_level="AUTOCOMMIT",
        poolclass=sa.pool.NullPool,
    )
    with engine.connect() as connection:
        found = connection.execute(
            sa.text("SELECT id FROM processlist WHERE db = :name"),
            {"name": url.database},
        ).scalars()
        cut = 0
        for number in found.all():
            with contextlib.suppress(sa.exc.DBAPIError):
                connection.exec_driver_sql(f"KILL {int(number)}")
                cut += 1
    return cut


def test_a_cut_database_connection_costs_no_answer(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    (provider,) = cyborg.providers().values()
    over = threading.Event()

    def client() -> int:
        lives = 0
        while not over.is_set():
            server = instance.Instance(cyborg, profile)
            server.providers = {0: provider}
            server.request()
            server.bind()
            (arq,) = server.poll()
            assert arq["state"] == "Bound"
            server.nova.delete(
                f"/v2/accelerator_requests?instance={server.uuid}"
            )
            lives += 1
        return lives

    with futures.ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(client) for _ in range(3)]
        try:
            cut = 0
            for _ in range(10):
                over.wait(0.3)
                cut += _cut_connections(cyborg)
        finally:
            over.set()
        assert all(one.result(60) for one in clients)
    assert cut
    assert cyborg.handles_in_use() == 0


def test_without_keystone_a_new_token_gets_503_in_json(
    cyborg: deployment.Deployment,
) -> None:
    keystone = cyborg.cloud.keystone
    token = keystone.new_token("admin")
    with keystone.away():
        answer = cyborg.caller(None).request(
            "GET", "/v2/devices", headers={"X-Auth-Token": token}
        )
    assert answer.status_code == 503
    assert deployment.faultstring(answer)
    answer = cyborg.caller(None).request(
        "GET", "/v2/devices", headers={"X-Auth-Token": token}
    )
    assert answer.status_code == 200


def test_a_conductor_told_to_stop_finishes_what_it_has_begun(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    (provider,) = cyborg.providers().values()
    cyborg.start_conductor("conductor-2")
    over = threading.Event()

    def client() -> int:
        lives = 0
        while not over.is_set():
            server = instance.Instance(cyborg, profile)
            server.providers = {0: provider}
            server.request()
            server.bind()
            server.poll()
            server.nova.delete(
                f"/v2/accelerator_requests?instance={server.uuid}"
            )
            lives += 1
        return lives

    with futures.ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(client) for _ in range(3)]
        try:
            over.wait(0.5)
            status = cyborg.processes["conductor-2"].stop()
            over.wait(0.5)
        finally:
            over.set()
        assert all(one.result(60) for one in clients)
    assert status == 0
    assert cyborg.handles_in_use() == 0


def test_devices_appear_in_placement_once_nova_made_the_host(
    deploy: deployment.Deploy,
    running_cyborg: deployment.Deployment,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> None:
    running_cyborg.stop()
    late = judged(deploy(root=False))
    late.start()
    admin = late.caller("admin")
    resources.wait_until(
        lambda: admin.get("/v2/devices")["devices"], 15, "a listed device"
    )
    late.root = late.cloud.placement.make_root(late.provider_name)
    late.wait_for_providers(1, 30)
    late.stop()


def test_a_device_that_is_unplugged_leaves_placement(
    deploy: deployment.Deploy,
    running_cyborg: deployment.Deployment,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> None:
    running_cyborg.stop()
    folder = running_cyborg.folder
    inventory = folder / "devices.yaml"
    devices = [
        {
            "address": f"0000:{bus:02x}:00.0",
            "type": "GPU",
            "vendor": "10de",
            "model": "test card",
            "resource_class": "PGPU",
            "traits": ["CUSTOM_TEST_CARD"],
            "accelerators": 1,
        }
        for bus in (0x10, 0x11)
    ]
    # YAML reads JSON.
    inventory.write_text(json.dumps(devices))
    lab = judged(deploy(fake={"inventory_file": inventory}))
    lab.start()
    lab.wait_for_providers(2)
    inventory.write_text(json.dumps(devices[:1]))
    lab.wait_for_providers(1, RECOVERY)
    inventory.write_text(json.dumps(devices))
    lab.wait_for_providers(2, RECOVERY)
    lab.stop()

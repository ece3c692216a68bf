# SPDX-License-Identifier: Apache-2.0
"""Many at once: two API processes, two conductors, one 16-unit device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest

from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources

UNITS = 16


@pytest.fixture(scope="module")
def doubled(deploy: deployment.Deploy) -> tuple[deployment.Deployment, int]:
    """Two APIs and two conductors; the second API's port."""
    made = deploy()
    # Else one conductor's pass tells Nova of what the other, on a busy
    # machine, is about to tell.
    text = made.configuration.read_text()
    for option in ("periodic_interval", "reconcile_interval"):
        assert f"{option} = {deployment.PERIOD}" in text
        text = text.replace(
            f"{option} = {deployment.PERIOD}", f"{option} = 60"
        )
    made.configuration.write_text(text)
    second = resources.free_port()
    made.start()
    made.start_conductor("conductor-2")
    made.start_api("api-2", second)
    made.wait_for_providers()
    return made, second


def _at_once(
    calls: list[Callable[[], Any]],
) -> list[Any]:
    with futures.ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(call) for call in calls]
        return [one.result(120) for one in running]


def _servers(
    cyborg: deployment.Deployment, second: int, count: int
) -> list[instance.Instance]:
    """Instances with an ARQ each, to be bound on the one provider; every
    other one talks to the second API."""
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    (provider,) = cyborg.providers().values()
    servers = [
        instance.Instance(cyborg, profile, (cyborg.port, second)[number % 2])
        for number in range(count)
    ]
    for server in servers:
        server.request()
        server.providers = {0: provider}
    return servers


def test_sixteen_binds_at_once_get_sixteen_handles_and_the_next_none(
    doubled: tuple[deployment.Deployment, int],
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> None:
    cyborg, second = doubled
    judged(cyborg)
    servers = _servers(cyborg, second, UNITS + 1)
    *first, late = servers

    _at_once([server.bind for server in first])

    (bound,) = zip(*(server.poll() for server in first), strict=True)
    assert {arq["state"] for arq in bound} == {"Bound"}
    assert len({arq["attach_handle_uuid"] for arq in bound}) == UNITS
    places = {str(arq["attach_handle_info"]) for arq in bound}
    assert len(places) == UNITS
    assert cyborg.handles_in_use() == UNITS

    late.bind(409)
    (arq,) = late.arq_uuids
    shown = late.nova.get(f"/v2/accelerator_requests/{arq}")
    assert shown["state"] == "Initial"
    assert shown["instance_uuid"] is None

    _at_once([server.delete for server in servers])
    assert cyborg.handles_in_use() == 0
    for server in first:
        assert len(cyborg.cloud.nova.events_of(server.uuid)) <= 1


def test_more_binds_at_once_than_units_share_them_without_loss(
    doubled: tuple[deployment.Deployment, int],
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> None:
    cyborg, second = doubled
    judged(cyborg)
    servers = _servers(cyborg, second, UNITS + 4)

    def bind(server: instance.Instance) -> int:
        return server.nova.request(
            "PATCH", "/v2/accelerator_requests", server.patch()
        ).status_code

    statuses = _at_once([lambda s=server: bind(s) for server in servers])
    assert sorted(statuses) == [202] * UNITS + [409] * 4
    assert cyborg.handles_in_use() == UNITS
    _at_once([server.delete for server in servers])
    assert cyborg.handles_in_use() == 0


def test_one_arq_bound_by_two_at_once_is_bound_for_one_of_them(
    doubled: tuple[deployment.Deployment, int],
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> None:
    cyborg, second = doubled
    judged(cyborg)
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    here = instance.Instance(cyborg, profile)
    there = instance.Instance(cyborg, profile, second)
    here.request()
    there.arqs = here.arqs
    here.providers = there.providers = dict.fromkeys(
        [0], next(iter(cyborg.providers().values()))
    )

    def bind(server: instance.Instance) -> int:
        return server.nova.request(
            "PATCH", "/v2/accelerator_requests", server.patch()
        ).status_code

    statuses = _at_once([lambda: bind(here), lambda: bind(there)])
    assert sorted(statuses) == [202, 409]
    assert cyborg.handles_in_use() == 1
    here.delete()
    there.delete()
    assert cyborg.handles_in_use() == 0

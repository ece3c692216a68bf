# SPDX-License-Identifier: Apache-2.0
"""A request can be followed by its id wherever it leads, and listeners
hear what became of it.
"""

from __future__ import annotations

import json
import queue
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oslo_messaging
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources

SAMPLES = Path(__file__).parents[2] / "doc" / "notification_samples"
SECONDS = 40
ID = "X-OpenStack-Request-ID"


class Listener:
    """Takes the notifications that come to the broker."""

    def __init__(self) -> None:
        self.came: queue.Queue[tuple[str, str, str, str, Any]] = queue.Queue()
        self.wrong: list[str] = []
        """How any of them is not as its sample says."""

    def info(
        self,
        context: dict[str, Any],
        publisher_id: str,
        event_type: str,
        payload: dict[str, Any],
        _metadata: object,
    ) -> None:
        self._take("info", context, publisher_id, event_type, payload)

    def error(
        self,
        context: dict[str, Any],
        publisher_id: str,
        event_type: str,
        payload: dict[str, Any],
        _metadata: object,
    ) -> None:
        self._take("error", context, publisher_id, event_type, payload)

    def _take(
        self,
        priority: str,
        context: dict[str, Any],
        publisher_id: str,
        event_type: str,
        payload: dict[str, Any],
    ) -> None:
        assert "auth_token" not in context
        if wrong := _unlike_sample(priority, event_type, payload):
            self.wrong.append(wrong)
        self.came.put(
            (
                priority,
                publisher_id,
                event_type,
                str(context.get("request_id")),
                payload["cyborg_object.data"],
            )
        )

    def wait_for(self, event_type: str, uuid_: str) -> tuple[str, str, Any]:
        """Priority, request id and data of the next one of that thing."""
        while True:
            priority, _, kind, request, data = self.came.get(timeout=SECONDS)
            if (kind, data["uuid"]) == (event_type, uuid_):
                return priority, request, data


def _unlike_sample(priority: str, event_type: str, payload: Any) -> str:
    """What a reader of the event's sample would not find; else nothing."""
    file = SAMPLES / f"{event_type}.json"
    if not file.exists():
        return f"{event_type} has no sample"
    sample = json.loads(file.read_text())
    if (priority, _shape(payload)) == (
        sample["priority"].lower(),
        _shape(sample["payload"]),
    ):
        return ""
    return f"{priority} {event_type}: {payload}"


def _shape(payload: dict[str, Any]) -> dict[str, Any]:
    """The names and the version, with the fields' values left out."""
    fields = payload["cyborg_object.data"]
    return {**payload, "cyborg_object.data": sorted(fields)}


@pytest.fixture(scope="module")
def told_cyborg(deploy: deployment.Deploy) -> deployment.Deployment:
    made = deploy(fake={"devices": 1, "accelerators_per_device": 4})
    text = made.configuration.read_text()
    for option, other in (
        ("driver = noop", "driver = messagingv2"),
        # A pass that was there first would do the work under its own id.
        ("reconcile_interval = 2", "reconcile_interval = 600"),
    ):
        assert option in text
        text = text.replace(option, other)
    made.configuration.write_text(text)
    made.start()
    made.wait_for_providers()
    return made


@pytest.fixture
def listener(
    conf: cfg.ConfigOpts, told_cyborg: deployment.Deployment
) -> Iterator[Listener]:
    conf.set_override("transport_url", told_cyborg.vhost.url)
    transport = oslo_messaging.get_notification_transport(conf)
    endpoint = Listener()
    server = oslo_messaging.get_notification_listener(
        transport,
        [oslo_messaging.Target(topic="notifications")],
        [endpoint],
        executor="threading",
    )
    server.start()
    yield endpoint
    server.stop()
    server.wait()
    transport.cleanup()
    assert endpoint.wrong == []


def _new_id() -> str:
    return f"req-{uuid.uuid4()}"


def test_listeners_hear_of_each_step_with_the_id_of_the_request(
    told_cyborg: deployment.Deployment, listener: Listener
) -> None:
    profile = told_cyborg.make_profile([instance.FAKE_GROUP])
    one = instance.Instance(told_cyborg, profile)
    one.schedule()
    (arq,) = one.request()
    _, _, data = listener.wait_for("accelerator_request.create.end", arq)
    assert data["device_profile_name"] == profile
    answer = one.nova.request(
        "PATCH", "/v2/accelerator_requests", one.patch(), version=None
    )
    assert answer.status_code == 202, answer.text
    priority, request, data = listener.wait_for(
        "accelerator_request.bind.end", arq
    )
    assert (priority, request) == ("info", answer.headers[ID])
    assert data["instance_uuid"] == one.uuid
    assert data["hostname"] == told_cyborg.provider_name
    assert data["project_id"] == told_cyborg.cloud.keystone.projects["demo"]
    answer = one.nova.request(
        "DELETE", f"/v2/accelerator_requests?instance={one.uuid}"
    )
    _, request, data = listener.wait_for("accelerator_request.delete.end", arq)
    assert request == answer.headers[ID]
    assert data["instance_uuid"] == one.uuid
    told_cyborg.cloud.placement.release(one.uuid)


def test_nova_is_told_under_the_id_that_it_sent(
    told_cyborg: deployment.Deployment,
) -> None:
    profile = told_cyborg.make_profile([instance.FAKE_GROUP])
    one = instance.Instance(told_cyborg, profile)
    one.schedule()
    one.request()
    sent = _new_id()
    one.nova.request(
        "PATCH",
        "/v2/accelerator_requests",
        one.patch(),
        version=None,
        headers={ID: sent},
    )
    nova = told_cyborg.cloud.nova
    nova.wait_for(one.uuid, 1, SECONDS)
    (event,) = (
        request
        for request in nova.requests
        if one.uuid.encode() in request.body
    )
    headers = {key.lower(): value for key, value in event.headers.items()}
    assert headers[ID.lower()] == sent
    one.nova.delete(f"/v2/accelerator_requests?instance={one.uuid}")
    told_cyborg.cloud.placement.release(one.uuid)


def _owed(made: deployment.Deployment) -> int:
    engine = sa.create_engine(made.database, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        return int(
            connection.execute(
                sa.text(
                    "SELECT count(*) FROM hosts"
                    " WHERE revision <> synced_revision"
                )
            ).scalar_one()
        )


def test_placement_and_the_agent_log_the_id_of_who_asked(
    told_cyborg: deployment.Deployment, listener: Listener
) -> None:
    admin = told_cyborg.caller("admin")
    (device,) = admin.get("/v2/devices")["devices"]
    sent = {"disable": _new_id(), "enable": _new_id(), "program": _new_id()}
    for action in ("disable", "enable"):
        answer = admin.request(
            "POST",
            f"/v2/devices/{device['uuid']}/{action}",
            headers={ID: sent[action]},
        )
        assert answer.status_code == 204, answer.text
        _, _, data = listener.wait_for("device.update.end", device["uuid"])
        assert data["status"] == (
            "maintaining" if action == "disable" else "enabled"
        )
        log = told_cyborg.cloud.placement.log
        resources.wait_until(
            lambda action=action: sent[action] in log.read_text(),
            SECONDS,
            f"Placement logs the id of {action}",
        )
        # Else the same work brings the next change too, under its own id.
        resources.wait_until(
            lambda: _owed(told_cyborg) == 0, SECONDS, "nothing is owed"
        )
    image = told_cyborg.cloud.glance.add(b"a bitstream")
    (deployable,) = admin.get("/v2/deployables")["deployables"]
    answer = admin.request(
        "PATCH",
        f"/v2/deployables/{deployable['uuid']}/program",
        [
            {
                "path": "/program",
                "op": "replace",
                "value": [{"image_uuid": image}],
            }
        ],
        headers={ID: sent["program"]},
    )
    assert answer.status_code == 200, answer.text
    log = told_cyborg.processes["agent"].output
    resources.wait_until(
        lambda: any(
            sent["program"] in line and ": done" in line
            for line in log.read_text().splitlines()
        ),
        SECONDS,
        "the agent logs the id of who had it program",
    )
    # Glance, too, is asked under that id, by the agent.
    asked = [
        {key.lower(): value for key, value in request.headers.items()}
        for request in told_cyborg.cloud.glance.requests
        if image in request.path
    ]
    assert asked
    assert {headers[ID.lower()] for headers in asked} == {sent["program"]}

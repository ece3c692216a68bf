# SPDX-License-Identifier: Apache-2.0
"""Who may do what, with tokens of a real Keystone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.integration import deployment
from tests.integration import instance

PEOPLE = (
    "admin",
    "demo-manager",
    "demo-member",
    "demo-reader",
    "demo-nobody",
    "plain-service",
)

# One column a person of PEOPLE, in order.
TABLE: tuple[tuple[str, str, object, tuple[int, ...]], ...] = (
    ("GET", "/v2/device_profiles", None, (200, 200, 200, 200, 403, 403)),
    ("POST", "/v2/device_profiles", [], (400, 403, 403, 403, 403, 403)),
    ("GET", "/v2/devices", None, (200, 200, 403, 403, 403, 403)),
    ("GET", "/v2/deployables", None, (200, 200, 403, 403, 403, 403)),
    ("GET", "/v2/attributes", None, (200, 200, 403, 403, 403, 403)),
    ("GET", "/v2/accelerator_requests", None, (200,) * 4 + (403, 200)),
    (
        "POST",
        "/v2/accelerator_requests",
        {"device_profile_name": "absent"},
        (404, 404, 404, 403, 403, 404),
    ),
)


@pytest.fixture
def server(cyborg: deployment.Deployment) -> Iterator[instance.Instance]:
    """A running instance of the demo project."""
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    server = instance.Instance(cyborg, profile)
    server.boot()
    yield server
    server.delete()


@pytest.mark.parametrize(("method", "path", "body", "statuses"), TABLE)
def test_each_persona_may_do_what_the_policy_says(
    cyborg: deployment.Deployment,
    method: str,
    path: str,
    body: object,
    statuses: tuple[int, ...],
) -> None:
    seen = tuple(
        cyborg.caller(person).request(method, path, body).status_code
        for person in PEOPLE
    )
    assert dict(zip(PEOPLE, seen, strict=True)) == dict(
        zip(PEOPLE, statuses, strict=True)
    )


@pytest.mark.parametrize("token", [None, "not-a-token"])
def test_without_a_good_token_the_answer_is_401_in_json(
    cyborg: deployment.Deployment, token: str | None
) -> None:
    headers = {} if token is None else {"X-Auth-Token": token}
    answer = cyborg.caller(None).request("GET", "/v2/devices", headers=headers)
    assert answer.status_code == 401
    assert (
        cyborg.cloud.keystone.auth_url.removesuffix("/v3")
        in (answer.headers["WWW-Authenticate"])
    )
    assert answer.headers["Content-Type"].startswith("application/json")
    assert deployment.faultstring(answer)
    assert answer.headers["x-openstack-request-id"].startswith("req-")


@pytest.mark.parametrize("path", ["/", "/v2", "/v2/", "/healthcheck"])
def test_the_roots_need_no_token(
    cyborg: deployment.Deployment, path: str
) -> None:
    assert cyborg.caller(None).request("GET", path).status_code == 200


def test_a_service_token_without_the_role_is_no_token_at_all(
    cyborg: deployment.Deployment, server: instance.Instance
) -> None:
    pretender = cyborg.caller("demo-member", "demo-reader")
    path = "/v2/accelerator_requests"
    pretender.patch(path, server.patch(), 401)
    pretender.delete(f"{path}?instance={server.uuid}", 401)
    (bound,) = server.poll()
    assert bound["state"] == "Bound"


def test_binding_and_unbinding_need_a_service_token(
    cyborg: deployment.Deployment, server: instance.Instance
) -> None:
    tenant = cyborg.caller("demo-member")
    unbind = {
        arq: [
            {"path": f"/{field}", "op": "remove"}
            for field in ("hostname", "device_rp_uuid", "instance_uuid")
        ]
        for arq in server.arq_uuids
    }
    (arq,) = server.arq_uuids
    attempts = (
        ("PATCH", "/v2/accelerator_requests", server.patch()),
        ("PATCH", "/v2/accelerator_requests", unbind),
        ("DELETE", f"/v2/accelerator_requests?arqs={arq}", None),
        (
            "DELETE",
            f"/v2/accelerator_requests?instance={server.uuid}",
            None,
        ),
    )
    for method, path, body in attempts:
        answer = tenant.request(method, path, body)
        assert answer.status_code == 403, (method, path, answer.text)
        assert "requires a service token" in deployment.faultstring(answer)
    (bound,) = server.poll()
    assert bound["state"] == "Bound"


def test_another_project_finds_nothing_by_any_path(
    cyborg: deployment.Deployment, server: instance.Instance
) -> None:
    other = cyborg.caller("other-member", "nova")
    (arq,) = server.arq_uuids
    assert other.get("/v2/accelerator_requests")["arqs"] == []
    other.get(f"/v2/accelerator_requests/{arq}", 404)
    other.delete(f"/v2/accelerator_requests?arqs={arq}", 404)
    other.delete(f"/v2/accelerator_requests/{arq}", 404)
    other.patch("/v2/accelerator_requests", server.patch(), 404)
    other.delete(f"/v2/accelerator_requests?instance={server.uuid}", 204)
    (bound,) = server.poll()
    assert bound["state"] == "Bound"


def test_a_free_arq_may_be_deleted_by_its_own_member(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    server = instance.Instance(cyborg, profile)
    (arq,) = server.request()
    cyborg.caller("demo-reader").delete(
        f"/v2/accelerator_requests?arqs={arq}", 403
    )
    server.member.delete(f"/v2/accelerator_requests?arqs={arq}")
    server.member.delete(f"/v2/accelerator_requests?arqs={arq}", 404)


def test_a_project_may_be_named_in_a_bind_from_microversion_2_1(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    server = instance.Instance(cyborg, profile)
    server.schedule()
    (arq,) = server.request()
    project = cyborg.cloud.keystone.projects["demo"]
    body = server.patch()
    body[arq].append({"path": "/project_id", "op": "add", "value": project})
    path = "/v2/accelerator_requests"
    old = server.nova.request("PATCH", path, body, "2.0")
    assert old.status_code == 400
    new = server.nova.request("PATCH", path, body, "2.1")
    assert new.status_code == 202
    assert new.content == b""
    assert server.poll()[0]["project_id"] == project
    server.delete()


def test_an_instance_has_its_arqs_bound_once(
    cyborg: deployment.Deployment, server: instance.Instance
) -> None:
    second = instance.Instance(cyborg, server.profile)
    second.uuid = server.uuid
    second.providers = server.providers
    (arq,) = second.request()
    second.bind(409)
    second.member.delete(f"/v2/accelerator_requests?arqs={arq}")


def test_an_unknown_provider_is_404_and_changes_nothing(
    cyborg: deployment.Deployment,
) -> None:
    profile = cyborg.make_profile([instance.FAKE_GROUP])
    server = instance.Instance(cyborg, profile)
    (arq,) = server.request()
    server.providers = {0: str(uuid.uuid4())}
    server.bind(404)
    shown = server.member.get(f"/v2/accelerator_requests/{arq}")
    assert shown["state"] == "Initial"
    server.member.delete(f"/v2/accelerator_requests?arqs={arq}")

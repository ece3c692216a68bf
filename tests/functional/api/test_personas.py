# SPDX-License-Identifier: Apache-2.0
"""Who may do what: one table of endpoints by personas."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.api import app
from tests.functional.api import lab as lab_module
from tests.functional.api.lab import Lab

WHO = (
    *(None, "no-role", "reader", "member", "manager", "admin", "service"),
    *("other", "system"),
)

Request = tuple[str, str, Any]
Prepare = Callable[[Lab], Request]


@dataclasses.dataclass(frozen=True)
class Row:
    """An endpoint, and its answer to each of `WHO`."""

    name: str
    endpoint: tuple[str, str]
    prepare: Prepare
    expected: tuple[int, ...]
    service_token: str | None = None


def plain(method: str, path: str, body: Any = None) -> Prepare:
    return lambda _lab: (method, path, body)


def first(lab: Lab, collection: str) -> str:
    listed = lab.call("GET", f"/v2/{collection}").json[collection]
    return f"/v2/{collection}/{listed[0]['uuid']}"


def shown(collection: str) -> Prepare:
    return lambda lab: ("GET", first(lab, collection), None)


def profile_name() -> str:
    return f"dp-{uuid.uuid4().hex[:8]}"


def profile_by(key: str, method: str = "GET", query: bool = False) -> Prepare:
    def prepare(lab: Lab) -> Request:
        made = lab.create_profile(profile_name())[key]
        joint = "?value=" if query else "/"
        return method, f"/v2/device_profiles{joint}{made}", None

    return prepare


def arq(method: str, joint: str = "/") -> Prepare:
    return lambda lab: (
        method,
        f"/v2/accelerator_requests{joint}{lab.create_arqs()[0]}",
        None,
    )


def bind(at_uuid: bool = False) -> Prepare:
    def prepare(lab: Lab) -> Request:
        free(lab)
        one = lab.create_arqs()[0]
        path = "/v2/accelerator_requests" + (f"/{one}" if at_uuid else "")
        body = {one: lab_module.binding(str(uuid.uuid4()))}
        return "PATCH", path, body

    return prepare


def unbind(lab: Lab) -> Request:
    free(lab)
    one, _ = lab.bound()
    return "PATCH", "/v2/accelerator_requests", {one: lab_module.UNBINDING}


def delete_bound(lab: Lab) -> Request:
    free(lab)
    return "DELETE", f"/v2/accelerator_requests/{lab.bound()[0]}", None


def delete_instance(lab: Lab) -> Request:
    free(lab)
    return (
        "DELETE",
        f"/v2/accelerator_requests?instance={lab.bound()[1]}",
        None,
    )


def free(lab: Lab) -> None:
    """Nothing of an earlier case holds an accelerator."""
    listed = lab.call("GET", "/v2/accelerator_requests").json["arqs"]
    uuids = ",".join(one["uuid"] for one in listed)
    if uuids:
        lab.call(
            "DELETE",
            f"/v2/accelerator_requests?arqs={uuids}",
            service_token="nova",
        )


def attribute(lab: Lab) -> Request:
    made = lab.call(
        "POST",
        "/v2/attributes",
        {"deployable_id": 1, "key": "note", "value": uuid.uuid4().hex},
    )
    return "DELETE", f"/v2/attributes/{made.json['uuid']}", None


def everybody(status: int) -> tuple[int, ...]:
    return (status,) * len(WHO)


def only_admin(status: int) -> tuple[int, ...]:
    return 401, 403, 403, 403, 403, status, 403, 403, 403


PROGRAM = [
    {
        "path": "/program",
        "op": "replace",
        "value": [{"image_uuid": lab_module.IMAGE}],
    }
]

READERS = (401, 403, 200, 200, 200, 200, 403, 200, 403)
MANAGERS = (401, 403, 403, 403, 200, 200, 403, 403, 403)
ARQ_LIST = (401, 403, 200, 200, 200, 200, 200, 200, 403)
ARQ_SHOW = (401, 403, 200, 200, 200, 200, 200, 404, 403)
ARQ_CREATE = (401, 403, 403, 201, 201, 201, 201, 201, 403)
ARQ_CHANGE = (401, 403, 403, 202, 202, 202, 202, 404, 403)
ARQ_DELETE = (401, 403, 403, 204, 204, 204, 204, 404, 403)
ARQ_INSTANCE = (401, 403, 403, 204, 204, 204, 204, 204, 403)
ARQ_BOUND = (401, 403, 403, 403, 403, 403, 403, 404, 403)
NOBODY = (401, 403, 403, 403, 403, 403, 403, 403, 403)

PROFILES = "/v2/device_profiles"
ARQS = "/v2/accelerator_requests"

TABLE = [
    Row("root", ("GET", "/"), plain("GET", "/"), everybody(200)),
    Row("version", ("GET", "/v2"), plain("GET", "/v2"), everybody(200)),
    Row(
        "description",
        ("GET", "/v2/openapi.json"),
        plain("GET", "/v2/openapi.json"),
        everybody(200),
    ),
    Row("profiles", ("GET", PROFILES), plain("GET", PROFILES), READERS),
    Row("profile", ("GET", PROFILES + "/{uuid}"), profile_by("uuid"), READERS),
    Row(
        "profile by name",
        ("GET", PROFILES + "/{name}"),
        profile_by("name"),
        READERS,
    ),
    Row(
        "create profile",
        ("POST", PROFILES),
        lambda _lab: (
            "POST",
            PROFILES,
            [{"name": profile_name(), "groups": [{"resources:FPGA": "1"}]}],
        ),
        only_admin(201),
    ),
    Row(
        "delete profile",
        ("DELETE", PROFILES + "/{name}"),
        profile_by("uuid", "DELETE"),
        only_admin(204),
    ),
    Row(
        "delete profiles",
        ("DELETE", PROFILES),
        profile_by("name", "DELETE", query=True),
        only_admin(204),
    ),
    Row("arqs", ("GET", ARQS), plain("GET", ARQS), ARQ_LIST),
    Row("arq", ("GET", ARQS + "/{uuid}"), arq("GET"), ARQ_SHOW),
    Row(
        "create arqs",
        ("POST", ARQS),
        plain("POST", ARQS, {"device_profile_name": "dp-one"}),
        ARQ_CREATE,
    ),
    Row("bind", ("PATCH", ARQS), bind(), ARQ_CHANGE, "nova"),
    Row(
        "bind at its uuid",
        ("PATCH", ARQS + "/{uuid}"),
        bind(at_uuid=True),
        ARQ_CHANGE,
        "nova",
    ),
    Row("unbind", ("PATCH", ARQS), unbind, ARQ_CHANGE, "nova"),
    Row("bind without a service token", ("PATCH", ARQS), bind(), NOBODY),
    Row(
        "bind with a service token of another role",
        ("PATCH", ARQS),
        bind(),
        NOBODY,
        "stranger",
    ),
    Row("unbind without a service token", ("PATCH", ARQS), unbind, NOBODY),
    Row("delete arq", ("DELETE", ARQS + "/{uuid}"), arq("DELETE"), ARQ_DELETE),
    Row("delete arqs", ("DELETE", ARQS), arq("DELETE", "?arqs="), ARQ_DELETE),
    Row(
        "delete a bound arq",
        ("DELETE", ARQS + "/{uuid}"),
        delete_bound,
        ARQ_DELETE,
        "nova",
    ),
    Row(
        "delete a bound arq without a service token",
        ("DELETE", ARQS + "/{uuid}"),
        delete_bound,
        ARQ_BOUND,
    ),
    Row(
        "delete an instance's arqs",
        ("DELETE", ARQS),
        delete_instance,
        ARQ_INSTANCE,
        "nova",
    ),
    Row(
        "delete an instance's arqs without a service token",
        ("DELETE", ARQS),
        delete_instance,
        NOBODY,
    ),
    *(
        Row(
            collection,
            ("GET", f"/v2/{collection}"),
            plain("GET", f"/v2/{collection}"),
            MANAGERS,
        )
        for collection in ("devices", "deployables", "attributes")
    ),
    *(
        Row(
            f"one of {collection}",
            ("GET", f"/v2/{collection}" + "/{uuid}"),
            shown(collection),
            MANAGERS,
        )
        for collection in ("devices", "deployables", "attributes")
    ),
    *(
        Row(
            action,
            ("POST", "/v2/devices/{uuid}/" + action),
            lambda lab, action=action: (
                "POST",
                f"{first(lab, 'devices')}/{action}",
                None,
            ),
            only_admin(204),
        )
        for action in ("disable", "enable")
    ),
    Row(
        "program",
        ("PATCH", "/v2/deployables/{uuid}/program"),
        plain("PATCH", f"/v2/deployables/{uuid.uuid4()}/program", PROGRAM),
        only_admin(404),
    ),
    Row(
        "program, as openstacksdk asks",
        ("PATCH", "/v2/deployables/{uuid}/program/{uuid}"),
        plain(
            "PATCH",
            "/v2/deployables/{0}/program/{0}".format(uuid.uuid4()),
            PROGRAM,
        ),
        only_admin(404),
    ),
    Row(
        "create attribute",
        ("POST", "/v2/attributes"),
        lambda _lab: (
            "POST",
            "/v2/attributes",
            {"deployable_id": 1, "key": "note", "value": uuid.uuid4().hex},
        ),
        only_admin(201),
    ),
    Row(
        "delete attribute",
        ("DELETE", "/v2/attributes/{uuid}"),
        attribute,
        only_admin(204),
    ),
]


@pytest.fixture(scope="module")
def populated(shared_lab: Lab) -> Lab:
    shared_lab.create_profile("dp-one")
    return shared_lab


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
@pytest.mark.parametrize("who", range(len(WHO)), ids=map(str, WHO))
def test_each_persona_gets_what_the_table_says(
    row: Row, who: int, populated: Lab
) -> None:
    method, path, body = row.prepare(populated)
    answer = populated.call(
        method,
        path,
        body,
        persona=WHO[who],
        service_token=row.service_token,
    )
    assert answer.status_int == row.expected[who], answer.text
    if answer.status_int == 401:
        assert answer.headers["WWW-Authenticate"].startswith("Keystone uri=")


def test_the_table_has_every_endpoint_that_is_served() -> None:
    served = {
        (one.method, "/" + "/".join(one.path))
        for one in app.routes().declarations()
    }
    assert served == {row.endpoint for row in TABLE}


def test_a_refused_change_says_that_a_service_token_is_needed(
    populated: Lab,
) -> None:
    free(populated)
    arq_uuid, instance = populated.bound()
    for method, path, body in (
        ("PATCH", ARQS, {arq_uuid: lab_module.UNBINDING}),
        ("DELETE", f"{ARQS}/{arq_uuid}", None),
        ("DELETE", f"{ARQS}?arqs={arq_uuid}", None),
        ("DELETE", f"{ARQS}?instance={instance}", None),
    ):
        answer = populated.call(method, path, body, persona="member")
        assert answer.status_int == 403
        assert "requires a service token" in lab_module.check_error(
            answer.json, 403
        )
    assert populated.state(arq_uuid) == "Bound"


def test_another_project_sees_and_touches_nothing(populated: Lab) -> None:
    free(populated)
    arq_uuid, instance = populated.bound()
    mine = populated.create_arqs(persona="other")[0]
    other: dict[str, Any] = {"persona": "other", "service_token": "nova"}
    assert {
        one["uuid"]
        for one in populated.call("GET", ARQS, **other).json["arqs"]
    } == {mine}
    listed = populated.call("GET", f"{ARQS}?instance={instance}", **other)
    assert listed.json == {"arqs": []}
    mixed = populated.call(
        "PATCH",
        ARQS,
        {
            mine: lab_module.binding(str(uuid.uuid4())),
            arq_uuid: lab_module.binding(str(uuid.uuid4())),
        },
        **other,
    )
    assert mixed.status_int == 404
    assert populated.state(mine) == "Initial"
    populated.call("DELETE", f"{ARQS}?instance={instance}", **other)
    populated.call("DELETE", f"{ARQS}?arqs={arq_uuid}", **other)
    assert populated.state(arq_uuid) == "Bound"


def test_novas_own_credential_reads_any_projects_requests(
    populated: Lab,
) -> None:
    free(populated)
    arq_uuid, instance = populated.bound()
    listed = populated.call(
        "GET", f"{ARQS}?instance={instance}", persona="service"
    )
    assert [one["uuid"] for one in listed.json["arqs"]] == [arq_uuid]


def test_a_policy_that_opens_everything_does_not_open_binding(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("open")
    rules = [rule.name for rule in app.policies.list_rules()]
    (directory / "policy.yaml").write_text(
        "".join(f'"{rule}": "@"\n' for rule in rules)
    )
    (directory / "lab.conf").touch()
    with lab_module.running(directory) as lab:
        lab.create_profile("dp-one")
        one, instance = lab.bound()
        for persona in ("no-role", "reader", "member", "admin"):
            for method, path, body in (
                ("PATCH", ARQS, {one: lab_module.UNBINDING}),
                ("DELETE", f"{ARQS}?instance={instance}", None),
            ):
                answer = lab.call(method, path, body, persona=persona)
                assert answer.status_int == 403, (persona, method)
        for persona, status in (("member", 403), ("other", 404)):
            answer = lab.call("DELETE", f"{ARQS}/{one}", persona=persona)
            assert answer.status_int == status
        assert lab.call("GET", "/v2/devices", persona="no-role").json[
            "devices"
        ]
        assert lab.state(one) == "Bound"

# SPDX-License-Identifier: Apache-2.0
"""Who may do what, each endpoint by each persona, with tokens of a real
Keystone; and what no policy can give away.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from cyborg.api import policies
from tests.integration import deployment
from tests.integration import identity
from tests.integration import instance
from tests.integration import resources

PROFILES = "/v2/device_profiles"
ARQS = "/v2/accelerator_requests"
PASSING_SECONDS = 4

UNKNOWN = ("nobody's", "garbage", "expired", "revoked")
POWERLESS = ("no role", "system", "domain", "unscoped")
MEMBERS = ("reader", "member", "manager", "admin", "service", "other")
"""Tokens, see `tokens`: these are Keystone's, these of people whom the
policy gives nothing, and these of people whom it gives something."""


class World:
    """A deployment, and the tokens of everybody."""

    def __init__(self, cyborg: deployment.Deployment) -> None:
        self.cyborg = cyborg
        self.port = cyborg.port
        keystone = cyborg.cloud.keystone
        self.tokens: dict[str, str | None] = {
            "nobody's": None,
            "garbage": "gAAAAABgarbage",
            "expired": keystone.passing_token("demo-member", PASSING_SECONDS),
            "revoked": keystone.new_token("demo-member"),
            "no role": keystone.token("demo-nobody"),
            "system": keystone.new_token("admin", {"system": {"all": True}}),
            "domain": _domain_token(keystone),
            "unscoped": keystone.new_token("demo-member", "unscoped"),
            "reader": keystone.token("demo-reader"),
            "member": keystone.token("demo-member"),
            "manager": keystone.token("demo-manager"),
            "admin": keystone.token("admin"),
            "service": keystone.token("plain-service"),
            "other": keystone.token("other-member"),
        }
        made_at = time.monotonic()
        keystone.revoke(str(self.tokens["revoked"]))
        self.profile = cyborg.make_profile([instance.FAKE_GROUP])
        (self.provider,) = cyborg.providers().values()
        self._session = requests.Session()
        left = PASSING_SECONDS + 1 - (time.monotonic() - made_at)
        time.sleep(max(0, left))

    def ask(
        self,
        who: str,
        method: str,
        path: str,
        body: Any = None,
        service: str | None = None,
    ) -> requests.Response:
        """The answer to one of `tokens`."""
        headers = {"OpenStack-API-Version": "accelerator 2.4"}
        token = self.tokens[who]
        if token is not None:
            headers["X-Auth-Token"] = token
        if service is not None:
            headers["X-Service-Token"] = self.cyborg.cloud.keystone.token(
                service
            )
        return self._session.request(
            method,
            f"http://127.0.0.1:{self.port}{path}",
            json=body,
            headers=headers,
            timeout=60,
        )

    def do(self, method: str, path: str, body: Any = None) -> Any:
        """What the administrator's request, with a service token, gives."""
        answer = self.ask("admin", method, path, body, "nova")
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def arq(self) -> str:
        """A free request of the demo project."""
        answer = self.ask(
            "member", "POST", ARQS, {"device_profile_name": self.profile}
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["arqs"][0]["uuid"])

    def binding(self, arq: str, server: str) -> Any:
        return {
            arq: deployment.bind_patch(
                self.provider, server, self.cyborg.provider_name
            )
        }

    def bound(self) -> tuple[str, str]:
        """A bound request of the demo project, and its instance."""
        self.free()
        arq, server = self.arq(), str(uuid.uuid4())
        answer = self.ask(
            "member", "PATCH", ARQS, self.binding(arq, server), "nova"
        )
        assert answer.status_code == 202, answer.text
        assert self.state(arq) == "Bound"
        return arq, server

    def state(self, arq: str) -> str:
        return str(self.do("GET", f"{ARQS}/{arq}")["state"])

    def free(self) -> None:
        """Delete every request that is there."""
        listed = self.do("GET", ARQS)["arqs"]
        if listed:
            uuids = ",".join(arq["uuid"] for arq in listed)
            self.do("DELETE", f"{ARQS}?arqs={uuids}")

    def first(self, collection: str) -> str:
        listed = self.do("GET", f"/v2/{collection}")[collection]
        return f"/v2/{collection}/{listed[0]['uuid']}"


def _domain_token(keystone: identity.Keystone) -> str:
    """An administrator's of the whole domain."""
    (user,) = keystone.request("GET", "users?name=admin")["users"]
    (role,) = keystone.request("GET", "roles?name=admin")["roles"]
    keystone.request(
        "PUT", f"domains/default/users/{user['id']}/roles/{role['id']}"
    )
    return keystone.new_token("admin", {"domain": {"id": "default"}})


@pytest.fixture(scope="module")
def world(running_cyborg: deployment.Deployment) -> World:
    return World(running_cyborg)


Request = tuple[str, str, Any]
Prepare = Callable[[World], Request]


@dataclasses.dataclass(frozen=True)
class Row:
    """An endpoint, and its answer to each of `MEMBERS`."""

    name: str
    endpoint: tuple[str, str]
    prepare: Prepare
    expected: tuple[int, ...]
    service: str | None = None
    public: bool = False


def plain(method: str, path: str, body: Any = None) -> Prepare:
    return lambda _world: (method, path, body)


def at_first(method: str, collection: str, rest: str = "") -> Prepare:
    return lambda world: (method, world.first(collection) + rest, None)


def with_profile(method: str, key: str, joint: str = "/") -> Prepare:
    def prepare(world: World) -> Request:
        name = f"dp-{uuid.uuid4().hex[:8]}"
        body = [{"name": name, "groups": [instance.FAKE_GROUP]}]
        made = world.do("POST", PROFILES, body)
        return method, f"{PROFILES}{joint}{made[key]}", None

    return prepare


def with_arq(method: str, joint: str = "/") -> Prepare:
    return lambda world: (method, f"{ARQS}{joint}{world.arq()}", None)


def bind(at_uuid: bool = False) -> Prepare:
    def prepare(world: World) -> Request:
        world.free()
        arq = world.arq()
        path = f"{ARQS}/{arq}" if at_uuid else ARQS
        return "PATCH", path, world.binding(arq, str(uuid.uuid4()))

    return prepare


def unbinding(arq: str) -> Any:
    places = ("hostname", "device_rp_uuid", "instance_uuid")
    return {arq: [{"path": f"/{key}", "op": "remove"} for key in places]}


def unbind(world: World) -> Request:
    return "PATCH", ARQS, unbinding(world.bound()[0])


def delete_bound(world: World) -> Request:
    return "DELETE", f"{ARQS}/{world.bound()[0]}", None


def delete_instance(world: World) -> Request:
    return "DELETE", f"{ARQS}?instance={world.bound()[1]}", None


def create_profile(_world: World) -> Request:
    name = f"dp-{uuid.uuid4().hex[:8]}"
    body = [{"name": name, "groups": [instance.FAKE_GROUP]}]
    return "POST", PROFILES, body


def note() -> Any:
    return {"deployable_id": 1, "key": "note", "value": uuid.uuid4().hex}


def delete_note(world: World) -> Request:
    made = world.do("POST", "/v2/attributes", note())
    return "DELETE", f"/v2/attributes/{made['uuid']}", None


PROGRAM = [
    {
        "path": "/program",
        "op": "replace",
        "value": [{"image_uuid": str(uuid.uuid4())}],
    }
]
ABSENT = f"/v2/deployables/{uuid.uuid4()}/program"

EVERYBODY = (200,) * len(MEMBERS)
READERS = (200, 200, 200, 200, 403, 200)
MANAGERS = (403, 403, 200, 200, 403, 403)
ARQ_LIST = (200, 200, 200, 200, 200, 200)
ARQ_SHOW = (200, 200, 200, 200, 200, 404)
ARQ_CREATE = (403, 201, 201, 201, 201, 201)
ARQ_CHANGE = (403, 202, 202, 202, 202, 404)
ARQ_DELETE = (403, 204, 204, 204, 204, 404)
ARQ_BOUND = (403, 403, 403, 403, 403, 404)
ARQ_INSTANCE = (403, 204, 204, 204, 204, 204)
NOT_ONE = (403,) * len(MEMBERS)


def only_admin(status: int) -> tuple[int, ...]:
    return 403, 403, 403, status, 403, 403


def public(path: str) -> Row:
    return Row(path, ("GET", path), plain("GET", path), EVERYBODY, public=True)


TABLE = (
    public("/"),
    public("/v2"),
    public("/v2/openapi.json"),
    Row("profiles", ("GET", PROFILES), plain("GET", PROFILES), READERS),
    Row(
        "profile",
        ("GET", PROFILES + "/{name_or_uuid}"),
        with_profile("GET", "uuid"),
        READERS,
    ),
    Row(
        "profile by name",
        ("GET", PROFILES + "/{name_or_uuid}"),
        with_profile("GET", "name"),
        READERS,
    ),
    Row("new profile", ("POST", PROFILES), create_profile, only_admin(201)),
    Row(
        "delete profile",
        ("DELETE", PROFILES + "/{name_or_uuid}"),
        with_profile("DELETE", "uuid"),
        only_admin(204),
    ),
    Row(
        "delete profiles",
        ("DELETE", PROFILES),
        with_profile("DELETE", "name", "?value="),
        only_admin(204),
    ),
    Row("arqs", ("GET", ARQS), plain("GET", ARQS), ARQ_LIST),
    Row("arq", ("GET", ARQS + "/{uuid}"), with_arq("GET"), ARQ_SHOW),
    Row(
        "new arqs",
        ("POST", ARQS),
        lambda world: (
            "POST",
            ARQS,
            {"device_profile_name": world.profile},
        ),
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
    Row("bind, no service", ("PATCH", ARQS), bind(), NOT_ONE),
    Row(
        "bind at its uuid, no service",
        ("PATCH", ARQS + "/{uuid}"),
        bind(at_uuid=True),
        NOT_ONE,
    ),
    Row("unbind, no service", ("PATCH", ARQS), unbind, NOT_ONE),
    Row(
        "delete arq",
        ("DELETE", ARQS + "/{uuid}"),
        with_arq("DELETE"),
        ARQ_DELETE,
    ),
    Row(
        "delete arqs",
        ("DELETE", ARQS),
        with_arq("DELETE", "?arqs="),
        ARQ_DELETE,
    ),
    Row(
        "delete bound arq",
        ("DELETE", ARQS + "/{uuid}"),
        delete_bound,
        ARQ_DELETE,
        "nova",
    ),
    Row(
        "delete bound arq, no service",
        ("DELETE", ARQS + "/{uuid}"),
        delete_bound,
        ARQ_BOUND,
    ),
    Row(
        "delete instance's arqs",
        ("DELETE", ARQS),
        delete_instance,
        ARQ_INSTANCE,
        "nova",
    ),
    Row(
        "delete instance's arqs, no service",
        ("DELETE", ARQS),
        delete_instance,
        NOT_ONE,
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
            at_first("GET", collection),
            MANAGERS,
        )
        for collection in ("devices", "deployables", "attributes")
    ),
    *(
        Row(
            action,
            ("POST", "/v2/devices/{uuid}/" + action),
            at_first("POST", "devices", f"/{action}"),
            only_admin(204),
        )
        for action in ("disable", "enable")
    ),
    Row(
        "program",
        ("PATCH", "/v2/deployables/{uuid}/program"),
        plain("PATCH", ABSENT, PROGRAM),
        only_admin(404),
    ),
    Row(
        "program as openstacksdk asks",
        ("PATCH", "/v2/deployables/{uuid}/program/{uuid_2}"),
        plain("PATCH", f"{ABSENT}/{ABSENT.split('/')[3]}", PROGRAM),
        only_admin(404),
    ),
    Row(
        "new attribute",
        ("POST", "/v2/attributes"),
        lambda _world: ("POST", "/v2/attributes", note()),
        only_admin(201),
    ),
    Row(
        "delete attribute",
        ("DELETE", "/v2/attributes/{uuid}"),
        delete_note,
        only_admin(204),
    ),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_each_persona_gets_what_the_table_says(row: Row, world: World) -> None:
    expected = dict(zip(MEMBERS, row.expected, strict=True))
    expected |= dict.fromkeys(UNKNOWN, 200 if row.public else 401)
    expected |= dict.fromkeys(POWERLESS, 200 if row.public else 403)
    if row.service is not None:
        # A service may finish what its user began while the token held.
        expected["expired"] = expected["member"]
    seen = {}
    request: Request | None = None
    for who in expected:
        if request is None:
            request = row.prepare(world)
        answer = world.ask(who, *request, service=row.service)
        seen[who] = answer.status_code
        if answer.status_code == 401:
            assert "Keystone uri=" in answer.headers["WWW-Authenticate"]
        if answer.status_code < 300 and request[0] != "GET":
            request = None
    assert seen == expected


def test_each_endpoint_that_is_served_has_a_row(world: World) -> None:
    told = world.ask("nobody's", "GET", "/v2/openapi.json").json()["paths"]
    served = {
        (method.upper(), path)
        for path, item in told.items()
        for method in item
    }
    assert served == {row.endpoint for row in TABLE}


def test_somebody_elses_request_is_404_by_every_path(world: World) -> None:
    arq, server = world.bound()
    mine = world.ask(
        "other", "POST", ARQS, {"device_profile_name": world.profile}
    ).json()["arqs"][0]["uuid"]
    fresh = str(uuid.uuid4())
    for method, path, body in (
        ("GET", f"{ARQS}/{arq}", None),
        ("DELETE", f"{ARQS}/{arq}", None),
        ("DELETE", f"{ARQS}?arqs={arq}", None),
        ("PATCH", ARQS, unbinding(arq)),
        ("PATCH", f"{ARQS}/{arq}", unbinding(arq)),
        ("PATCH", ARQS, world.binding(arq, fresh)),
        ("PATCH", f"{ARQS}/{arq}", world.binding(arq, fresh)),
        ("PATCH", ARQS, unbinding(arq) | unbinding(mine)),
        (
            "PATCH",
            ARQS,
            world.binding(mine, fresh) | world.binding(arq, fresh),
        ),
    ):
        theirs = world.ask("other", method, path, body, "nova")
        nobodys = world.ask(
            "other",
            method,
            path.replace(arq, fresh),
            None if body is None else unbinding(fresh),
            "nova",
        )
        assert theirs.status_code == 404, (method, path, theirs.text)
        # It cannot be told from one that is not there at all.
        if method != "PATCH" or path != ARQS:
            assert nobodys.status_code in {404, 400}, nobodys.text
    for query in (
        *("", f"?instance={server}", f"?uuid={arq}"),
        *(
            f"?instance_uuid={server}",
            f"?instance={server}&bind_state=resolved",
        ),
        f"?filters.field=uuid&filters.value={arq}",
    ):
        listed = world.ask("other", "GET", ARQS + query).json()["arqs"]
        assert {one["uuid"] for one in listed} <= {mine}, query
    marked = world.ask("other", "GET", f"{ARQS}?marker={arq}")
    assert marked.status_code == 400
    gone = world.ask(
        "other", "DELETE", f"{ARQS}?instance={server}", None, "nova"
    )
    assert gone.status_code == 204
    assert world.state(arq) == "Bound"
    assert world.state(mine) == "Initial"
    world.free()


@pytest.fixture(scope="module")
def policy_file(world: World, tmp_path_factory: Any) -> Iterator[Path]:
    """The policy of a second API process; `world.port` is that one's."""
    file = tmp_path_factory.mktemp("policy") / "policy.yaml"
    file.write_text("{}\n")
    port = resources.free_port()
    child = world.cyborg.launch(
        "api",
        "api-of-another-policy",
        {
            "OS_API__PORT": str(port),
            "OS_OSLO_POLICY__POLICY_FILE": str(file),
        },
    )
    resources.wait_until(
        lambda: not child.running or resources.answers(port),
        deployment.READY_SECONDS,
        "the second API serves",
    )
    first, world.port = world.port, port
    yield file
    world.port = first
    child.stop()


def write(file: Path, check: str, world: World, status: int) -> None:
    """Every rule becomes `check`, and is in force."""
    names = [rule.name for rule in policies.list_rules()]
    file.write_text("".join(f'"{name}": "{check}"\n' for name in names))
    resources.wait_until(
        lambda: (
            world.ask("reader", "GET", "/v2/devices").status_code == status
        ),
        20,
        f"the policy is {check!r}",
    )


@pytest.mark.parametrize("check", ["@", ""])
def test_a_policy_that_opens_everything_opens_no_binding(
    check: str, world: World, policy_file: Path
) -> None:
    arq, server = world.bound()
    write(policy_file, check, world, 200)
    assert world.ask("no role", "GET", "/v2/devices").status_code == 200
    attempts = (
        ("PATCH", ARQS, unbinding(arq)),
        ("PATCH", f"{ARQS}/{arq}", unbinding(arq)),
        ("PATCH", ARQS, world.binding(arq, str(uuid.uuid4()))),
        ("DELETE", f"{ARQS}?instance={server}", None),
        ("DELETE", f"{ARQS}/{arq}", None),
        ("DELETE", f"{ARQS}?arqs={arq}", None),
    )
    for who in ("no role", "reader", "member", "manager", "admin", "service"):
        for service in (None, "cyborg", "demo-reader"):
            for method, path, body in attempts:
                answer = world.ask(who, method, path, body, service)
                if service is not None and answer.status_code == 401:
                    continue
                assert answer.status_code == 403, (who, service, answer.text)
                assert "requires a service token" in deployment.faultstring(
                    answer
                )
    for who in ("no role", "reader"):
        assert world.ask(who, "GET", f"{ARQS}/{arq}").status_code == 200
    # What another project has stays unknown to it, whatever is open.
    assert world.ask("other", "GET", ARQS).json()["arqs"] == []
    assert world.ask("other", "GET", f"{ARQS}/{arq}").status_code == 404
    assert world.ask("other", "DELETE", f"{ARQS}/{arq}").status_code == 404
    for who in ("system", "domain"):
        answer = world.ask(who, "GET", "/v2/devices")
        assert answer.status_code == 403, (who, answer.text)
    for who in UNKNOWN:
        assert world.ask(who, "GET", "/v2/devices").status_code == 401
    assert world.state(arq) == "Bound"
    world.free()


def test_a_policy_that_grants_nothing_grants_nothing(
    world: World, policy_file: Path
) -> None:
    write(policy_file, "@", world, 200)
    prepared = [
        (row, row.prepare(world)) for row in TABLE if row.name[:4] != "bind"
    ]
    write(policy_file, "!", world, 403)
    for row, request in prepared:
        for who in MEMBERS:
            answer = world.ask(who, *request, service=row.service)
            expected = 200 if row.public else 403
            assert answer.status_code == expected, (row.name, who)
    write(policy_file, "@", world, 200)
    world.free()

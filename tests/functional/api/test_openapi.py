# SPDX-License-Identifier: Apache-2.0
"""The API's own description: true, whole, and made from declarations.

That each answer of every test here is as it says, `lab.check` sees to.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest

from cyborg import exception
from cyborg.api import app
from cyborg.api import body
from cyborg.api import endpoint
from cyborg.api import microversions
from cyborg.api import openapi
from cyborg.api import policies
from cyborg.api import types
from cyborg.api.middleware import auth_token
from tests import described
from tests.functional.api import lab as lab_module
from tests.functional.api.lab import Lab

PATH = "/v2/openapi.json"
SOURCE = Path(__file__).parents[3] / "api-ref" / "source"


@pytest.fixture(scope="module")
def told(shared_lab: Lab) -> dict[str, Any]:
    """The description as a client gets it."""
    answer = shared_lab.call("GET", PATH, persona=None)
    assert answer.status_int == 200
    result: dict[str, Any] = answer.json
    return result


def operations(told: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, item in told["paths"].items()
        for method, operation in item.items()
    }


def test_it_is_valid_openapi(told: dict[str, Any]) -> None:
    assert told["openapi"].startswith("3.1")
    openapi_spec_validator.OpenAPIV31SpecValidator(told).validate()
    identifiers = [one["operationId"] for one in operations(told).values()]
    assert len(set(identifiers)) == len(identifiers)


def test_each_pattern_is_one_of_ecma_script(told: dict[str, Any]) -> None:
    patterns = re.findall(r'"pattern": "((?:[^"\\]|\\.)*)"', json.dumps(told))
    assert len(patterns) > 20
    for pattern in patterns:
        text = json.loads(f'"{pattern}"')
        re.compile(text)
        assert "\\Z" not in text, text
        assert not re.search(r"\(\?[^:]", text), text


def test_it_is_the_same_each_time() -> None:
    declared = app.routes().declarations()
    first = openapi.description(declared)
    again = openapi.description(reversed(app.routes().declarations()))
    assert json.dumps(first, sort_keys=True) == json.dumps(
        again, sort_keys=True
    )


def test_a_client_may_keep_it(shared_lab: Lab) -> None:
    first = shared_lab.call("GET", PATH, persona=None)
    tag = first.headers["ETag"]
    assert "max-age" in first.headers["Cache-Control"]
    again = shared_lab.call(
        "HEAD", PATH, persona=None, headers={"If-None-Match": tag}
    )
    assert (again.status_int, again.body) == (304, b"")
    assert again.headers["ETag"] == tag
    other = shared_lab.call(
        "GET", PATH, persona=None, headers={"If-None-Match": '"other"'}
    )
    assert other.status_int == 200


def test_each_endpoint_is_in_it_as_it_is_declared(
    told: dict[str, Any],
) -> None:
    known = operations(told)
    for one in app.routes().declarations():
        path = "/" + "/".join(
            part if not part.startswith("{") else "x" for part in one.path
        )
        place = next(
            key
            for key in known
            if key[0] == one.method
            and re.fullmatch(re.sub(r"\{[^}]*\}", "x", key[1]), path)
        )
        operation = known[place]
        assert str(one.status) in operation["responses"]
        assert ("requestBody" in operation) == (one.schema is not None)
        assert operation.get("x-openstack-policy") == one.rule
        assert operation["security"] == [] or one.rule is not None
        if one.service_token:
            assert all("serviceToken" in way for way in operation["security"])
        names = {item.get("name") for item in operation["parameters"]}
        assert names >= set(one.parameters.own)
        assert names >= set(one.parameters.columns or ())
        for code in one.errors:
            assert str(code) in operation["responses"]


def test_what_needs_no_token_is_what_the_filter_lets_through(
    told: dict[str, Any],
) -> None:
    open_ones = {
        path
        for (_, path), operation in operations(told).items()
        if operation["security"] == []
    }
    assert open_ones | {"/healthcheck"} == auth_token.PUBLIC


def test_each_rule_of_the_policy_guards_something(
    told: dict[str, Any],
) -> None:
    used = {
        operation["x-openstack-policy"]
        for operation in operations(told).values()
        if "x-openstack-policy" in operation
    }
    known = {rule.name for rule in policies.list_rules()}
    assert used == {name for name in known if name.startswith("cyborg:")}


def test_each_path_is_in_the_reference(told: dict[str, Any]) -> None:
    pages = "\n".join(path.read_text() for path in SOURCE.glob("*.rst"))
    lines = {
        re.sub(r"\{[^}]*\}", "{}", line)
        for line in re.findall(r"^   ([A-Z]+ /\S*)$", pages, re.MULTILINE)
    }
    there = {
        f"{method} " + re.sub(r"\{[^}]*\}", "{}", path)
        for method, path in operations(told)
    }
    assert lines == there


@pytest.mark.parametrize("version", microversions.HISTORY, ids=str)
@pytest.mark.parametrize("collection", ["devices", "deployables"])
def test_a_row_has_what_is_told_of_its_microversion(
    collection: str,
    version: microversions.Version,
    told: dict[str, Any],
    shared_lab: Lab,
) -> None:
    answer = shared_lab.call(
        "GET", f"/v2/{collection}", version=str(version)
    ).json
    properties = told["components"]["schemas"][collection]["properties"]
    expected = {
        name
        for name, schema in properties.items()
        if schema.get("x-openstack-min-version", "2.0") <= str(version)
    }
    assert set(answer[collection][0]) == expected


class Fans:
    """A resource that nobody has heard of."""

    VIEW = types.View(
        "fans",
        types.Field(
            "speed", kind="integer", since=microversions.Version(2, 3)
        ),
    )

    @endpoint.endpoint(
        "PUT",
        "/v2/fans/{uuid}",
        "cyborg:device:enable",
        since=microversions.Version(2, 4),
        schema=body.Schema({"type": "object", "required": ["speed"]}),
        parameters=types.Parameters(own={"gently": types.TEXT}),
        view=VIEW,
        errors=[exception.NotResolved],
        service_token=True,
    )
    def turn(self, call: endpoint.Call, uuid: str) -> object:
        """Turn a fan."""
        return call, uuid


def test_a_new_endpoint_appears_by_its_declaration_alone() -> None:
    routes = endpoint.Routes([Fans()])
    made = openapi.description(routes.declarations())
    openapi_spec_validator.OpenAPIV31SpecValidator(
        json.loads(json.dumps(made))
    ).validate()
    (operation,) = operations(made).values()
    assert list(made["paths"]) == ["/v2/fans/{uuid}"]
    assert operation["summary"] == "Turn a fan."
    assert operation["x-openstack-min-version"] == "2.4"
    assert set(operation["responses"]) == {
        *("200", "400", "401", "403", "404", "406", "413", "415", "423"),
        *("503", "504"),
    }
    assert [one.get("name") for one in operation["parameters"]] == [
        "uuid",
        "gently",
        None,
    ]
    fan = made["components"]["schemas"]["fans"]
    assert fan["properties"]["speed"] == {
        "type": "integer",
        "x-openstack-min-version": "2.3",
    }
    assert "speed" not in fan["required"]


@pytest.mark.parametrize(
    ("status", "text"),
    [(418, "{}"), (200, '{"devices": [{}]}'), (200, '{"other": []}')],
)
def test_an_answer_that_is_not_told_is_found(status: int, text: str) -> None:
    headers = {
        "Content-Type": "application/json",
        "X-OpenStack-Request-ID": "req-" + "0" * 36,
        "OpenStack-API-Version": "accelerator 2.0",
        "OpenStack-API-Minimum-Version": "2.0",
        "OpenStack-API-Maximum-Version": str(microversions.MAXIMUM),
        "Vary": "OpenStack-API-Version",
    }
    described.check("GET", "/devices", 200, headers, b'{"devices": []}')
    with pytest.raises(AssertionError):
        described.check("GET", "/devices", status, headers, text.encode())


def test_a_401_says_how_to_authenticate_whoever_refuses(
    tmp_path: Path,
) -> None:
    with lab_module.running(tmp_path) as lab:
        lab.application = app.make_app(lab.conf, lab.database, lab.conductor)
        answer = lab.call("GET", "/v2/devices")
    assert answer.status_int == 401
    assert answer.headers["WWW-Authenticate"].startswith("Keystone")

# SPDX-License-Identifier: Apache-2.0
"""Endpoints declare; what is not declared is not served."""

from __future__ import annotations

import pytest

from cyborg import exception
from cyborg.api import app
from cyborg.api import envelope
from cyborg.api import policies
from cyborg.api.endpoint import Call
from cyborg.api.endpoint import Routes
from cyborg.api.endpoint import endpoint
from cyborg.api.middleware import auth_token

UUID = "0f9ab253-66ea-4693-8601-2277059038cb"


class Things:
    @endpoint("GET", "/v2/things/{name}", "rule")
    def by_name(self, call: Call, name: str) -> None:
        """Found by any other text."""

    @endpoint("GET", "/v2/things/{uuid}", "rule")
    def by_uuid(self, call: Call, uuid: str) -> None:
        """Found by a uuid."""

    @endpoint("DELETE", "/v2/things/{name}", "rule")
    def delete(self, call: Call, name: str) -> None:
        """Deletes by either."""

    def undeclared(self, call: Call) -> None:
        """Served by no path."""


def test_only_what_is_declared_is_served() -> None:
    routes = Routes([Things()])
    assert len(routes.declarations()) == 3
    for path in (["v2", "undeclared"], ["v2", "things", "undeclared", "x"]):
        with pytest.raises(exception.NotFound):
            routes.find("GET", path)


def test_what_takes_less_is_tried_first() -> None:
    things = Things()
    routes = Routes([things])
    assert routes.find("GET", ["v2", "things", UUID.upper()]) == (
        things.by_uuid,
        [UUID],
    )
    assert routes.find("GET", ["v2", "things", "x"]) == (things.by_name, ["x"])
    assert routes.find("DELETE", ["v2", "things", UUID])[0] == things.delete


def test_an_unknown_method_names_those_of_the_path() -> None:
    with pytest.raises(envelope.MethodNotAllowed) as caught:
        Routes([Things()]).find("PATCH", ["v2", "things", UUID])
    assert caught.value.allowed == "DELETE, GET, HEAD"


def test_a_path_is_declared_once() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        Routes([Things(), Things()])


def test_each_endpoint_has_a_rule_except_discovery() -> None:
    known = {rule.name for rule in policies.list_rules()}
    used = set()
    for one in app.routes().declarations():
        if "/" + "/".join(one.path) in auth_token.PUBLIC:
            assert one.rule is None
        else:
            assert one.rule in known
            used.add(one.rule)
    assert used == {rule for rule in known if rule.startswith("cyborg:")}


def test_each_rule_is_documented_with_its_paths() -> None:
    documented = set()
    for rule in policies.list_rules():
        assert rule.scope_types == ["project"]
        assert rule.description
        for operation in getattr(rule, "operations", []):
            path = operation["path"].partition("?")[0]
            method = operation["method"]
            documented.add((rule.name, method, path))
    for one in app.routes().declarations():
        if one.rule is None:
            continue
        path = "/" + "/".join(one.path).removesuffix("/program/{uuid}")
        if one.path[-2:] == ("program", "{uuid}"):
            path += "/program"
        assert (one.rule, one.method, path) in documented, path

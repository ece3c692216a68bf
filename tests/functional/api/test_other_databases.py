# SPDX-License-Identifier: Apache-2.0
"""The same answers on MariaDB, its old character set, and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests import databases
from tests.functional.api import lab as lab_module
from tests.functional.api import test_bad_input as bad_input
from tests.functional.api import test_wire as wire
from tests.functional.api.lab import Lab

KINDS = {
    "mariadb": ("mariadb", None, ""),
    "mariadb-utf8mb3": ("mariadb", "CHARACTER SET utf8mb3", "?charset=utf8"),
    "postgresql": ("postgresql", None, ""),
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=list(KINDS))
def elsewhere(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """A deployment on a database of its own on that server."""
    kind, options, query = request.param
    directory = tmp_path_factory.mktemp("lab")
    with (
        databases.empty(kind, directory, options, query) as url,
        lab_module.running(directory, database__connection=url) as lab,
    ):
        yield lab


def test_the_recorded_exchanges_have_the_same_answers_there(
    elsewhere: Lab,
) -> None:
    recorder = wire.Recorder(elsewhere)
    for case in wire.CASES:
        wire.replay(case, recorder)


def test_what_is_wrong_is_refused_alike_there(elsewhere: Lab) -> None:
    for method, path, body, status, _ in bad_input.BODIES:
        answer = elsewhere.call(
            method,
            path,
            service_token="nova",
            headers=bad_input.JSON,
            raw=json.dumps(body).encode(),
        )
        assert answer.status_int == status, (method, path, body, answer.text)
    for path, status, _ in bad_input.QUERIES:
        answer = elsewhere.call("GET", path)
        assert answer.status_int == status, (path, answer.text)
    for path in bad_input.PATHS:
        assert elsewhere.call("GET", path).status_int == 404, path


@pytest.mark.parametrize("text", ["z\u00e9\u4e2d\uffff", "'\"\\%_;--", " "])
def test_text_that_can_be_stored_comes_back_as_it_was(
    text: str, elsewhere: Lab
) -> None:
    name = f"text-{text.encode().hex()}"
    body = {
        "name": name,
        "description": text,
        "groups": [{"resources:FPGA": "1", "accel:note": text}],
    }
    made = elsewhere.call("POST", "/v2/device_profiles", body)
    assert made.status_int == 201, made.text
    shown = elsewhere.call("GET", f"/v2/device_profiles/{name}").json
    assert shown["device_profile"]["description"] == text
    assert shown["device_profile"]["groups"] == body["groups"]

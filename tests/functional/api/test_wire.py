# SPDX-License-Identifier: Apache-2.0
"""Exchanges recorded on a deployed service, sent to ours."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

from cyborg.api import microversions
from tests.functional.api import lab as lab_module

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "cases" / "wire.jsonl")
    .read_text()
    .splitlines()
]

NEWEST = str(microversions.MAXIMUM)
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"

WILD = {
    "<uuid>": UUID,
    "req-<uuid>": f"req-{UUID}",
    "<timeT>+00:00": TIME,
    # Where the deployed service writes a time otherwise than everywhere
    # else, ours does not.
    "<time >+00:00": TIME,
    "<timeT.f>+00:00": TIME,
    'Keystone uri="http://127.0.0.1:5000/v3"': 'Keystone uri=".*"',
}
RAISED = {"max_version", "openstack-api-maximum-version"}
"""The deployed service's newest version is older than ours."""
MAY_BE_NULL = {"<timeT>+00:00"}
"""Whether something was changed before is not what was recorded."""


class Recorder:
    """The values behind the placeholders, as they become known."""

    def __init__(self, lab: lab_module.Lab) -> None:
        self.lab = lab
        profile = lab.create_profile(
            "dp-one", 1, **{"trait:CUSTOM_FAKE_DEVICE": "required"}
        )
        device = lab.call("GET", "/v2/devices").json["devices"][0]
        deployable = lab.call("GET", "/v2/deployables").json["deployables"][0]
        self.known = {
            "<base>": "http://localhost",
            "<compute>": lab_module.HOST,
            "<project:demo>": lab_module.PROJECT,
            "<dp-one.uuid>": profile["uuid"],
            "<dev.uuid>": device["uuid"],
            "<dep.uuid>": deployable["uuid"],
            "<dep.rp_uuid>": deployable["rp_uuid"],
            "<instance1>": str(uuid.uuid4()),
            "<instance6>": str(uuid.uuid4()),
        }

    def fill(self, text: str) -> str:
        for name, value in self.known.items():
            text = text.replace(name, value)
        return text.replace("<uuid>", str(uuid.uuid4()))

    def learn(self, case: dict[str, Any], body: Any) -> None:
        if case["name"] == "attribute create":
            self.known["<attr.uuid>"] = body["uuid"]
        if case["name"] == "dp create with description":
            self.known["<dp-two.uuid>"] = body["uuid"]
        if case["name"].startswith("arq create"):
            for number, arq in enumerate(body["arqs"]):
                self.known[f"<{case['name']}.arq{number}>"] = arq["uuid"]


def same(expected: Any, actual: Any, recorder: Recorder, place: str) -> None:
    """Compare an answer with the recorded one, key by key."""
    if isinstance(expected, dict):
        assert isinstance(actual, dict), place
        extra = {"errors"} if "error_message" in expected else set()
        assert set(actual) - extra == set(expected), place
        for key, value in expected.items():
            wanted = NEWEST if key in RAISED else value
            same(wanted, actual[key], recorder, f"{place}.{key}")
    elif isinstance(expected, list):
        assert isinstance(actual, list), place
        assert len(actual) == len(expected), place
        for number, value in enumerate(expected):
            same(value, actual[number], recorder, f"{place}[{number}]")
    elif isinstance(expected, str):
        same_text(expected, actual, recorder, place)
    else:
        assert (expected, type(expected)) == (actual, type(actual)), place


def same_text(
    expected: str, actual: Any, recorder: Recorder, place: str
) -> None:
    if expected.startswith("<JSON text"):
        assert isinstance(json.loads(actual), dict), place
    elif expected == "None" or (expected in MAY_BE_NULL and actual is None):
        assert actual is None, place
    elif expected in WILD:
        assert re.fullmatch(WILD[expected], actual), (place, actual)
    else:
        for name, value in recorder.known.items():
            expected = expected.replace(name, value)
        pattern = re.escape(expected).replace(re.escape("<uuid>"), UUID)
        assert re.fullmatch(pattern, actual), (place, expected, actual)


def replay(case: dict[str, Any], recorder: Recorder) -> None:
    body = case["request_body"]
    answer = recorder.lab.call(
        case["method"],
        recorder.fill(case["path"]),
        None if body is None else json.loads(recorder.fill(json.dumps(body))),
        persona=case["as"],
        service_token=case["service_token"],
        version=None,
        headers=case["request_headers"],
    )
    assert answer.status_int == case["status"], (case["name"], answer.text)
    for name, value in case["response_headers"].items():
        wanted = NEWEST if name in RAISED else value
        same_text(wanted, answer.headers[name], recorder, name)
    if case["response_body"] == "":
        assert answer.body == b"", case["name"]
        assert "Content-Type" not in answer.headers, case["name"]
        return
    recorder.learn(case, answer.json)
    actual = answer.json
    if case["name"] == "attribute list by deployable":
        # The deployed service had lost what was set through the API.
        assert actual["attributes"].pop()["key"] == "traits9"
    same(case["response_body"], actual, recorder, case["name"])


def test_the_recorded_exchanges_have_the_same_answers(
    lab: lab_module.Lab,
) -> None:
    recorder = Recorder(lab)
    for case in CASES:
        replay(case, recorder)
    assert len(CASES) == 30

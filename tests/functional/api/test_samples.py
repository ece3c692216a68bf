# SPDX-License-Identifier: Apache-2.0
"""The API reference shows what the service answers.

`CYBORG_WRITE_SAMPLES=1` writes the samples anew; otherwise one that differs
from the answer fails.  Uuids and times are replaced by ones that stay.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

from cyborg.api import app
from tests.functional.api import lab as lab_module
from tests.functional.api.lab import Lab

SOURCE = Path(__file__).parents[3] / "api-ref" / "source"
SAMPLES = SOURCE / "samples"
WRITE = os.environ.get("CYBORG_WRITE_SAMPLES") == "1"

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")
INSTANCE = "0c8ce9b1-0d6b-4d67-9c1a-7c6e5d6c7f5a"


class Recorder:
    """Keeps samples in a form that is the same each time."""

    def __init__(self) -> None:
        self._stable: dict[str, str] = {}
        self.different: list[str] = []
        self.names: set[str] = set()

    def _replace(self, match: re.Match[str]) -> str:
        number = len(self._stable)
        name = str(uuid.uuid5(uuid.NAMESPACE_URL, f"sample {number}"))
        return self._stable.setdefault(match[0], name)

    def keep(self, name: str, value: Any) -> None:
        """Compare a value with its sample, or write it."""
        text = json.dumps(value, indent=4) + "\n"
        text = UUID.sub(self._replace, text)
        text = TIME.sub("2026-11-29T16:19:32+00:00", text)
        path = SAMPLES / f"{name}.json"
        self.names.add(path.name)
        if WRITE:
            path.write_text(text)
        if not path.exists() or path.read_text() != text:
            self.different.append(path.name)


def walk(lab: Lab, recorder: Recorder) -> None:
    """Do everything once, and keep what is sent and answered."""

    def ask(
        name: str, method: str, path: str, body: Any = None, **options: Any
    ) -> Any:
        if body is not None:
            recorder.keep(f"{name}-request", body)
        answer = lab.call(method, path, body, **options)
        if not answer.body:
            assert answer.status_int < 300, answer.status
            return None
        recorder.keep(f"{name}-response", answer.json)
        return answer.json

    # With one accelerator there is no choice which one is handed out.
    lab.report(accelerators=1)
    ask("versions", "GET", "/", persona=None)
    ask("version", "GET", "/v2", persona=None)
    profile = {
        "name": "fpga-large",
        "description": "One FPGA, programmed by the user",
        "groups": [
            {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
        ],
    }
    made = ask("profile-create", "POST", "/v2/device_profiles", [profile])
    ask("profile-list", "GET", "/v2/device_profiles?name=fpga-large")
    ask("profile-show", "GET", f"/v2/device_profiles/{made['uuid']}")
    member: dict[str, Any] = {"persona": "member", "service_token": "nova"}
    arqs = "/v2/accelerator_requests"
    wanted = {"device_profile_name": "fpga-large"}
    created = ask("arq-create", "POST", arqs, wanted, **member)
    one = created["arqs"][0]["uuid"]
    binding = {one: lab_module.binding(INSTANCE)}
    ask("arq-bind", "PATCH", arqs, binding, **member)
    ask("arq-list", "GET", f"{arqs}?instance={INSTANCE}", **member)
    ask("arq-show", "GET", f"{arqs}/{one}", **member)
    refused = lab.call("DELETE", f"{arqs}/{one}", persona="member")
    recorder.keep("error", refused.json)
    ask("arq-unbind", "PATCH", arqs, {one: lab_module.UNBINDING}, **member)
    device = lab.call("GET", "/v2/devices").json["devices"][0]["uuid"]
    reason = {"reason": "a fan is broken, ticket 4711"}
    ask("device-disable", "POST", f"/v2/devices/{device}/disable", reason)
    for thing in ("device", "deployable", "attribute"):
        listed = ask(f"{thing}-list", "GET", f"/v2/{thing}s")[f"{thing}s"]
        ask(f"{thing}-show", "GET", f"/v2/{thing}s/{listed[0]['uuid']}")
    note = {"deployable_id": 1, "key": "rack", "value": "b7"}
    ask("attribute-create", "POST", "/v2/attributes", note)
    recorder.keep(
        "deployable-program-request",
        [
            {
                "path": "/program",
                "op": "replace",
                "value": [{"image_uuid": lab_module.IMAGE}],
            }
        ],
    )


def test_the_samples_are_what_the_service_answers(lab: Lab) -> None:
    recorder = Recorder()
    walk(lab, recorder)
    assert recorder.different == []
    assert {path.name for path in SAMPLES.iterdir()} == recorder.names


def test_each_endpoint_is_in_the_reference_and_each_sample_is_used() -> None:
    pages = "\n".join(path.read_text() for path in SOURCE.glob("*.rst"))
    for one in app.routes().declarations():
        line = f"{one.method} /" + "/".join(one.path)
        assert re.search(rf"^   {re.escape(line)}$", pages, re.MULTILINE), line
    for path in SAMPLES.iterdir():
        assert f"samples/{path.name}" in pages, path.name


def test_each_key_of_a_view_is_in_the_reference() -> None:
    pages = "\n".join(path.read_text() for path in SOURCE.glob("*.rst"))
    for one in app.routes().declarations():
        for field in one.view.fields if one.view else ():
            assert f"``{field.name}``" in pages, field.name

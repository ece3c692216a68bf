# SPDX-License-Identifier: Apache-2.0
"""What schemathesis does besides, as a module that it loads: who asks, and
of what.

Left to itself it would ask for uuids that nobody has.  Here half of the
requests are for things that are there, which it saw in earlier answers.
"""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import schemathesis

SETTINGS = json.loads(Path(os.environ["CYBORG_FUZZ_SETTINGS"]).read_text())
CHANCE = random.Random(SETTINGS["seed"])
TOKENS: dict[str, str] = SETTINGS["tokens"]
PEOPLE: list[tuple[str, str | None]] = [
    ("admin", "nova"),
    ("admin", "nova"),
    ("admin", None),
    ("demo-member", "nova"),
    ("demo-member", None),
    ("demo-manager", None),
    ("demo-reader", None),
    ("other-member", "nova"),
    ("plain-service", None),
]
"""Users, and whose service token they bring."""

UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f-]{13,}")
KEPT = 50
VERSIONS = ("2.0", "2.1", "2.2", "2.3", "2.4", "latest")

BEYOND = (
    r"^Exactly one of arqs and instance",
    r"^value: no device profile is named",
    r"^marker: there is no such row",
    r"^This needs OpenStack-API-Version 2\.\d to",
    # What a later microversion knows.
    r"^'(?:address|device_state|driver_name|last_seen_at|numa_node"
    r"|status_reason)': unknown parameter",
    r"^sort_key: unknown field '(?:address|device_state|driver_name"
    r"|last_seen_at|numa_node|status_reason)'",
    r"path /project_id needs microversion",
    # What one place of a body says of another.
    r"path /[a-z_, /]* is missing",
    r"path /[a-z_]* is given twice",
    r": given twice",
    r"add and remove cannot be mixed",
    r"the value of /[a-z_]* must",
    r"must hold the accelerator request of the path alone",
    r"no known or CUSTOM_ (?:trait|resource class)",
    r"is no known (?:trait|resource class)",
    r"no resources:<CLASS> is asked for",
    r"only one of accel:",
    r"accel:bitstream_id' must be a uuid",
    r"accelerators? are asked for, at most",
    r"must be an integer from 1 to",
    r"name must not have the form of a uuid",
    r"not a time in ISO 8601",
    # The generator does not look into if and then.
    r"has characters that cannot be stored",
    # Sent as it is, where the client made something else of a path.
    r"^The query is not UTF-8",
)

known: dict[str, dict[str, dict[str, Any]]] = {}
"""Collection -> uuid -> what was shown of it last."""


def some(collection: str) -> dict[str, Any]:
    """Something that is, or was, there."""
    rows = list(known.get(collection, {}).values())
    return CHANCE.choice(rows) if rows else {}


def learn(collection: str, shown: Any) -> None:
    """Remember the rows of an answer."""
    if not isinstance(shown, dict):
        return
    rows = next(
        (value for value in shown.values() if isinstance(value, list)), []
    )
    rows = [shown] if "uuid" in shown else rows
    pool = known.setdefault(collection, {})
    for row in CHANCE.sample(rows, min(len(rows), KEPT)):
        if isinstance(row, dict) and "uuid" in row:
            pool[row["uuid"]] = row
    while len(pool) > KEPT:
        del pool[next(iter(pool))]


def collection_of(path: str) -> str:
    return (path.split("/") + ["", ""])[2]


def binding() -> dict[str, Any]:
    """The body that binds, or unbinds, a request that is there."""
    arq = some("accelerator_requests").get("uuid")
    if arq is None:
        return {}
    places = {
        "hostname": SETTINGS["provider"],
        "device_rp_uuid": some("deployables").get("rp_uuid"),
        "instance_uuid": some("accelerator_requests")["uuid"],
    }
    if CHANCE.random() < 0.5:
        return {arq: [{"op": "remove", "path": f"/{key}"} for key in places]}
    return {
        arq: [
            {"op": "add", "path": f"/{key}", "value": value}
            for key, value in places.items()
        ]
    }


def real_body(method: str, path: str) -> Any:
    """A body that means something, None where none comes to mind."""
    collection = collection_of(path)
    if (method, collection) == ("PATCH", "accelerator_requests"):
        return binding()
    if (method, collection) == ("POST", "accelerator_requests"):
        return {"device_profile_name": some("device_profiles").get("name")}
    if (method, collection) == ("POST", "device_profiles"):
        name = f"fuzz-{CHANCE.randrange(1000)}"
        return [{"name": name, "groups": [SETTINGS["group"]]}]
    if (method, collection) == ("POST", "attributes"):
        number = CHANCE.randrange(100)
        return {"deployable_id": 1, "key": "note", "value": f"{number}"}
    return None


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Choose who asks, and often something that is there."""
    user, service = CHANCE.choice(PEOPLE)
    headers = case.headers
    if headers is None:
        headers = case.headers = {}
    headers["X-Auth-Token"] = TOKENS[user]
    if service is not None:
        headers["X-Service-Token"] = TOKENS[service]
    if CHANCE.random() < 0.5:
        version = CHANCE.choice(VERSIONS)
        headers.setdefault("OpenStack-API-Version", f"accelerator {version}")
    if not _is_negative(case) and CHANCE.random() < 0.5:
        _make_real(case)


def _is_negative(case: Any) -> bool:
    """Whether it breaks the description on purpose."""
    return case.meta is not None and case.meta.generation.mode.is_negative


def _make_real(case: Any) -> None:
    collection = collection_of(case.operation.path)
    uuid = some(collection).get("uuid")
    for name, value in list((case.path_parameters or {}).items()):
        if uuid and UUID.fullmatch(str(value)):
            case.path_parameters[name] = uuid
    if isinstance(case.body, (dict, list)) and case.body:
        body = real_body(case.method.upper(), case.operation.path)
        if body is not None:
            case.body = body


@schemathesis.check
def refused_for_a_reason(context: Any, response: Any, case: Any) -> None:
    """What the description allows is refused only for what no schema can
    say."""
    if _is_negative(case) or response.status_code not in {400, 406}:
        return
    if context is None or case.meta is None:
        return
    said = response.json()["errors"][0]["detail"]
    assert any(re.search(reason, said) for reason in BEYOND), said


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """Remember what is there."""
    if response.status_code in {200, 201} and response.content:
        learn(collection_of(case.operation.path), response.json())

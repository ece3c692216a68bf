# SPDX-License-Identifier: Apache-2.0
"""The PATCH of accelerator requests: what a body asks for.

The body maps each request's uuid to a list of operations in the style of
JSON patch, of which only two combinations mean something: `add` of the
places of a binding, and `remove` of the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg import exception
from cyborg.api import body
from cyborg.api import types
from cyborg.api.microversions import Version
from cyborg.rpc.conductor import Binding

PLACES = {
    "/hostname": 255,
    "/device_rp_uuid": 36,
    "/instance_uuid": 36,
}
"""The paths that a binding always has, and how long a value may be."""

PROJECT = "/project_id"
PROJECT_SINCE = Version(2, 1)

LENGTHS = {**PLACES, PROJECT: 255}

SCHEMA = body.Schema(
    {
        "type": "object",
        "minProperties": 1,
        "propertyNames": types.UUID_SCHEMA,
        "additionalProperties": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "op": {"enum": ["add", "remove"]},
                    "path": {"enum": list(LENGTHS)},
                    "value": {},
                },
                "required": ["op", "path"],
                "additionalProperties": False,
                "if": {"properties": {"op": {"const": "add"}}},
                "then": {
                    "properties": {"value": {"type": "string"}},
                    "required": ["value"],
                },
            },
        },
    }
)


@dataclasses.dataclass(frozen=True)
class Change:
    """Bind the requests by `bindings`, or unbind `uuids` if it is empty."""

    uuids: list[str]
    bindings: list[Binding]


def parse(sent: Mapping[str, Any], version: Version) -> Change:
    """What a body that satisfies `SCHEMA` asks for.  Raises Invalid."""
    operations = {
        entry["op"] for entries in sent.values() for entry in entries
    }
    if len(operations) > 1:
        raise exception.Invalid(
            "op: add and remove cannot be mixed in one request"
        )
    values = {}
    for key, entries in sent.items():
        uuid = str(types.as_uuid(key))
        if uuid in values:
            raise exception.Invalid(f"{uuid}: given twice")
        values[uuid] = _values(uuid, entries, version)
    if operations == {"remove"}:
        return Change(list(values), [])
    return Change(
        list(values),
        [_binding(uuid, places) for uuid, places in values.items()],
    )


def _values(
    uuid: str, entries: Sequence[Mapping[str, Any]], version: Version
) -> dict[str, Any]:
    """The values of one request, by path."""
    places: dict[str, Any] = {}
    for entry in entries:
        path = entry["path"]
        if path in places:
            raise exception.Invalid(f"{uuid}: path {path} is given twice")
        places[path] = entry.get("value")
    if PROJECT in places and version < PROJECT_SINCE:
        raise exception.Invalid(
            f"{uuid}: path {PROJECT} needs microversion {PROJECT_SINCE}"
        )
    missing = [path for path in PLACES if path not in places]
    if missing:
        raise exception.Invalid(
            f"{uuid}: path {', '.join(missing)} is missing"
        )
    return places


def _binding(uuid: str, places: Mapping[str, str]) -> Binding:
    for path, value in places.items():
        if not value or len(value) > LENGTHS[path]:
            raise exception.Invalid(
                f"{uuid}: the value of {path} must have 1 to {LENGTHS[path]}"
                " characters"
            )
    provider = types.as_uuid(places["/device_rp_uuid"])
    if provider is None:
        raise exception.Invalid(
            f"{uuid}: the value of /device_rp_uuid must be a uuid"
        )
    return Binding(
        arq_uuid=uuid,
        hostname=places["/hostname"],
        device_rp_uuid=provider,
        instance_uuid=places["/instance_uuid"],
        project_id=places.get(PROJECT),
    )

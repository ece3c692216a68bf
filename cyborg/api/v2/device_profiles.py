# SPDX-License-Identifier: Apache-2.0
"""Device profiles: what a flavor or a port may ask for, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cyborg import exception
from cyborg import profile
from cyborg.api import body
from cyborg.api import types
from cyborg.api.endpoint import Call
from cyborg.api.endpoint import endpoint
from cyborg.api.microversions import Version
from cyborg.db import models
from cyborg.db import profiles

MAX_TEXT = 65535
"""Bytes that a text column holds on every database."""


def _groups(row: models.DeviceProfile) -> list[dict[str, Any]]:
    """The groups as stored, but for what is none."""
    try:
        stored = json.loads(row.profile_json)
    except ValueError:
        return []
    groups = stored.get("groups") if isinstance(stored, dict) else None
    if not isinstance(groups, list):
        return []
    return [group for group in groups if isinstance(group, dict)]


VIEW = types.View(
    "device_profiles",
    types.Field("uuid", kind=types.UUID),
    types.Field("name", kind="string"),
    types.Field("description"),
    types.Field(
        "groups",
        _groups,
        kind={"type": "array", "items": {"type": "object"}},
    ),
)

_PROFILE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "groups": {"type": "array"},
        "uuid": {
            "anyOf": [types.UUID_SCHEMA, {"type": "null"}],
        },
        "description": {"type": ["string", "null"]},
    },
    "required": ["name", "groups"],
    "additionalProperties": False,
}
_AMOUNT = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": profile.MAX_AMOUNT},
        {"type": "string", "pattern": "^[1-9][0-9]{0,8}$"},
    ]
}
_GROUP = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"type": "string"},
    "patternProperties": {
        "^resources: *[A-Z0-9_]+ *$": _AMOUNT,
        "^trait: *[A-Z0-9_]+ *$": types.one_of(("required", "forbidden")),
        "^accel:.*[^ ].*$": {"type": "string"},
    },
    "additionalProperties": False,
}
_TOLD = {
    **_PROFILE,
    "properties": {
        **_PROFILE["properties"],
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,255}$"},
        "groups": {"type": "array", "minItems": 1, "items": _GROUP},
    },
}


def _one(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A list of exactly one, or that one."""
    return {
        "if": {"type": "array"},
        "then": {"minItems": 1, "maxItems": 1, "items": schema},
        "else": schema,
    }


CREATE = body.Schema(_one(_PROFILE), told=_one(_TOLD))


class DeviceProfiles:
    """`/v2/device_profiles`"""

    @endpoint(
        "GET",
        "/v2/device_profiles",
        "cyborg:device_profile:get_all",
        parameters=types.Parameters(
            own={"name": types.TEXT}, columns=profiles.SOURCE.fields
        ),
        view=VIEW,
        many=True,
        key="device_profiles",
    )
    def list_all(self, call: Call) -> list[models.DeviceProfile]:
        """All profiles, or those of the names asked for."""
        names = call.query.own.get("name")
        return profiles.list_all(
            call.database,
            call.query.page,
            None if names is None else names.split(","),
        )

    @endpoint(
        "GET",
        "/v2/device_profiles/{uuid}",
        "cyborg:device_profile:get_one",
        view=VIEW,
        key="device_profile",
    )
    def show(self, call: Call, uuid: str) -> models.DeviceProfile:
        """The profile with a uuid."""
        return profiles.get(call.database, uuid)

    @endpoint(
        "GET",
        "/v2/device_profiles/{name}",
        "cyborg:device_profile:get_one",
        since=Version(2, 2),
        view=VIEW,
        key="device_profile",
    )
    def show_by_name(self, call: Call, name: str) -> models.DeviceProfile:
        """The profile with a name."""
        return profiles.get(call.database, name)

    @endpoint(
        "POST",
        "/v2/device_profiles",
        "cyborg:device_profile:create",
        schema=CREATE,
        view=VIEW,
        status=201,
        errors=[exception.Conflict],
    )
    def create(self, call: Call) -> models.DeviceProfile:
        """Store a profile; the body is a list of exactly one."""
        sent = call.body[0] if isinstance(call.body, list) else call.body
        uuid = call.conductor.create_device_profile(
            call.context,
            name=profile.check_name(sent["name"]),
            groups=_checked_groups(call, sent["groups"]),
            description=_checked_text(sent.get("description")),
            uuid=types.as_uuid(sent.get("uuid")),
        )
        return profiles.get(call.database, uuid)

    @endpoint(
        "DELETE",
        "/v2/device_profiles",
        "cyborg:device_profile:delete",
        parameters=types.Parameters(own={"value": types.SOME_TEXT}),
        status=204,
        errors=[exception.NotFound, exception.Conflict],
    )
    def delete_several(self, call: Call) -> None:
        """Delete all of the profiles named, or none."""
        names = [
            name for name in call.query.own.get("value", "").split(",") if name
        ]
        if not names:
            raise exception.Invalid("value: no device profile is named")
        call.conductor.delete_device_profiles(
            call.context, list(dict.fromkeys(names))
        )

    @endpoint(
        "DELETE",
        "/v2/device_profiles/{name}",
        "cyborg:device_profile:delete",
        status=204,
        errors=[exception.Conflict],
    )
    def delete(self, call: Call, name: str) -> None:
        """Delete the profile with a name or a uuid."""
        call.conductor.delete_device_profiles(
            call.context,
            [(types.as_uuid(name) if "-" in name else None) or name],
        )


def _checked_groups(call: Call, groups: Any) -> list[dict[str, str]]:
    parsed = profile.parse(groups)
    limit = call.service.settings.max_accelerators
    asked = sum(map(profile.accelerator_count, parsed))
    if asked > limit:
        raise exception.Invalid(
            f"groups: {asked} accelerators are asked for, at most {limit}"
            " can be"
        )
    if len(json.dumps({"groups": parsed})) > MAX_TEXT:
        raise exception.Invalid(f"groups: more than {MAX_TEXT} bytes")
    return parsed


def _checked_text(description: str | None) -> str | None:
    if description is not None and len(description.encode()) > MAX_TEXT:
        raise exception.Invalid(f"description: more than {MAX_TEXT} bytes")
    return description

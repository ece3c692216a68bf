# SPDX-License-Identifier: Apache-2.0
"""Attributes of deployables: traits, the resource class, plain metadata."""

from __future__ import annotations

from typing import Any

from cyborg import exception
from cyborg import inventory
from cyborg.api import body
from cyborg.api import types
from cyborg.api.endpoint import Call
from cyborg.api.endpoint import endpoint
from cyborg.db import devices
from cyborg.db import models
from cyborg.db import query

MAX_TEXT = 65535
"""Bytes that a text column holds on every database."""

VIEW = types.View(
    "attributes",
    types.Field("uuid", kind=types.UUID),
    types.Field("deployable_id", kind="integer"),
    types.Field("key", kind="string"),
    types.Field("value", kind="string"),
)

_ATTRIBUTE = {
    "type": "object",
    "properties": {
        "deployable_id": {
            "anyOf": [
                {"type": "integer"},
                {"type": "string", "pattern": r"^[0-9]{1,20}\Z"},
            ]
        },
        "key": {"type": "string", "minLength": 1},
        "value": {"type": "string"},
    },
    "required": ["deployable_id", "key", "value"],
    "additionalProperties": False,
}

CREATE = body.Schema(
    {
        "type": "object",
        "if": {"type": "object", "required": ["attribute"]},
        "then": {
            "properties": {"attribute": _ATTRIBUTE},
            "additionalProperties": False,
        },
        "else": _ATTRIBUTE,
    }
)


class Attributes:
    """`/v2/attributes`"""

    @endpoint(
        "GET",
        "/v2/attributes",
        "cyborg:attribute:get_all",
        parameters=types.Parameters(columns=devices.ATTRIBUTES.fields),
        view=VIEW,
        many=True,
        key="attributes",
    )
    def list_all(self, call: Call) -> list[models.Attribute]:
        """All attributes, or those that the filters leave."""
        return devices.list_attributes(call.database, call.query.page)

    @endpoint(
        "GET", "/v2/attributes/{uuid}", "cyborg:attribute:get_one", view=VIEW
    )
    def show(self, call: Call, uuid: str) -> models.Attribute:
        """One attribute."""
        return devices.get_attribute(call.database, uuid)

    @endpoint(
        "POST",
        "/v2/attributes",
        "cyborg:attribute:create",
        schema=CREATE,
        view=VIEW,
        status=201,
        errors=[exception.NotFound, exception.Conflict],
    )
    def create(self, call: Call) -> models.Attribute:
        """Give a deployable an attribute that no report takes away."""
        sent: dict[str, Any] = call.body.get("attribute", call.body)
        deployable = int(sent["deployable_id"])
        if not 0 < deployable <= query.MAX_INTEGER:
            raise exception.NotFound(f"There is no deployable {deployable}.")
        _check(sent["key"], sent["value"])
        uuid = call.conductor.create_attribute(
            call.context, deployable, sent["key"], sent["value"]
        )
        return devices.get_attribute(call.database, uuid)

    @endpoint(
        "DELETE",
        "/v2/attributes/{uuid}",
        "cyborg:attribute:delete",
        status=204,
    )
    def delete(self, call: Call, uuid: str) -> None:
        """Take an attribute away."""
        call.conductor.delete_attribute(call.context, uuid)


def _check(key: str, value: str) -> None:
    """Raises Invalid where Placement or the database could not take it."""
    for name, text in (("key", key), ("value", value)):
        if len(text.encode()) > MAX_TEXT:
            raise exception.Invalid(f"{name}: more than {MAX_TEXT} bytes")
    if key.startswith("trait") and not inventory.is_trait(value):
        raise exception.Invalid("value: no known or CUSTOM_ trait")
    if key == "rc" and not inventory.is_resource_class(value):
        raise exception.Invalid("value: no known or CUSTOM_ resource class")

# SPDX-License-Identifier: Apache-2.0
"""Deployables: the parts of devices that are resource providers."""

from __future__ import annotations

import json
import operator

from cyborg import exception
from cyborg.api import body
from cyborg.api import types
from cyborg.api.endpoint import Call
from cyborg.api.endpoint import endpoint
from cyborg.api.v2 import devices as devices_view
from cyborg.db import devices
from cyborg.db import models
from cyborg.db import shown


def _attributes(row: models.Deployable | shown.Deployable) -> str:
    return json.dumps([{item.key: item.value} for item in row.attributes])


VIEW = types.View(
    "deployables",
    types.Field("uuid", kind=types.UUID),
    types.Field("parent_id", kind=("integer", "null")),
    types.Field("root_id", kind=("integer", "null")),
    types.Field("name", kind="string"),
    types.Field("num_accelerators", kind="integer"),
    types.Field("device_id", kind="integer"),
    types.Field("attributes_list", _attributes, kind="string"),
    types.Field("rp_uuid"),
    types.Field("driver_name"),
    types.Field("bitstream_id"),
    types.Field(
        "status_reason",
        operator.attrgetter("fault"),
        since=devices_view.DETAILED,
    ),
    bookmark=True,
)

PROGRAM = body.Schema(
    {
        "type": "array",
        "minItems": 1,
        "maxItems": 1,
        "items": {
            "type": "object",
            "properties": {
                "path": {"const": "/program"},
                "op": {"const": "replace"},
                "value": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {"image_uuid": types.UUID_SCHEMA},
                        "required": ["image_uuid"],
                        "additionalProperties": False,
                    },
                },
            },
            "required": ["path", "op", "value"],
            "additionalProperties": False,
        },
    }
)


class Deployables:
    """`/v2/deployables`"""

    @endpoint(
        "GET",
        "/v2/deployables",
        "cyborg:deployable:get_all",
        parameters=types.Parameters(
            columns=devices.DEPLOYABLES.fields,
            since={"status_reason": devices_view.DETAILED},
        ),
        view=VIEW,
        many=True,
        key="deployables",
    )
    def list_all(self, call: Call) -> list[shown.Deployable]:
        """All deployables, or those that the filters leave."""
        return devices.list_deployables(call.database, call.query.page)

    @endpoint(
        "GET",
        "/v2/deployables/{uuid}",
        "cyborg:deployable:get_one",
        view=VIEW,
    )
    def show(self, call: Call, uuid: str) -> models.Deployable:
        """One deployable."""
        return devices.get_deployable(call.database, uuid)

    @endpoint(
        "PATCH",
        "/v2/deployables/{uuid}/program",
        "cyborg:deployable:program",
        schema=PROGRAM,
        view=VIEW,
        errors=[exception.Conflict, exception.DeviceFailed],
    )
    def program(self, call: Call, uuid: str) -> models.Deployable:
        """Program the deployable with an image, and wait for it."""
        return _program(call, uuid)

    @endpoint(
        "PATCH",
        "/v2/deployables/{uuid}/program/{uuid}",
        "cyborg:deployable:program",
        schema=PROGRAM,
        view=VIEW,
        errors=[exception.Conflict, exception.DeviceFailed],
    )
    def program_again(
        self, call: Call, uuid: str, repeated: str
    ) -> models.Deployable:
        """The same, at the path that openstacksdk makes."""
        if repeated != uuid:
            raise exception.NotFound("There is nothing at this path.")
        return _program(call, uuid)


def _program(call: Call, uuid: str) -> models.Deployable:
    image = types.as_uuid(call.body[0]["value"][0]["image_uuid"])
    call.conductor.program_deployable(call.context, uuid, str(image))
    return devices.get_deployable(call.database, uuid)

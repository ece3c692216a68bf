# SPDX-License-Identifier: Apache-2.0
"""Devices: the cards of all hosts."""

from __future__ import annotations

from cyborg.api import body
from cyborg.api import types
from cyborg.api.endpoint import Call
from cyborg.api.endpoint import endpoint
from cyborg.api.microversions import Version
from cyborg.db import devices
from cyborg.db import models
from cyborg.db import shown

DETAILED = Version(2, 4)
"""Since when devices show how they are and where."""

VIEW = types.View(
    "devices",
    types.Field("uuid", kind=types.UUID),
    types.Field("type", kind=types.one_of(models.DEVICE_TYPES)),
    types.Field("vendor", kind="string"),
    types.Field("model", kind="string"),
    types.Field("std_board_info"),
    types.Field("vendor_board_info"),
    types.Field("hostname", kind="string"),
    types.Field(
        "status",
        kind=types.one_of(("enabled", "maintaining")),
        since=Version(2, 3),
    ),
    types.Field(
        "device_state",
        kind=types.one_of(models.DEVICE_STATES),
        since=DETAILED,
    ),
    types.Field("status_reason", since=DETAILED),
    types.Field("address", since=DETAILED),
    types.Field("driver_name", since=DETAILED),
    types.Field("numa_node", kind=("integer", "null"), since=DETAILED),
    types.time("last_seen_at", since=DETAILED),
)

DISABLE = body.Schema(
    {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "minLength": 1, "maxLength": 255}
        },
        "additionalProperties": False,
    }
)


class Devices:
    """`/v2/devices`"""

    @endpoint(
        "GET",
        "/v2/devices",
        "cyborg:device:get_all",
        parameters=types.Parameters(
            columns=devices.DETAILED_DEVICES.fields,
            since=dict.fromkeys(devices.DETAILS, DETAILED),
        ),
        view=VIEW,
        many=True,
        key="devices",
    )
    def list_all(self, call: Call) -> list[shown.Device]:
        """All devices, or those that the filters leave."""
        return devices.list_devices(
            call.database, call.query.page, call.version >= DETAILED
        )

    @endpoint("GET", "/v2/devices/{uuid}", "cyborg:device:get_one", view=VIEW)
    def show(self, call: Call, uuid: str) -> shown.Device:
        """One device."""
        return devices.get_device(
            call.database, uuid, call.version >= DETAILED
        )

    @endpoint(
        "POST",
        "/v2/devices/{uuid}/enable",
        "cyborg:device:enable",
        status=204,
    )
    def enable(self, call: Call, uuid: str) -> None:
        """Let new work land on the device again, and have cleaned again
        what could not be."""
        call.conductor.set_device_status(call.context, uuid, "enabled")

    @endpoint(
        "POST",
        "/v2/devices/{uuid}/disable",
        "cyborg:device:disable",
        schema=DISABLE,
        optional_body_since=DETAILED,
        status=204,
    )
    def disable(self, call: Call, uuid: str) -> None:
        """Keep new work off the device; what runs on it stays."""
        call.conductor.set_device_status(
            call.context, uuid, "maintaining", (call.body or {}).get("reason")
        )

# SPDX-License-Identifier: Apache-2.0
"""What is told to whoever listens: events, and the payload of each.

Who adds, drops or renames a field of a payload gives it a new version: a
listener trusts `cyborg_object.version` to say which fields it meets.  A new
field with every other one as it was is a minor version.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from typing import Any
from typing import ClassVar
from typing import TypeAlias

NAMESPACE = "cyborg"


class Event(enum.Enum):
    """Event types, as oslo.messaging names them."""

    ARQ_CREATED = "accelerator_request.create.end"
    BIND_STARTED = "accelerator_request.bind.start"
    BOUND = "accelerator_request.bind.end"
    BIND_FAILED = "accelerator_request.bind.error"
    UNBOUND = "accelerator_request.unbind.end"
    ARQ_DELETED = "accelerator_request.delete.end"
    DEVICE_CREATED = "device.create.end"
    DEVICE_UPDATED = "device.update.end"
    DEVICE_DELETED = "device.delete.end"

    @property
    def is_error(self) -> bool:
        """Whether it goes to the listeners of errors."""
        return self.value.endswith(".error")


UNBOUND = "Unbound"
DELETED = "Deleted"
"""States of an accelerator request that has just given back what it had;
all else in the payload is as it was before."""


@dataclasses.dataclass(frozen=True, slots=True)
class AcceleratorRequestPayload:
    """An accelerator request after a change.

    `error` says why a bind failed.
    """

    VERSION: ClassVar[str] = "1.0"

    uuid: str
    state: str
    project_id: str | None
    device_profile_name: str
    device_profile_group_id: int
    hostname: str | None
    device_rp_uuid: str | None
    instance_uuid: str | None
    image_uuid: str | None
    error: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class DevicePayload:
    """A device after a change, or as it was before it went.

    The fields are those of `GET /v2/devices/<uuid>` of the same names.
    """

    VERSION: ClassVar[str] = "1.0"

    uuid: str
    type: str
    vendor: str
    model: str
    hostname: str
    address: str | None
    numa_node: int | None
    driver_name: str | None
    status: str
    device_state: str | None
    status_reason: str | None
    last_seen_at: dt.datetime | None


Payload: TypeAlias = AcceleratorRequestPayload | DevicePayload


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """One thing that happened."""

    event: Event
    payload: Payload


def encode(payload: Payload) -> dict[str, Any]:
    """The payload as plain data, with its name and version."""
    return {
        "cyborg_object.namespace": NAMESPACE,
        "cyborg_object.name": type(payload).__name__,
        "cyborg_object.version": payload.VERSION,
        "cyborg_object.data": {
            field.name: _plain(getattr(payload, field.name))
            for field in dataclasses.fields(payload)
        },
    }


def _plain(value: object) -> object:
    """Times are UTC, as ISO 8601 has them."""
    if isinstance(value, dt.datetime):
        return f"{value.isoformat(timespec='seconds')}Z"
    return value

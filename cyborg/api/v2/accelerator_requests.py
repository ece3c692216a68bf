# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests (ARQs): an instance's claim to one accelerator."""

from __future__ import annotations

import json

from cyborg import arq
from cyborg import exception
from cyborg.api import body
from cyborg.api import types
from cyborg.api.endpoint import Call
from cyborg.api.endpoint import endpoint
from cyborg.api.v2 import patches
from cyborg.db import arqs
from cyborg.db import models
from cyborg.db import query


def _handle_type(row: models.AcceleratorRequest) -> str:
    return "" if row.attach_handle is None else row.attach_handle.attach_type


def _handle_uuid(row: models.AcceleratorRequest) -> str | None:
    return None if row.attach_handle is None else row.attach_handle.uuid


def _handle_info(row: models.AcceleratorRequest) -> dict[str, str]:
    """The address of the accelerator, strings only."""
    if row.attach_handle is None:
        return {}
    try:
        info = json.loads(row.attach_handle.attach_info)
    except ValueError:
        return {}
    if not isinstance(info, dict):
        return {}
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in info.items()
    }


def _profile_name(row: models.AcceleratorRequest) -> str:
    return row.device_profile.name


VIEW = types.View(
    "accelerator_requests",
    types.Field("uuid", kind=types.UUID),
    types.Field("state", kind=types.one_of(map(str, arq.State))),
    types.Field("device_profile_name", _profile_name, kind="string"),
    types.Field("device_profile_group_id", kind="integer"),
    types.Field("hostname"),
    types.Field("device_rp_uuid"),
    types.Field("instance_uuid"),
    types.Field("project_id"),
    types.Field("attach_handle_type", _handle_type, kind="string"),
    types.Field("attach_handle_uuid", _handle_uuid, kind=types.UUID_OR_NULL),
    types.Field(
        "attach_handle_info",
        _handle_info,
        kind={"type": "object", "additionalProperties": types.TEXT},
    ),
)

CREATE = body.Schema(
    {
        "type": "object",
        "properties": {
            "device_profile_name": {"type": "string"},
            "device_profile_group_id": {
                "type": ["integer", "null"],
                "minimum": 0,
                "maximum": query.MAX_INTEGER,
            },
            "image_uuid": {"anyOf": [types.UUID_SCHEMA, {"type": "null"}]},
        },
        "required": ["device_profile_name"],
        "additionalProperties": False,
    }
)


class AcceleratorRequests:
    """`/v2/accelerator_requests`"""

    @endpoint(
        "GET",
        "/v2/accelerator_requests",
        "cyborg:arq:get_all",
        parameters=types.Parameters(
            own={
                "instance": types.TEXT,
                "bind_state": types.one_of(("resolved",)),
            },
            columns=arqs.SOURCE.fields,
        ),
        view=VIEW,
        many=True,
        key="arqs",
        errors=[exception.NotResolved],
    )
    def list_all(self, call: Call) -> list[models.AcceleratorRequest]:
        """The requests that exist for the caller, or an instance's."""
        bind_state = call.query.own.get("bind_state")
        if bind_state not in {None, "resolved"}:
            raise exception.Invalid("bind_state: only resolved is known")
        return arqs.list_arqs(
            call.database,
            call.query.page,
            call.query.own.get("instance"),
            bind_state is not None,
            call.caller.project_scope,
        )

    @endpoint(
        "GET",
        "/v2/accelerator_requests/{uuid}",
        "cyborg:arq:get_one",
        view=VIEW,
    )
    def show(self, call: Call, uuid: str) -> models.AcceleratorRequest:
        """One request."""
        return arqs.get(call.database, uuid, call.caller.project_scope)

    @endpoint(
        "POST",
        "/v2/accelerator_requests",
        "cyborg:arq:create",
        schema=CREATE,
        view=VIEW,
        many=True,
        key="arqs",
        status=201,
        errors=[exception.NotFound],
    )
    def create(self, call: Call) -> list[models.AcceleratorRequest]:
        """One request for each accelerator that the profile asks for."""
        name = call.body["device_profile_name"]
        if not name:
            raise exception.NotFound("There is no device profile ''.")
        uuids = call.conductor.create_arqs(
            call.context,
            name,
            call.body.get("device_profile_group_id"),
            types.as_uuid(call.body.get("image_uuid")),
        )
        return arqs.get_many(call.database, uuids)

    @endpoint(
        "PATCH",
        "/v2/accelerator_requests",
        "cyborg:arq:update",
        schema=patches.SCHEMA,
        status=202,
        errors=[exception.NotFound, exception.Conflict],
        service_token=True,
    )
    def update(self, call: Call) -> None:
        """Bind all requests of the body to their instances, or unbind all."""
        _apply(call, patches.parse(call.body, call.version))

    @endpoint(
        "PATCH",
        "/v2/accelerator_requests/{uuid}",
        "cyborg:arq:update",
        schema=patches.SCHEMA,
        status=202,
        errors=[exception.NotFound, exception.Conflict],
        service_token=True,
    )
    def update_one(self, call: Call, uuid: str) -> None:
        """The same for one, at the path that openstacksdk uses."""
        change = patches.parse(call.body, call.version)
        if change.uuids != [uuid]:
            raise exception.Invalid(
                "body: must hold the accelerator request of the path alone"
            )
        _apply(call, change)

    @endpoint(
        "DELETE",
        "/v2/accelerator_requests",
        "cyborg:arq:delete",
        parameters=types.Parameters(
            own={"arqs": types.UUIDS, "instance": types.SOME_TEXT}
        ),
        status=204,
        errors=[exception.NotFound, exception.Conflict],
    )
    def delete_several(self, call: Call) -> None:
        """Delete the requests that are listed, or those of an instance."""
        listed = call.query.own.get("arqs")
        instance = call.query.own.get("instance")
        if bool(listed) == bool(instance):
            raise exception.Invalid(
                "Exactly one of arqs and instance must be given."
            )
        if instance:
            call.require_service_token()
            call.conductor.delete_instance_arqs(
                call.context, instance, call.caller.project_scope
            )
        elif listed:
            _delete(call, _uuids(listed))

    @endpoint(
        "DELETE",
        "/v2/accelerator_requests/{uuid}",
        "cyborg:arq:delete",
        status=204,
        errors=[exception.Conflict],
    )
    def delete(self, call: Call, uuid: str) -> None:
        """Delete one request."""
        _delete(call, [uuid])


def _apply(call: Call, change: patches.Change) -> None:
    scope = call.caller.project_scope
    if change.bindings:
        call.conductor.bind_arqs(call.context, change.bindings, scope)
    else:
        call.conductor.unbind_arqs(call.context, change.uuids, scope)


def _delete(call: Call, uuids: list[str]) -> None:
    call.conductor.delete_arqs(
        call.context,
        uuids,
        call.caller.project_scope,
        may_unbind=call.context.service_request,
    )


def _uuids(text: str) -> list[str]:
    """The uuids of a list with commas, each once."""
    found: dict[str, None] = {}
    for part in text.split(","):
        uuid = types.as_uuid(part.strip())
        if uuid is None:
            raise exception.Invalid(f"arqs: {part[:64]!r} is not a uuid")
        found[uuid] = None
    return list(found)

# SPDX-License-Identifier: Apache-2.0
"""What a conductor can be asked; its server is `cyborg.conductor.manager`.

Versions: 1.0 is the first; 1.1 reports faults of deployables and how long
cleaning takes, and gives the reason for which a device is disabled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import oslo_messaging
from oslo_config import cfg

from cyborg import inventory
from cyborg.context import RequestContext
from cyborg.rpc import codec
from cyborg.rpc import transport as rpc_transport

TOPIC = "cyborg-conductor"
VERSION = "1.1"
FIRST = "1.0"
"""What a call is sent as that the first version knew: it still goes to
conductors of that version."""

ANSWER_SECONDS = 60.0
"""No call of ours waits longer, whatever `rpc_response_timeout` allows: a
lost reply must neither hang a client of the API nor silence an agent."""


def answer_seconds(conf: cfg.ConfigOpts) -> float:
    """How long whoever asks a conductor for something waits for it."""
    return float(min(conf.rpc_response_timeout, ANSWER_SECONDS))


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """Bind the ARQ to the instance, on the provider that was allocated.

    `project_id`, where given, becomes the ARQ's project.
    """

    arq_uuid: str
    hostname: str
    device_rp_uuid: str
    instance_uuid: str
    project_id: str | None = None


class ConductorClient:
    """Any conductor, by way of the broker.

    Each method waits for the answer and raises the conductor's own error,
    Unavailable where the broker or every conductor is gone, or Timeout.
    `project_scope` is the project whose ARQs exist for the caller; None
    means every project.
    """

    def __init__(
        self, transport: oslo_messaging.RPCTransport, conf: cfg.ConfigOpts
    ) -> None:
        self._conf = conf
        self._caller = rpc_transport.Caller(
            transport,
            oslo_messaging.Target(topic=TOPIC, version=FIRST),
            version_cap=conf.upgrade_levels.conductor,
        )

    def _call(
        self,
        context: RequestContext,
        method: str,
        version: str = FIRST,
        **arguments: Any,
    ) -> Any:
        return self._caller.call(
            context,
            "the conductor",
            method,
            arguments,
            version=version,
            timeout=answer_seconds(self._conf),
        )

    def report_host(
        self, context: RequestContext, report: inventory.HostReport
    ) -> None:
        """Store all that an agent knows of its host."""
        self._call(context, "report_host", report=codec.encode(report))

    def heartbeat(
        self, context: RequestContext, host: str, digest: str
    ) -> bool:
        """Say that the agent lives and its last report still holds.

        False asks the agent to look its provider up and report again.
        """
        return bool(self._call(context, "heartbeat", host=host, digest=digest))

    def create_device_profile(
        self,
        context: RequestContext,
        name: str,
        groups: list[dict[str, str]],
        description: str | None = None,
        uuid: str | None = None,
    ) -> str:
        """Store a profile; its uuid.  Conflict where the name is taken."""
        return str(
            self._call(
                context,
                "create_device_profile",
                name=name,
                groups=groups,
                description=description,
                uuid=uuid,
            )
        )

    def delete_device_profiles(
        self, context: RequestContext, keys: Sequence[str]
    ) -> None:
        """Delete all profiles of these names or uuids, or none of them.

        NotFound, or Conflict where one is in use.
        """
        self._call(context, "delete_device_profiles", keys=list(keys))

    def create_arqs(
        self,
        context: RequestContext,
        device_profile_name: str,
        group_id: int | None = None,
        image_uuid: str | None = None,
    ) -> list[str]:
        """Make the ARQs of a profile (or of one group); uuids in order."""
        return list(
            self._call(
                context,
                "create_arqs",
                device_profile_name=device_profile_name,
                group_id=group_id,
                image_uuid=image_uuid,
            )
        )

    def bind_arqs(
        self,
        context: RequestContext,
        bindings: Sequence[Binding],
        project_scope: str | None,
    ) -> None:
        """Give each ARQ a free handle on its provider, or start to."""
        self._call(
            context,
            "bind_arqs",
            bindings=codec.encode(bindings),
            project_scope=project_scope,
        )

    def unbind_arqs(
        self,
        context: RequestContext,
        arq_uuids: Sequence[str],
        project_scope: str | None,
    ) -> None:
        """Take the accelerators of the ARQs back; the ARQs stay."""
        self._call(
            context,
            "unbind_arqs",
            arq_uuids=list(arq_uuids),
            project_scope=project_scope,
        )

    def delete_arqs(
        self,
        context: RequestContext,
        arq_uuids: Sequence[str],
        project_scope: str | None,
        may_unbind: bool,
    ) -> None:
        """Delete those there are, then NotFound if some were missing.

        Forbidden, and nothing deleted, where one is bound and the caller
        may not unbind.
        """
        self._call(
            context,
            "delete_arqs",
            arq_uuids=list(arq_uuids),
            project_scope=project_scope,
            may_unbind=may_unbind,
        )

    def delete_instance_arqs(
        self,
        context: RequestContext,
        instance_uuid: str,
        project_scope: str | None,
    ) -> None:
        """Delete the ARQs of an instance, if it has any."""
        self._call(
            context,
            "delete_instance_arqs",
            instance_uuid=instance_uuid,
            project_scope=project_scope,
        )

    def set_device_status(
        self,
        context: RequestContext,
        device_uuid: str,
        status: str,
        reason: str | None = None,
    ) -> None:
        """Put a device to "enabled" (what could not be cleaned is cleaned
        again) or, for that reason, "maintaining"."""
        if reason is None:
            self._call(
                context,
                "set_device_status",
                device_uuid=device_uuid,
                status=status,
            )
            return
        self._call(
            context,
            "set_device_status",
            "1.1",
            device_uuid=device_uuid,
            status=status,
            reason=reason,
        )

    def create_attribute(
        self,
        context: RequestContext,
        deployable_id: int,
        key: str,
        value: str,
    ) -> str:
        """Add an attribute to a deployable; its uuid."""
        return str(
            self._call(
                context,
                "create_attribute",
                deployable_id=deployable_id,
                key=key,
                value=value,
            )
        )

    def delete_attribute(self, context: RequestContext, uuid: str) -> None:
        """Remove an attribute."""
        self._call(context, "delete_attribute", uuid=uuid)

    def program_deployable(
        self,
        context: RequestContext,
        deployable_uuid: str,
        image_uuid: str,
    ) -> None:
        """Program a deployable with an image; returns when it is done.

        Conflict, NotFound, DeviceFailed with the driver's reason, Timeout.
        """
        self._caller.call(
            context,
            "the conductor",
            "program_deployable",
            {"deployable_uuid": deployable_uuid, "image_uuid": image_uuid},
            timeout=self._conf.bind_timeout + 2 * answer_seconds(self._conf),
            call_monitor_timeout=rpc_transport.MONITOR_SECONDS,
        )

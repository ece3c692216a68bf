# SPDX-License-Identifier: Apache-2.0
"""What the agent of a host can be asked; served by `cyborg.agent.manager`.

Versions: 1.0 is the first.
"""

from __future__ import annotations

import dataclasses

import oslo_messaging
from oslo_config import cfg

from cyborg.context import RequestContext
from cyborg.rpc import codec
from cyborg.rpc import transport as rpc_transport

TOPIC = "cyborg-agent"
VERSION = "1.0"


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramOrder:
    """Program a deployable with an image, or with what offers a function.

    Orders of the same `job_uuid` are one order.  `timeout` is in seconds.
    """

    job_uuid: str
    driver: str
    controlpath: str
    deployable_name: str
    image_uuid: str | None
    function_id: str | None
    timeout: float


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramResult:
    """What is on the device now; None where the image does not say."""

    bitstream_id: str | None


class AgentClient:
    """The agents, by the `[DEFAULT] host` of each."""

    def __init__(
        self, transport: oslo_messaging.RPCTransport, conf: cfg.ConfigOpts
    ) -> None:
        self._conf = conf
        self._caller = rpc_transport.Caller(
            transport,
            oslo_messaging.Target(topic=TOPIC, version=VERSION),
            version_cap=conf.upgrade_levels.agent,
        )

    def program(
        self, context: RequestContext, host: str, order: ProgramOrder
    ) -> ProgramResult:
        """Have a device programmed; returns when it is done.

        Joins the order where it runs already.  DeviceFailed with the
        driver's reason, NotFound (image), Conflict (device busy),
        Unavailable or Timeout.
        """
        answer = self._caller.call(
            context,
            f"the agent of {host}",
            "program",
            {"order": codec.encode(order)},
            server=host,
            timeout=order.timeout + self._conf.rpc_response_timeout,
            call_monitor_timeout=rpc_transport.MONITOR_SECONDS,
        )
        return codec.decode(ProgramResult, answer)

    def discover(self, context: RequestContext, host: str) -> None:
        """Ask an agent to look at its hardware now; does not wait."""
        self._caller.cast(
            context, f"the agent of {host}", "discover", server=host
        )

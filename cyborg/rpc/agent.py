# SPDX-License-Identifier: Apache-2.0
"""What the agent of a host can be asked; served by `cyborg.agent.manager`.

Versions: 1.0 is the first; 1.1 makes and cleans units (`prepare`, `clean`).
"""

from __future__ import annotations

import dataclasses

import oslo_messaging
from oslo_config import cfg

from cyborg import exception
from cyborg.context import RequestContext
from cyborg.rpc import codec
from cyborg.rpc import transport as rpc_transport

TOPIC = "cyborg-agent"
VERSION = "1.1"
FIRST = "1.0"
"""What each call is sent as that the first version knew: hosts are upgraded
one after another."""


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


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """An attach handle (its uuid) as the agent's drivers know it."""

    uuid: str
    attach_type: str
    attach_info: str


@dataclasses.dataclass(frozen=True, slots=True)
class UnitsOrder:
    """Make units of a deployable for an instance, or clean what one gave
    back.

    Orders of the same `job_uuid` are one order.  `timeout` (seconds) is how
    long the work may take from when the agent begins it.
    """

    job_uuid: str
    driver: str
    controlpath: str
    deployable_name: str
    units: tuple[Unit, ...]
    timeout: float


@dataclasses.dataclass(frozen=True, slots=True)
class CleanResult:
    """How far cleaning is."""

    done: bool
    percent: int = 0


CLEAN_WAIT = 10.0
"""Seconds after which an agent that still cleans says so: cleaning may last
hours, and nobody should hold a thread for it."""


class AgentClient:
    """The agents, by the `[DEFAULT] host` of each."""

    def __init__(
        self, transport: oslo_messaging.RPCTransport, conf: cfg.ConfigOpts
    ) -> None:
        self._conf = conf
        self._caller = rpc_transport.Caller(
            transport,
            oslo_messaging.Target(topic=TOPIC, version=FIRST),
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

    def prepare(
        self, context: RequestContext, host: str, order: UnitsOrder
    ) -> None:
        """Have units made; returns when all of them are there.

        Joins the order where it runs already.  DeviceFailed with the
        driver's reason, Conflict (no such device, driver cannot),
        Unavailable or Timeout.
        """
        self._caller.call(
            context,
            f"the agent of {host}",
            "prepare",
            {"order": codec.encode(order)},
            server=host,
            version="1.1",
            timeout=order.timeout + self._conf.rpc_response_timeout,
            call_monitor_timeout=rpc_transport.MONITOR_SECONDS,
        )

    def clean(
        self, context: RequestContext, host: str, order: UnitsOrder
    ) -> CleanResult:
        """Have units cleaned, or ask how far an order is that runs; answers
        within `CLEAN_WAIT`.

        DeviceFailed with the driver's reason, Timeout where it took longer
        than the order allows, Conflict (no such device, driver cannot),
        Unavailable, also where no answer came.
        """
        try:
            answer = self._caller.call(
                context,
                f"the agent of {host}",
                "clean",
                {"order": codec.encode(order)},
                server=host,
                version="1.1",
                timeout=CLEAN_WAIT + self._conf.rpc_response_timeout,
                call_monitor_timeout=rpc_transport.MONITOR_SECONDS,
            )
        except exception.Timeout as error:
            if rpc_transport.is_silence(error):
                raise exception.Unavailable(error.message) from error
            raise
        return codec.decode(CleanResult, answer)

    def discover(self, context: RequestContext, host: str) -> None:
        """Ask an agent to look at its hardware now; does not wait."""
        self._caller.cast(
            context, f"the agent of {host}", "discover", server=host
        )

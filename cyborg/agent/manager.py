# SPDX-License-Identifier: Apache-2.0
"""What conductors can ask of this agent over RPC."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import oslo_messaging

from cyborg import context as cyborg_context
from cyborg.agent import programming
from cyborg.agent import units
from cyborg.rpc import agent as rpc_agent
from cyborg.rpc import codec


class AgentEndpoint:
    """The server's side of `rpc.agent.AgentClient`."""

    target = oslo_messaging.Target(version=rpc_agent.VERSION)

    def __init__(
        self,
        programmer: programming.Programmer,
        units_: units.Units,
        wake: Callable[[], None],
    ) -> None:
        self._programmer = programmer
        self._units = units_
        self._wake = wake

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def program(
        self,
        _context: cyborg_context.RequestContext,
        order: Mapping[str, Any],
    ) -> Any:
        """Program a device; the encoded ProgramResult once it is done."""
        result = self._programmer.program(
            codec.decode(rpc_agent.ProgramOrder, order)
        )
        return codec.encode(result)

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def prepare(
        self,
        _context: cyborg_context.RequestContext,
        order: Mapping[str, Any],
    ) -> None:
        """Make units; returns when all of them are there."""
        self._units.prepare(codec.decode(rpc_agent.UnitsOrder, order))

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def clean(
        self,
        _context: cyborg_context.RequestContext,
        order: Mapping[str, Any],
    ) -> Any:
        """Begin to clean units, or see how far that is; the encoded
        CleanResult."""
        result = self._units.clean(codec.decode(rpc_agent.UnitsOrder, order))
        return codec.encode(result)

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def discover(self, _context: cyborg_context.RequestContext) -> None:
        """Look at the hardware now and report."""
        self._wake()

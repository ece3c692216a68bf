# SPDX-License-Identifier: Apache-2.0
"""What conductors can ask of this agent over RPC."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import oslo_messaging

from cyborg import context as cyborg_context
from cyborg.agent import programming
from cyborg.rpc import agent as rpc_agent
from cyborg.rpc import codec


class AgentEndpoint:
    """The server's side of `rpc.agent.AgentClient`."""

    target = oslo_messaging.Target(version=rpc_agent.VERSION)

    def __init__(
        self, programmer: programming.Programmer, wake: Callable[[], None]
    ) -> None:
        self._programmer = programmer
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
    def discover(self, _context: cyborg_context.RequestContext) -> None:
        """Look at the hardware now and report."""
        self._wake()

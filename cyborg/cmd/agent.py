# SPDX-License-Identifier: Apache-2.0
"""cyborg-agent: finds, reports and programs the devices of one host."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyborg import privsep
from cyborg import service
from cyborg.agent.service import AgentService
from cyborg.metrics_listener import MetricsListener


def main(argv: Sequence[str] | None = None) -> None:
    """Run the agent of this host until a signal ends it."""
    arguments = sys.argv[1:] if argv is None else argv
    conf = service.configure(arguments, "cyborg-agent")
    privsep.prepare(conf)
    service.run(
        conf,
        lambda: [MetricsListener(conf, "agent_port"), AgentService(conf)],
    )


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""cyborg-conductor: the only writer of the database."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyborg import service
from cyborg.conductor.service import ConductorService
from cyborg.metrics_listener import MetricsListener


def main(argv: Sequence[str] | None = None) -> None:
    """Run a conductor until a signal ends it."""
    arguments = sys.argv[1:] if argv is None else argv
    conf = service.configure(arguments, "cyborg-conductor")
    service.run(
        conf,
        lambda: [
            MetricsListener(conf, "conductor_port"),
            ConductorService(conf),
        ],
        conf.conductor.workers,
    )


if __name__ == "__main__":
    main()

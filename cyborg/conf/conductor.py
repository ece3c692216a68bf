# SPDX-License-Identifier: Apache-2.0
"""Options of the conductor."""

from __future__ import annotations

from oslo_config import cfg

from cyborg.conf import default


def options() -> list[cfg.Opt]:
    """The options of `[conductor]`."""
    return [
        cfg.IntOpt(
            "workers",
            default=1,
            min=1,
            max=256,
            help="How many processes of cyborg-conductor this host runs. "
            "With 1 the process that was started does the work itself.",
        ),
        cfg.FloatOpt(
            "service_down_time",
            default=180,
            min=1,
            max=default.MAX_SECONDS,
            help="Seconds without a sign of an agent or a conductor after "
            "which it counts as down, and its work as free to take over.",
        ),
        cfg.FloatOpt(
            "reconcile_interval",
            default=60,
            min=0.1,
            max=default.MAX_SECONDS,
            help="Seconds after which a host's resource providers are "
            "compared with Placement again, though nothing changed here. "
            "What Placement still has to be told is repeated sooner.",
        ),
    ]

# SPDX-License-Identifier: Apache-2.0
"""Options of the fake driver, which simulates a fleet of devices."""

from __future__ import annotations

from oslo_config import cfg

from cyborg.conf import default


def options() -> list[cfg.Opt]:
    """The options of `[fake]`."""
    return [
        cfg.IntOpt(
            "devices",
            default=1,
            min=0,
            max=100_000,
            help="How many devices the fake driver reports.",
        ),
        cfg.IntOpt(
            "accelerators_per_device",
            default=16,
            min=0,
            max=10_000,
            help="How many accelerators each fake device has.",
        ),
        cfg.FloatOpt(
            "program_seconds",
            default=0,
            min=0,
            max=default.MAX_SECONDS,
            help="How long programming a fake device takes, in seconds.",
        ),
        cfg.BoolOpt(
            "program_failure",
            default=False,
            help="Whether programming a fake device fails.",
        ),
        cfg.StrOpt(
            "inventory_file",
            help="YAML file with a list of devices to report instead; each "
            "may have `address`, `type`, `vendor`, `model`, "
            "`resource_class`, `traits`, `accelerators`, `attach_type`, "
            "`numa_node`, `health` and `programmable`. Read again at each "
            "discovery, so that devices come, go and break as it is edited.",
        ),
    ]

# SPDX-License-Identifier: Apache-2.0
"""Options that all services share."""

from __future__ import annotations

import socket

from oslo_config import cfg
from oslo_config import types

MAX_SECONDS = 10**9
"""More than anybody waits; what threads and dates can still reckon with."""

STRATEGIES = ("keystone", "noauth")


class Strategy(types.ConfigType):
    """`keystone` or `noauth`; empty, as old files have it, is keystone."""

    def __init__(self) -> None:
        super().__init__(type_name="authentication strategy")

    def __call__(self, value: object) -> str:
        """The strategy's name, or ValueError."""
        name = str(value).strip() or STRATEGIES[0]
        if name not in STRATEGIES:
            raise ValueError(f"must be keystone or noauth, not {name!r}")
        return name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Strategy)

    __hash__ = object.__hash__

    def _formatter(self, value: str) -> str:
        return value


def options() -> list[cfg.Opt]:
    """The options of `[DEFAULT]`."""
    return [
        cfg.Opt(
            "auth_strategy",
            type=Strategy(),
            default="keystone",
            help="Who may use the API: `keystone` asks Keystone about each "
            "token; `noauth` gives everybody the rights of an administrator "
            "and is served on a loopback address only (see `[api] "
            "noauth_anywhere`). Empty means keystone.",
        ),
        cfg.StrOpt(
            "host",
            default=socket.gethostname(),
            sample_default="<the host's name>",
            regex=r"^[^\s#*]{1,200}$",
            help="The name of this host among the agents and conductors. It "
            "addresses the agent's messages, so that it must stay the same "
            "over restarts and be unique in the cloud. Any text without "
            "blanks, `#` and `*`; it need not be resolvable.",
        ),
        cfg.FloatOpt(
            "periodic_interval",
            default=60,
            min=0.1,
            max=MAX_SECONDS,
            help="Seconds between two reports of an agent, and between two "
            "passes of a conductor over work that is late.",
        ),
        cfg.IntOpt(
            "thread_pool_size",
            default=10,
            min=1,
            max=1000,
            help="How many pieces of slow work (programming, calls to "
            "Placement and Nova) a service does at the same time.",
        ),
        cfg.FloatOpt(
            "bind_timeout",
            default=60,
            min=1,
            max=MAX_SECONDS,
            help="Seconds that the host may take to prepare an accelerator "
            "for an instance (programming included) before the binding "
            "counts as failed.",
        ),
        cfg.StrOpt(
            "state_path",
            default="/var/lib/cyborg",
            help="Directory for what a service keeps over restarts.",
        ),
    ]


def upgrade_levels() -> list[cfg.Opt]:
    """The options of `[upgrade_levels]`: RPC versions while upgrading."""
    return [
        cfg.StrOpt(
            name,
            regex=r"^(auto|\d+\.\d+)$",
            sample_default="auto",
            help=f"The newest RPC version, such as 1.0, that is sent to {who} "
            "while some of them are still of an older release. Not set, or "
            "`auto`: each call is sent as the oldest version that knows it.",
        )
        for name, who in (
            ("conductor", "conductors"),
            ("agent", "agents"),
        )
    ]

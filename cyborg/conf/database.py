# SPDX-License-Identifier: Apache-2.0
"""What we add to oslo.db's options."""

from __future__ import annotations

from oslo_config import cfg


def options() -> list[cfg.Opt]:
    """Our options of `[database]`."""
    return [
        cfg.StrOpt(
            "mysql_engine",
            default="InnoDB",
            help="Storage engine of the tables that a migration makes in "
            "MySQL or MariaDB.",
        ),
    ]

# SPDX-License-Identifier: Apache-2.0
"""From a state to what is wrong with it.  Pure: no I/O, no clock."""

from __future__ import annotations

from cyborg.audit import host_checks
from cyborg.audit import request_checks
from cyborg.audit import tree_checks
from cyborg.audit import unit_checks
from cyborg.audit.findings import Finding
from cyborg.audit.state import State

CHECKS = (
    request_checks.check,
    unit_checks.check,
    tree_checks.check,
    host_checks.check,
)


def findings(state: State) -> list[Finding]:
    """Everything that is wrong, sorted by host, kind and uuid."""
    return sorted(
        (finding for check in CHECKS for finding in check(state)),
        key=lambda one: (one.host, one.kind.value, one.uuid),
    )

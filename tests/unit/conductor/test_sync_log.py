# SPDX-License-Identifier: Apache-2.0
"""What Placement refuses is said once, and once when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from cyborg.conductor import sync
from cyborg.db import hosts


def host(number: int) -> hosts.HostOffers:
    return hosts.HostOffers(
        number, f"host-{number}", "provider", "uuid", 1, 0, ()
    )


def test_a_refusal_is_one_line_until_it_changes_or_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    nothing: Any = None
    made = sync.Synchronizer(nothing, None, 1, nothing, nothing)
    for number, why in (
        (1, "no class"),
        (1, "no class"),
        (2, "no class"),
        (1, "no trait"),
        (1, "no trait"),
        (1, ""),
        (1, ""),
        (3, ""),
        (1, "no class"),
    ):
        made._say_refused(host(number), why)
    assert caplog.messages == [
        "Host host-1: no class",
        "Host host-2: no class",
        "Host host-1: no trait",
        "Host host-1: Placement takes its providers again",
        "Host host-1: no class",
    ]

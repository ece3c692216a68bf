# SPDX-License-Identifier: Apache-2.0
"""What a service's log says that an operator should never see."""

from __future__ import annotations

import re

RECORD = re.compile(
    r"^\d{4}-\d\d-\d\d \S+ \d+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ \["
)
TRACEBACK = "Traceback (most recent call last)"


def tracebacks(text: str) -> list[str]:
    """The line before each traceback, but those that a DEBUG record has
    for developers.
    """
    found = []
    level, said = "", ""
    for line in text.splitlines():
        record = RECORD.match(line)
        if record:
            level, said = record.group(1), line
        elif TRACEBACK in line and level != "DEBUG":
            found.append(said or line)
    return found

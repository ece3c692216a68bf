# SPDX-License-Identifier: Apache-2.0
"""What a service's log says that an operator should never see."""

from __future__ import annotations

import re

RECORD = re.compile(
    r"^\d{4}-\d\d-\d\d \S+ \d+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ \["
)
SHOWN = 40
"""Lines of a traceback that a failing test shows."""
TRACEBACK = "Traceback (most recent call last)"


def tracebacks(text: str) -> list[str]:
    """Each traceback with the line before, but those that a DEBUG record
    has for developers.
    """
    found = []
    level, said = "", ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        record = RECORD.match(line)
        if record:
            level, said = record.group(1), line
        elif TRACEBACK in line and level != "DEBUG":
            found.append("\n".join([said, *lines[number : number + SHOWN]]))
    return found

# SPDX-License-Identifier: Apache-2.0
"""What commands print for people."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from collections.abc import Sequence


def show(text: str) -> None:
    """Print it all; that somebody reads no further is no fault."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except OSError as error:
        # What is left in the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.exit(f"the output cannot be written: {error}")


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as lines of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()

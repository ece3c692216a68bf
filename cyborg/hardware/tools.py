# SPDX-License-Identifier: Apache-2.0
"""Vendors' tools, run with the rights of the privileged helper.

A tool is an argument vector, never a shell's line.  It gets no terminal to
ask on, and its time is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from cyborg import privsep
from cyborg.hardware import privileged

LAST_LINES = 5
LAST_CHARACTERS = 500
"""Of what a tool says on stderr, in an error."""


class ToolError(Exception):
    """A tool that is not installed, failed, or took too long; the message
    says to an operator which and why.

    `status` is what it ended with (negative: by a signal), None where it did
    not end by itself.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Tools:
    """Runs the tools that the privileged helper lets run
    (`privileged.TOOLS`, `[agent] further_tools`)."""

    def run(self, command: Sequence[str], timeout: float) -> str:
        """Runs `command` for at most `timeout` seconds; what it printed.

        Its first word is the tool's bare name.  Raises ToolError.
        """
        tool = command[0]
        try:
            status, output, errors = privsep.call(
                privileged.run, list(command), timeout=timeout
            )
        except privileged.PrivilegedError as error:
            raise ToolError(f"{tool} {error.reason}") from error
        except privsep.HelperError as error:
            raise ToolError(f"{tool} was not run: {error}") from error
        if status != 0:
            raise ToolError(
                f"{tool} {_end(status)}: {_last_words(errors)}", status
            )
        return str(output)


def _end(status: int) -> str:
    if status < 0:
        return f"was ended by signal {-status}"
    return f"failed with exit status {status}"


def _last_words(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    text = "; ".join(lines[-LAST_LINES:])
    return text[-LAST_CHARACTERS:] or "it said nothing on stderr"

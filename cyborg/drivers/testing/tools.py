# SPDX-License-Identifier: Apache-2.0
"""Vendors' tools that answer what a test says, and keep what was asked."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

from cyborg.hardware.tools import ToolError
from cyborg.hardware.tools import Tools

Answer = str | Exception | Callable[[list[str]], str]


class RecordedTools(Tools):
    """No tool is installed but those that `answer` names.

    `commands` are the argument vectors in the order in which they were run.
    """

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self._answers: dict[tuple[str, ...], list[Answer]] = {}

    def answer(self, tool: str, *answers: Answer) -> None:
        """What commands that begin with the words of `tool` print: each
        answer once, the last for ever.

        An exception is raised, a function is called with the command.  The
        first word may be a path or its last part alone; of several that fit
        the longest holds.
        """
        self._answers[tuple(tool.split())] = list(answers)

    def run(self, command: Sequence[str], timeout: float) -> str:
        words = list(command)
        self.commands.append(words)
        fitting = [key for key in self._answers if _begins(words, key)]
        if not fitting:
            raise ToolError(f"{words[0]} is not installed")
        answers = self._answers[max(fitting, key=len)]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, str) else answer(words)


def _begins(words: list[str], key: tuple[str, ...]) -> bool:
    first = {words[0], words[0].rpartition("/")[2]}
    return key[0] in first and tuple(words[1 : len(key)]) == key[1:]

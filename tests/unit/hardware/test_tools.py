# SPDX-License-Identifier: Apache-2.0
"""What drivers get from tools that answer, fail, or are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg.hardware.tools import LAST_CHARACTERS
from cyborg.hardware.tools import ToolError
from cyborg.hardware.tools import Tools
from tests.privileged import IDENTIFY
from tests.privileged import PROGRAM
from tests.privileged import add_tool
from tests.privileged import privileged_here


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "tools"
    place.mkdir()
    with privileged_here(tmp_path / "sys", place):
        yield place


def _failure(command: list[str], timeout: float = 10.0) -> str:
    with pytest.raises(ToolError) as caught:
        Tools().run(command, timeout)
    return str(caught.value)


def test_what_a_tool_prints_is_the_answer(place: Path) -> None:
    add_tool(place, "nvme", 'echo "$@"; echo a warning >&2')

    answer = Tools().run(tuple(IDENTIFY), 10.0)

    assert answer == "id-ctrl /dev/nvme0 -o json\n"


def test_a_tool_that_is_not_installed_says_so(place: Path) -> None:
    assert _failure(["fpgaconf"]) == "fpgaconf is not installed on this host"


def test_a_tool_that_is_not_ours_is_refused(place: Path) -> None:
    said = _failure(["sh", "-c", "x"])

    assert said.startswith("sh is no tool that may be run: [agent] further_")


def test_a_tool_that_fails_is_quoted(place: Path) -> None:
    add_tool(place, "nvme", "echo one; printf 'a\\n\\n  b \\n' >&2; exit 1")

    assert _failure(IDENTIFY) == "nvme failed with exit status 1: a; b"


def test_only_the_last_lines_are_quoted(place: Path) -> None:
    add_tool(place, "nvme", "seq 1 9 >&2; exit 1")
    assert _failure(IDENTIFY).endswith(": 5; 6; 7; 8; 9")

    add_tool(place, "nvme", "head -c 9999 /dev/zero | tr '\\0' x >&2; exit 1")
    words = _failure(IDENTIFY).rpartition(": ")[2]
    assert words == "x" * LAST_CHARACTERS


def test_a_tool_that_fails_in_silence_is_said_to(place: Path) -> None:
    add_tool(place, "nvme", "exit 3")

    assert _failure(IDENTIFY) == (
        "nvme failed with exit status 3: it said nothing on stderr"
    )


def test_a_tool_that_a_signal_ended_says_which(place: Path) -> None:
    add_tool(place, "nvme", "echo oh >&2; kill -11 $$")

    assert _failure(IDENTIFY) == "nvme was ended by signal 11: oh"


def test_a_tool_that_takes_too_long_says_so(place: Path) -> None:
    add_tool(place, "xbmgmt", "sleep 600")

    assert _failure(PROGRAM, 0.2) == "xbmgmt took longer than 0.2 s"

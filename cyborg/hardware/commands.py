# SPDX-License-Identifier: Apache-2.0
"""The tools that the privileged helper runs, and how.

A tool that runs as root can do far more than is wanted of it: nvme-cli
writes logs to any file and sends raw commands to any disk, blkdiscard empties
any disk.  So each has patterns of its whole command line, and what none of
them is made for is refused.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROLLER = r"/dev/nvme\d{1,6}"
_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
_FILE = r"/[^\0]+"
_NUMBER = r"\d{1,20}"

COMMANDS = {
    "blkdiscard": (rf"-z -o {_NUMBER} -l {_NUMBER} {_CONTROLLER}n\d{{1,10}}",),
    "fpgaconf": (
        r"--segment 0x[0-9a-f]{4,8} --bus 0x[0-9a-f]{2} "
        rf"--device 0x[01][0-9a-f] --function 0x[0-7] {_FILE}",
    ),
    "nvme": (
        rf"(?:id-ctrl|sanitize-log) {_CONTROLLER} -o json",
        rf"list-ns {_CONTROLLER}(?: -a)? -o json",
        rf"id-ns {_CONTROLLER} -n {_NUMBER} -o json",
        rf"sanitize {_CONTROLLER} -a [1-4](?: -n 1 -p 0x0)?(?: --ause)?",
        rf"format {_CONTROLLER} -n (?:{_NUMBER}|0xffffffff) -s [12] "
        rf"-l \d{{1,2}}(?: -[mip] \d)* -t {_NUMBER} --force",
    ),
    "sriov-manage": (rf"-e {_ADDRESS}",),
    "xbmgmt": (
        rf"program --device {_ADDRESS} (?:--user|--base --image) {_FILE} "
        r"--force",
    ),
}
"""By the tool's bare name; a blank stands between two words."""

_CARD_WORDS = {"fpgaconf": slice(1, 9), "xbmgmt": slice(2, 4)}
"""Where tools that write to a card say to which."""

_PATTERNS = {
    tool: [
        re.compile(pattern.replace(" ", "\0"), re.ASCII)
        for pattern in patterns
    ]
    for tool, patterns in COMMANDS.items()
}


def is_allowed(command: Sequence[str]) -> bool:
    """Whether a tool may be run with these words after its name."""
    tool, *words = command
    if any("\0" in word for word in words):
        return False
    line = "\0".join(words)
    return any(one.fullmatch(line) for one in _PATTERNS.get(tool, ()))


def card_of(command: Sequence[str]) -> str | None:
    """What an allowed command writes to alone, as a file's name; None where
    others may run beside it."""
    words = _CARD_WORDS.get(command[0])
    if words is None:
        return None
    return "_".join((command[0], *command[words]))

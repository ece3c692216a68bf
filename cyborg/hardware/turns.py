# SPDX-License-Identifier: Apache-2.0
"""One tool at a time writes to a card, whoever started it.

A tool outlives the helper and the agent that had it started: a new agent that
is asked to program the card again must not write to it beside the old tool.
Each holds a lock of a file that it inherits, and that goes when it ends.
"""

# ruff: noqa: PTH102, PTH118 - as privileged.py, whose part this is.

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator

PAUSE = 0.1
"""Seconds between two tries: to wait for a lock cannot be bounded."""


class BusyError(Exception):
    """Another has the turn until the time is up."""


@contextlib.contextmanager
def taken(card: str, root: str, deadline: float) -> Iterator[int]:
    """The lock of `card` as a descriptor to be inherited.

    `root` is the sysfs that the card is in, as an absolute path: one of the
    same address in another, as tests have, is another card.

    Raises BusyError at the deadline (monotonic), and OSError.
    """
    descriptor = os.open(
        os.path.join(_directory(), _name(card, root)),
        os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
    )
    try:
        while not _is_locked(descriptor):
            if time.monotonic() + PAUSE > deadline:
                raise BusyError
            time.sleep(PAUSE)
        yield descriptor
    finally:
        os.close(descriptor)


def _name(card: str, root: str) -> str:
    return card if root == "/sys" else f"{card}{root.replace('/', '-')}"


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _directory() -> str:
    """A directory of our own, gone with the next boot."""
    user = os.geteuid()
    parent = tempfile.gettempdir() if user else "/run"
    path = os.path.join(parent, f"cyborg-tools-{user}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user:
        raise PermissionError(1, f"{path} is not ours")
    return path

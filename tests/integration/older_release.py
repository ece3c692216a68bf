# SPDX-License-Identifier: Apache-2.0
"""The release before RPC 1.1, to be run beside ours.

It is taken out of this repository's history, not imitated: the last commit
before the agent's RPC became 1.1, whose schema ends before
`c3d1e86f40ab`.  Its processes are our console scripts with its source tree
in front of `PYTHONPATH`.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from tests.integration import resources

SOURCE_TREE = Path(__file__).parents[2]
NEXT_RELEASE = ('VERSION = "1.1"', "cyborg/rpc/agent.py")
"""What the commit that ended it added, and where."""


def _git(*words: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(SOURCE_TREE), *words],
        check=True,
        capture_output=True,
        timeout=60,
    ).stdout


def source(folder: Path) -> Path:
    """Its source tree, put into `folder`.

    Skips the test (or fails it, where every service must be there) where
    there is no history to take it from.
    """
    text, place = NEXT_RELEASE
    try:
        found = _git("log", f"-S{text}", "--format=%H", "--", place)
        first = found.decode().split()[-1]
        archive = _git("archive", "--format=tar", f"{first}^", "cyborg")
    except (OSError, IndexError, subprocess.SubprocessError) as error:
        resources.missing(
            "the release before RPC 1.1 is not in this tree's git history "
            f"(a shallow clone, or no clone at all?): {error}"
        )
    with tarfile.open(fileobj=io.BytesIO(archive)) as content:
        content.extractall(folder, filter="data")
    assert 'VERSION = "1.0"' in (folder / place).read_text()
    return folder

# SPDX-License-Identifier: Apache-2.0
"""A vendor's tool of a fake host: keeps what it was asked, and does it to
files.

`fake_host.py` installs it under each tool's name, in a directory beside
`state`.  It imports nothing of ours: it has to start fast.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any
from typing import NoReturn

WORDS = {
    0: "NVM Subsystem has never been sanitized.",
    1: "Most Recent Sanitize Command Completed Successfully.",
    2: "Sanitize in Progress.",
    3: "Most Recent Sanitize Command Failed.",
}
CRYPTO_ERASE = "4"
EXIT_FAILURE = "1"


def _is_alone(state: Path, name: str) -> bool:
    """Whether no other run of the tool goes on; this one does from now."""
    # Never closed: held until this process ends.
    lock = os.open(state / f"{name}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_down(state: Path, words: list[str]) -> None:
    """One line for each run, with the files that its words name."""
    files = {
        word: Path(word).read_text()
        for word in words[1:]
        if Path(word).is_file()
    }
    alone = _is_alone(state, words[0])
    line = json.dumps({"words": words, "files": files, "alone": alone})
    with (state / "commands").open("a") as file:
        file.write(f"{line}\n")


def _behave(state: Path, name: str) -> None:
    """Hang or fail where the test says so."""
    gate = state / f"{name}.gate"
    if gate.exists():
        gate.read_bytes()
    failure = state / f"{name}.failure"
    if failure.exists():
        status, text = json.loads(failure.read_text())
        _fail(text, status)


def _fail(text: str, status: int = 1) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.exit(status)


def _nvme(state: Path, words: list[str]) -> str:
    """A disk that sanitizes until the test says that it is done."""
    verb, node, *rest = words[1:]
    file = state / Path(node).name
    disk = json.loads(file.read_text())
    if verb == "id-ctrl" and rest == ["-o", "json"]:
        return json.dumps(disk["identity"])
    if verb == "sanitize-log" and rest == ["-o", "json"]:
        status = disk["status"]
        shown = {"status": f"({status}) {WORDS[status]}"}
        return json.dumps(
            {file.name: {"sprog": disk["sprog"], "sstat": shown}}
        )
    if verb == "sanitize" and rest == ["-a", EXIT_FAILURE]:
        _store(file, {**disk, "status": 0})
        return ""
    if verb == "sanitize" and rest == ["-a", CRYPTO_ERASE, "--ause"]:
        if disk["status"] == 2:
            _fail("NVMe status: Sanitize In Progress(0x1d)")
        _store(file, {**disk, "status": 2, "sprog": 16384})
        return ""
    _fail(f"Usage: nvme {verb}")


def _store(file: Path, disk: dict[str, Any]) -> None:
    new = file.with_suffix(".tool")
    new.write_text(json.dumps(disk))
    new.replace(file)


def _sriov_manage(state: Path, words: list[str]) -> str:
    """The kernel makes virtual functions while the tool runs."""
    (state / "sriov.ask").write_text(f"{' '.join(words[1:])}\n")
    return (state / "sriov.done").read_text()


def main() -> None:
    tool = Path(sys.argv[0])
    state = tool.parent.parent / "state"
    words = [tool.name, *sys.argv[1:]]
    _write_down(state, words)
    _behave(state, tool.name)
    act = {"nvme": _nvme, "sriov-manage": _sriov_manage}.get(tool.name)
    sys.stdout.write(act(state, words) if act else "done\n")


if __name__ == "__main__":
    main()

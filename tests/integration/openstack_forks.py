# SPDX-License-Identifier: Apache-2.0
"""`openstack`, each command in a process of its own, started once.

Run by the Python of the environment that the client is in.  Reads a JSON
object with `words` and `environment` per line, forks, and lets the child go
through the console script's own `main`; writes `status`, `output` and
`errors`.  Only what importing costs is shared.  It imports nothing of ours.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile

import openstack.connection  # noqa: F401 (openstackclient would, late)
from openstackclient import shell

GROUP = "openstack.accelerator.v2"


def run(words: list[str], environment: dict[str, str]) -> dict[str, object]:
    with (
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
    ):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            os.environ.clear()
            os.environ.update(environment)
            sys.exit(shell.main(words))
        _, ended = os.waitpid(child, 0)
        output.seek(0)
        errors.seek(0)
        return {
            "status": os.waitstatus_to_exitcode(ended),
            "output": output.read(),
            "errors": errors.read(),
        }


def main() -> None:
    commands = importlib.metadata.entry_points(group=GROUP)
    for command in commands:
        command.load()
    names = sorted(command.name.replace("_", " ") for command in commands)
    print(json.dumps(names), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A node that devstack or grenade works on, inside one folder.

Functions, folders and programs are those of `functions` beside this file;
the plugin that runs is the real one.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from oslo_config import cfg

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "devstack"
FUNCTIONS = Path(__file__).with_name("functions")

STACK = (
    "stack pre-install",
    "stack install",
    "stack post-config",
    "stack extra",
    "stack test-config",
)
CONFIGURED = "stack post-config"

PATH = (
    *("awk", "bash", "basename", "cat", "chmod", "cp", "dirname", "id"),
    *("grep", "install", "mkdir", "readlink", "rm", "tee"),
)
"""All that the plugin finds on its PATH, besides what it installs."""

INSTALLED = ("cyborg-dbsync", "cyborg-status", "uwsgi")

PROGRAM = """\
#!/bin/bash
name=${0##*/}
printf '%q ' "$name" "$@" >>"$CALLS"
printf '\\n' >>"$CALLS"
if [[ -e "$SANDBOX/$name.exit" ]]; then
    exit "$(<"$SANDBOX/$name.exit")"
fi
"""

BEGIN = """\
set -eE -u -o pipefail
source "$FUNCTIONS"
trap 'record failed "$BASH_COMMAND"' ERR
command mkdir -p "$DEST/tempest/etc" "$SANDBOX"/etc/apache2/sites-available \\
    "$SANDBOX"/etc/apache2/sites-enabled
"""

MERGE = """\
_ini_write set "$CYBORG_CONF" fake devices 3  # as local.conf says
cat "$CYBORG_CONF" >"$SANDBOX/merged.conf"
"""


class StackError(AssertionError):
    """devstack would have stopped."""


class Node:
    """One machine; what is done to it accumulates."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder.resolve()
        self.variables = variables
        self.calls_file = self.folder / "calls"
        self.conf_file = self.folder / "etc" / "cyborg" / "cyborg.conf"
        self.tempest_file = self.folder / "opt/stack/tempest/etc/tempest.conf"
        self.stderr = ""
        tools = self.folder / "tools"
        tools.mkdir(parents=True)
        for name in PATH:
            found = shutil.which(name)
            assert found, f"{name} is not installed"
            (tools / name).symlink_to(found)
        self.bins = {
            "True": self.folder / "opt/stack/data/venv/bin",
            "False": self.folder / "usr/local/bin",
        }
        self.bin = self.bins[variables.get("GLOBAL_VENV", "True")]
        self.bin.mkdir(parents=True)
        for name in INSTALLED:
            (self.bin / name).write_text(PROGRAM)
            (self.bin / name).chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        """What a script of the node is started with, and nothing else."""
        return {
            "CALLS": str(self.calls_file),
            "CYBORG_CONF_DIR": str(self.conf_file.parent),
            "CYBORG_STATE_PATH": str(self.folder / "var/lib/cyborg"),
            "FUNCTIONS": str(FUNCTIONS),
            "HOME": str(self.folder),
            "PATH": f"{self.bin}:{self.folder / 'tools'}",
            "SANDBOX": str(self.folder),
            **self.variables,
            **more,
        }

    def install(self, folder: Path) -> None:
        """Have the real programs of the folder instead of stand-ins."""
        for name in INSTALLED:
            (self.bin / name).unlink()
        for program in (folder / "uwsgi", *folder.glob("cyborg-*")):
            (self.bin / program.name).symlink_to(program)

    def bash(
        self, script: str, environment: Mapping[str, str]
    ) -> list[list[str]]:
        """Run a script; the calls it made. A failure is a StackError."""
        self.calls_file.write_text("")
        done = subprocess.run(
            ["bash", "-c", script],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
            env=dict(environment),
        )
        self.stderr = done.stderr
        self.calls = [
            shlex.split(line)
            for line in self.calls_file.read_text().splitlines()
        ]
        if done.returncode:
            raise StackError(f"{done.returncode}: {done.stdout}{done.stderr}")
        return self.calls

    def run(self, *phases: str, before: str = "") -> list[list[str]]:
        """Have devstack source the settings and the plugin in each phase."""
        script = [BEGIN, before, f"source {PLUGIN}/settings"]
        for phase in phases:
            script += [
                f"record phase {phase}",
                "_before=$-",
                f"source {PLUGIN}/plugin.sh {phase}",
                '[[ "$-" == "$_before" ]]',
            ]
            if phase == CONFIGURED:
                script.append(MERGE)
        return self.bash("\n".join(script), self.environment())

    def stack(self, before: str = "") -> list[list[str]]:
        return self.run(*STACK, before=before)

    def read(self, path: Path | None = None) -> dict[str, dict[str, str]]:
        """An ini file, its last value of each option."""
        sections: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(str(path or self.conf_file), sections).parse()
        return {
            section: {name: values[-1] for name, values in options.items()}
            for section, options in sections.items()
        }

    def left(self) -> set[str]:
        """The files of the node, but those of the tests themselves."""
        ours = {"calls", "merged.conf"}
        return {
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file()
            and not path.is_symlink()
            and path.parent != self.bin
            and path.name not in ours
        }


def named(calls: list[list[str]], *names: str) -> list[list[str]]:
    """The arguments of the calls of these functions, in order."""
    return [call[1:] for call in calls if call[0] in names]


def positions(calls: list[list[str]], name: str) -> list[int]:
    """Where in the order a function was called."""
    return [number for number, call in enumerate(calls) if call[0] == name]


def writes(calls: list[list[str]], file: Path) -> list[int]:
    """Where in the order an ini function wrote to the file."""
    writers = (
        "iniset",
        "iniadd",
        "iniset_multiline",
        "iniset_rpc_backend",
        "configure_keystoneauth",
        "configure_keystone_authtoken_middleware",
        "setup_logging",
        "inicomment",
        "rm",
    )
    return [
        number
        for number, call in enumerate(calls)
        if call[0] in writers and str(file) in call[1:]
    ]

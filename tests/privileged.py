# SPDX-License-Identifier: Apache-2.0
"""Privileged functions run for real by a test, without a helper or root."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from oslo_config import cfg

from cyborg.hardware import privileged  # noqa: F401 - it registers the option
from cyborg.privsep import agent_privileged

IDENTIFY = ["nvme", "id-ctrl", "/dev/nvme0", "-o", "json"]
PROGRAM = [
    "xbmgmt",
    "program",
    "--device",
    "0000:3b:00.0",
    "--user",
    "/tmp/a.xclbin",
    "--force",
]
CONFIGURE = [
    "fpgaconf",
    "--segment",
    "0x0000",
    "--bus",
    "0x5e",
    "--device",
    "0x00",
    "--function",
    "0x0",
    "/a.gbs",
]
"""Commands that the helper runs."""


@contextlib.contextmanager
def privileged_here(root: Path, tools: Path | None = None) -> Iterator[None]:
    """Meanwhile what is privileged runs in this process, as the helper would
    run it: `root` is its `[agent] sysfs_root`, and its tools are those in
    the directory `tools` before those of the host (`add_tool`).

    `Writer().write` and `Tools().run` then do the whole of what they do on a
    host, but for the change of process.
    """
    path = os.environ["PATH"]
    if tools is not None:
        tools.chmod(0o755)  # one that others could write is not trusted
        path = f"{tools}{os.pathsep}{path}"
    agent_privileged.set_client_mode(False)
    cfg.CONF.set_override("sysfs_root", str(root), group="agent")
    try:
        with mock.patch.dict(os.environ, PATH=path):
            yield
    finally:
        cfg.CONF.clear_override("sysfs_root", group="agent")
        agent_privileged.set_client_mode(True)


def add_tool(directory: Path, name: str, script: str) -> Path:
    """A tool that is a shell's `script`; its directory is made."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path

# SPDX-License-Identifier: Apache-2.0
"""Boards whose flash holds a shell that they do not run yet.

A board loads its shell when its power comes on.  Nothing that the kernel
shows tells whether it did, so it is remembered with which start of the host
the shell was written.  A start without power-off counts as one: whoever
restarts a host for a new shell has to do it cold.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from cyborg.hardware.files import UnreadableError
from cyborg.hardware.files import text
from cyborg.hardware.pci import Sysfs

LOG = logging.getLogger(__name__)


class NewShells:
    """Kept in a file, where one is given, so that an agent that is
    restarted knows them."""

    def __init__(self, sysfs: Sysfs, path: Path | None) -> None:
        self._sysfs = sysfs
        self._path = path
        self._boots: dict[str, str] | None = None

    def has(self, address: str) -> bool:
        """Whether the board at this address waits for a cold reboot."""
        written = self._known().get(address)
        return written is not None and self._boot() in ("", written)

    def add(self, address: str) -> None:
        """The board's flash has a new shell now."""
        boot = self._boot()
        self._boots = {
            one: written
            for one, written in self._known().items()
            if written == boot
        } | {address: boot}
        if self._path is None:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            new.write_text(json.dumps(self._boots, sort_keys=True))
            new.replace(self._path)
        except OSError as error:
            LOG.warning(
                "%s cannot be written (%s): an agent that is restarted will"
                " not know that FPGA %s needs a cold reboot of the host",
                self._path,
                error.strerror,
                address,
            )

    def _known(self) -> dict[str, str]:
        """Address of a board -> the boot in which its shell was written."""
        if self._boots is None:
            self._boots = _read(self._path) if self._path else {}
        return self._boots

    def _boot(self) -> str:
        """The kernel's id of this start of the host, empty if unknown."""
        path = self._sysfs.proc / "sys" / "kernel" / "random" / "boot_id"
        try:
            return text(str(path))
        except UnreadableError:
            return ""


def _read(path: Path) -> dict[str, str]:
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        LOG.warning("%s is not read: %s", path, error)
        return {}
    if not isinstance(stored, dict):
        return {}
    return {str(one): str(boot) for one, boot in stored.items()}

# SPDX-License-Identifier: Apache-2.0
"""What this agent has made on its host, kept over restarts.

The kernel forgets mediated devices and types of virtual functions when the
host boots; guests come back and want theirs.  An entry is written before the
unit is made and goes after the unit is removed, so that a unit which exists
is never unknown.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
from collections.abc import Collection
from collections.abc import Iterable
from pathlib import Path

from oslo_log import log

from cyborg import exception
from cyborg.rpc import codec

LOG = log.getLogger(__name__)

KEPT_ENDED = 200
"""Orders of which it is known that what they made was given back."""


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """One unit: the uuid of its attach handle, who makes it of what, and
    the order that asked for it."""

    uuid: str
    driver: str
    controlpath: str
    attach_type: str
    attach_info: str
    job_uuid: str


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    """What the file holds.  A reader passes over what it does not know."""

    units: tuple[Made, ...]
    ended: tuple[str, ...] = ()


class Ledger:
    """The entries of one host, in `made-<host>.json` below `state_path`.

    Where that cannot be written the entries are kept in memory alone, with
    one warning: what is made then does not come back after a reboot.  May be
    used from several threads.
    """

    def __init__(self, state_path: str | None, host: str) -> None:
        self._path: Path | None = None
        if state_path:
            name = re.sub(r"[^A-Za-z0-9._-]", "_", host)
            self._path = Path(state_path) / f"made-{name}.json"
        self._lock = threading.Lock()
        self._warned = False
        self._loaded = False
        self._units: dict[str, Made] = {}
        self._ended: dict[str, None] = {}

    def units(self) -> tuple[Made, ...]:
        """Every unit that was made and not removed."""
        with self._lock:
            self._load()
            return tuple(self._units.values())

    def has(self, uuid: str) -> bool:
        """Whether the unit was made and not removed."""
        with self._lock:
            self._load()
            return uuid in self._units

    def is_ended(self, job_uuid: str) -> bool:
        """Whether what this order made was given back since."""
        with self._lock:
            self._load()
            return job_uuid in self._ended

    def add(self, units: Iterable[Made]) -> None:
        """On the disk when this returns; before they are made."""
        with self._lock:
            self._load()
            self._units.update((unit.uuid, unit) for unit in units)
            self._save()

    def end(self, uuids: Collection[str]) -> None:
        """These were given back and removed: their orders are over."""
        with self._lock:
            self._load()
            for uuid in uuids:
                unit = self._units.get(uuid)
                if unit is not None:
                    self._ended[unit.job_uuid] = None
            for job_uuid in list(self._ended)[:-KEPT_ENDED]:
                del self._ended[job_uuid]
            self._drop(uuids)

    def forget(self, uuids: Collection[str]) -> None:
        """These could not be made."""
        with self._lock:
            self._load()
            self._drop(uuids)

    def _drop(self, uuids: Collection[str]) -> None:
        gone = [self._units.pop(uuid, None) for uuid in uuids]
        if any(gone):
            self._save()

    def _load(self) -> None:
        """Read the file, when first asked."""
        if self._loaded or self._path is None:
            return
        self._loaded = True
        try:
            text = self._path.read_text(encoding="utf-8")
            found = codec.decode(_File, json.loads(text))
        except FileNotFoundError:
            return
        except (
            OSError,
            ValueError,
            RecursionError,
            exception.Invalid,
        ) as error:
            self._put_aside(self._path, error)
            return
        self._units = {unit.uuid: unit for unit in found.units}
        self._ended = dict.fromkeys(found.ended)

    def _put_aside(self, path: Path, error: Exception) -> None:
        """Keep what cannot be read for a human; never write over it."""
        number = 1
        while (aside := path.with_suffix(f".unreadable-{number}")).exists():
            number += 1
        try:
            path.rename(aside)
        except OSError as failure:
            self._path = None
            where = f"it cannot be moved aside either ({failure.strerror})"
        else:
            where = f"it was moved to {aside}"
        LOG.error(
            "%s, which says what mediated devices this agent made, cannot "
            "be read (%s); %s. The host's vGPUs do not come back by "
            "themselves",
            path,
            error,
            where,
        )

    def _save(self) -> None:
        file = _File(tuple(self._units.values()), tuple(self._ended))
        try:
            if self._path is None:
                raise FileNotFoundError("[DEFAULT] state_path is not usable")
            _write(self._path, json.dumps(codec.encode(file), indent=1))
        except OSError as error:
            if not self._warned:
                LOG.warning(
                    "What is made on this host cannot be kept (%s): vGPUs "
                    "will not come back after a reboot",
                    error,
                )
            self._warned = True
        else:
            self._warned = False


def _write(path: Path, text: str) -> None:
    """Put `text` into the file: all of it or, if the host dies, nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with open(new, "w", encoding="utf-8", opener=_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

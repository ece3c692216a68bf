# SPDX-License-Identifier: Apache-2.0
"""Run a service of ours and count the SQL that it sends.

`counted.py FOLDER MODULE [argument…]`: FOLDER gets one small file for each
process (workers too), two 64-bit numbers: statements and transactions.
"""

from __future__ import annotations

import importlib
import mmap
import os
import struct
import sys
import threading
from pathlib import Path

import sqlalchemy as sa

LAYOUT = struct.Struct("=QQ")


class Counter:
    """Numbers of this process in a mapped file; safe between threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._numbers = [0, 0]
        path = self._folder / f"{os.getpid()}.count"
        path.write_bytes(LAYOUT.pack(0, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), LAYOUT.size)

    def add(self, index: int) -> None:
        with self._lock:
            self._numbers[index] += 1
            LAYOUT.pack_into(self._map, 0, *self._numbers)


def total(folder: Path) -> tuple[int, int]:
    """Statements and transactions of all processes until now."""
    read = [
        LAYOUT.unpack(path.read_bytes()) for path in folder.glob("*.count")
    ]
    return (
        sum(statements for statements, _ in read),
        sum(transactions for _, transactions in read),
    )


def main() -> None:
    folder, module = Path(sys.argv[1]), sys.argv[2]
    name = module.rpartition(".")[2]
    sys.argv[:] = [f"cyborg-{name}", *sys.argv[3:]]
    counter = Counter(folder)

    def on_statement(*_: object) -> None:
        counter.add(0)

    def on_begin(*_: object) -> None:
        counter.add(1)

    sa.event.listen(sa.Engine, "before_cursor_execute", on_statement)
    sa.event.listen(sa.Engine, "begin", on_begin)
    sys.exit(importlib.import_module(module).main())


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Counts what a database is asked, for tests of cost."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from typing_extensions import Self

_HOUSEKEEPING = ("BEGIN", "PRAGMA", "SAVEPOINT", "RELEASE SAVEPOINT")


class StatementCounter:
    """Within the block: `.statements` (their texts) and `.transactions`;
    with `own`, those of this thread alone.

    An `executemany` counts as many times as it has parameter sets, which is
    what PyMySQL makes of it for an UPDATE.
    """

    def __init__(self, engine: sa.Engine, own: bool = False) -> None:
        self.engine = engine
        self._thread = threading.get_ident() if own else None
        self.statements: list[str] = []
        self.transactions = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        event.listen(self.engine, "before_cursor_execute", self._statement)
        event.listen(self.engine, "begin", self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        event.remove(self.engine, "before_cursor_execute", self._statement)
        event.remove(self.engine, "begin", self._begin)

    def _begin(self, connection: sa.Connection) -> None:
        if self._foreign():
            return
        with self._lock:
            self.transactions += 1

    def _foreign(self) -> bool:
        return self._thread not in (None, threading.get_ident())

    def _statement(
        self,
        connection: sa.Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        *context_and_many: Any,
    ) -> None:
        if statement.lstrip().upper().startswith(_HOUSEKEEPING):
            return
        if self._foreign():
            return
        many = context_and_many[-1]
        updates = many and not statement.upper().startswith("INSERT")
        with self._lock:
            self.statements += [statement] * (
                len(parameters) if updates else 1
            )

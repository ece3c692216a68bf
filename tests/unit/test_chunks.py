# SPDX-License-Identifier: Apache-2.0
"""Bodies in chunks, as uwsgi hands them out."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

import pytest

from cyborg.wsgi import chunks


def echo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """What can be read in pieces of four bytes, then all that is left."""
    source = environ["wsgi.input"]
    return [source.read(4), source.read(4), source.read()]


@pytest.fixture
def in_uwsgi(monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter([b"[1, ", b"2", b", 3]", b"", b""])
    uwsgi = types.ModuleType("uwsgi")
    vars(uwsgi)["chunked_read"] = lambda: next(given)
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)


@pytest.mark.usefixtures("in_uwsgi")
def test_chunks_are_put_together() -> None:
    application = chunks.put_together(echo)
    environ = {"HTTP_TRANSFER_ENCODING": "Chunked", "wsgi.input": None}
    assert list(application(environ, None)) == [b"[1, ", b"2", b", 3]"]


@pytest.mark.usefixtures("in_uwsgi")
def test_a_body_with_a_length_is_read_as_ever() -> None:
    class Source:
        def read(self, size: int = -1) -> bytes:
            return b"as ever"

    application = chunks.put_together(echo)
    assert (
        list(application({"wsgi.input": Source()}, None)) == [b"as ever"] * 3
    )


def test_other_servers_do_it_themselves() -> None:
    assert chunks.put_together(echo) is echo

# SPDX-License-Identifier: Apache-2.0
"""What we need of Glance, over HTTP on loopback."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import pytest

from tests import loopback


@dataclasses.dataclass
class StoredImage:
    """An image; `record` is what its metadata says."""

    content: bytes
    record: dict[str, Any]


class GlanceStandIn(loopback.Loopback):
    """Serves `images` in pieces of `chunk_bytes`.

    `say_length`: send Content-Length (else the body is chunked).
    `cut_after`: break the connection after so many bytes.
    `pause_after`: send so many bytes and then nothing more.
    `pause_between`: seconds to wait after each piece.
    """

    def __init__(self) -> None:
        self.images: dict[str, StoredImage] = {}
        self.chunk_bytes = 4096
        self.say_length = True
        self.cut_after: int | None = None
        self.pause_after: int | None = None
        self.pause_between = 0.0
        self._closing = threading.Event()
        super().__init__()

    def close(self) -> None:
        self._closing.set()
        super().close()

    def add(
        self, content: bytes, properties: Mapping[str, Any] | None = None
    ) -> str:
        """Store an image as Glance would; its uuid.

        `properties` come over what Glance computes (`status`, `size`,
        `checksum`, `os_hash_algo`, `os_hash_value`); None takes one away.
        """
        identifier = str(uuid.uuid4())
        record: dict[str, Any] = {
            "id": identifier,
            "name": "a bitstream",
            "status": "active",
            "size": len(content),
            "checksum": hashlib.md5(content).hexdigest(),
            "os_hash_algo": "sha512",
            "os_hash_value": hashlib.sha512(content).hexdigest(),
            "visibility": "private",
            "tags": [],
            **(properties or {}),
        }
        self.images[identifier] = StoredImage(content, record)
        return identifier

    def respond(
        self,
        request: loopback.Request,
        handler: http.server.BaseHTTPRequestHandler,
    ) -> None:
        path, _, query = request.path.partition("?")
        parts = path.strip("/").split("/")
        if parts == [""]:
            link = {"rel": "self", "href": f"{self.url}/v2/"}
            version = {"id": "v2.9", "status": "CURRENT", "links": [link]}
            loopback.send(handler, 300, {"versions": [version]})
            return
        if parts == ["v2", "images"]:
            self._list(dict(urllib.parse.parse_qsl(query)), handler)
            return
        image = self.images.get(parts[2]) if len(parts) > 2 else None
        if parts[:2] != ["v2", "images"] or image is None:
            loopback.send(handler, 404)
        elif parts[3:] == ["file"]:
            self._send(image.content, handler)
        else:
            loopback.send(handler, 200, image.record)

    def _list(
        self,
        wanted: dict[str, str],
        handler: http.server.BaseHTTPRequestHandler,
    ) -> None:
        limit = int(wanted.pop("limit", 25))
        found = [
            image.record
            for image in self.images.values()
            if all(
                image.record.get(key) == value for key, value in wanted.items()
            )
        ]
        loopback.send(handler, 200, {"images": found[:limit]})

    def _send(
        self, content: bytes, handler: http.server.BaseHTTPRequestHandler
    ) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/octet-stream")
        if self.say_length:
            handler.send_header("Content-Length", str(len(content)))
        else:
            handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        sent = 0
        while sent < len(content):
            piece = content[sent : sent + self.chunk_bytes]
            if self.say_length:
                handler.wfile.write(piece)
            else:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            handler.wfile.flush()
            sent += len(piece)
            self._closing.wait(self.pause_between)
            if self._interrupted(sent, handler):
                return
        if not self.say_length:
            handler.wfile.write(b"0\r\n\r\n")

    def _interrupted(
        self, sent: int, handler: http.server.BaseHTTPRequestHandler
    ) -> bool:
        if self.pause_after is not None and sent >= self.pause_after:
            self._closing.wait(60)
            handler.close_connection = True
            return True
        if self.cut_after is not None and sent >= self.cut_after:
            handler.close_connection = True
            return True
        return False


@pytest.fixture
def glance_stand_in() -> Iterator[GlanceStandIn]:
    with GlanceStandIn() as stand_in:
        yield stand_in

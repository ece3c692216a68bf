# SPDX-License-Identifier: Apache-2.0
"""An answer that is the same for everybody, made once."""

from __future__ import annotations

import hashlib

import webob

SECONDS = 3600
"""How long a client need not ask again."""


class Document:
    """Bytes with their type, and a tag by which a client may keep them."""

    def __init__(self, content: bytes, content_type: str) -> None:
        self._content = content
        self._type = content_type
        self._tag = hashlib.sha256(content).hexdigest()[:32]

    def fill(self, response: webob.Response) -> webob.Response:
        """The response with the document; 304 for who has it already."""
        response.headerlist = [("Content-Type", self._type)]
        response.body = self._content
        response.etag = self._tag
        response.cache_control = f"public, max-age={SECONDS}"
        response.conditional_response = True
        return response

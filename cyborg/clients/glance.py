# SPDX-License-Identifier: Apache-2.0
"""Images that cards are programmed with.

What comes from outside is bounded and proven before anybody may use it: size,
time, checksum.  A file that is not all right does not stay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

import requests
import urllib3
from keystoneauth1 import adapter as ks_adapter

from cyborg import exception
from cyborg.clients import session

CHUNK_BYTES = 1 << 20

FUNCTION_PROPERTIES = ("accel:function_id", "function_uuid")
"""Image properties that may name the function a bitstream gives a card."""

DOWNLOAD_SECONDS = 1800.0


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image on our disk; whoever asked for it removes the file."""

    path: Path
    properties: Mapping[str, str]


class Glance:
    """The image service; one object serves many threads."""

    def __init__(self, adapter: ks_adapter.Adapter) -> None:
        self._service = session.Service(adapter, "Glance")

    def download(
        self,
        image_uuid: str,
        directory: Path,
        max_bytes: int,
        max_seconds: float = DOWNLOAD_SECONDS,
    ) -> Image:
        """Fetch an image into a new file (mode 0600) below `directory`.

        Raises NotFound; Invalid where it is larger than `max_bytes`, not
        usable, or not what its checksum promises; Unavailable.
        """
        deadline = time.monotonic() + max_seconds
        properties = self._properties(image_uuid, max_seconds)
        _check_size(properties.get("size"), image_uuid, max_bytes)
        check = _Checksum(image_uuid, properties)
        try:
            descriptor, name = tempfile.mkstemp(prefix="image-", dir=directory)
        except OSError as error:
            raise _no_room(image_uuid, error) from error
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in self._chunks(image_uuid, max_bytes, deadline):
                    check.update(chunk)
                    file.write(chunk)
            check.verify()
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _no_room(image_uuid, error) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return Image(
            path,
            {
                key: value
                for key, value in properties.items()
                if isinstance(value, str)
            },
        )

    def find_by_function(self, function_id: str) -> str:
        """The uuid of the one image that gives a card this function.

        Raises NotFound where there is none, Conflict where several.
        """
        found: set[str] = set()
        for name in FUNCTION_PROPERTIES:
            response = self._service.call(
                "GET",
                self._url("/images"),
                params={name: function_id, "status": "active", "limit": "2"},
            )
            if response.status_code == 200:
                images = self._service.decoded(response).get("images")
                for image in images if isinstance(images, list) else ():
                    found.add(str(image["id"]))
        if not found:
            raise exception.NotFound(
                f"There is no image with function {function_id}"
            )
        if len(found) > 1:
            raise exception.Conflict(
                f"Several images have function {function_id}"
            )
        return found.pop()

    def _url(self, path: str) -> str:
        """A whole URL: catalogues have this service with and without /v2."""
        return f"{self._service.endpoint().removesuffix('/v2')}/v2{path}"

    def _properties(
        self, image_uuid: str, patience: float
    ) -> dict[str, object]:
        response = self._service.call(
            "GET", self._url(f"/images/{image_uuid}"), patience=patience
        )
        self._check(response, image_uuid)
        properties = self._service.decoded(response)
        if properties.get("status") != "active":
            raise exception.Invalid(
                f"Image {image_uuid} is {properties.get('status')}, not active"
            )
        return properties

    def _chunks(
        self, image_uuid: str, max_bytes: int, deadline: float
    ) -> Iterator[bytes]:
        """The content, piece by piece, never more than `max_bytes` and never
        later than `deadline` (monotonic)."""
        response = self._service.call(
            "GET",
            self._url(f"/images/{image_uuid}/file"),
            stream=True,
            patience=deadline - time.monotonic(),
        )
        received = 0
        with response:
            self._check(response, image_uuid)
            length = response.headers.get("Content-Length")
            _check_size(length, image_uuid, max_bytes)
            try:
                for chunk in _pieces(response):
                    received += len(chunk)
                    _check_size(received, image_uuid, max_bytes)
                    self._check_time(image_uuid, deadline)
                    yield chunk
            except (
                requests.RequestException,
                urllib3.exceptions.HTTPError,
            ) as error:
                raise self._service.failed(
                    f"broke off image {image_uuid}", error
                ) from error
        if length is not None and received < int(length):
            raise self._service.failed(f"broke off image {image_uuid}")

    def _check_time(self, image_uuid: str, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise self._service.failed(f"sends image {image_uuid} too slowly")

    def _check(self, response: requests.Response, image_uuid: str) -> None:
        status = response.status_code
        if status in (204, 404, 410):
            raise exception.NotFound(f"There is no image {image_uuid}")
        if status == 400:
            raise exception.Invalid(f"{image_uuid} is not an image's uuid")
        if status != 200:
            raise self._service.failed(f"answered {status}")


def _pieces(response: requests.Response) -> Iterator[bytes]:
    """The content as it comes: to wait for whole chunks of a sender that
    dribbles would be to wait for ever.

    An older urllib3 knows chunks only.
    """
    read = getattr(response.raw, "read1", response.raw.read)
    while piece := read(CHUNK_BYTES):
        yield piece


class _Checksum:
    """What an image's own record says of its content.

    The strong hash where there is one and this Python knows it, else MD5
    (older Glance), which still finds what a network broke.
    """

    def __init__(
        self, image_uuid: str, properties: Mapping[str, object]
    ) -> None:
        self._image_uuid = image_uuid
        algorithm = str(properties.get("os_hash_algo") or "")
        self._wanted = str(properties.get("os_hash_value") or "")
        if not self._wanted or algorithm not in hashlib.algorithms_available:
            algorithm = "md5"
            self._wanted = str(properties.get("checksum") or "")
        self._hash = hashlib.new(algorithm, usedforsecurity=False)

    def update(self, chunk: bytes) -> None:
        self._hash.update(chunk)

    def verify(self) -> None:
        """Raise Invalid unless the content is what was promised."""
        if not self._wanted:
            raise exception.Invalid(
                f"Image {self._image_uuid} has no checksum to prove it by"
            )
        if self._hash.hexdigest() != self._wanted.lower():
            raise exception.Invalid(
                f"Image {self._image_uuid} is damaged: its "
                f"{self._hash.name} is not the one that Glance promises"
            )


def _no_room(image_uuid: str, error: OSError) -> exception.Unavailable:
    return exception.Unavailable(
        f"Image {image_uuid} cannot be kept on this host: {error.strerror}"
    )


def _check_size(size: object, image_uuid: str, max_bytes: int) -> None:
    """Refuse what is, or says that it is, too large (None: not said)."""
    text = str(size)
    if text.isdigit() and int(text) > max_bytes:
        raise exception.Invalid(
            f"Image {image_uuid} has more than the {max_bytes} bytes that "
            "[agent] max_image_bytes allows"
        )

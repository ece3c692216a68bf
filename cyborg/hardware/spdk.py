# SPDX-License-Identifier: Apache-2.0
"""What SPDK exports, asked over its Unix socket by JSON-RPC 2.0.

SPDK (doc/jsonrpc.md) puts no frame around a message: a reply is whole when
its JSON object is.  Questions go one after another over one connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import final

from cyborg.hardware.pci import parse_address

REPLY_LIMIT = 32 * 2**20
"""Bytes of a reply: thousands of bdevs are a few mebibytes."""

CHUNK = 2**20
SAID_LIMIT = 100
DISCOVERY = "discovery"
"""The subtype of the subsystem that only tells of others."""

WRONG_STATE, NO_METHOD = -1, -32601
_MEANINGS = {
    WRONG_STATE: "SPDK has not started its subsystems yet",
    NO_METHOD: "this SPDK application has no such part",
}


class SpdkError(Exception):
    """SPDK does not answer, or not so that it makes sense; in words for an
    operator."""


class RefusedError(SpdkError):
    """SPDK answered with an error; `code` is JSON-RPC's, SPDK's -1 (still
    starting) or a negative errno."""

    def __init__(self, method: str, code: int, message: str) -> None:
        meaning = _MEANINGS.get(code)
        super().__init__(
            f"{method}: {message} ({code})"
            + (f": {meaning}" if meaning else "")
        )
        self.code = code


@final
class Connection:
    """A connection to SPDK; all that is asked over it has `timeout` seconds.

    Raises SpdkError.  A context manager.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._number = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise SpdkError(f"no connection: {_reason(error)}") from error

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, method: str) -> object:
        """The result of a method without parameters.

        Raises RefusedError where SPDK answers with an error.
        """
        self._number += 1
        question = {"jsonrpc": "2.0", "id": self._number, "method": method}
        try:
            self._wait_at_most()
            self._socket.sendall(json.dumps(question).encode())
            reply = self._reply()
        except TimeoutError as error:
            raise SpdkError(
                f"{method}: no answer within {self._timeout:g} s"
            ) from error
        except OSError as error:
            raise SpdkError(f"{method}: {_reason(error)}") from error
        except ValueError as error:
            raise SpdkError(f"{method}: {error}") from error
        return _result(method, self._number, reply)

    def _reply(self) -> object:
        """The next JSON object.  Raises ValueError for what is none."""
        received = bytearray()
        while True:
            self._wait_at_most()
            piece = self._socket.recv(CHUNK)
            if not piece:
                raise ValueError("SPDK closed the connection")
            received += piece
            start = bytes(received[:SAID_LIMIT]).lstrip()
            if start and not start.startswith(b"{"):
                raise ValueError(f"no JSON object: {start!r}")
            if piece.rstrip().endswith(b"}"):
                with contextlib.suppress(ValueError, RecursionError):
                    return json.loads(received)
            if len(received) > REPLY_LIMIT:
                raise ValueError(f"more than {REPLY_LIMIT} bytes")

    def _wait_at_most(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _result(method: str, number: int, reply: object) -> object:
    if not isinstance(reply, dict) or reply.get("id") != number:
        raise SpdkError(f"{method}: the answer is to another question")
    error = reply.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        raise RefusedError(
            method,
            code if isinstance(code, int) else 0,
            str(error.get("message"))[:SAID_LIMIT],
        )
    if error is not None or "result" not in reply:
        raise SpdkError(f"{method}: neither a result nor an error")
    return reply["result"]


@dataclasses.dataclass(frozen=True, slots=True)
class NvmeDisk:
    """The NVMe disk of a bdev; `address` is empty for one that is reached
    over a network.  `vendor` is four hex digits."""

    address: str = ""
    vendor: str = ""
    model: str = ""
    serial: str = ""
    firmware: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Bdev:
    """A block device of SPDK.

    `names` are all that it has, its own first.  `base` is the bdev that it
    lies on, empty where it lies on none, on several, or SPDK does not say.
    `size` is in bytes; `numa_node` is None where unknown.
    """

    names: tuple[str, ...]
    product: str = ""
    size: int = 0
    numa_node: int | None = None
    base: str = ""
    disk: NvmeDisk | None = None

    @property
    def name(self) -> str:
        return self.names[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Listener:
    """Where a subsystem can be reached."""

    trtype: str
    traddr: str
    trsvcid: str


@dataclasses.dataclass(frozen=True, slots=True)
class Subsystem:
    """An NVMe-oF subsystem; `namespaces` are (nsid, name of the bdev)."""

    nqn: str
    listeners: tuple[Listener, ...]
    namespaces: tuple[tuple[int, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class VhostController:
    """A vhost socket that a guest can be given, and the bdevs behind it."""

    name: str
    socket: str
    kind: str
    bdevs: tuple[str, ...]


def bdevs(connection: Connection) -> list[Bdev]:
    """Every block device.  Raises SpdkError."""
    return [
        Bdev(
            names=(
                _text(item, "name"),
                *(str(alias) for alias in _list(item, "aliases")),
            ),
            product=str(item.get("product_name") or ""),
            size=_count(item, "block_size") * _count(item, "num_blocks"),
            numa_node=_numa_node(item),
            base=_base(_object(item, "driver_specific")),
            disk=_disk(_object(item, "driver_specific")),
        )
        for item in _items(connection, "bdev_get_bdevs")
    ]


def subsystems(connection: Connection) -> list[Subsystem]:
    """Every NVMe-oF subsystem but those for discovery.  Raises SpdkError."""
    return [
        Subsystem(
            nqn=_text(item, "nqn"),
            listeners=tuple(
                Listener(
                    str(one.get("trtype") or one.get("transport") or ""),
                    str(one.get("traddr") or ""),
                    str(one.get("trsvcid") or ""),
                )
                for one in _objects(item, "listen_addresses")
            ),
            namespaces=tuple(
                (_count(one, "nsid"), _text(one, "bdev_name"))
                for one in _objects(item, "namespaces")
            ),
        )
        for item in _items(connection, "nvmf_get_subsystems")
        if str(item.get("subtype")).lower() != DISCOVERY
    ]


def vhost_controllers(connection: Connection) -> list[VhostController]:
    """Every vhost controller.  Raises SpdkError."""
    found = []
    for item in _items(connection, "vhost_get_controllers"):
        specific = _object(item, "backend_specific")
        found.append(
            VhostController(
                name=_text(item, "ctrlr"),
                socket=_text(item, "socket"),
                kind=next(iter(specific), ""),
                bdevs=tuple(_behind(specific)),
            )
        )
    return found


def _behind(specific: Mapping[str, Any]) -> Iterator[str]:
    """The bdevs of a vhost controller: one of a disk, one of each LUN of
    its SCSI targets."""
    if "block" in specific:
        yield _text(_object(specific, "block"), "bdev")
    for target in _objects(specific, "scsi"):
        for unit in _objects(target, "luns"):
            yield _text(unit, "bdev_name")


def _disk(specific: Mapping[str, Any]) -> NvmeDisk | None:
    """The NVMe disk of a bdev by the first of its paths."""
    for path in _objects(specific, "nvme"):
        data = _object(path, "ctrlr_data")
        return NvmeDisk(
            address=_address(path.get("pci_address")),
            vendor=str(data.get("vendor_id") or "").lower().removeprefix("0x"),
            model=str(data.get("model_number") or "").strip(),
            serial=str(data.get("serial_number") or "").strip(),
            firmware=str(data.get("firmware_revision") or "").strip(),
        )
    return None


def _address(value: object) -> str:
    """A PCI address as the kernel writes it; empty where it is none."""
    try:
        return str(parse_address(str(value)))
    except ValueError:
        return ""


def _base(specific: Mapping[str, Any]) -> str:
    """SPDK's modules call it by one of two names."""
    for kind in specific.values():
        if isinstance(kind, dict):
            base = kind.get("base_bdev") or kind.get("base_bdev_name")
            if isinstance(base, str):
                return base
    return ""


def _numa_node(item: Mapping[str, Any]) -> int | None:
    node = item.get("numa_id")
    return node if isinstance(node, int) and node >= 0 else None


def _items(connection: Connection, method: str) -> list[Mapping[str, Any]]:
    result = connection.call(method)
    if not isinstance(result, list):
        raise SpdkError(f"{method}: the result is no list")
    return _only_objects(result, method)


def _objects(item: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return _only_objects(_list(item, key), key)


def _only_objects(found: list[Any], key: str) -> list[Mapping[str, Any]]:
    if not all(isinstance(one, dict) for one in found):
        raise SpdkError(f"{key}: not a list of objects")
    return found


def _list(item: Mapping[str, Any], key: str) -> list[Any]:
    found = item.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise SpdkError(f"{key}: {str(found)[:SAID_LIMIT]!r} is no list")
    return found


def _object(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = item.get(key)
    return found if isinstance(found, dict) else {}


def _text(item: Mapping[str, Any], key: str) -> str:
    found = item.get(key)
    if not isinstance(found, str) or not found:
        raise SpdkError(f"{key}: {str(found)[:SAID_LIMIT]!r} is no name")
    return found


def _count(item: Mapping[str, Any], key: str) -> int:
    found = item.get(key)
    if not isinstance(found, int) or found < 0:
        raise SpdkError(f"{key}: {str(found)[:SAID_LIMIT]!r} is no count")
    return found

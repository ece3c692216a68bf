# SPDX-License-Identifier: Apache-2.0
"""What we need of SPDK: JSON-RPC 2.0 over a real Unix socket."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import socket
import socketserver
import struct
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class RpcError(Exception):
    """An error that SPDK answers with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SpdkStandIn:
    """Answers each method of `answers` with its result (or RpcError), any
    other with "Method not found"; `asked` are the methods in order.

    `piece`: send so many bytes and wait until they are taken, then the
    next.  `raw`: send this instead of a reply.  `cut_after`: close the
    connection after so many bytes.  `is_silent`: never answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, object] = {}
        self.asked: list[str] = []
        self.connections = 0
        self.piece: int | None = None
        self.raw: bytes | None = None
        self.cut_after: int | None = None
        self.is_silent = False
        self._closing = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End; what is connected is let go."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, connection: socket.socket) -> None:
        """One connection until the other side closes it."""
        self.connections += 1
        received = ""
        while piece := connection.recv(4096):
            received += piece.decode()
            try:
                request = json.loads(received)
            except ValueError:
                continue
            received = ""
            self.asked.append(request["method"])
            if self.is_silent:
                self._closing.wait(30)
                return
            reply = self.raw or json.dumps(self._reply(request)).encode()
            if not self._send(connection, reply):
                return

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        found = self.answers.get(
            request["method"], RpcError(-32601, "Method not found")
        )
        if unknown := request.keys() - {"jsonrpc", "id", "method"}:
            found = RpcError(-32602, f"Invalid parameters: {unknown}")
        head = {"jsonrpc": "2.0", "id": request["id"]}
        if isinstance(found, RpcError):
            error = {"code": found.code, "message": str(found)}
            return {**head, "error": error}
        return {**head, "result": found}

    def _send(self, connection: socket.socket, reply: bytes) -> bool:
        """Whether the connection goes on."""
        if self.cut_after is not None:
            connection.sendall(reply[: self.cut_after])
            return False
        step = self.piece or len(reply)
        for start in range(0, len(reply), step):
            connection.sendall(reply[start : start + step])
            while self.piece and _unread(connection):
                time.sleep(0.0005)
        return True


def _unread(connection: socket.socket) -> int:
    """Bytes that the other side has not taken yet."""
    answer = fcntl.ioctl(connection, termios.TIOCOUTQ, struct.pack("i", 0))
    number: int = struct.unpack("i", answer)[0]
    return number


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, stand_in: SpdkStandIn) -> None:
        self.stand_in = stand_in
        super().__init__(str(stand_in.path), _Handler)


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        with contextlib.suppress(OSError):  # the client went away
            server.stand_in.serve(self.request)


@pytest.fixture
def spdk_stand_in() -> Iterator[SpdkStandIn]:
    """In a short directory: the path of a socket has 107 bytes at most."""
    directory = Path(tempfile.mkdtemp(prefix="spdk-"))
    stand_in = SpdkStandIn(directory / "spdk.sock")
    try:
        yield stand_in
    finally:
        stand_in.close()
        shutil.rmtree(directory)


# What SPDK says ------------------------------------------------------------


def nvme_bdev(
    name: str = "Nvme0n1",
    address: str | None = "0000:5e:00.0",
    numa_id: int | None = 0,
    nsid: int = 1,
) -> dict[str, Any]:
    """A bdev of a P4510; without `address` one reached over TCP."""
    path: dict[str, Any] = {
        "trid": {"trtype": "PCIe", "traddr": address},
        "pci_address": address,
        "ctrlr_data": {
            "cntlid": 0,
            "vendor_id": "0x8086",
            "model_number": "INTEL SSDPE2KX010T8",
            "serial_number": "PHLJ0000000001P0A",
            "firmware_revision": "VDV10131",
            "oacs": {"security": 0, "format": 1},
        },
        "vs": {"nvme_version": "1.2"},
        "ns_data": {"id": nsid, "can_share": False},
    }
    if address is None:
        del path["pci_address"]
        path["trid"] = {
            "trtype": "TCP",
            "adrfam": "IPv4",
            "traddr": "192.0.2.9",
            "trsvcid": "4420",
        }
    return {
        **bdev(name, "NVMe disk", numa_id),
        "driver_specific": {"nvme": [path], "mp_policy": "active_passive"},
    }


def bdev(
    name: str = "Malloc0",
    product: str = "Malloc disk",
    numa_id: int | None = None,
    aliases: tuple[str, ...] = (),
    **specific: Any,
) -> dict[str, Any]:
    """Any other bdev; `specific` is its `driver_specific`."""
    numa = {} if numa_id is None else {"numa_id": numa_id}
    return {
        "name": name,
        "aliases": list(aliases),
        "product_name": product,
        "block_size": 512,
        "num_blocks": 131_072,
        "uuid": "11111111-2222-3333-4444-555555555555",
        **numa,
        "assigned_rate_limits": {"rw_ios_per_sec": 0},
        "claimed": True,
        "claim_type": "exclusive_write",
        "zoned": False,
        "supported_io_types": {"read": True, "write": True},
        "driver_specific": specific,
    }


def subsystem(
    nqn: str,
    *bdevs: str,
    listeners: tuple[tuple[str, str, str], ...] = (
        ("TCP", "192.0.2.1", "4420"),
    ),
) -> dict[str, Any]:
    """An NVMe-oF subsystem with a namespace for each of `bdevs`."""
    return {
        "nqn": nqn,
        "subtype": "NVMe",
        "listen_addresses": [
            {
                "trtype": trtype,
                "transport": trtype,
                "adrfam": "IPv4",
                "traddr": traddr,
                "trsvcid": trsvcid,
            }
            for trtype, traddr, trsvcid in listeners
        ],
        "allow_any_host": True,
        "hosts": [],
        "serial_number": "SPDK00000000000001",
        "model_number": "SPDK bdev Controller",
        "max_namespaces": 32,
        "min_cntlid": 1,
        "max_cntlid": 65519,
        "namespaces": [
            {
                "nsid": number,
                "bdev_name": name,
                "name": name,
                "nguid": f"{number:032X}",
                "uuid": f"00000000-0000-0000-0000-{number:012}",
            }
            for number, name in enumerate(bdevs, 1)
        ],
    }


def discovery_subsystem() -> dict[str, Any]:
    return {
        "nqn": "nqn.2014-08.org.nvmexpress.discovery",
        "subtype": "Discovery",
        "listen_addresses": [],
        "allow_any_host": True,
        "hosts": [],
    }


def vhost_block(name: str, bdev_name: str) -> dict[str, Any]:
    return {
        **_vhost(name),
        "backend_specific": {
            "block": {
                "readonly": False,
                "bdev": bdev_name,
                "transport": "vhost_user_blk",
            }
        },
    }


def vhost_scsi(name: str, *bdev_names: str) -> dict[str, Any]:
    """One target for each of the bdevs."""
    return {
        **_vhost(name),
        "backend_specific": {
            "scsi": [
                {
                    "scsi_dev_num": number,
                    "id": number,
                    "target_name": f"Target {number}",
                    "luns": [{"id": 0, "bdev_name": one}],
                }
                for number, one in enumerate(bdev_names)
            ]
        },
    }


def _vhost(name: str) -> dict[str, Any]:
    return {
        "ctrlr": name,
        "cpumask": "0x2",
        "delay_base_us": 0,
        "iops_threshold": 60000,
        "socket": f"/var/tmp/{name}",
        "sessions": [],
    }

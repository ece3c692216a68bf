# SPDX-License-Identifier: Apache-2.0
"""The JSON-RPC client, against a real socket."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from cyborg.hardware import spdk
from tests.spdk_stand_in import RpcError
from tests.spdk_stand_in import SpdkStandIn
from tests.spdk_stand_in import bdev
from tests.spdk_stand_in import discovery_subsystem
from tests.spdk_stand_in import nvme_bdev
from tests.spdk_stand_in import spdk_stand_in
from tests.spdk_stand_in import subsystem
from tests.spdk_stand_in import vhost_block
from tests.spdk_stand_in import vhost_scsi

__all__ = ("spdk_stand_in",)


def _ask(stand_in: SpdkStandIn, timeout: float = 20) -> object:
    with spdk.Connection(str(stand_in.path), timeout) as rpc:
        return rpc.call("bdev_get_bdevs")


def test_questions_go_one_after_another_over_one_connection(
    spdk_stand_in: SpdkStandIn,
) -> None:
    spdk_stand_in.answers = {"one": [1], "two": {"a": None}, "three": None}

    with spdk.Connection(str(spdk_stand_in.path), 20) as rpc:
        answers = [rpc.call(method) for method in ("one", "two", "three")]

    assert answers == [[1], {"a": None}, None]
    assert spdk_stand_in.asked == ["one", "two", "three"]
    assert spdk_stand_in.connections == 1


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_reply_in_pieces_is_put_together(
    spdk_stand_in: SpdkStandIn, piece: int
) -> None:
    # A piece may end in the middle of a character, or after a brace.
    result = [{"name": '}{ä€𐍈\\"}', "n": {"m": {}}}, {}]
    spdk_stand_in.answers["bdev_get_bdevs"] = result
    spdk_stand_in.piece = piece

    assert _ask(spdk_stand_in) == result


def test_a_character_may_be_cut_by_a_piece(spdk_stand_in: SpdkStandIn) -> None:
    reply = {"jsonrpc": "2.0", "id": 1, "result": ["ä€𐍈"]}
    spdk_stand_in.raw = json.dumps(reply, ensure_ascii=False).encode()
    spdk_stand_in.piece = 1

    assert _ask(spdk_stand_in) == ["ä€𐍈"]


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (-32601, "Method not found", "has no such part"),
        (-1, "Method may only be called after framework", "has not started"),
        (-19, "No such device", "No such device (-19)"),
        (-32602, "Invalid parameters", "Invalid parameters (-32602)"),
    ],
)
def test_an_error_names_the_method_its_code_and_what_it_means(
    spdk_stand_in: SpdkStandIn, code: int, message: str, words: str
) -> None:
    spdk_stand_in.answers["bdev_get_bdevs"] = RpcError(code, message)

    with pytest.raises(spdk.RefusedError) as caught:
        _ask(spdk_stand_in)

    assert caught.value.code == code
    assert "bdev_get_bdevs" in str(caught.value)
    assert message in str(caught.value)
    assert words in str(caught.value)


def test_no_answer_is_waited_for_no_longer_than_the_limit(
    spdk_stand_in: SpdkStandIn,
) -> None:
    spdk_stand_in.is_silent = True
    began = time.monotonic()

    with pytest.raises(spdk.SpdkError, match=r"no answer within 0\.1 s"):
        _ask(spdk_stand_in, timeout=0.1)

    assert time.monotonic() - began < 5


def test_the_limit_holds_for_all_pieces_together(
    spdk_stand_in: SpdkStandIn,
) -> None:
    spdk_stand_in.raw = b'{"result": "' + b"." * 5_000_000
    spdk_stand_in.piece = 50

    with pytest.raises(spdk.SpdkError, match="no answer within"):
        _ask(spdk_stand_in, timeout=0.2)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no JSON object: b'HTTP"),
        (b"[1, 2]", "no JSON object"),
        (b'{"jsonrpc": "2.0", "id": 7, "result": []}', "another question"),
        (b'{"jsonrpc": "2.0", "id": 1}', "neither a result nor an error"),
        (b'{"id": 1, "error": "oops"}', "neither a result nor an error"),
    ],
)
def test_what_is_no_reply_is_an_error_that_says_so(
    spdk_stand_in: SpdkStandIn, raw: bytes, words: str
) -> None:
    spdk_stand_in.raw = raw

    with pytest.raises(spdk.SpdkError) as caught:
        _ask(spdk_stand_in)

    assert words in str(caught.value)
    assert "bdev_get_bdevs" in str(caught.value)


@pytest.mark.parametrize("cut_after", [0, 1, 20])
def test_a_server_that_closes_early_is_an_error(
    spdk_stand_in: SpdkStandIn, cut_after: int
) -> None:
    spdk_stand_in.answers["bdev_get_bdevs"] = [bdev()]
    spdk_stand_in.cut_after = cut_after

    with pytest.raises(spdk.SpdkError, match="closed the connection"):
        _ask(spdk_stand_in)


def test_a_reply_without_an_end_is_bounded(
    spdk_stand_in: SpdkStandIn,
) -> None:
    spdk_stand_in.raw = b'{"result": "' + b"." * spdk.REPLY_LIMIT

    with pytest.raises(spdk.SpdkError, match="more than 33554432 bytes"):
        _ask(spdk_stand_in, timeout=60)


def test_a_large_reply_is_read_whole(spdk_stand_in: SpdkStandIn) -> None:
    result = [bdev(f"Malloc{number}") for number in range(5000)]
    spdk_stand_in.answers["bdev_get_bdevs"] = result

    assert _ask(spdk_stand_in) == result


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing.sock", "No such file"),
        ("plain", "Connection refused"),
        ("x" * 200, "too long"),
    ],
)
def test_a_socket_that_is_not_there_is_an_error(
    tmp_path: Path, path: str, words: str
) -> None:
    (tmp_path / "plain").touch()

    with pytest.raises(spdk.SpdkError) as caught:
        spdk.Connection(str(tmp_path / path), 1)

    assert words in str(caught.value)


def _connected(stand_in: SpdkStandIn) -> spdk.Connection:
    return spdk.Connection(str(stand_in.path), 20)


def test_a_bdev_tells_its_disk_or_what_it_lies_on(
    spdk_stand_in: SpdkStandIn,
) -> None:
    spdk_stand_in.answers["bdev_get_bdevs"] = [
        nvme_bdev(numa_id=1),
        nvme_bdev("Remote0n1", address=None, numa_id=None),
        bdev(
            "0f3c",
            "Logical Volume",
            aliases=("lvs0/vol0",),
            lvol={"lvol_store_uuid": "9", "base_bdev": "Nvme0n1"},
        ),
        bdev("Crypto0", "crypto", crypto={"base_bdev_name": "Malloc0"}),
        bdev(numa_id=-1),
    ]

    with _connected(spdk_stand_in) as rpc:
        local, remote, volume, crypto, memory = spdk.bdevs(rpc)

    assert local.disk == spdk.NvmeDisk(
        address="0000:5e:00.0",
        vendor="8086",
        model="INTEL SSDPE2KX010T8",
        serial="PHLJ0000000001P0A",
        firmware="VDV10131",
    )
    assert (local.name, local.numa_node, local.base) == ("Nvme0n1", 1, "")
    assert local.size == 512 * 131_072
    assert remote.disk is not None
    assert (remote.disk.address, remote.disk.vendor) == ("", "8086")
    assert volume.names == ("0f3c", "lvs0/vol0")
    assert (volume.base, volume.disk) == ("Nvme0n1", None)
    assert crypto.base == "Malloc0"
    assert (memory.base, memory.disk, memory.numa_node) == ("", None, None)


def test_the_discovery_subsystem_is_none_of_those_that_export(
    spdk_stand_in: SpdkStandIn,
) -> None:
    spdk_stand_in.answers["nvmf_get_subsystems"] = [
        discovery_subsystem(),
        subsystem("nqn.2024-01.org.example:a", "Nvme0n1", "Malloc0"),
    ]

    with _connected(spdk_stand_in) as rpc:
        (found,) = spdk.subsystems(rpc)

    assert found == spdk.Subsystem(
        nqn="nqn.2024-01.org.example:a",
        listeners=(spdk.Listener("TCP", "192.0.2.1", "4420"),),
        namespaces=((1, "Nvme0n1"), (2, "Malloc0")),
    )


def test_a_vhost_controller_has_a_disk_or_scsi_targets(
    spdk_stand_in: SpdkStandIn,
) -> None:
    spdk_stand_in.answers["vhost_get_controllers"] = [
        vhost_block("vhost.0", "Malloc0"),
        vhost_scsi("vhost.1", "Nvme0n1", "Malloc1"),
        vhost_scsi("vhost.2"),
    ]

    with _connected(spdk_stand_in) as rpc:
        found = spdk.vhost_controllers(rpc)

    assert [(one.name, one.kind, one.bdevs) for one in found] == [
        ("vhost.0", "block", ("Malloc0",)),
        ("vhost.1", "scsi", ("Nvme0n1", "Malloc1")),
        ("vhost.2", "scsi", ()),
    ]
    assert found[0].socket == "/var/tmp/vhost.0"


@pytest.mark.parametrize(
    "result",
    [
        {},
        ["text"],
        [{"product_name": "nameless"}],
        [{**bdev(), "block_size": "512"}],
        [{**bdev(), "aliases": "a"}],
    ],
)
def test_a_result_of_another_shape_is_an_error(
    spdk_stand_in: SpdkStandIn, result: object
) -> None:
    spdk_stand_in.answers["bdev_get_bdevs"] = result

    with _connected(spdk_stand_in) as rpc, pytest.raises(spdk.SpdkError):
        spdk.bdevs(rpc)

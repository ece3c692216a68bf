# SPDX-License-Identifier: Apache-2.0
"""What was made is known after a restart, whatever befell the file."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from cyborg import inventory
from cyborg.agent import ledger


def made(uuid: str, job: str = "job-1") -> ledger.Made:
    return ledger.Made(
        uuid=uuid,
        driver="nvidia_gpu_driver",
        controlpath=inventory.pci_json("0000:af:00.0"),
        attach_type="MDEV",
        attach_info=inventory.pci_json(
            "0000:af:00.0", {"asked_type": "nvidia-222"}
        ),
        job_uuid=job,
    )


def again(directory: Path, host: str = "compute-1") -> ledger.Ledger:
    """The ledger as the next agent on this host finds it."""
    return ledger.Ledger(str(directory), host)


def test_entries_outlive_the_agent(tmp_path):
    one, two = made("1"), made("2")
    again(tmp_path).add([one, two])
    assert again(tmp_path).units() == (one, two)
    again(tmp_path).forget(["1"])
    assert again(tmp_path).units() == (two,)
    assert again(tmp_path).has("2")
    assert not again(tmp_path).has("1")


def test_the_file_is_private_and_nothing_lies_beside_it(tmp_path):
    again(tmp_path).add([made("1")])
    (file,) = tmp_path.iterdir()
    assert file.name == "made-compute-1.json"
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_order_is_over_when_its_unit_was_given_back(tmp_path):
    again(tmp_path).add([made("1", "job-1"), made("2", "job-2")])
    again(tmp_path).end(["1"])
    again(tmp_path).forget(["2"])
    after = again(tmp_path)
    assert after.is_ended("job-1")
    assert not after.is_ended("job-2")
    assert after.units() == ()


def test_orders_that_are_over_are_remembered_for_a_while_only(tmp_path):
    kept = again(tmp_path)
    for number in range(ledger.KEPT_ENDED + 1):
        kept.add([made("1", f"job-{number}")])
        kept.end(["1"])
    after = again(tmp_path)
    assert not after.is_ended("job-0")
    assert after.is_ended("job-1")
    assert after.is_ended(f"job-{ledger.KEPT_ENDED}")


def test_each_host_on_a_shared_disk_has_its_own(tmp_path):
    again(tmp_path, "one").add([made("1")])
    assert again(tmp_path, "two").units() == ()
    again(tmp_path, "o/../e").add([made("2")])
    assert {path.parent for path in tmp_path.rglob("*")} == {tmp_path}


def test_a_newer_releases_file_is_read_as_far_as_it_is_known(tmp_path):
    again(tmp_path).add([made("1")])
    (file,) = tmp_path.iterdir()
    content = json.loads(file.read_text())
    content["later"] = 1
    content["units"][0]["later"] = 2
    file.write_text(json.dumps(content))
    assert again(tmp_path).units() == (made("1"),)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"units": [{"uuid": "1"}]}',
        b'{"units": 5}',
        b"[" * 60_000,
    ],
)
def test_what_cannot_be_read_is_put_aside_and_work_goes_on(
    tmp_path, caplog, content
):
    for number in (1, 2):
        file = tmp_path / "made-compute-1.json"
        file.write_bytes(content)
        caplog.clear()
        kept = again(tmp_path)
        assert kept.units() == ()
        kept.add([made("1")])
        assert again(tmp_path).units() == (made("1"),)
        aside = tmp_path / f"made-compute-1.unreadable-{number}"
        assert aside.read_bytes() == content
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert str(aside) in record.getMessage()


def test_what_is_no_file_is_put_aside_too(tmp_path, caplog):
    (tmp_path / "made-compute-1.json").mkdir()
    again(tmp_path).add([made("1")])
    assert again(tmp_path).units() == (made("1"),)
    assert (tmp_path / "made-compute-1.unreadable-1").is_dir()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("state_path", [None, "", "/proc/nowhere"])
def test_without_a_place_to_write_there_is_one_warning(caplog, state_path):
    kept = ledger.Ledger(state_path, "compute-1")
    assert kept.units() == ()
    assert caplog.records == []
    for uuid in ("1", "2"):
        kept.add([made(uuid)])
    kept.end(["1"])
    assert kept.units() == (made("2"),)
    assert kept.is_ended("job-1")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "will not come back after a reboot" in record.getMessage()


def test_a_write_that_fails_leaves_the_last_good_file(tmp_path, caplog):
    kept = again(tmp_path)
    kept.add([made("1")])
    (tmp_path / "made-compute-1.new").mkdir()
    kept.add([made("2")])
    assert again(tmp_path).units() == (made("1"),)
    assert len(caplog.records) == 1
    (tmp_path / "made-compute-1.new").rmdir()
    kept.add([made("3")])
    assert again(tmp_path).units() == (made("1"), made("2"), made("3"))


def test_half_a_file_of_a_host_that_died_is_written_over(tmp_path):
    again(tmp_path).add([made("1")])
    (tmp_path / "made-compute-1.new").write_text('{"units": [')
    again(tmp_path).add([made("2")])
    assert again(tmp_path).units() == (made("1"), made("2"))


def test_a_unit_is_on_the_disk_when_add_returns(tmp_path, monkeypatch):
    flushed: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    again(tmp_path).add([made("1")])
    assert flushed == [str(tmp_path / "made-compute-1.new"), str(tmp_path)]

# SPDX-License-Identifier: Apache-2.0
"""Units made, cleaned and programmed on a host: by real processes, the real
privileged helper, and vendors' tools that keep what they were asked.

The host has a card of each kind (fake_host.py); each test gives back what it
took.  However slow the machine is, they wait for what is to happen; a time
limit that is to be met is short only while its own test runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import deployment
from tests.integration import fake_host
from tests.integration import hosted
from tests.integration import instance
from tests.integration import resources
from tests.integration.fake_host import A100
from tests.integration.fake_host import ALVEO
from tests.integration.fake_host import DISK
from tests.integration.fake_host import OTHER_T4
from tests.integration.fake_host import PAC
from tests.integration.fake_host import QAT
from tests.integration.fake_host import QAT_VFS
from tests.integration.fake_host import T4
from tests.integration.fake_host import FakeHost
from tests.integration.hosted import DONE
from tests.integration.hosted import FAILED
from tests.integration.hosted import PATIENCE
from tests.integration.hosted import SANITIZING
from tests.integration.hosted import Cards

BIND_SECONDS, SHORT_BIND_SECONDS = 60, 20
CLEAN_SECONDS, SHORT_CLEAN_SECONDS = 3600, 20
"""`[DEFAULT] bind_timeout`, and `[agent] clean_timeouts` of NVMe: as they are
and as they are where they have to be exceeded."""

IDENTIFY = ["nvme", "id-ctrl", "/dev/nvme0", "-o", "json"]
LOG = ["nvme", "sanitize-log", "/dev/nvme0", "-o", "json"]
SANITIZE = ["nvme", "sanitize", "/dev/nvme0", "-a", "4", "--ause"]
LEAVE_FAILURE = ["nvme", "sanitize", "/dev/nvme0", "-a", "1"]


@pytest.fixture(scope="module")
def all_cards(deploy: deployment.Deploy) -> Iterator[Cards]:
    """A Cyborg with a host of many cards, all of them reported."""
    if os.geteuid() != 0:
        resources.missing("the privileged helper needs root")
    cyborg = deploy(bind_timeout=BIND_SECONDS, rpc_response_timeout=15)
    host = FakeHost(cyborg, CLEAN_SECONDS)
    try:
        cyborg.launch("conductor")
        cyborg.start_api()
        host.start_agent()
        cards = Cards(cyborg, host)
        resources.wait_until(
            lambda: len(cyborg.providers()) >= fake_host.PARTS,
            PATIENCE,
            f"{fake_host.PARTS} providers:\n{cyborg.tails()}",
        )
        for address in (T4, OTHER_T4, DISK, PAC, ALVEO):
            cards.await_reserved(address, 0)
        yield cards
        cyborg.stop()
    finally:
        host.close()


@pytest.fixture
def cards(
    all_cards: Cards,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> Iterator[Cards]:
    """The host, on which nobody has anything before and after the test."""
    judged(all_cards.cyborg)
    all_cards.host.forget_commands()
    all_cards.host.kernel.writes.clear()
    yield all_cards
    if not all_cards.are_free():
        hosted.take_back(all_cards)  # a test that failed
    assert all_cards.host.kernel.errors == []


VGPU = {"resources:VGPU": "1"}
NVME = {"resources:CUSTOM_NVME": "1"}


# Mediated devices ----------------------------------------------------------


def test_a_vgpu_is_made_for_its_instance_and_removed_after_it(
    cards: Cards,
) -> None:
    host = cards.host
    server = cards.server(T4, VGPU)
    host.kernel.hang(host.vgpus.create)
    server.bind()

    server.poll(423)
    (arq,) = server.arq_uuids
    shown = server.nova.get(f"/v2/accelerator_requests/{arq}")
    assert shown["state"] == "BindStarted"
    resources.wait_until(host.ledger, PATIENCE, "it is written down first")
    assert host.vgpus.uuids == set()
    assert cards.cyborg.cloud.nova.events_of(server.uuid) == []

    host.kernel.resume(host.vgpus.create)
    (bound,) = server.wait_resolved()
    assert bound["state"] == "Bound"
    assert bound["attach_handle_type"] == "MDEV"
    assert bound["attach_handle_info"]["asked_type"] == fake_host.VGPU
    unit = bound["attach_handle_uuid"]
    assert host.kernel.writes == [(host.vgpus.create_below, unit)]
    resources.wait_until(lambda: host.vgpus.uuids, PATIENCE, "the mdev")
    assert host.vgpus.uuids == cards.handles() == host.ledger() == {unit}
    assert cards.events(server) == ["completed"]
    assert cards.device(T4)["device_state"] == "allocated"

    server.delete()
    hosted.nothing_left(cards)
    place = host.tree.path(T4).relative_to(host.tree.root)
    assert host.kernel.writes == [
        (host.vgpus.create_below, unit),
        (f"{place}/{unit}/remove", "1"),
    ]
    assert len(cards.cyborg.cloud.nova.events_of(server.uuid)) == 1
    assert cards.inventory(T4)["total"] == 16


def test_a_vgpu_that_the_kernel_refuses_fails_the_bind_and_is_free_again(
    cards: Cards,
) -> None:
    host = cards.host
    server = cards.server(T4, VGPU)
    with host.kernel.refusing(host.vgpus.create):
        server.bind()
        (arq,) = server.wait_resolved()

    assert arq["state"] == "BindFailed"
    assert cards.events(server) == ["failed"]
    ((reason,),) = cards.rows(
        "SELECT error FROM jobs WHERE kind = 'prepare' AND state = 'failed'"
    )
    assert "No space left on device" in reason
    server.delete()
    hosted.nothing_left(cards)

    server, _ = cards.bound(T4, VGPU)
    server.delete()
    hosted.nothing_left(cards)


@pytest.fixture
def hasty(cards: Cards) -> Iterator[Cards]:
    """With a conductor whose binds may take but a short time."""
    cards.restart_conductor(OS_DEFAULT__BIND_TIMEOUT=str(SHORT_BIND_SECONDS))
    yield cards
    cards.restart_conductor()


def test_a_vgpu_that_takes_too_long_fails_the_bind_and_holds_up_no_other(
    hasty: Cards,
) -> None:
    cards, host = hasty, hasty.host
    host.kernel.hang(host.vgpus.create)
    server = cards.server(T4, VGPU)
    server.bind()
    resources.wait_until(host.ledger, PATIENCE, "it is begun")

    other, arq = cards.bound(OTHER_T4, VGPU)
    assert cards.events(other) == ["completed"]
    resources.wait_until(
        lambda: host.other_vgpus.uuids == {arq["attach_handle_uuid"]},
        PATIENCE,
        "the other card's mdev",
    )
    server.poll(423)

    (failed,) = server.wait_resolved()
    assert failed["state"] == "BindFailed"
    assert cards.events(server) == ["failed"]
    ended, begun = cards.rows(
        "SELECT finished_at, created_at FROM jobs WHERE kind = 'prepare'"
        " AND state = 'failed' ORDER BY id DESC LIMIT 1"
    )[0]
    seconds = (ended - begun).total_seconds()
    assert SHORT_BIND_SECONDS - 1 <= seconds < BIND_SECONDS

    server.delete()
    other.delete()
    host.kernel.resume(host.vgpus.create)
    hosted.nothing_left(cards)
    resources.wait_until(
        lambda: len(host.helpers()) == 1, PATIENCE, "the end of its writers"
    )
    assert host.kernel.writes[-1][1] == "1"


def test_a_vgpu_in_the_making_survives_a_crash(cards: Cards) -> None:
    host = cards.host
    host.kernel.hang(host.vgpus.create)
    server = cards.server(T4, VGPU)
    server.bind()
    resources.wait_until(
        lambda: len(host.helpers()) == 2, PATIENCE, "a write that waits"
    )
    assert len(host.ledger()) == 1

    cards.crash()
    host.kernel.resume(host.vgpus.create)

    (arq,) = server.wait_resolved()
    unit = arq["attach_handle_uuid"]
    assert arq["state"] == "Bound"
    assert cards.events(server) == ["completed"]
    resources.wait_until(lambda: host.vgpus.uuids, PATIENCE, "the mdev")
    assert host.vgpus.uuids == host.ledger() == cards.handles() == {unit}
    server.delete()
    hosted.nothing_left(cards)
    resources.wait_until(
        lambda: len(host.helpers()) <= 1, PATIENCE, "the old helper's end"
    )


# NVMe ----------------------------------------------------------------------


def _released(cards: Cards) -> None:
    """The disk is given back by an instance, and sanitizes."""
    server, arq = cards.bound(DISK, NVME)
    assert arq["attach_handle_type"] == "PCI"
    cards.host.forget_commands()
    server.delete()
    resources.wait_until(
        lambda: SANITIZE in cards.host.commands("nvme"),
        PATIENCE,
        f"the disk sanitizes:\n{cards.cyborg.tails()}",
    )


def _is_kept(cards: Cards) -> None:
    """The disk is cleaned, and nobody else can have it."""
    assert cards.await_state(DISK, "pending_cleaning", "cleaning")
    cards.await_reserved(DISK, 1)
    placement = cards.cyborg.cloud.placement
    assert placement.candidates([NVME], cards.cyborg.root) == []
    assert len(cards.handles()) == 1


def _without_repeats(commands: list[list[str]]) -> list[list[str]]:
    """Polls of the log as one."""
    return [
        command
        for number, command in enumerate(commands)
        if command != LOG or commands[number - 1 : number] != [LOG]
    ]


def test_a_disk_is_sanitized_before_the_next_one_gets_it(
    cards: Cards,
) -> None:
    _released(cards)
    _is_kept(cards)
    assert cards.await_state(DISK, "cleaning")["status_reason"] is None

    cards.host.change_disk(status=DONE, sprog=65535)
    hosted.nothing_left(cards)
    assert _without_repeats(cards.host.commands("nvme")) == [
        IDENTIFY,
        LOG,
        SANITIZE,
        LOG,
    ]


def test_a_disk_that_is_not_clean_waits_for_an_administrator(
    cards: Cards,
) -> None:
    host = cards.host
    _released(cards)
    host.change_disk(status=FAILED)
    device = cards.await_state(DISK, "error")
    assert "Most Recent Sanitize Command Failed" in device["status_reason"]
    cards.await_reserved(DISK, 1)
    host.forget_commands()

    cards.admin.post(f"/v2/devices/{device['uuid']}/enable", status=204)
    resources.wait_until(
        lambda: host.disk()["status"] == SANITIZING, PATIENCE, "once more"
    )
    _is_kept(cards)
    host.change_disk(status=DONE)
    hosted.nothing_left(cards)
    assert _without_repeats(host.commands("nvme")) == [
        IDENTIFY,
        LOG,
        LEAVE_FAILURE,
        SANITIZE,
        LOG,
    ]


def test_a_disk_that_takes_too_long_is_in_error_until_it_is_clean(
    cards: Cards,
) -> None:
    host = cards.host
    with cards.cleaning_within(SHORT_CLEAN_SECONDS, CLEAN_SECONDS):
        _released(cards)
        device = cards.await_state(DISK, "error")
    cards.await_reserved(DISK, 1)
    host.forget_commands()

    # It went on by itself: it is waited for, not begun again.
    cards.admin.post(f"/v2/devices/{device['uuid']}/enable", status=204)
    resources.wait_until(
        lambda: LOG in host.commands("nvme"), PATIENCE, "it is asked"
    )
    host.change_disk(status=DONE)
    hosted.nothing_left(cards)
    assert _without_repeats(host.commands("nvme")) == [IDENTIFY, LOG]
    assert f"within {SHORT_CLEAN_SECONDS} s" in device["status_reason"]


@pytest.mark.parametrize("victim", ["agent", "conductor"])
def test_a_sanitize_is_followed_to_its_end_through_a_crash(
    cards: Cards, victim: str
) -> None:
    host = cards.host
    _released(cards)

    cards.cyborg.kill(victim)
    if victim == "agent":
        host.forget_commands()
        host.start_agent()
        # Once to report what it is, and once more to clean it.
        resources.wait_until(
            lambda: (
                _without_repeats(host.commands("nvme"))[-3:]
                == [IDENTIFY, IDENTIFY, LOG]
            ),
            PATIENCE,
            f"the disk is asked again:\n{cards.cyborg.tails()}",
        )
    else:
        cards.cyborg.start_conductor()
    _is_kept(cards)
    host.change_disk(status=DONE)

    hosted.nothing_left(cards)
    begun = [SANITIZE] if victim == "conductor" else []
    assert [
        command
        for command in host.commands("nvme")
        if command[1] == "sanitize"
    ] == begun


# Programming ---------------------------------------------------------------


def _image(cards: Cards, content: bytes) -> str:
    return cards.cyborg.cloud.glance.add(content)


def _given(cards: Cards, tool: str) -> tuple[str, str]:
    """The path of the image that the tool's only run was given, gone now,
    and what it held."""
    (run,) = cards.host.runs(tool)
    ((path, content),) = run["files"].items()
    assert path.startswith(f"{cards.cyborg.folder}/")
    assert not Path(path).exists()
    return path, content


FPGACONF = [
    *("fpgaconf", "--segment", "0x0000", "--bus", "0x5e"),
    *("--device", "0x00", "--function", "0x0"),
]


def _is_binding(server: instance.Instance) -> bool:
    (arq,) = server.arq_uuids
    shown = server.nova.get(f"/v2/accelerator_requests/{arq}")
    return bool(shown["state"] == "BindStarted")


FPGA = {"resources:FPGA": "1", "trait:CUSTOM_FPGA_INTEL": "required"}


def test_a_bind_programs_a_pac_with_the_image_of_its_profile(
    cards: Cards,
) -> None:
    image = _image(cards, b"a green bitstream")
    server, _ = cards.bound(PAC, {**FPGA, "accel:bitstream_id": image})

    path, content = _given(cards, "fpgaconf")
    assert cards.host.commands("fpgaconf") == [[*FPGACONF, path]]
    assert content == "a green bitstream"
    assert cards.deployable(PAC)["bitstream_id"] == image
    assert cards.events(server) == ["completed"]
    server.delete()
    hosted.nothing_left(cards)


def test_a_pac_that_takes_no_image_says_why(cards: Cards) -> None:
    image = _image(cards, b"for another card")
    said = "Error programming: no suitable slots"
    with cards.host.failing("fpgaconf", 4, said):
        answer = cards.program(PAC, image)
        assert answer.status_code == 500, answer.text
        cards.cyborg.answers.server_errors.clear()
        server = cards.server(PAC, {**FPGA, "accel:bitstream_id": image})
        server.bind()
        (arq,) = server.wait_resolved()

    reason = deployment.faultstring(answer)
    assert "no FPGA at this address takes the bitstream" in reason
    assert said in reason
    assert str(cards.cyborg.folder) not in reason
    assert arq["state"] == "BindFailed"
    assert cards.events(server) == ["failed"]
    assert [command[:-1] for command in cards.host.commands("fpgaconf")] == [
        FPGACONF
    ] * 2
    assert cards.deployable(PAC)["bitstream_id"] != image
    server.delete()
    hosted.nothing_left(cards)


def test_a_crash_while_a_pac_is_programmed_ends_the_bind_one_way(
    cards: Cards,
) -> None:
    """What was begun before the crash goes on: nobody may write to the card
    beside it."""
    host = cards.host
    image = _image(cards, b"a bitstream that is cut off")
    server = cards.server(PAC, {**FPGA, "accel:bitstream_id": image})
    with host.holding("fpgaconf"):
        server.bind()
        resources.wait_until(
            lambda: host.commands("fpgaconf"), PATIENCE, "it is programmed"
        )
        cards.crash()
        resources.wait_until(
            lambda: len(host.runs("fpgaconf")) > 1 or not _is_binding(server),
            BIND_SECONDS + PATIENCE,
            "the bind is over, or begun again",
        )

    (arq,) = server.wait_resolved()
    outcome = {"Bound": "completed", "BindFailed": "failed"}[arq["state"]]
    assert cards.events(server) == [outcome]
    assert len(cards.handles()) == (outcome == "completed")
    assert list(cards.cyborg.folder.glob("images-*/image-*")) == []
    server.delete()
    hosted.nothing_left(cards)
    assert all(run["alone"] for run in host.runs("fpgaconf"))


def test_an_alveo_is_programmed_by_its_management_function(
    cards: Cards,
) -> None:
    image = _image(cards, b"an xclbin")

    answer = cards.program(ALVEO, image)

    assert answer.status_code == 200, answer.text
    assert answer.json()["bitstream_id"] == image
    path, content = _given(cards, "xbmgmt")
    assert path.endswith(".xclbin")
    assert content == "an xclbin"
    assert cards.host.commands("xbmgmt") == [
        [
            *("xbmgmt", "program", "--device", ALVEO),
            *("--user", path, "--force"),
        ]
    ]
    assert cards.deployable(ALVEO)["bitstream_id"] == image
    hosted.nothing_left(cards)


# Reboot --------------------------------------------------------------------


def test_a_host_that_boots_gets_back_what_its_guests_had(
    cards: Cards,
) -> None:
    host, cyborg = cards.host, cards.cyborg
    mine = [cards.bound(T4, VGPU), cards.bound(T4, VGPU)]
    units = {arq["attach_handle_uuid"] for _, arq in mine}
    resources.wait_until(
        lambda: host.vgpus.uuids == units, PATIENCE, "two mdevs"
    )
    cyborg.processes["agent"].stop(PATIENCE)
    host.reboot()
    assert host.vgpus.uuids == set()
    assert host.virtual_functions(QAT) == host.virtual_functions(A100) == 0
    host.forget_commands()
    host.kernel.writes.clear()
    log = cyborg.processes["agent"].output
    before = log.stat().st_size

    host.start_agent()

    resources.wait_until(
        lambda: b"Reported " in log.read_bytes()[before:],
        PATIENCE,
        f"a report:\n{cyborg.tails()}",
    )
    said = log.read_bytes()[before:].partition(b"Reported ")[0].decode()
    assert said.count(": is there") == len(units) + 2
    assert host.vgpus.uuids == units
    place = host.tree.path(QAT).relative_to(host.tree.root)
    assert sorted(host.kernel.writes) == sorted(
        [
            (f"{place}/sriov_numvfs", f"{QAT_VFS}"),
            *((host.vgpus.create_below, unit) for unit in units),
            ("../state/sriov.ask", f"-e {A100}"),
        ]
    )
    assert host.virtual_functions(QAT) == QAT_VFS
    assert host.virtual_functions(A100) == fake_host.A100_VFS
    assert host.commands("sriov-manage") == [["sriov-manage", "-e", A100]]
    for server, arq in mine:
        assert server.poll() == [arq]
        server.delete()
    hosted.nothing_left(cards)


def test_no_process_printed_a_traceback(cards: Cards) -> None:
    """Last on purpose: it judges what the tests above left in the logs."""
    assert cards.cyborg.tracebacks() == {}

# SPDX-License-Identifier: Apache-2.0
"""NVMe controllers as the kernel shows them, and nvme-cli's words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cyborg.hardware import nvme
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.nvme_cli import ALL_NAMESPACES
from cyborg.hardware.nvme_cli import FormatErase
from cyborg.hardware.nvme_cli import Layout
from cyborg.hardware.nvme_cli import NvmeCli
from cyborg.hardware.nvme_cli import SanitizeAction
from cyborg.hardware.nvme_cli import SanitizeStatus
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.tools import ToolError
from tests.nvme_disk import NvmeDisk
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

ADDRESS = "0000:5f:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path / "sys")
    tree.add_intel_p4510(ADDRESS)
    return tree


def _function(tree: SysfsTree) -> PciFunction:
    function = Sysfs(tree.root).function(ADDRESS)
    assert function is not None
    return function


def _controller(tree: SysfsTree) -> nvme.Controller:
    found = nvme.controller(_function(tree))
    assert found is not None
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_a_controllers_texts_come_without_their_padding(
    tree: SysfsTree,
) -> None:
    place = tree.path(ADDRESS) / "nvme" / "nvme0"
    _write(place / "serial", "PHLJ0001            ")
    _write(place / "state", "deleting (no IO)")

    found = _controller(tree)

    assert found.name == "nvme0"
    assert found.node == "/dev/nvme0"
    assert found.model == "INTEL SSDPE2KX010T8"
    assert found.serial == "PHLJ0001"
    assert found.firmware == "VDV10131"
    assert found.why_not == "its NVMe controller is deleting (no IO)"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("live", ""),
        ("resetting", "its NVMe controller is resetting now"),
        ("connecting", "its NVMe controller is connecting now"),
        ("new", "its NVMe controller is new now"),
        ("dead", "its NVMe controller is dead"),
    ],
)
def test_only_a_live_controller_can_be_used(
    tree: SysfsTree, state: str, reason: str
) -> None:
    _write(tree.path(ADDRESS) / "nvme/nvme0/state", state)

    assert _controller(tree).why_not == reason


def test_a_function_without_its_driver_has_no_controller(
    tree: SysfsTree,
) -> None:
    tree.unbind(ADDRESS)

    assert nvme.controller(_function(tree)) is None


@pytest.mark.parametrize("name", ["model", "serial", "firmware_rev", "state"])
@pytest.mark.parametrize("text", [None, "x" * 41])
def test_a_file_that_is_missing_or_too_long_is_named(
    tree: SysfsTree, name: str, text: str | None
) -> None:
    path = tree.path(ADDRESS) / "nvme" / "nvme0" / name
    path.unlink() if text is None else _write(path, text)

    with pytest.raises(UnreadableError) as caught:
        nvme.controller(_function(tree))

    assert f"nvme0/{name}" in str(caught.value)


def test_namespaces_are_the_controllers_block_devices(
    tree: SysfsTree,
) -> None:
    place = tree.path(ADDRESS) / "nvme" / "nvme0"
    _write(place / "nvme0n10" / "nsid", "2")
    _write(place / "nvme0n10" / "size", "8")

    found = nvme.namespaces(tree.root, _controller(tree))

    assert found == (
        nvme.Namespace("nvme0n1", 1, 1953525168 * 512),
        nvme.Namespace("nvme0n10", 2, 4096),
    )
    assert found[0].node == "/dev/nvme0n1"


def test_with_multipath_the_disk_is_the_subsystems(tree: SysfsTree) -> None:
    place = tree.path(ADDRESS) / "nvme" / "nvme0"
    shutil.rmtree(place / "nvme0n1")
    _write(place / "nvme7c0n1" / "size", "0")
    disk = tree.root / "class/nvme-subsystem/nvme-subsys7/nvme7n1"
    _write(disk / "nsid", "1")
    _write(disk / "size", "16")

    found = nvme.namespaces(tree.root, _controller(tree))

    assert found == (nvme.Namespace("nvme7n1", 1, 8192),)


@pytest.mark.parametrize(
    ("name", "text"), [("nsid", None), ("nsid", "-1"), ("size", "many")]
)
def test_a_namespace_of_which_a_file_is_wrong_is_an_error(
    tree: SysfsTree, name: str, text: str | None
) -> None:
    path = tree.path(ADDRESS) / "nvme/nvme0/nvme0n1" / name
    path.unlink() if text is None else _write(path, text)

    with pytest.raises(UnreadableError, match=f"nvme0n1/{name}"):
        nvme.namespaces(tree.root, _controller(tree))


def test_neighbours_are_the_other_controllers_of_one_subsystem(
    tree: SysfsTree,
) -> None:
    tree.add_intel_p4510("0000:60:00.0")
    one = _controller(tree)
    assert nvme.neighbours(Sysfs(tree.root), one) == ()

    for name in ("nvme0", "nvme1"):
        _write(tree.root / f"class/nvme/{name}/subsysnqn", "nqn.same")

    one = _controller(tree)
    assert nvme.neighbours(Sysfs(tree.root), one) == ("nvme1",)


# nvme-cli ----------------------------------------------------------------


@pytest.fixture
def tools() -> RecordedTools:
    return RecordedTools()


@pytest.fixture
def cli(tools: RecordedTools) -> NvmeCli:
    return NvmeCli(tools)


@pytest.fixture
def one(tree: SysfsTree) -> nvme.Controller:
    return _controller(tree)


def test_each_command_has_the_words_that_every_version_knows(
    tools: RecordedTools, cli: NvmeCli, one: nvme.Controller
) -> None:
    tools.answer("nvme", NvmeDisk(sanicap=7, oacs=0xA, fna=4))
    tools.answer("blkdiscard", "")

    cli.identify(one, 5)
    cli.sanitize_log(one, 5)
    cli.namespaces(one, 5)
    cli.namespaces(one, 5, allocated=True)
    cli.layout(one, 1, 5)
    cli.format(one, 1, Layout(3), FormatErase.USER_DATA, 900)
    cli.format(one, ALL_NAMESPACES, Layout(0), FormatErase.CRYPTO, 1e9)
    cli.format(one, 1, Layout(17, 1, 2, 1), FormatErase.USER_DATA, 0.5)
    cli.sanitize(one, SanitizeAction.CRYPTO_ERASE, 5, unrestricted=True)
    cli.zero(nvme.Namespace("nvme0n1", 1, 8192), 4096, 4096, 5)

    assert [" ".join(command) for command in tools.commands] == [
        "nvme id-ctrl /dev/nvme0 -o json",
        "nvme sanitize-log /dev/nvme0 -o json",
        "nvme list-ns /dev/nvme0 -o json",
        "nvme list-ns /dev/nvme0 -a -o json",
        "nvme id-ns /dev/nvme0 -n 1 -o json",
        "nvme format /dev/nvme0 -n 1 -s 1 -l 3 -t 900000 --force",
        "nvme format /dev/nvme0 -n 0xffffffff -s 2 -l 0 -t 4294967295 --force",
        "nvme format /dev/nvme0 -n 1 -s 1 -l 17 -m 1 -i 2 -p 1 -t 500 --force",
        "nvme sanitize /dev/nvme0 -a 4 --ause",
        "blkdiscard -z -o 4096 -l 4096 /dev/nvme0n1",
    ]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (SanitizeAction.BLOCK_ERASE, "-a 2"),
        (SanitizeAction.OVERWRITE, "-a 3 -n 1 -p 0x0"),
        (SanitizeAction.CRYPTO_ERASE, "-a 4"),
        (SanitizeAction.EXIT_FAILURE, "-a 1"),
    ],
)
def test_actions_of_a_sanitize_are_numbers(
    tools: RecordedTools,
    cli: NvmeCli,
    one: nvme.Controller,
    action: SanitizeAction,
    words: str,
) -> None:
    tools.answer("nvme", NvmeDisk(sanicap=7))

    cli.sanitize(one, action, 5)

    (command,) = tools.commands
    assert " ".join(command) == f"nvme sanitize /dev/nvme0 {words}"


@pytest.mark.parametrize(
    ("sanicap", "actions"),
    [
        (0b000, ""),
        (0b001, "crypto"),
        (0b010, "block"),
        (0b100, "overwrite"),
        (0x20000003, "crypto block"),
        # Only bits that say something else: no way to sanitize.
        (0x20000000, ""),
    ],
)
def test_bits_of_sanicap_say_how_it_can_sanitize(
    tools: RecordedTools,
    cli: NvmeCli,
    one: nvme.Controller,
    sanicap: int,
    actions: str,
) -> None:
    tools.answer("nvme", NvmeDisk(sanicap=sanicap))

    found = cli.identify(one, 5)

    ways = {
        "crypto": SanitizeAction.CRYPTO_ERASE,
        "block": SanitizeAction.BLOCK_ERASE,
        "overwrite": SanitizeAction.OVERWRITE,
    }
    can = [word for word, action in ways.items() if found.sanitizes(action)]
    assert can == actions.split()
    assert found.sanitizes() == bool(can)


def test_bits_of_oacs_fna_and_oncs_say_what_else_it_can(
    tools: RecordedTools, cli: NvmeCli, one: nvme.Controller
) -> None:
    disk = NvmeDisk()
    tools.answer("nvme", disk)

    def can(oacs: int = 0, fna: int = 0, oncs: int = 0) -> list[bool]:
        disk.fields.update(oacs=oacs, fna=fna, oncs=oncs)
        found = cli.identify(one, 5)
        return [
            found.formats(FormatErase.USER_DATA),
            found.formats(FormatErase.CRYPTO),
            found.manages_namespaces,
            found.erases_all_at_once,
            found.writes_zeroes,
        ]

    assert can() == [False, False, False, False, False]
    assert can(oacs=0b10) == [True, False, False, False, False]
    assert can(oacs=0b10, fna=0b100) == [True, True, False, False, False]
    assert can(fna=0b110) == [False, False, False, True, False]
    assert can(fna=0b1010) == [False, False, False, False, False]
    assert can(oacs=0b1000, oncs=0b1000) == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (
            "(0) NVM Subsystem has never been sanitized.",
            SanitizeStatus.NEVER,
        ),
        ("(1) Other words of a later version", SanitizeStatus.DONE),
        ("(2) Sanitize in Progress.", SanitizeStatus.IN_PROGRESS),
        ("(3) ", SanitizeStatus.FAILED),
        ("(4)", SanitizeStatus.DONE_NOT_DEALLOCATED),
    ],
)
def test_the_number_in_a_status_counts(
    tools: RecordedTools,
    cli: NvmeCli,
    one: nvme.Controller,
    words: str,
    status: SanitizeStatus,
) -> None:
    log = {"any0": {"sprog": 32768, "sstat": {"status": words}}}
    tools.answer("nvme", json.dumps(log))

    found = cli.sanitize_log(one, 5)

    assert (found.status, found.percent, found.said) == (status, 50, words)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "NVMe status: Invalid Log Page",
        "[]",
        "{}",
        '{"nvme0": 1}',
        '{"nvme0": {}, "nvme1": {}}',
        '{"nvme0": {"sprog": 1}}',
        '{"nvme0": {"sprog": 1, "sstat": {}}}',
        '{"nvme0": {"sprog": 1, "sstat": {"status": 1}}}',
        '{"nvme0": {"sprog": 1, "sstat": {"status": "completed"}}}',
        '{"nvme0": {"sprog": 1, "sstat": {"status": "(9) new"}}}',
        '{"nvme0": {"sprog": -1, "sstat": {"status": "(2) runs"}}}',
        '{"nvme0": {"sprog": true, "sstat": {"status": "(2) runs"}}}',
        '{"nvme0": {"sprog": "1", "sstat": {"status": "(2) runs"}}}',
    ],
)
def test_a_log_that_makes_no_sense_is_an_error_with_what_was_said(
    tools: RecordedTools, cli: NvmeCli, one: nvme.Controller, said: str
) -> None:
    tools.answer("nvme", said)

    with pytest.raises(ToolError) as caught:
        cli.sanitize_log(one, 5)

    assert str(caught.value).startswith("nvme sanitize-log printed ")
    assert repr(said)[:50] in str(caught.value)


def test_other_answers_are_read_as_strictly(
    tools: RecordedTools, cli: NvmeCli, one: nvme.Controller
) -> None:
    for said in ("{}", '{"nsid_list": {}}', '{"nsid_list": [1]}'):
        tools.answer("nvme", said)
        with pytest.raises(ToolError, match="nvme list-ns printed"):
            cli.namespaces(one, 5)
    tools.answer("nvme", '{"flbas": 0}')
    with pytest.raises(ToolError, match="nvme id-ns printed no number 'dps'"):
        cli.layout(one, 1, 5)
    tools.answer("nvme", '{"sn": 1}')
    with pytest.raises(ToolError, match="nvme id-ctrl printed no text 'sn'"):
        cli.identify(one, 5)


def test_a_long_answer_is_not_repeated_whole(
    tools: RecordedTools, cli: NvmeCli, one: nvme.Controller
) -> None:
    tools.answer("nvme", "x" * 100_000)

    with pytest.raises(ToolError) as caught:
        cli.identify(one, 5)

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("flbas", "dps", "layout"),
    [
        (0x00, 0, Layout(0)),
        (0x03, 0, Layout(3)),
        (0x13, 0b1010, Layout(3, 1, 2, 1)),
        # Bits 6:5 are the upper ones of the format's number.
        (0x6F, 0, Layout(63)),
        (0x21, 0, Layout(17)),
    ],
)
def test_how_a_namespace_is_formatted_is_in_flbas_and_dps(
    tools: RecordedTools,
    cli: NvmeCli,
    one: nvme.Controller,
    flbas: int,
    dps: int,
    layout: Layout,
) -> None:
    tools.answer("nvme", json.dumps({"flbas": flbas, "dps": dps}))

    assert cli.layout(one, 1, 5) == layout

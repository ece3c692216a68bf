# SPDX-License-Identifier: Apache-2.0
"""A tenant's data is gone from an NVMe disk, or it is said that it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.nvme_cleaning import Cleaner
from cyborg.drivers.nvme_erasure import Action
from cyborg.drivers.nvme_erasure import Strategy
from cyborg.drivers.nvme_erasure import Wish
from cyborg.hardware.tools import ToolError
from tests.driver_host import driver_host
from tests.nvme_disk import Namespace
from tests.nvme_disk import NvmeDisk
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

ADDRESS = "0000:5f:00.0"
CHANGES = ("sanitize", "format")
FORMATS = 0b10
MANAGES = 0b1000


class Clock:
    """Time that passes only while somebody waits; `later` are called, one
    at each pause."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.later: list[Callable[[], object]] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses.append(seconds)
        assert len(self.pauses) < 1000
        self.now += seconds
        if self.later:
            self.later.pop(0)()


@dataclasses.dataclass
class Bench:
    """A host with one disk, and what cleans it."""

    tree: SysfsTree
    tools: RecordedTools
    clock: Clock
    cleaner: Cleaner
    progress: list[int]

    def plug(self, **facts: int) -> NvmeDisk:
        """What is behind the disk's controller from now on."""
        disk = NvmeDisk(self.serial(), **facts)
        self.tools.answer("nvme", disk)
        return disk

    def place(self, name: str = "") -> Path:
        """A file of the controller."""
        (found,) = (self.tree.path(ADDRESS) / "nvme").glob("nvme*")
        return found / name

    def serial(self) -> str:
        return self.place("serial").read_text().strip()

    def clean(
        self,
        action: str = "auto",
        strategy: str = "auto",
        timeout: float = 900,
    ) -> None:
        function = self.cleaner.host.sysfs.function(ADDRESS)
        assert function is not None
        self.cleaner.clean(
            function,
            Wish(Action(action), Strategy(strategy)),
            timeout,
            self.progress.append,
        )

    def changes(self) -> list[str]:
        """The commands that changed the disk."""
        return [
            " ".join(command[1:2] + command[3:])
            for command in self.tools.commands
            if command[1] in CHANGES
        ]

    def verbs(self) -> list[str]:
        return [command[1] for command in self.tools.commands]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    tree = SysfsTree(tmp_path / "sys")
    tree.add_intel_p4510(ADDRESS)
    tools, clock = RecordedTools(), Clock()
    host = driver_host(tree.root, tools=tools)
    cleaner = Cleaner(host, pause=clock.pause, clock=clock)
    return Bench(tree, tools, clock, cleaner, [])


def _fails(bench: Bench, *words: str, **wish: object) -> str:
    with pytest.raises(exception.DeviceFailed) as caught:
        bench.clean(**wish)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith(f"{ADDRESS}: ")
    for word in words:
        assert word in text
    return text


# Which way -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "facts", "command"),
    [
        # The best that the disk can.
        (("auto", "auto"), (0b111, FORMATS, 0b100), "sanitize -a 4 --ause"),
        (("auto", "auto"), (0b110, FORMATS, 0b100), "sanitize -a 2 --ause"),
        (
            ("auto", "auto"),
            (0b100, FORMATS, 0b100),
            "format -n 1 -s 2 -l 0 -t 900000 --force",
        ),
        (
            ("auto", "auto"),
            (0, FORMATS, 0),
            "format -n 1 -s 1 -l 0 -t 900000 --force",
        ),
        (
            ("auto", "auto"),
            (0b100, 0, 0),
            "sanitize -a 3 -n 1 -p 0x0 --ause",
        ),
        # By crypto or by block erase alone.
        (("auto", "crypto"), (0b111, FORMATS, 0b100), "sanitize -a 4 --ause"),
        (
            ("auto", "crypto"),
            (0b110, FORMATS, 0b100),
            "format -n 1 -s 2 -l 0 -t 900000 --force",
        ),
        (("auto", "block"), (0b111, FORMATS, 0b100), "sanitize -a 2 --ause"),
        (
            ("auto", "block"),
            (0b101, FORMATS, 0b100),
            "format -n 1 -s 1 -l 0 -t 900000 --force",
        ),
        # By nothing but a sanitize.
        (("sanitize", "auto"), (0b011, 0, 0), "sanitize -a 4 --ause"),
        (("sanitize", "block"), (0b011, 0, 0), "sanitize -a 2 --ause"),
        (("sanitize", "crypto"), (0b011, 0, 0), "sanitize -a 4 --ause"),
        (
            ("sanitize", "auto"),
            (0b100, FORMATS, 0),
            "sanitize -a 3 -n 1 -p 0x0 --ause",
        ),
    ],
)
def test_a_disk_is_erased_as_wanted_by_the_best_that_it_can(
    bench: Bench,
    wish: tuple[str, str],
    facts: tuple[int, int, int],
    command: str,
) -> None:
    sanicap, oacs, fna = facts
    disk = bench.plug(sanicap=sanicap, oacs=oacs, fna=fna)

    bench.clean(*wish)

    assert bench.changes() == [command]
    assert disk.is_clean


@pytest.mark.parametrize(
    ("wish", "facts", "words"),
    [
        (("auto", "auto"), (0, 0, 0), "neither sanitize nor format"),
        (("auto", "auto"), (0, 0, 0b100), "neither sanitize nor format"),
        (("auto", "crypto"), (0b010, FORMATS, 0), "sanitize block"),
        (("auto", "block"), (0b001, 0, 0), "can only sanitize crypto"),
        (("sanitize", "auto"), (0, FORMATS, 0b100), "format crypto"),
        (("sanitize", "crypto"), (0b110, FORMATS, 0b100), "overwrite"),
        (("sanitize", "block"), (0b101, 0, 0), "sanitize crypto"),
    ],
)
def test_a_disk_that_cannot_be_erased_as_wanted_is_left_alone(
    bench: Bench,
    wish: tuple[str, str],
    facts: tuple[int, int, int],
    words: str,
) -> None:
    sanicap, oacs, fna = facts
    disk = bench.plug(sanicap=sanicap, oacs=oacs, fna=fna)

    with pytest.raises(exception.DeviceFailed) as caught:
        bench.clean(*wish)

    assert "[nvme] device_spec" in str(caught.value)
    assert words in str(caught.value)
    assert bench.changes() == []
    assert not disk.is_clean


# Sanitize ------------------------------------------------------------------


def test_a_sanitize_is_polled_to_its_end_with_growing_pauses(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b10)
    disk.steps = [0, 655, 32768, 49152, 60000, 65000]

    bench.clean()

    assert disk.is_clean
    assert bench.progress == [0, 0, 50, 75, 91, 99]
    assert bench.clock.pauses == [1, 2, 4, 8, 10, 10]
    assert bench.verbs() == [
        "id-ctrl",
        "sanitize-log",
        "sanitize",
        *["sanitize-log"] * 7,
    ]


def test_data_of_a_new_user_is_erased_though_an_old_sanitize_is_done(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b10)
    disk.status = 1

    bench.clean()

    assert bench.changes() == ["sanitize -a 2 --ause"]
    assert disk.is_clean


@pytest.mark.parametrize("wish", ["auto", "sanitize", "zero"])
def test_a_sanitize_that_runs_is_waited_for_and_not_begun_anew(
    bench: Bench, wish: str
) -> None:
    disk = bench.plug(sanicap=0b11, oacs=FORMATS)
    disk.begin(20_000, 40_000)

    bench.clean(wish)

    assert bench.changes() == []
    assert bench.progress == [61]
    assert disk.is_clean


def test_a_time_out_says_that_the_disk_goes_on(bench: Bench) -> None:
    disk = bench.plug(sanicap=0b10)
    disk.steps = [16384] * 100

    text = _fails(bench, "goes on by itself", timeout=60)

    assert "to 25 % within 60 s" in text
    assert bench.clock.now == 60
    assert disk.status == 2


def test_who_asks_again_after_a_time_out_waits_for_the_same_sanitize(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b10)
    disk.steps = [16384] * 15
    _fails(bench, "goes on by itself", timeout=60)

    bench.clean(timeout=900)

    assert bench.changes() == ["sanitize -a 2 --ause"]
    assert disk.is_clean


def test_a_sanitize_that_fails_is_said_to_fail(bench: Bench) -> None:
    disk = bench.plug(sanicap=0b10)
    disk.fails = 1

    _fails(bench, "not sanitized: (3) Most Recent Sanitize Command Failed.")

    assert not disk.is_clean


def test_one_that_failed_is_left_and_begun_anew(bench: Bench) -> None:
    disk = bench.plug(sanicap=0b11)
    disk.status = 3

    bench.clean()

    assert bench.changes() == ["sanitize -a 1", "sanitize -a 4 --ause"]
    assert disk.is_clean


def test_one_that_cannot_be_left_is_begun_anew_in_the_same_mode(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b11)
    disk.status, disk.restricted = 3, True

    bench.clean()

    # With --ause the disk would take none.
    assert bench.changes() == ["sanitize -a 1", "sanitize -a 4"]
    assert disk.is_clean


def test_one_that_failed_is_left_before_a_format(bench: Bench) -> None:
    disk = bench.plug(sanicap=0b100, oacs=FORMATS)
    disk.status = 3

    bench.clean()

    assert bench.changes()[0] == "sanitize -a 1"
    assert bench.changes()[1].startswith("format")
    assert disk.is_clean


def test_a_format_that_the_failure_mode_refuses_is_said_to_fail(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b100, oacs=FORMATS)
    disk.status, disk.restricted = 3, True

    _fails(bench, "Sanitize Failed")

    assert not disk.is_clean


def test_a_log_that_says_nothing_of_a_sanitize_just_begun_is_no_success(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b10)
    log = (
        '{"nvme0": {"sprog": 65535, "sstat":'
        ' {"status": "(0) NVM Subsystem has never been sanitized."}}}'
    )
    bench.tools.answer("nvme sanitize-log", log)

    _fails(bench, "not sanitized: (0)")

    assert not disk.is_clean


# Format --------------------------------------------------------------------


def test_each_namespace_is_formatted_and_keeps_its_layout(
    bench: Bench,
) -> None:
    disk = bench.plug(oacs=FORMATS)
    disk.namespaces = {
        1: Namespace(flbas=2),
        7: Namespace(flbas=0x13, dps=0b1001),
    }

    bench.clean()

    assert bench.changes() == [
        "format -n 1 -s 1 -l 2 -t 900000 --force",
        "format -n 7 -s 1 -l 3 -m 1 -i 1 -p 1 -t 900000 --force",
    ]
    assert disk.is_clean
    assert disk.namespaces[1].flbas == 2
    assert disk.namespaces[7] == Namespace(0x13, 0b1001, dirty=False)
    assert bench.progress == [50, 100]


def test_an_erase_that_hits_all_is_told_so(bench: Bench) -> None:
    disk = bench.plug(oacs=FORMATS | MANAGES, fna=0b110)
    disk.namespaces = {
        1: Namespace(flbas=1),
        2: Namespace(flbas=1),
        3: Namespace(attached=False),
    }

    bench.clean()

    assert bench.changes() == [
        "format -n 0xffffffff -s 2 -l 1 -t 900000 --force"
    ]
    assert disk.is_clean


def test_namespaces_of_different_layout_are_never_formatted_as_one(
    bench: Bench,
) -> None:
    disk = bench.plug(oacs=FORMATS, fna=0b10)
    disk.namespaces = {1: Namespace(flbas=0), 2: Namespace(flbas=1)}

    bench.clean()

    assert len(bench.changes()) == 2
    assert disk.is_clean
    assert disk.namespaces[2].flbas == 1


def test_a_namespace_that_cannot_be_reached_is_a_failure(
    bench: Bench,
) -> None:
    disk = bench.plug(oacs=FORMATS | MANAGES)
    disk.namespaces[5] = Namespace(attached=False)

    _fails(bench, "the namespace 5 is not attached")

    assert bench.changes() == []


def test_a_disk_without_namespaces_cannot_be_formatted(bench: Bench) -> None:
    disk = bench.plug(oacs=FORMATS)
    disk.namespaces = {}

    _fails(bench, "no namespace")


def test_a_format_that_fails_is_said_to_fail(bench: Bench) -> None:
    disk = bench.plug(oacs=FORMATS)
    bench.tools.answer("nvme format", ToolError("nvme took longer than 60 s"))

    _fails(bench, "nvme took longer than 60 s")

    assert not disk.is_clean


# Zeros ---------------------------------------------------------------------


def _zeroed(bench: Bench) -> list[tuple[int, int, str]]:
    """(offset, length, device) of what was filled with zeros."""
    found = []
    for command in bench.tools.commands:
        match command:
            case ["blkdiscard", "-z", "-o", offset, "-l", length, node]:
                found.append((int(offset), int(length), node))
    return found


def test_zeros_are_written_over_the_whole_of_each_disk(bench: Bench) -> None:
    disk = bench.plug(sanicap=0b11, oacs=FORMATS)
    disk.namespaces[2] = Namespace()
    second = bench.place("nvme0n2")
    second.mkdir()
    (second / "nsid").write_text("2\n")
    (second / "size").write_text("9\n")
    bench.tools.answer("blkdiscard", "")

    bench.clean("zero")

    assert bench.changes() == []
    by_node: dict[str, list[tuple[int, int]]] = {}
    for offset, length, node in _zeroed(bench):
        by_node.setdefault(node, []).append((offset, length))
    assert by_node["/dev/nvme0n2"] == [(0, 9 * 512)]
    parts = by_node["/dev/nvme0n1"]
    end = 0
    for offset, length in parts:
        assert offset == end
        end += length
    assert end == 1953525168 * 512
    assert len(parts) <= 51
    assert all(offset % 2**20 == 0 for offset, _ in parts)
    assert bench.progress == sorted(bench.progress)
    assert bench.progress[-1] == 100


def test_zeros_that_take_too_long_are_said_to_fail(bench: Bench) -> None:
    bench.plug()

    def slow(command: list[str]) -> str:
        bench.clock.now += 100
        return ""

    bench.tools.answer("blkdiscard", slow)

    _fails(bench, "not clean within 900 s", action="zero")

    assert len(_zeroed(bench)) == 9


def test_a_namespace_without_a_block_device_is_a_failure(
    bench: Bench,
) -> None:
    disk = bench.plug()
    disk.namespaces[2] = Namespace()
    bench.tools.answer("blkdiscard", "")

    _fails(bench, "no block device of the namespace 2", action="zero")

    assert _zeroed(bench) == []


def test_a_namespace_that_the_kernel_cannot_write_is_no_success(
    bench: Bench,
) -> None:
    """The kernel gives one whose format it cannot use the size 0: a tenant
    may have formatted it so."""
    disk = bench.plug()
    disk.namespaces[2] = Namespace()
    second = bench.place("nvme0n2")
    second.mkdir()
    (second / "nsid").write_text("2\n")
    (second / "size").write_text("0\n")
    bench.tools.answer("blkdiscard", "")

    _fails(bench, "namespace 2", "no size", action="zero")

    assert _zeroed(bench) == []


def test_another_disk_that_gets_the_name_meanwhile_is_not_filled(
    bench: Bench,
) -> None:
    bench.plug()

    def renumber(command: list[str]) -> str:
        if bench.place().name == "nvme0":
            (bench.place() / "nvme0n1").rename(bench.place() / "nvme9n1")
            bench.place().rename(bench.place().with_name("nvme9"))
        return ""

    bench.tools.answer("blkdiscard", renumber)

    _fails(bench, "nvme0n1", action="zero")

    assert len(_zeroed(bench)) == 1


def test_a_disk_that_somebody_has_open_is_not_filled(bench: Bench) -> None:
    bench.plug()
    busy = ToolError(
        "blkdiscard failed with exit status 1: blkdiscard: cannot open"
        " /dev/nvme0n1: Device or resource busy"
    )
    bench.tools.answer("blkdiscard", busy)

    _fails(bench, "Device or resource busy", action="zero")


# The right disk, at the right time -------------------------------------------


@pytest.mark.parametrize("wish", ["auto", "sanitize", "zero"])
def test_a_disk_that_the_host_uses_is_never_cleaned(
    bench: Bench, wish: str
) -> None:
    disk = bench.plug(sanicap=0b11, oacs=FORMATS)
    number = bench.place("nvme0n1/dev").read_text().strip()
    for process in ("1", "self"):
        bench.tree.write_proc(
            f"{process}/mountinfo",
            f"36 35 {number} / /srv rw - ext4 /dev/nvme0n1 rw\n",
        )

    _fails(bench, "not cleaned: ", "/srv", action=wish)

    assert bench.changes() == []
    assert _zeroed(bench) == []
    assert not disk.is_clean


def test_a_disk_that_was_free_in_an_older_look_is_looked_at_anew(
    bench: Bench,
) -> None:
    bench.plug(sanicap=0b11)
    host = bench.cleaner.host
    number = bench.place("nvme0n1/dev").read_text().strip()

    with host.sysfs.shared():
        (function,) = (
            one for one in host.sysfs.functions() if one.address == ADDRESS
        )
        assert host.why_not(function) == ""
        bench.tree.write_proc(
            "1/mountinfo",
            f"36 35 {number} / /srv rw - ext4 /dev/nvme0n1 rw\n",
        )
        _fails(bench, "not cleaned: ", "/srv")

    assert bench.changes() == []


def test_a_disk_that_is_in_use_by_the_second_part_is_not_filled_further(
    bench: Bench,
) -> None:
    bench.plug()
    number = bench.place("nvme0n1/dev").read_text().strip()

    def mount(command: list[str]) -> str:
        for process in ("1", "self"):
            bench.tree.write_proc(
                f"{process}/mountinfo",
                f"36 35 {number} / /srv rw - ext4 /dev/nvme0n1 rw\n",
            )
        return ""

    bench.tools.answer("blkdiscard", mount)

    _fails(bench, "not cleaned: ", action="zero")

    assert len(_zeroed(bench)) == 1


def test_one_disk_with_two_controllers_is_not_cleaned(bench: Bench) -> None:
    bench.plug(sanicap=0b11)
    bench.tree.add_intel_p4510("0000:60:00.0")
    for name in ("nvme0", "nvme1"):
        path = bench.tree.root / "class/nvme" / name / "subsysnqn"
        path.write_text("nqn.same\n")

    _fails(bench, "one disk with the NVMe controller nvme1")

    assert bench.changes() == []


def test_a_disk_that_answers_in_anothers_place_is_not_cleaned(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b11)
    disk.serial = "ANOTHER"

    _fails(bench, "another disk answered")

    assert bench.changes() == []


def test_a_disk_that_is_swapped_meanwhile_is_not_taken_for_clean(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b10)
    disk.steps = [1] * 5
    bench.clock.later = [lambda: bench.place("serial").write_text("OTHER\n")]

    _fails(bench, "another disk is in its place")


def test_a_disk_that_comes_back_from_a_guest_is_waited_for(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b10)
    card = bench.tree.cards[ADDRESS]
    path = bench.tree.path(ADDRESS)
    bench.tree.unbind(ADDRESS)
    bench.tree.bind(card, path, "vfio-pci")

    def give_back() -> None:
        bench.tree.unbind(ADDRESS)
        bench.tree.bind(card, path, "nvme")
        bench.place("state").write_text("connecting\n")
        disk.serial = bench.serial()

    bench.clock.later = [
        lambda: None,
        give_back,
        lambda: bench.place("state").write_text("live\n"),
    ]

    bench.clean()

    assert disk.is_clean
    assert bench.clock.pauses[:3] == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("vfio-pci", "no NVMe controller (bound to vfio-pci)"),
        ("", "no NVMe controller (bound to no driver)"),
    ],
)
def test_a_disk_that_does_not_come_back_is_said_to_fail(
    bench: Bench, driver: str, words: str
) -> None:
    bench.plug(sanicap=0b10)
    bench.tree.unbind(ADDRESS)
    if driver:
        bench.tree.bind(
            bench.tree.cards[ADDRESS], bench.tree.path(ADDRESS), driver
        )

    _fails(bench, words)

    assert bench.clock.now == 30
    assert len(bench.clock.pauses) < 10
    assert bench.tools.commands == []


def test_a_controller_that_is_dead_is_said_to_be(bench: Bench) -> None:
    bench.plug(sanicap=0b10)
    bench.place("state").write_text("dead\n")

    _fails(bench, "its NVMe controller is dead")

    assert bench.tools.commands == []


def test_a_function_that_goes_away_is_said_to_be_gone(bench: Bench) -> None:
    disk = bench.plug(sanicap=0b10)
    disk.steps = [1] * 5
    bench.clock.later = [lambda: bench.tree.unplug(ADDRESS)]

    _fails(bench, "it is gone")


def test_a_controller_that_resets_while_it_sanitizes_is_waited_for(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b10)
    state = bench.place("state")
    bench.clock.later = [
        lambda: state.write_text("resetting\n"),
        lambda: state.write_text("live\n"),
    ]

    bench.clean()

    assert disk.is_clean


def test_the_number_of_the_controller_may_change_meanwhile(
    bench: Bench,
) -> None:
    disk = bench.plug(sanicap=0b10)
    bench.clock.later = [
        lambda: bench.place().rename(bench.place().with_name("nvme9"))
    ]

    bench.clean()

    assert disk.is_clean
    assert bench.tools.commands[-1][2] == "/dev/nvme9"


# Tools and time ------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        ("nvme", ToolError("nvme is not installed on this host")),
        (
            "nvme sanitize-log",
            ToolError("nvme failed with exit status 1: no such device"),
        ),
        ("nvme sanitize", ToolError("nvme was ended by signal 9")),
    ],
)
def test_a_tool_that_fails_is_said_with_its_words(
    bench: Bench, tool: str, error: ToolError
) -> None:
    disk = bench.plug(sanicap=0b10)
    bench.tools.answer(tool, error)

    _fails(bench, str(error))

    assert not disk.is_clean


def test_an_answer_that_makes_no_sense_is_said_to_fail(bench: Bench) -> None:
    disk = bench.plug(sanicap=0b10)
    bench.tools.answer("nvme sanitize-log", "Sanitize Progress: 12 %")

    _fails(bench, "nvme sanitize-log printed no JSON: 'Sanitize Progress")

    assert not disk.is_clean


def test_an_agent_that_stops_lets_the_disk_go_on(bench: Bench) -> None:
    disk = bench.plug(sanicap=0b10)
    bench.clock.later = [bench.cleaner.cancel]

    with pytest.raises(exception.Unavailable, match="goes on by itself"):
        bench.clean()

    assert disk.status == 2


def test_a_cancelled_wait_ends_at_once(tmp_path: Path) -> None:
    cleaner = Cleaner(driver_host(tmp_path))
    cleaner.cancel()

    with pytest.raises(exception.Unavailable):
        cleaner.pause(60)

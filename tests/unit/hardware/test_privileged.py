# SPDX-License-Identifier: Apache-2.0
"""What the privileged helper writes and runs, done for real in a fake tree,
and all that it refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg.conf import agent
from cyborg.hardware import privileged
from cyborg.hardware.privileged import PrivilegedError
from tests.privileged import CONFIGURE
from tests.privileged import IDENTIFY
from tests.privileged import PROGRAM
from tests.privileged import add_tool
from tests.privileged import privileged_here
from tests.sysfs import SysfsTree

T4 = "0000:af:00.0"
QAT = "0000:6b:00.0"
IDENTITY = "0f7a1c6e-2f3b-4c52-9c39-5a0f5fd2b1a7"


_others: set[str] = set()
"""Children that this process had before the test: whatever other tests
that run in it have started."""


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[SysfsTree]:
    """A host whose privileged functions run here, with tools of its own."""
    _others.clear()
    _others.update(_children_of_all_threads())
    tree = SysfsTree(tmp_path / "sys")
    tools = tmp_path / "tools"
    tools.mkdir()
    with privileged_here(tree.root, tools):
        yield tree


def _tool(tree: SysfsTree, name: str, script: str) -> Path:
    return add_tool(tree.root.parent / "tools", name, script)


def _open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def _children_of_all_threads() -> list[str]:
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended
            found += (task / "children").read_text().split()
    return [child for child in found if child not in _others]


def _await(condition: Callable[[], object], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def _await_no_children() -> None:
    """Every process that was left behind is reaped once it can be."""
    _await(lambda: not _children_of_all_threads())


# What can be written -------------------------------------------------------


def _everything_writable(tree: SysfsTree) -> list[str]:
    tree.add_nvidia_t4()
    tree.add_intel_4xxx()
    tree.add_nvidia_l40s()
    tree.add_mdev(T4, "nvidia-222", IDENTITY)
    function = f"bus/pci/devices/{QAT}"
    return [
        f"{function}/sriov_numvfs",
        f"{function}/reset",
        f"{function}/reset_method",
        f"bus/pci/devices/{T4}/mdev_supported_types/nvidia-222/create",
        f"class/mdev_bus/{T4}/mdev_supported_types/nvidia-222/create",
        f"bus/mdev/devices/{IDENTITY}/remove",
        f"bus/pci/devices/{T4}/{IDENTITY}/remove",
        "bus/pci/devices/0000:82:00.4/nvidia/current_vgpu_type",
    ]


def test_each_file_that_drivers_need_is_written(tree: SysfsTree) -> None:
    for place in _everything_writable(tree):
        path = tree.root / place
        path.chmod(0o600)
        privileged.write(str(path), "1", 10.0)
        assert path.read_text() == "1\n", place


def test_what_was_there_is_overwritten_wholly(tree: SysfsTree) -> None:
    path = tree.add_nvidia_t4() / "reset_method"

    privileged.write(str(path), "flr", 10.0)

    assert path.read_text() == "flr\n"


def test_an_empty_value_is_an_empty_line(tree: SysfsTree) -> None:
    """Which is how the kernel is told to use no method."""
    path = tree.add_nvidia_t4() / "reset_method"

    privileged.write(str(path), "", 10.0)

    assert path.read_text() == "\n"


def test_a_write_leaves_no_process_and_no_descriptor(tree: SysfsTree) -> None:
    path = tree.add_nvidia_t4() / "reset_method"
    before = _open_descriptors()

    for _ in range(3):
        privileged.write(str(path), "flr", 10.0)

    assert _open_descriptors() == before
    _await_no_children()


# What cannot ---------------------------------------------------------------


def _refused(path: Path | str, value: str = "1") -> PrivilegedError:
    with pytest.raises(PrivilegedError) as caught:
        privileged.write(str(path), value, 10.0)
    assert caught.value.errno == errno.EACCES
    return caught.value


@pytest.mark.parametrize(
    "place",
    [
        "remove",
        "enable",
        "numa_node",
        "vendor",
        "uevent",
        "config",
        "resource0",
        "rescan",
        "sriov_numvfs/..",
        "sriov_numvfs/",
        "reset_method.old",
        "xreset",
        "qat/state/reset",
        "power/control",
        "mdev_supported_types/nvidia-222/name",
        "mdev_supported_types/nvidia-222/available_instances",
        "mdev_supported_types/create",
        "nvidia/vgpu_params",
        "qat/num_rps",
        "driver/new_id",
        "driver/unbind",
        "driver_override",
        "qat/state",
        "sriov_drivers_autoprobe",
        "",
    ],
)
def test_another_file_of_a_function_is_refused(
    tree: SysfsTree, place: str
) -> None:
    tree.add_nvidia_t4()

    error = _refused(f"{tree.root}/bus/pci/devices/{T4}/{place}")

    assert "no file that may be written" in error.reason


@pytest.mark.parametrize(
    "place",
    [
        "devices/system/cpu/online",
        "power/state",
        "module/nvidia/parameters/x",
        "bus/pci/rescan",
        "bus/usb/drivers/hub/unbind",
        "bus/pci/drivers/nvme/unbind",
        "bus/pci/drivers_probe",
        "devices/platform/reset",
        "reset",
        "kernel/uevent_helper",
    ],
)
def test_another_file_of_sysfs_is_refused(tree: SysfsTree, place: str) -> None:
    path = tree.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("as it was")

    _refused(path)

    assert path.read_text() == "as it was"


def test_a_file_outside_is_refused_by_any_way_to_it(
    tree: SysfsTree, tmp_path: Path
) -> None:
    """Named, by `..`, and behind a link of a directory inside."""
    away = tmp_path / "away" / "devices" / "pci0000:00" / T4
    away.mkdir(parents=True)
    file = away / "reset"
    file.write_text("as it was")
    inside = tree.add_nvidia_t4()
    link = tree.root / "devices" / "pci0000:00" / "0000:02:00.0"
    link.symlink_to(away)
    twin = tmp_path / "sys-2" / "devices" / "pci0000:00" / T4 / "reset"
    twin.parent.mkdir(parents=True)
    twin.write_text("as it was")

    up = os.path.relpath(file, inside)
    for path in (file, f"{inside}/{up}", link / "reset", twin):
        assert "is not below" in _refused(path).reason

    assert file.read_text() == twin.read_text() == "as it was"


def test_a_file_that_is_a_link_is_not_followed(
    tree: SysfsTree, tmp_path: Path
) -> None:
    away = tmp_path / "shadow"
    away.write_text("as it was")
    path = tree.add_nvidia_t4() / "reset"
    path.unlink()
    path.symlink_to(away)

    with pytest.raises(PrivilegedError) as caught:
        privileged.write(str(path), "1", 10.0)

    assert caught.value.errno == errno.ELOOP
    assert away.read_text() == "as it was"


def test_a_file_is_never_made(tree: SysfsTree) -> None:
    path = tree.add_nvidia_t4() / "reset"
    path.unlink()

    with pytest.raises(PrivilegedError) as caught:
        privileged.write(str(path), "1", 10.0)

    assert caught.value.errno == errno.ENOENT
    assert not path.exists()


def test_the_root_is_the_configurations_and_may_be_a_link(
    tree: SysfsTree, tmp_path: Path
) -> None:
    path = tree.add_nvidia_t4() / "reset_method"
    (tmp_path / "link").symlink_to(tree.root)
    cfg.CONF.set_override("sysfs_root", str(tmp_path / "link"), group="agent")

    privileged.write(str(path), "flr", 10.0)

    assert path.read_text() == "flr\n"


def test_without_a_configuration_the_root_is_that_of_the_agent() -> None:
    ours = cfg.CONF._get_opt_info("sysfs_root", "agent")["opt"]
    theirs = next(
        option for option in agent.options() if option.dest == "sysfs_root"
    )
    assert ours.default == theirs.default == "/sys"


@pytest.mark.parametrize("value", ["1\n2", "a\0b", "x" * 256, "\x1b[0m"])
def test_a_value_that_is_not_one_short_line_is_refused(
    tree: SysfsTree, value: str
) -> None:
    path = tree.add_nvidia_t4() / "reset_method"

    with pytest.raises(PrivilegedError) as caught:
        privileged.write(str(path), value, 10.0)

    assert caught.value.errno == errno.EINVAL
    assert path.read_text() == "flr bus\n"


# What the kernel says, and when it says nothing ----------------------------


def _pipe(path: Path) -> Path:
    """A file that keeps its writer waiting, as a lock in the kernel does."""
    path.unlink()
    os.mkfifo(path)
    return path


def test_the_kernels_error_comes_back(tree: SysfsTree) -> None:
    """EISDIR stands for whatever it is."""
    path = tree.add_nvidia_t4() / "reset"
    path.unlink()
    path.mkdir()

    with pytest.raises(PrivilegedError, match="Is a directory") as caught:
        privileged.write(str(path), "1", 10.0)

    assert caught.value.errno == errno.EISDIR


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.skipif(os.geteuid() != 0, reason="making a device needs root")
def test_an_error_of_the_write_itself_comes_back(tree: SysfsTree) -> None:
    path = tree.add_nvidia_t4() / "reset"
    path.unlink()
    with contextlib.suppress(PermissionError):
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))
    if not path.exists():
        pytest.skip("no device can be made here")

    with pytest.raises(PrivilegedError) as caught:
        privileged.write(str(path), "1", 10.0)

    assert caught.value.errno == errno.ENOSPC


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While this file is there, the kernel finds every write busy."""
    marker = tmp_path / "busy"
    marker.touch()
    kernels = os.open

    def busy_open(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith("/reset_method") and marker.exists():
            raise OSError(errno.EBUSY, "")
        return kernels(path, flags, mode)

    monkeypatch.setattr(os, "open", busy_open)
    return marker


def test_what_is_busy_is_tried_until_it_is_not(
    tree: SysfsTree, busy: Path
) -> None:
    path = tree.add_nvidia_t4() / "reset_method"
    timer = threading.Timer(0.3, busy.unlink)
    timer.start()

    privileged.write(str(path), "flr", 30.0)

    timer.join()
    assert path.read_text() == "flr\n"


def test_what_stays_busy_fails_as_such_when_the_time_is_up(
    tree: SysfsTree, busy: Path
) -> None:
    path = tree.add_nvidia_t4() / "reset_method"

    with pytest.raises(PrivilegedError, match="busy") as caught:
        privileged.write(str(path), "flr", 1.0)

    assert caught.value.errno == errno.EBUSY
    assert path.read_text() == "flr bus\n"


def test_a_write_that_does_not_end_is_ended(tree: SysfsTree) -> None:
    path = _pipe(tree.add_nvidia_t4() / "reset")
    before = _open_descriptors()

    started = time.monotonic()
    with pytest.raises(PrivilegedError, match=r"within 0\.2 s") as caught:
        privileged.write(str(path), "1", 0.2)

    assert time.monotonic() - started < 5
    assert caught.value.errno is None
    assert _open_descriptors() == before
    _await_no_children()


def test_a_write_that_cannot_be_ended_is_left_behind_and_reaped_later(
    tree: SysfsTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals do nothing: as the removal of an mdev that a guest has."""
    path = _pipe(tree.add_nvidia_t4() / "reset")
    monkeypatch.setattr(os, "kill", lambda *_: None)

    started = time.monotonic()
    with pytest.raises(PrivilegedError, match="not written within"):
        privileged.write(str(path), "1", 0.1)
    assert time.monotonic() - started < 5

    with path.open() as released:
        assert released.read() == "1\n"
    _await_no_children()


def test_writes_go_on_beside_one_that_hangs(tree: SysfsTree) -> None:
    hanging = _pipe(tree.add_nvidia_t4() / "reset")
    path = tree.path(T4) / "reset_method"
    failures: list[PrivilegedError] = []

    def hang() -> None:
        try:
            privileged.write(str(hanging), "1", 1.0)
        except PrivilegedError as error:
            failures.append(error)

    threads = [threading.Thread(target=hang) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(5):
        privileged.write(str(path), f"driver-{number}", 10.0)
        assert path.read_text() == f"driver-{number}\n"
    assert not failures
    for thread in threads:
        thread.join()
    assert len(failures) == 3
    _await_no_children()


def test_a_child_that_hangs_holds_nothing_of_the_helper(
    tree: SysfsTree,
) -> None:
    """Else the agent would not see the helper's end: as here the reader of
    a pipe that only this process keeps open."""
    path = _pipe(tree.add_nvidia_t4() / "reset")
    reader, writer = os.pipe()
    with ThreadPoolExecutor(1) as executor:
        write = executor.submit(privileged.write, str(path), "1", 3.0)
        _await(_children_of_all_threads)
        os.close(writer)

        ready, _, _ = select.select([reader], [], [], 2.5)

        assert ready
        assert not write.done()
        os.close(reader)
    assert isinstance(write.exception(), PrivilegedError)


# Tools ---------------------------------------------------------------------


def test_a_tool_answers_with_status_output_and_errors(
    tree: SysfsTree,
) -> None:
    _tool(tree, "xbmgmt", 'shift 4; echo "$@"; echo no good >&2; exit 7')

    answer = privileged.run([*PROGRAM[:-2], "/a b", "--force"], 10.0)

    assert answer == (7, "/a b --force\n", "no good\n")


def test_a_tool_cannot_ask_and_speaks_english_and_is_alone(
    tree: SysfsTree,
) -> None:
    _tool(
        tree,
        "xbmgmt",
        'read answer; echo "[$answer] $LC_ALL $(pwd) $(umask)"\n'
        "ps -o sid= -p $$; echo $$",
    )

    _, output, _ = privileged.run(PROGRAM, 10.0)

    lines = output.split("\n")
    assert lines[0] == "[] C / 0022"
    assert lines[1].strip() == lines[2]


@pytest.mark.parametrize(
    "name", ["sh", "/usr/bin/nvme", "../nvme", "", "nvme;sh", "NVME"]
)
def test_another_tool_is_refused(tree: SysfsTree, name: str) -> None:
    _tool(tree, "nvme", "")

    with pytest.raises(PrivilegedError, match="no tool") as caught:
        privileged.run([name, "x"], 10.0)

    assert caught.value.errno == errno.EACCES


def test_a_tool_that_the_helpers_file_names_is_run(
    tree: SysfsTree, further_tools: Callable[[list[str]], None]
) -> None:
    _tool(tree, "acmeflash", "echo done")
    with pytest.raises(PrivilegedError, match="further_tools"):
        privileged.run(["acmeflash"], 10.0)

    further_tools(["acmeflash", "/bin/echo", "../acmeflash", "", "nvme"])

    assert privileged.run(["acmeflash"], 10.0) == (0, "done\n", "")
    _tool(tree, "nvme", "echo evil")
    with pytest.raises(PrivilegedError, match="may not be run so"):
        privileged.run(["nvme", "list"], 10.0)
    for name in ("/bin/echo", "../acmeflash", ""):
        with pytest.raises(PrivilegedError, match=r"no tool|not installed"):
            privileged.run([name, "x"], 10.0)


@pytest.fixture
def further_tools() -> Iterator[Callable[[list[str]], None]]:
    """What the helper's own configuration file says."""
    option = {"name": "further_tools", "group": "agent"}
    yield lambda names: cfg.CONF.set_override(override=names, **option)
    cfg.CONF.clear_override(**option)


@pytest.mark.parametrize(
    "line",
    [
        "nvme",
        "nvme list",
        "nvme telemetry-log /dev/nvme0 --output-file=/etc/cron.d/x",
        "nvme admin-passthru /dev/nvme0 --opcode=0x80",
        "nvme id-ctrl /dev/nvme0 -o json --raw-binary",
        "nvme id-ctrl /dev/../etc/shadow -o json",
        "nvme id-ctrl /dev/nvme0 -o json\0x",
        "nvme id-ctrl /dev/nvme\u0663 -o json",
        "nvme format /dev/sda -n 1 -s 1 -l 0 -t 1 --force",
        "nvme sanitize /dev/nvme0 -a 2 --force",
        "blkdiscard -z -o 0 -l 512 /dev/sda",
        "blkdiscard -f /dev/nvme0n1",
        "fpgaconf /etc/shadow",
        "sriov-manage -d 0000:af:00.0",
        "sriov-manage -e ALL",
        "xbmgmt examine --device 0000:3b:00.0 --output /etc/cron.d/x",
        "xbmgmt program --device 0000:3b:00.0 --revert-to-golden --force",
    ],
)
def test_a_tool_does_nothing_but_what_drivers_need(
    tree: SysfsTree, line: str
) -> None:
    words = line.split(" ")
    _tool(tree, words[0], "echo evil")

    with pytest.raises(PrivilegedError, match="may not be run so") as caught:
        privileged.run(words, 10.0)

    assert caught.value.errno == errno.EACCES


def test_a_card_is_written_by_one_tool_at_a_time(tree: SysfsTree) -> None:
    """One that outlives who started it keeps the card from the next."""
    pid = tree.root.parent / "pid"
    _tool(tree, "fpgaconf", f"sleep 1000 >/dev/null 2>&1 & echo $! >{pid}")
    command = [
        "fpgaconf",
        "--segment",
        "0x0000",
        "--bus",
        "0xfd",
        "--device",
        "0x00",
        "--function",
        "0x0",
    ]
    other = [word.replace("0xfd", "0xfc") for word in command]
    privileged.run([*command, "/image"], 30.0)
    left = int(pid.read_text())

    with pytest.raises(PrivilegedError, match="earlier run") as caught:
        privileged.run([*command, "/image"], 0.3)
    assert caught.value.errno == errno.EBUSY

    _tool(tree, "fpgaconf", "echo done")
    assert privileged.run([*other, "/image"], 30.0) == (0, "done\n", "")
    os.kill(left, signal.SIGKILL)
    assert privileged.run([*command, "/image"], 30.0) == (0, "done\n", "")


def test_two_words_in_one_are_not_two(tree: SysfsTree) -> None:
    _tool(tree, "nvme", "echo evil")

    with pytest.raises(PrivilegedError, match="may not be run so"):
        privileged.run(["nvme", " ".join(IDENTIFY[1:])], 10.0)


def test_a_tool_that_is_not_installed_says_so(
    tree: SysfsTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PrivilegedError, match="is not installed") as caught:
        privileged.run(CONFIGURE, 10.0)

    assert caught.value.errno == errno.ENOENT


def test_a_tool_is_not_taken_from_where_others_could_put_it(
    tree: SysfsTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = add_tool(tmp_path / "shared", "fpgaconf", "echo evil").parent
    shared.chmod(0o777)
    monkeypatch.setenv("PATH", f"{shared}:.::/nowhere:{os.environ['PATH']}")

    with pytest.raises(PrivilegedError, match="is not installed"):
        privileged.run(CONFIGURE, 10.0)


def test_a_tool_that_others_could_change_is_not_run(tree: SysfsTree) -> None:
    _tool(tree, "fpgaconf", "echo evil").chmod(0o777)

    with pytest.raises(PrivilegedError, match="belongs to others"):
        privileged.run(CONFIGURE, 10.0)


def test_a_tool_finds_only_trusted_programs(
    tree: SysfsTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sriov-manage is a script that runs lspci and the like."""
    shared = add_tool(tmp_path / "shared", "true", "echo evil").parent
    shared.chmod(0o777)
    monkeypatch.setenv("PATH", f"{shared}:{os.environ['PATH']}")
    _tool(tree, "sriov-manage", 'echo "$PATH"')

    _, output, _ = privileged.run(["sriov-manage", "-e", T4], 10.0)

    assert str(shared) not in output
    assert str(tmp_path / "tools") in output
    assert "/usr/bin" in output


def test_a_file_that_is_no_program_is_a_failure(tree: SysfsTree) -> None:
    _tool(tree, "nvme", "").write_bytes(b"\x7fELF rubbish")

    with pytest.raises(PrivilegedError, match="cannot be started"):
        privileged.run(IDENTIFY, 10.0)


def test_a_tool_that_takes_too_long_is_ended_with_all_it_started(
    tree: SysfsTree, tmp_path: Path
) -> None:
    _tool(
        tree,
        "nvme",
        f"sleep 600 & echo $! $$ >{tmp_path}/pids; trap '' TERM; wait; wait",
    )
    before = _open_descriptors()

    with pytest.raises(PrivilegedError, match=r"longer than 0\.5 s"):
        privileged.run(IDENTIFY, 0.5)

    assert _open_descriptors() == before
    _await_no_children()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    _await(lambda: not any(map(_lives, pids)))


def _lives(pid: int) -> bool:
    """Whether it still runs; one that nobody has reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False
    return state.split()[0] not in {"Z", "X"}


def test_a_tool_that_cannot_be_ended_is_left_behind_and_reaped_later(
    tree: SysfsTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    _tool(tree, "nvme", f"echo >{fifo}")
    monkeypatch.setattr(os, "killpg", lambda *_: None)

    started = time.monotonic()
    with pytest.raises(PrivilegedError, match="longer than"):
        privileged.run(IDENTIFY, 0.3)
    assert time.monotonic() - started < 5

    fifo.read_text()
    _await_no_children()


def test_what_a_tool_left_running_is_not_waited_for(
    tree: SysfsTree, tmp_path: Path
) -> None:
    _tool(
        tree,
        "xbmgmt",
        f"echo done; setsid sleep 600 & echo $! >{tmp_path}/pid",
    )

    started = time.monotonic()
    status, output, _ = privileged.run(PROGRAM, 60.0)

    assert (status, output) == (0, "done\n")
    assert time.monotonic() - started < 30
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_tool_that_never_stops_talking_is_kept_in_bounds(
    tree: SysfsTree,
) -> None:
    limit = privileged.OUTPUT_LIMIT
    _tool(
        tree,
        "nvme",
        "echo first; head -c 3000000 /dev/zero; "
        "head -c 3000000 /dev/zero >&2; echo last >&2",
    )

    status, output, errors = privileged.run(IDENTIFY, 60.0)

    assert status == 0
    assert (len(output), len(errors)) == (limit, limit)
    assert output.startswith("first\n")
    assert errors.endswith("last\n")


def test_output_that_is_no_text_is_taken_as_it_is(tree: SysfsTree) -> None:
    _tool(tree, "nvme", "printf 'a\\377b'")

    assert privileged.run(IDENTIFY, 10.0)[1] == "a\N{REPLACEMENT CHARACTER}b"


def test_a_signal_that_ended_a_tool_is_its_status(tree: SysfsTree) -> None:
    _tool(tree, "nvme", "kill -9 $$")

    assert privileged.run(IDENTIFY, 10.0)[0] == -9

# SPDX-License-Identifier: Apache-2.0
"""The helper: which it is, what it may do, and how its failures read.

Most of it with a real one, which is started as a container's agent does.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg

import cyborg.conf
from cyborg import privsep
from cyborg import service
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.tools import ToolError
from cyborg.hardware.tools import Tools
from cyborg.hardware.writes import Writer
from cyborg.privsep import agent_privileged
from tests.privileged import CONFIGURE
from tests.privileged import IDENTIFY
from tests.privileged import PROGRAM
from tests.privileged import add_tool
from tests.sysfs import SysfsTree

needs_root = pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which(
        "privsep-helper",
        path=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )
    is None,
    reason="needs root and oslo.privsep's helper",
)

Configure = Callable[[str], None]


@pytest.fixture
def configure(tmp_path: Path) -> Iterator[Configure]:
    """Begins as an agent does, whose file holds the text given."""

    def begin(text: str) -> None:
        path = tmp_path / "cyborg.conf"
        path.write_text(text)
        conf = service.configure(["--config-file", str(path)], "cyborg-agent")
        privsep.prepare(conf)

    yield begin
    agent_privileged.stop()
    cfg.CONF.clear()
    cfg.CONF.set_default("helper_command", None, group=privsep.SECTION)


@pytest.fixture
def tree(tmp_path: Path, configure: Configure) -> SysfsTree:
    """A host whose helper is a real one."""
    tree = SysfsTree(tmp_path / "sys")
    configure(f"[agent]\nsysfs_root = {tree.root}\n")
    return tree


# Which helper --------------------------------------------------------------


def test_the_helper_is_the_one_of_the_configuration(
    configure: Configure,
) -> None:
    configure("[cyborg_sys_admin]\nhelper_command = sudo privsep-helper\n")

    command = agent_privileged.helper_command("/tmp/socket")

    assert command == [
        "sudo",
        "privsep-helper",
        "--privsep_context",
        "cyborg.privsep.agent_privileged",
        "--privsep_sock_path",
        "/tmp/socket",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_starts_it_without_sudo_and_with_its_own_files(
    configure: Configure, tmp_path: Path
) -> None:
    configure("")

    command = agent_privileged.helper_command("/tmp/socket")

    assert command[0].endswith("privsep-helper")
    assert command[1:3] == ["--config-file", f"{tmp_path}/cyborg.conf"]


def test_others_start_it_with_sudo(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    configure("")

    assert agent_privileged.helper_command("/tmp/socket")[0] == "sudo"


def test_the_sample_for_sudo_allows_this_command_alone(
    configure: Configure,
) -> None:
    sample = Path(__file__).parents[2] / "etc" / "cyborg" / "sudoers.sample"
    text = sample.read_text()
    told = re.search(r"helper_command = sudo (.*)", text)
    rule = re.search(r"NOPASSWD: (\S+) (\^.*\$)$", text, re.MULTILINE)
    assert told is not None
    assert rule is not None
    configure(f"[cyborg_sys_admin]\nhelper_command = sudo {told.group(1)}\n")
    socket = "/tmp/tmpa1_b2/privsep.sock"
    sudo, program, *arguments = agent_privileged.helper_command(socket)
    pattern = re.compile(rule.group(2).replace("[:space:]", r"\s"))

    assert (sudo, program) == ("sudo", rule.group(1))
    assert pattern.search(" ".join(arguments))
    for more in ("--config-file /tmp/evil.conf", "--privsep_context x.y"):
        assert not pattern.search(" ".join([*arguments, more]))
        assert not pattern.search(" ".join([more, *arguments]))


def test_what_it_may_do_is_in_the_sample_file() -> None:
    section = dict(cyborg.conf.list_opts())[privsep.SECTION]
    defaults = {option.dest: option.default for option in section}

    assert defaults["capabilities"] == ["CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN"]
    assert defaults["thread_pool_size"] == 16
    assert agent_privileged.conf.thread_pool_size == 16
    assert len(agent_privileged.conf.capabilities) == 2


# A real one ----------------------------------------------------------------


@needs_root
def test_the_helper_writes_to_its_root_alone(
    tree: SysfsTree, tmp_path: Path
) -> None:
    path = tree.add_nvidia_t4()
    away = tmp_path / "away"
    shutil.copytree(path, away / path.name, symlinks=True)
    (path.parent / "0000:01:00.0").symlink_to(away / path.name)
    other = SysfsTree(tmp_path / "other")
    twin = other.add_nvidia_t4()

    Writer().write(f"{path}/reset_method", "flr")

    assert (path / "reset_method").read_text() == "flr\n"
    for refused in (
        path / "remove",
        path / "vendor",
        path.parent / "0000:01:00.0" / "reset_method",
        twin / "reset_method",
    ):
        before = refused.read_text() if refused.exists() else None
        with pytest.raises(HardwareError) as caught:
            Writer().write(str(refused), "1")
        assert caught.value.errno == errno.EACCES
        assert (refused.read_text() if refused.exists() else None) == before


@needs_root
def test_the_caller_cannot_tell_it_another_root(
    tree: SysfsTree, tmp_path: Path
) -> None:
    twin = SysfsTree(tmp_path / "other").add_nvidia_t4()
    Writer().write(f"{tree.add_nvidia_t4()}/reset_method", "flr")

    cfg.CONF.set_override("sysfs_root", str(tmp_path / "other"), group="agent")

    with pytest.raises(HardwareError, match="is not below"):
        Writer().write(f"{twin}/reset_method", "1")


@needs_root
def test_the_helper_keeps_two_rights_and_no_more(
    tree: SysfsTree,
) -> None:
    Writer().write(f"{tree.add_nvidia_t4()}/reset_method", "flr")

    status = Path(f"/proc/{_helper()}/status").read_text()
    fields = dict(
        line.split(":\t", 1) for line in status.splitlines() if ":\t" in line
    )

    assert int(fields["CapPrm"], 16) == 1 << 1 | 1 << 21
    assert int(fields["CapEff"], 16) == 1 << 1 | 1 << 21
    assert int(fields["CapInh"], 16) == 0


@needs_root
def test_the_kernels_error_comes_through(tree: SysfsTree) -> None:
    path = tree.add_nvidia_t4() / "reset"
    path.unlink()

    with pytest.raises(HardwareError) as caught:
        Writer().write(str(path), "1")

    assert str(caught.value) == f"{path}: No such file or directory"
    assert caught.value.errno == errno.ENOENT


@needs_root
def test_tools_run_in_the_helper(
    tree: SysfsTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = add_tool(tmp_path / "tools", "nvme", 'echo "$PPID $@"').parent
    tools.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    add_tool(tools, "xbmgmt", "echo no card >&2; exit 1")

    said = Tools().run(IDENTIFY, 10.0)

    assert said == f"{_helper()} {' '.join(IDENTIFY[1:])}\n"
    with pytest.raises(ToolError, match=r"xbmgmt failed .* 1: no card"):
        Tools().run(PROGRAM, 10.0)
    with pytest.raises(ToolError, match="fpgaconf is not installed"):
        Tools().run(CONFIGURE, 10.0)
    with pytest.raises(ToolError, match="sh is no tool"):
        Tools().run(["sh", "-c", "id"], 10.0)


@needs_root
def test_long_calls_do_not_keep_others_waiting(
    tree: SysfsTree, tmp_path: Path
) -> None:
    """More of them than the machine has processors."""
    path = tree.add_nvidia_t4()
    hanging = path / "reset"
    hanging.unlink()
    os.mkfifo(hanging)
    failures: list[str] = []

    def hang() -> None:
        try:
            Writer().write(str(hanging), "1", timeout=3.0)
        except HardwareError as error:
            failures.append(str(error))

    threads = [
        threading.Thread(target=hang)
        for _ in range(agent_privileged.conf.thread_pool_size - 1)
    ]
    for thread in threads:
        thread.start()
    Writer().write(f"{path}/reset_method", "flr")

    assert any(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    assert failures == [f"{hanging}: not written within 3 s"] * len(threads)


@needs_root
def test_a_helper_that_died_is_started_again(tree: SysfsTree) -> None:
    path = f"{tree.add_nvidia_t4()}/reset_method"
    Writer().write(path, "one")
    first = _helper()

    os.kill(first, signal.SIGKILL)
    _await(lambda: not _channel_runs())
    Writer().write(path, "two")

    assert Path(path).read_text() == "two\n"
    assert _helper() != first


@needs_root
def test_a_helper_that_dies_at_work_fails_its_callers(
    tree: SysfsTree,
) -> None:
    path = tree.add_nvidia_t4()
    Writer().write(f"{path}/reset_method", "one")
    hanging = path / "reset"
    hanging.unlink()
    os.mkfifo(hanging)
    killer = threading.Timer(0.5, os.kill, (_helper(), signal.SIGKILL))
    killer.start()

    with pytest.raises(HardwareError, match="helper failed") as caught:
        Writer().write(str(hanging), "1", timeout=60.0)

    assert caught.value.errno is None
    with hanging.open() as left_behind:
        left_behind.read()


@needs_root
def test_many_that_begin_at_once_start_one_helper(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [
        f"{tree.add_nvidia_t4(f'0000:{bus:02x}:00.0')}/reset_method"
        for bus in range(0x20, 0x28)
    ]
    threads = [
        threading.Thread(target=Writer().write, args=(path, "flr"))
        for path in paths
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {Path(path).read_text() for path in paths} == {"flr\n"}
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "Running privsep" in text]) == 1
    assert not [text for text in said if "already running" in text]


def _helper() -> int:
    """The process at the other end, by its context's name."""
    found = [
        int(place.name)
        for place in Path("/proc").iterdir()
        if place.name.isdecimal() and _is_ours(place)
    ]
    assert len(found) == 1
    return found[0]


def _is_ours(place: Path) -> bool:
    """Whether a process has our file on its command line."""
    try:
        words = (place / "cmdline").read_bytes().split(b"\0")
        state = (place / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    ours = cfg.CONF.config_file[0].encode()
    return state != "Z" and ours in words and b"--privsep_context" in words


def _channel_runs() -> bool:
    channel = agent_privileged.channel
    return channel is not None and channel.running


def _await(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


# One that does not work ----------------------------------------------------


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("/nowhere/privsep-helper", "No such file or directory"),
        ("/bin/false", "privsep helper command exited non-zero (1)"),
        ('sudo "unclosed', "No closing quotation"),
    ],
)
def test_a_helper_that_cannot_be_started_is_said_to_be(
    configure: Configure, command: str, reason: str
) -> None:
    configure(f"[cyborg_sys_admin]\nhelper_command = {command}\n")

    with pytest.raises(HardwareError) as caught:
        Writer().write("/sys/x", "1", timeout=5.0)
    assert str(caught.value).startswith("/sys/x: the privileged helper failed")
    assert reason in str(caught.value)
    assert f"[cyborg_sys_admin] helper_command ({command})" in str(
        caught.value
    )
    assert caught.value.errno is None

    with pytest.raises(ToolError, match="nvme was not run: the privileged"):
        Tools().run(IDENTIFY, timeout=5.0)


def test_a_helper_that_never_connects_is_not_waited_for(
    configure: Configure, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = add_tool(tmp_path, "helper", f"read line <{fifo}; exit 1")
    configure(f"[cyborg_sys_admin]\nhelper_command = {script}\n")

    for _ in range(2):
        with pytest.raises(privsep.HelperError, match=r"within 0\.3 s"):
            privsep.call(print, timeout=0.1, grace=0.2)

    fifo.write_text("fail now\n")
    _await(
        lambda: (
            not any(
                thread.name == "privsep" for thread in threading.enumerate()
            )
        )
    )


def test_a_helper_of_another_release_is_said_to_be_one(
    configure: Configure,
) -> None:
    """It knows nothing of what it is asked for."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    configure("")

    with pytest.raises(privsep.HelperError, match="not exported"):
        privsep.call(_unknown_to_it, timeout=10.0)


def _unknown_to_it(timeout: float, _wrap_timeout: float) -> object:
    assert agent_privileged.channel is not None
    return agent_privileged.channel.remote_call(
        "os.getpid", (), {}, _wrap_timeout
    )


def test_the_command_of_root_survives_odd_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    path = tmp_path / "a file.conf"
    path.write_text("")
    conf = service.configure(["--config-file", str(path)], "cyborg-agent")
    privsep.prepare(conf)

    assert str(path) in shlex.split(agent_privileged.conf.helper_command)
    cfg.CONF.clear()
    cfg.CONF.set_default("helper_command", None, group=privsep.SECTION)

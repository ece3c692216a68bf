# SPDX-License-Identifier: Apache-2.0
"""All that runs in the privileged helper: one write, one run of a tool.

Who calls is not trusted.  What may be written and run is decided here, by
lists of this module and by the helper's own configuration, never by an
argument.  Both functions come back when their time is up, whatever the
kernel or the tool does.  Keep this module small enough to be read whole.
"""

# ruff: noqa: PTH113, PTH116, PTH117, PTH118, PTH119 - paths are text here: what is checked
# must be what is opened.

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import signal
import stat
import subprocess  # nosec B404
import threading
import time
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from errno import EACCES
from errno import EBUSY
from errno import EINVAL
from errno import EIO
from errno import ENOENT
from typing import NoReturn

from oslo_config import cfg

from cyborg.hardware import turns
from cyborg.hardware.commands import COMMANDS
from cyborg.hardware.commands import card_of
from cyborg.hardware.commands import is_allowed
from cyborg.privsep import agent_privileged

BUSY_PAUSE = 0.1
"""Seconds between two tries of a write that the kernel finds busy."""

TRY_SECONDS = 0.5
"""With less time than this no further try is begun."""

DEATH_SECONDS = 1.0
"""How long a killed process may take to die before it is left to itself."""

LISTEN_SECONDS = 0.2
"""How long a tool that ended is listened to, if others hold its output."""

OUTPUT_LIMIT = 1024 * 1024
"""Bytes of a tool's output that are kept: its first, and of what it says on
stderr its last."""

VALUE_LIMIT = 255

_FUNCTION = r"devices/(?:[^/]+/)+[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

WRITABLE = {
    "virtual functions": rf"{_FUNCTION}/sriov_numvfs",
    "reset": rf"{_FUNCTION}/(?:reset|reset_method)",
    "making of mdevs": rf"{_FUNCTION}/mdev_supported_types/[^/]+/create",
    "removal of mdevs": rf"{_FUNCTION}/{_UUID}/remove",
    "NVIDIA vGPUs": rf"{_FUNCTION}/nvidia/current_vgpu_type",
}
"""The files that can be written, which are those that drivers of ours write:
patterns of their place below the root of sysfs, once every link is followed.
What takes a device from its driver is not among them."""

TOOLS = frozenset(COMMANDS)
"""The tools that can be run, by these bare names, each by the command lines
of `commands.py` alone; besides those that the helper's own
`[agent] further_tools` names, which run with any words."""

DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/xilinx/xrt/bin",
    "/usr/lib/nvidia",
)
"""Where they are looked for after the helper's own PATH."""

cfg.CONF.register_opts(
    # As cyborg.conf.agent has them, which would bring half of OpenStack here.
    [
        cfg.StrOpt("sysfs_root", default="/sys"),
        cfg.ListOpt("further_tools", default=[]),
    ],
    group="agent",
)

warnings.filterwarnings(
    # The child of `_attempt` does nothing that another thread's lock could
    # stop: it opens, writes and ends.
    "ignore",
    message=".*multi-threaded.*fork",
    category=DeprecationWarning,
    module=re.escape(__name__),
)


class PrivilegedError(Exception):
    """What was asked for was refused or failed; `reason` is in words.

    `errno` is the kernel's, or what it would say to the like; None where
    the time was up.
    """

    def __init__(self, reason: str, errno: int | None = None) -> None:
        super().__init__(reason, errno)
        self.reason = reason
        self.errno = errno


@agent_privileged.entrypoint
def write(path: str, value: str, timeout: float) -> None:
    """Writes `value` and a line's end to one of the files `WRITABLE`.

    What is busy is tried again until `timeout` seconds are over.  A write
    that the kernel does not end by then is given up (a mediated device
    that a guest holds lets `remove` wait, deaf to signals).  Raises
    PrivilegedError.
    """
    deadline = time.monotonic() + timeout
    real = _writable(path)
    if not value.isprintable() or len(value) > VALUE_LIMIT:
        raise PrivilegedError("the value is not one short line", EINVAL)
    while True:
        error = _attempt(real, f"{value}\n".encode(), deadline)
        if error == 0:
            return
        if error is None:
            raise PrivilegedError(
                f"not written within {round(timeout, 2):g} s"
            )
        time_left = deadline - time.monotonic() - BUSY_PAUSE
        if error != EBUSY or time_left < TRY_SECONDS:
            raise PrivilegedError(os.strerror(error), error)
        time.sleep(BUSY_PAUSE)


@agent_privileged.entrypoint
def run(command: Sequence[str], timeout: float) -> tuple[int, str, str]:
    """Runs one of the tools that may be: its exit status, output and errors.

    The status is negative where a signal ended it.  After `timeout` seconds
    it is killed with all that it started.  Raises PrivilegedError.
    """
    deadline = time.monotonic() + timeout
    places = _safe_places()
    tool = _tool(command[0], places)
    if command[0] in TOOLS and not is_allowed(command):
        raise PrivilegedError("may not be run so", EACCES)
    try:
        with _turn(command, deadline) as inherited:
            ended = _run([tool, *command[1:]], places, inherited, deadline)
    except turns.BusyError as error:
        raise PrivilegedError(
            "was not started: an earlier run still writes to the card", EBUSY
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PrivilegedError(
            f"cannot be started: {reason}", getattr(error, "errno", EINVAL)
        ) from error
    if ended is None:
        raise PrivilegedError(f"took longer than {round(timeout, 2):g} s")
    return ended


@contextlib.contextmanager
def _turn(
    command: Sequence[str], deadline: float
) -> Iterator[tuple[int, ...]]:
    """What the command has to inherit, once it may run."""
    card = card_of(command)
    if card is None:
        yield ()
        return
    root = os.path.realpath(cfg.CONF.agent.sysfs_root)
    with turns.taken(card, root, deadline) as descriptor:
        yield (descriptor,)


def _run(
    command: Sequence[str],
    places: Sequence[str],
    inherited: Sequence[int],
    deadline: float,
) -> tuple[int, str, str] | None:
    """None where it had to be killed at the deadline."""
    process = subprocess.Popen(  # nosec B603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        umask=0o022,
        cwd="/",
        pass_fds=inherited,
        env={
            **os.environ,
            "LC_ALL": "C",
            "PATH": os.pathsep.join(places),
        },
    )
    output, errors = _listen(process, deadline)
    status = _wait(process, deadline)
    return None if status is None else (status, output, errors)


# Writing -----------------------------------------------------------------


def _writable(path: str) -> str:
    """Where `path` leads.  Raises PrivilegedError where that is not ours."""
    root = os.path.realpath(cfg.CONF.agent.sysfs_root)
    directory, name = os.path.split(path)
    real = os.path.join(os.path.realpath(directory), name)
    if not real.startswith(f"{root}/"):
        raise PrivilegedError(f"is not below {root}", EACCES)
    below = real[len(root) + 1 :]
    if not any(re.fullmatch(known, below) for known in WRITABLE.values()):
        raise PrivilegedError("is no file that may be written", EACCES)
    return real


def _attempt(path: str, data: bytes, deadline: float) -> int | None:
    """The kernel's error of one write, 0 if it has none; None where it did
    not end in time.

    Done by a child, which can be left behind.  It is forked, not started
    anew: root's rights would come back to a new program.
    """
    reader, writer = os.pipe()
    limit = os.sysconf("SC_OPEN_MAX")
    try:
        child = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if child == 0:
        _write_and_end(path, data, writer, limit)
    os.close(writer)
    if not _comes(reader, deadline - time.monotonic()):
        os.kill(child, signal.SIGKILL)
    if _comes(reader, DEATH_SECONDS):
        answer = os.read(reader, 16)
        os.waitpid(child, 0)
    else:
        answer = b""
        _later(lambda: os.waitpid(child, 0))
    os.close(reader)
    return int(answer) if answer else None


def _write_and_end(
    path: str, data: bytes, answer: int, limit: int
) -> NoReturn:
    """All that the child does.

    It lets go of the helper's socket first: the agent must see the helper's
    end, though this child might never end.
    """
    try:
        os.closerange(3, answer)
        os.closerange(answer + 1, limit)
        os.write(answer, b"%d" % _kernels_error(path, data))
    finally:
        os._exit(0)


def _kernels_error(path: str, data: bytes) -> int:
    try:
        file = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
        os.write(file, data)
    except OSError as error:
        return error.errno or EIO
    return 0


def _comes(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or the end, within `seconds`."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(seconds, 0) * 1000))


def _later(reap: Callable[[], object]) -> None:
    """Wait for a process that does not die, with nobody waiting."""
    threading.Thread(target=reap, name="reaper", daemon=True).start()


# Running -----------------------------------------------------------------


def _safe_places() -> list[str]:
    """Directories of tools, less those that others could fill."""
    wanted = os.environ.get("PATH", "").split(os.pathsep)
    return [
        directory
        for directory in dict.fromkeys((*wanted, *DIRECTORIES))
        if os.path.isabs(directory) and _is_safe(directory)
    ]


def _tool(name: str, places: Sequence[str]) -> str:
    """The path of a tool.  Raises PrivilegedError."""
    known = TOOLS.union(cfg.CONF.agent.further_tools)
    if name not in known or os.path.basename(name) != name:
        raise PrivilegedError(
            "is no tool that may be run: [agent] further_tools does not name"
            " it",
            EACCES,
        )
    for directory in places:
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            if _is_safe(path):
                return path
            raise PrivilegedError(f"{path} belongs to others", EACCES)
    raise PrivilegedError("is not installed on this host", ENOENT)


def _is_safe(path: str) -> bool:
    """Whether only root (and whom the helper runs as) can change it."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (
        found.st_uid in {0, os.geteuid()} and not found.st_mode & stat.S_IWOTH
    )


def _listen(
    process: subprocess.Popen[bytes], deadline: float
) -> tuple[str, str]:
    """What a process says on stdout and stderr, until it has ended and said
    all, or the time is up."""
    if process.stdout is None or process.stderr is None:
        raise ValueError("the process has no pipes")
    said = {"output": b"", "errors": b""}
    with (
        selectors.DefaultSelector() as selector,
        process.stdout as output,
        process.stderr as errors,
    ):
        selector.register(output, selectors.EVENT_READ, "output")
        selector.register(errors, selectors.EVENT_READ, "errors")
        while selector.get_map() and time.monotonic() < deadline:
            left = max(deadline - time.monotonic(), 0)
            ready = selector.select(min(left, LISTEN_SECONDS))
            for key, _ in ready:
                data = os.read(key.fd, 65_536)
                said[key.data] = _bounded(key.data, said[key.data] + data)
                if not data:
                    selector.unregister(key.fileobj)
            if not ready and process.poll() is not None:
                break  # what it started, and left, holds its pipes
    return (
        said["output"].decode("utf-8", errors="replace"),
        said["errors"].decode("utf-8", errors="replace"),
    )


def _bounded(kind: str, data: bytes) -> bytes:
    return data[:OUTPUT_LIMIT] if kind == "output" else data[-OUTPUT_LIMIT:]


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """The status of a process; None where it had to be killed."""
    try:
        return process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(DEATH_SECONDS)
    except subprocess.TimeoutExpired:
        _later(process.wait)
    return None

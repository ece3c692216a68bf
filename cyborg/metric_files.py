# SPDX-License-Identifier: Apache-2.0
"""Numbers that the worker processes of one service count together.

prometheus_client keeps each process's values in files of a directory, which
whoever answers adds up.  It tells the files apart by process id, so that each
worker that is replaced leaves some behind for ever.  Here a process has a
slot: the lowest number that none has now.  Who comes after takes the slot of
one that has gone and counts on from its values.

The directory belongs to the process that the workers have in common.  A
lock that they all share says that it is in use; what nobody holds is removed
by the next that starts.  Knows nothing of what is counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import values

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus_client reads the directory from."""

RESERVED = {"histogram": 1 << 20, "counter": 1 << 16, "gauge_max": 1 << 16}
"""Bytes that a slot's files have from the start.  The files are mapped into
memory: writing where the disk is full would kill the process."""


class _Place:
    """The directory of this process, and its slot in it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.slot: str | None = None
        self.slot_lock: int | None = None


_place = _Place()


def folder() -> Path | None:
    """The directory that is shared, None where none is."""
    return _place.folder


def share(state_path: str, *, with_siblings: bool) -> None:
    """Count in files from now on, together with our children.

    `with_siblings`: also with other workers of the server that started
    us.  Raises OSError where no directory can be had.
    """
    key = _key(os.getppid() if with_siblings and _is_worker() else os.getpid())
    refusals = []
    for root in (
        Path(state_path) / "metrics",
        Path(tempfile.gettempdir()) / f"cyborg-metrics-{os.geteuid()}",
    ):
        try:
            _join(root, key)
        except OSError as error:
            refusals.append(f"{root}: {error.strerror or error}")
        else:
            return
    raise OSError("; ".join(refusals))


def alone() -> None:
    """Count in memory, whatever the environment says of directories."""
    values.ValueClass = values.MutexValue


def _join(root: Path, key: str) -> None:
    _make_private(root)
    with _locked(root / "lock"):
        _remove_abandoned(root)
        made = root / key
        made.mkdir(mode=0o700, exist_ok=True)
        alive = _open(made / "alive")
        fcntl.flock(alive, fcntl.LOCK_SH)
    try:
        _place.folder, _place.slot = made, _take_slot(made)
    except OSError:
        os.close(alive)
        raise
    os.environ[VARIABLE] = str(made)
    values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call]
        _slot
    )


def _make_private(root: Path) -> None:
    """A directory that is ours alone; PermissionError where it is not."""
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{root} belongs to somebody else")
    if stat.S_IMODE(found.st_mode) != 0o700:
        root.chmod(0o700)


def _remove_abandoned(root: Path) -> None:
    """What processes have left that are gone."""
    for each in root.iterdir():
        if not each.is_dir():
            continue
        with (
            contextlib.suppress(BlockingIOError),
            _locked(each / "alive", fcntl.LOCK_EX | fcntl.LOCK_NB),
        ):
            shutil.rmtree(each, ignore_errors=True)


def _slot() -> str:
    """What tells this process apart from those that count beside it."""
    if _place.slot is None:
        if _place.folder is None:
            raise OSError("this process shares no directory")
        _place.slot = _take_slot(_place.folder)
    return _place.slot


def _take_slot(folder: Path) -> str:
    for number in itertools.count():
        lock = _open(folder / f"slot-{number}")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _reserve(folder, number)
        except BlockingIOError:
            os.close(lock)
            continue
        except OSError:
            os.close(lock)
            raise
        _place.slot_lock = lock
        return str(number)
    raise AssertionError("there is always one more number")


def _reserve(folder: Path, number: int) -> None:
    """Make the slot's files, whole when a reader first sees them."""
    for kind, size in RESERVED.items():
        wanted = folder / f"{kind}_{number}.db"
        if wanted.exists():
            continue
        made = folder / f"new-{number}"
        file = _open(made)
        try:
            os.posix_fallocate(file, 0, size)
        finally:
            os.close(file)
        made.rename(wanted)


def _forget_slot() -> None:
    """In a child: the slot is its parent's."""
    if _place.slot_lock is not None:
        os.close(_place.slot_lock)
    _place.slot = _place.slot_lock = None


os.register_at_fork(after_in_child=_forget_slot)


def wait_for_turn() -> None:
    """Return in one of the processes that share, when others are gone."""
    if _place.folder is not None:
        fcntl.flock(_open(_place.folder / "turn"), fcntl.LOCK_EX)


@contextlib.contextmanager
def _locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    lock = _open(path)
    try:
        fcntl.flock(lock, how)
        yield
    finally:
        os.close(lock)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_worker() -> bool:
    """Whether our parent is the master of a server that we work for.

    Such a master has the name that we have, but for what some servers add
    (`gunicorn: master`); what starts a service (an init system, a shell) has
    another.
    """
    parent, own = (
        _stat(process)[0].partition(":")[0]
        for process in (os.getppid(), os.getpid())
    )
    return parent == own


def _key(process: int) -> str:
    """A name that no other process has, nor a later one of the same id."""
    return f"{process}-{_stat(process)[1]}"


def _stat(process: int) -> tuple[str, str]:
    """The name of a process and when it started, as the kernel has them."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "", "0"
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()[19]

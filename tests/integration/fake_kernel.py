# SPDX-License-Identifier: Apache-2.0
"""The kernel of a fake host whose agent is a process of its own.

The files that an agent writes are FIFOs, read by a thread that does to the
tree what the kernel would.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import selectors
import shutil
import stat
import struct
import threading
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

from cyborg.drivers.testing.drawing import link
from cyborg.drivers.testing.drawing import write
from tests.integration import resources
from tests.sysfs import SysfsTree

Act = Callable[[str], object]

IN_OPEN = 0x20
EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Kernel:
    """One thread that reads what is written to the files of a tree.

    `writes` are the values with their paths below the root, in order;
    `errors` what the thread itself failed with.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.writes: list[tuple[str, str]] = []
        self.errors: list[Exception] = []
        self._acts: dict[Path, Act] = {}
        self._readers: dict[Path, int] = {}
        self._gates: dict[int, tuple[Path, Callable[[], object]]] = {}
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._end = os.eventfd(0)
        self._selector.register(self._inotify, selectors.EVENT_READ)
        self._selector.register(self._end, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="kernel")
        self._thread.start()

    def close(self) -> None:
        """Let whoever waits for us go on, and end."""
        with self._lock:
            for path in self._acts.keys() - self._readers.keys():
                with contextlib.suppress(FileNotFoundError):
                    self.resume(path)
        os.eventfd_write(self._end, 1)
        self._thread.join()
        for reader in self._readers.values():
            os.close(reader)
        os.close(self._inotify)
        os.close(self._end)
        self._selector.close()

    def watch(self, path: Path, act: Act) -> None:
        """Do `act` with each line that is written to the file."""
        with self._lock:
            _make_fifo(path)
            self._acts[path] = act
            self.resume(path)

    def forget(self, path: Path) -> None:
        """The file is about to go."""
        with self._lock:
            self.hang(path)
            del self._acts[path]

    def hang(self, path: Path) -> None:
        """Let who writes to the file wait from now on."""
        with self._lock:
            reader = self._readers.pop(path, None)
            if reader is not None:
                self._selector.unregister(reader)
                os.close(reader)

    def resume(self, path: Path) -> None:
        """Take what is written to the file (again)."""
        with self._lock:
            if path in self._readers:
                return
            reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._readers[path] = reader
            self._selector.register(reader, selectors.EVENT_READ, path)

    @contextlib.contextmanager
    def refusing(self, path: Path) -> Iterator[None]:
        """Meanwhile a write to the file fails with ENOSPC."""
        self.hang(path)
        path.unlink()
        try:
            os.mknod(path, stat.S_IFCHR | 0o200, os.makedev(1, 7))
        except PermissionError:
            resources.missing("no device can be made here")
        try:
            yield
        finally:
            path.unlink()
            _make_fifo(path)
            self.resume(path)

    def gate(self, path: Path, act: Callable[[], object]) -> None:
        """Let the first write to the file wait until `act` is done, as it
        does in the kernel; what is written is known only afterwards.

        The writer finds a full pipe.  The file is a plain one then.
        """
        with self._lock:
            _make_fifo(path)
            reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            os.write(reader, bytes(fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)))
            watch = _libc.inotify_add_watch(
                self._inotify, os.fsencode(path), IN_OPEN
            )
            assert watch >= 0, os.strerror(ctypes.get_errno())
            self._readers[path] = reader
            self._acts[path] = lambda _: None
            self._gates[watch] = path, act

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._end:
                    return
                try:
                    with self._lock:
                        self._attend(key)
                except Exception as error:  # noqa: BLE001 - for the test
                    self.errors.append(error)

    def _attend(self, key: selectors.SelectorKey) -> None:
        if key.fd == self._inotify:
            watch = EVENT.unpack_from(os.read(self._inotify, 4096))[0]
            if watch in self._gates:
                self._open_gate(*self._gates.pop(watch))
        elif self._readers.get(key.data) == key.fd:
            self._take(key.data, _read(key.fd))

    def _open_gate(self, path: Path, act: Callable[[], object]) -> None:
        path.unlink()
        act()
        reader = self._readers[path]
        said = _read(reader)
        self._selector.register(reader, selectors.EVENT_READ, path)
        self._take(path, said)

    def _take(self, path: Path, data: bytes) -> None:
        for value in data.replace(b"\0", b"").decode().splitlines():
            self.writes.append((os.path.relpath(path, self.root), value))
            self._acts[path](value)


def _make_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o200)


def _read(reader: int) -> bytes:
    """All that there is."""
    data = b""
    while True:
        try:
            data += os.read(reader, 65536)
        except BlockingIOError:
            return data


class Mediated:
    """The mediated devices of one type on one card.

    A FIFO's writer does not wait for us: an agent may look while one is
    made.  What it counts (`devices` and `available_instances`) changes in
    one moment.
    """

    def __init__(
        self, tree: SysfsTree, kernel: Kernel, address: str, kind: str
    ) -> None:
        self._tree = tree
        self._kernel = kernel
        self._function = tree.path(address)
        self._kind = self._function / "mdev_supported_types" / kind
        self._most = int((self._kind / "available_instances").read_text())
        self._version = 0
        self.uuids: set[str] = set()
        (self._kind / "devices").rmdir()
        (self._kind / "available_instances").unlink()
        for name in ("devices", "available_instances"):
            (self._kind / name).symlink_to(f"now/{name}")
        self._show()
        self.create = self._kind / "create"
        kernel.watch(self.create, self._create)

    @property
    def create_below(self) -> str:
        """Its file `create`, below the root."""
        return os.path.relpath(self.create, self._tree.root)

    def lose_all(self) -> None:
        """The host boots."""
        for identity in list(self.uuids):
            self._remove(identity)

    def _create(self, identity: str) -> None:
        if identity in self.uuids:
            return  # EEXIST, which a FIFO cannot say
        path = self._function / identity
        path.mkdir()
        link(path / "mdev_type", self._kind)
        self._kernel.watch(
            path / "remove", lambda value: self._remove(identity)
        )
        link(self._place(identity), path)
        self.uuids.add(identity)
        self._show()

    def _remove(self, identity: str) -> None:
        path = self._function / identity
        self.uuids.discard(identity)
        self._show()
        self._kernel.forget(path / "remove")
        shutil.rmtree(path)
        self._place(identity).unlink()

    def _place(self, identity: str) -> Path:
        return self._tree.root / "bus" / "mdev" / "devices" / identity

    def _show(self) -> None:
        self._version += 1
        version = self._kind / f".{self._version}"
        (version / "devices").mkdir(parents=True)
        for identity in self.uuids:
            link(version / "devices" / identity, self._function / identity)
        free = self._most - len(self.uuids)
        write(version / "available_instances", str(free))
        new = self._kind / ".new"
        new.symlink_to(version.name)
        new.replace(self._kind / "now")

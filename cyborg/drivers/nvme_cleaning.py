# SPDX-License-Identifier: Apache-2.0
"""Takes a tenant's data off an NVMe disk.

A sanitize goes on in the disk through resets, reboots and loss of power, so
that its state is always asked of the disk: what an earlier call began is
waited for.  A disk is only ever erased right after it was seen that the host
does not use it, and that it is the disk that was meant.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable

from cyborg import exception
from cyborg.drivers.base import DriverHost
from cyborg.drivers.nvme_erasure import Wish
from cyborg.drivers.nvme_erasure import choose
from cyborg.hardware import nvme
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.nvme import Controller
from cyborg.hardware.nvme_cli import ALL_NAMESPACES
from cyborg.hardware.nvme_cli import Capabilities
from cyborg.hardware.nvme_cli import FormatErase
from cyborg.hardware.nvme_cli import Layout
from cyborg.hardware.nvme_cli import NvmeCli
from cyborg.hardware.nvme_cli import SanitizeAction
from cyborg.hardware.nvme_cli import SanitizeStatus
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.tools import ToolError

COMMAND_SECONDS = 60.0
"""For a command that the disk answers at once."""
CONTROLLER_SECONDS = 30.0
"""How long a disk that comes back from a guest may take to be there."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
MEBIBYTE = 2**20
ZERO_STEPS = 50


def why_not_alone(host: DriverHost, controller: Controller) -> str:
    """Why cleaning the disk would harm others; empty where it does not."""
    others = nvme.neighbours(host.sysfs, controller)
    if not others:
        return ""
    return (
        "it is one disk with the NVMe controller"
        f" {', '.join(others)} and cannot be cleaned alone"
    )


class Cleaner:
    """Cleans NVMe disks of a host, several at once.

    `pause` waits for so many seconds; given by tests.
    """

    def __init__(
        self,
        host: DriverHost,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host
        self.cli = NvmeCli(host.tools)
        self.clock = clock
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait

    def cancel(self) -> None:
        """Wait for no disk any more; never blocks."""
        self._stopping.set()

    def pause(self, seconds: float) -> None:
        """Raises Unavailable where the agent stops meanwhile."""
        self._pause(seconds)
        if self._stopping.is_set():
            raise exception.Unavailable(
                "The agent stops; the disk goes on by itself."
            )

    def clean(
        self,
        function: PciFunction,
        wish: Wish,
        timeout: float,
        progress: Callable[[int], None],
    ) -> None:
        """Returns once the disk's last user has left nothing on it.

        Raises DeviceFailed, and Unavailable where the agent stops.
        """
        work = _Work(self, function.address, timeout, progress)
        try:
            work.clean(wish)
        except (
            HardwareError,
            ToolError,
            UnreadableError,
            ValueError,
        ) as error:
            raise work.failure(str(error)) from error


class _Work:
    """One disk that is being cleaned."""

    def __init__(
        self,
        cleaner: Cleaner,
        address: str,
        timeout: float,
        progress: Callable[[int], None],
    ) -> None:
        self._cleaner = cleaner
        # A scan that others share may be old: whether the host uses a disk
        # is looked up anew each time.
        self._host = dataclasses.replace(
            cleaner.host, sysfs=Sysfs(cleaner.host.sysfs.root)
        )
        self._cli = cleaner.cli
        self._address = address
        self._timeout = timeout
        self._until = cleaner.clock() + timeout
        self._progress = progress
        self._serial: str | None = None

    def failure(self, reason: str) -> exception.DeviceFailed:
        return exception.DeviceFailed(f"{self._address}: {reason}")

    def clean(self, wish: Wish) -> None:
        capabilities = self._identify()
        last = SanitizeStatus.NEVER
        if capabilities.sanitizes():
            last = self._status()
        if last is SanitizeStatus.IN_PROGRESS:
            self._wait_for_sanitize()
            return
        way = choose(capabilities, wish)
        if last is SanitizeStatus.FAILED:
            unrestricted = self._leave_failure()
        else:
            unrestricted = True
        if way is None:
            self._zero(capabilities)
        elif isinstance(way.value, SanitizeAction):
            self._sanitize(way.value, unrestricted)
        else:
            self._format(capabilities, way.value)

    # Each way ------------------------------------------------------------

    def _leave_failure(self) -> bool:
        """Whether the disk let itself be taken out of the failure mode; one
        that did not takes nothing but another restricted sanitize."""
        try:
            self._cli.sanitize(
                self._unused(), SanitizeAction.EXIT_FAILURE, self._soon()
            )
        except ToolError:
            return False
        return True

    def _sanitize(self, action: SanitizeAction, unrestricted: bool) -> None:
        self._cli.sanitize(self._unused(), action, self._soon(), unrestricted)
        self._wait_for_sanitize()

    def _wait_for_sanitize(self) -> None:
        """Polls with growing pauses; the kernel sends no event."""
        pause = FIRST_PAUSE
        while True:
            log = self._cli.sanitize_log(self._controller(), self._soon())
            if log.status in {
                SanitizeStatus.DONE,
                SanitizeStatus.DONE_NOT_DEALLOCATED,
            }:
                return
            if log.status is not SanitizeStatus.IN_PROGRESS:
                raise self.failure(f"not sanitized: {log.said}")
            self._progress(log.percent)
            if self._left() <= 0:
                raise self.failure(
                    f"sanitized to {log.percent} % within"
                    f" {round(self._timeout, 2):g} s; the disk goes on by"
                    " itself, and to clean it again waits for its end"
                )
            self._cleaner.pause(min(pause, self._left()))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _format(self, capabilities: Capabilities, erase: FormatErase) -> None:
        layouts = [
            (nsid, self._cli.layout(self._controller(), nsid, self._soon()))
            for nsid in self._namespaces(
                capabilities, reaches_all=capabilities.erases_all_at_once
            )
        ]
        targets = _targets(capabilities, layouts)
        for number, (nsid, layout) in enumerate(targets, 1):
            self._cli.format(self._unused(), nsid, layout, erase, self._rest())
            self._progress(number * 100 // len(targets))

    def _zero(self, capabilities: Capabilities) -> None:
        """Zeros, a part of each disk after the other; what a part takes is
        one call into the kernel that cannot be asked how far it is."""
        wanted = self._namespaces(capabilities, reaches_all=False)
        disks = nvme.namespaces(self._host.sysfs.root, self._unused())
        self._check_writable(disks, wanted)
        total, done = sum(disk.size for disk in disks), 0
        for disk in disks:
            step = -(-disk.size // ZERO_STEPS // MEBIBYTE) * MEBIBYTE
            for offset in range(0, disk.size, max(step, MEBIBYTE)):
                length = min(max(step, MEBIBYTE), disk.size - offset)
                self._check_name(disk)
                self._cli.zero(disk, offset, length, self._rest())
                done += length
                self._progress(done * 100 // total)

    def _check_writable(
        self, disks: Iterable[nvme.Namespace], wanted: Iterable[int]
    ) -> None:
        """Raises DeviceFailed where zeros would not reach a namespace."""
        missing = set(wanted) - {disk.nsid for disk in disks}
        if missing:
            raise self.failure(
                "the kernel made no block device of the namespace"
                f" {_numbers(missing)}"
            )
        empty = [disk.nsid for disk in disks if not disk.size]
        if empty:
            # Of blocks or metadata that it does not know; a tenant can
            # have formatted it so, with all data in it.
            raise self.failure(
                f"the kernel cannot write the namespace {_numbers(empty)}:"
                " its block device has no size"
            )

    def _check_name(self, disk: nvme.Namespace) -> None:
        """Raises DeviceFailed where a node is not this disk's any more: a
        controller that was reset or plugged again may have another."""
        now = nvme.namespaces(self._host.sysfs.root, self._unused())
        if disk not in now:
            raise self.failure(f"{disk.disk} is not its namespace any more")

    def _namespaces(
        self, capabilities: Capabilities, reaches_all: bool
    ) -> tuple[int, ...]:
        """The numbers of the namespaces that can be erased, which are all
        that there are."""
        attached = self._cli.namespaces(self._controller(), self._soon())
        if not attached:
            raise self.failure("it has no namespace to erase")
        if capabilities.manages_namespaces and not reaches_all:
            every = self._cli.namespaces(
                self._controller(), self._soon(), allocated=True
            )
            hidden = set(every) - set(attached)
            if hidden:
                raise self.failure(
                    f"the namespace {_numbers(hidden)} is not attached and"
                    " cannot be erased"
                )
        return attached

    # The disk --------------------------------------------------------------

    def _identify(self) -> Capabilities:
        controller = self._controller()
        capabilities = self._cli.identify(controller, self._soon())
        if capabilities.serial != controller.serial:
            raise self.failure("another disk answered in its place")
        return capabilities

    def _status(self) -> SanitizeStatus:
        return self._cli.sanitize_log(self._controller(), self._soon()).status

    def _unused(self) -> Controller:
        """The controller, the moment before its disk is erased."""
        controller = self._controller()
        function = self._host.sysfs.function(self._address)
        if function is None:
            raise self.failure("it is gone")
        reason = self._host.why_not(function) or why_not_alone(
            self._host, controller
        )
        if reason:
            raise self.failure(f"not cleaned: {reason}")
        return controller

    def _controller(self) -> Controller:
        """The controller, waited for where it is not there yet: libvirt
        gives it back to its driver, and a sanitize may reset it.

        Found anew for each command: its number may be another's by now.
        """
        limit = self._cleaner.clock() + CONTROLLER_SECONDS
        pause = FIRST_PAUSE / 4
        while True:
            found, reason = self._look()
            if found is not None and not reason:
                return found
            left = min(limit, self._until) - self._cleaner.clock()
            if left <= 0:
                raise self.failure(f"not cleaned: {reason}")
            self._cleaner.pause(min(pause, left))
            pause *= 2

    def _look(self) -> tuple[Controller | None, str]:
        """The controller as it is now, and why it cannot be used."""
        function = self._host.sysfs.function(self._address)
        if function is None:
            return None, "it is gone"
        try:
            found = nvme.controller(function)
        except UnreadableError as error:
            return None, str(error)
        if found is None:
            bound = f"bound to {function.driver}" if function.driver else ""
            return None, (
                f"it has no NVMe controller ({bound or 'bound to no driver'})"
            )
        self._serial = self._serial or found.serial
        if found.serial != self._serial:
            raise self.failure("another disk is in its place")
        return found, found.why_not

    # Time ------------------------------------------------------------------

    def _left(self) -> float:
        return self._until - self._cleaner.clock()

    def _rest(self) -> float:
        """All the time that is left, for a command that takes long."""
        left = self._left()
        if left <= 0:
            raise self.failure(
                f"not clean within {round(self._timeout, 2):g} s"
            )
        return left

    def _soon(self) -> float:
        """The time for a command that the disk answers at once: also one
        more look when the time is up."""
        return max(min(self._left(), COMMAND_SECONDS), FIRST_PAUSE)


def _targets(
    capabilities: Capabilities, layouts: list[tuple[int, Layout]]
) -> list[tuple[int, Layout]]:
    """Which namespaces to format, and how: all at once where that is what
    the disk does and all of them look alike."""
    alike = {layout for _, layout in layouts}
    if capabilities.erases_all_at_once and len(alike) == 1:
        return [(ALL_NAMESPACES, alike.pop())]
    return layouts


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))

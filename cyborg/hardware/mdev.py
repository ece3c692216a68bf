# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: parts of a PCI function that its driver lends out.

The kernel's interface (its vfio-mediated-device document): a parent function
has `mdev_supported_types/<type>/`, a device that was made is
`/sys/bus/mdev/devices/<uuid>` and appears below its type's `devices`.  What
a type means is a driver's business.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import time
import uuid

from cyborg.hardware import files
from cyborg.hardware.files import Directory
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.writes import Writer

TYPES = "mdev_supported_types"

MOST_INSTANCES = 4096
"""More than any card has of a type: a larger number is a broken file."""

READS = 5
PAUSE = 0.1
"""Seconds between two looks at what another process removes."""


@dataclasses.dataclass(frozen=True, slots=True)
class MdevType:
    """A kind of mediated device that a function can have.

    `name` is for people, `id` where the driver gives none.  `existing` are
    the uuids of those that there are, `available_instances` counts those
    that could be made besides.
    """

    id: str
    name: str
    description: str
    available_instances: int
    existing: tuple[str, ...]

    @property
    def total(self) -> int:
        """How many the function has when all are made."""
        return self.available_instances + len(self.existing)


def type_ids(function: PciFunction) -> tuple[str, ...]:
    """The types that the function offers, sorted.  Raises
    UnreadableError."""
    return files.children(f"{function.path}/{TYPES}")


def existing(function: PciFunction, type_id: str) -> tuple[str, ...]:
    """The uuids of the function's devices of one type, sorted.  Raises
    UnreadableError."""
    return files.children(f"{function.path}/{TYPES}/{type_id}/devices")


def find(function: PciFunction, type_id: str) -> MdevType | None:
    """One type of the function, None where it does not offer it.

    Raises UnreadableError.
    """
    if type_id not in type_ids(function):
        return None
    path = f"{function.path}/{TYPES}/{type_id}"
    try:
        directory = Directory(path)
    except OSError as error:
        raise UnreadableError(path, error.strerror or str(error)) from error
    available, uuids = _counts(function, type_id, directory)
    return MdevType(
        id=type_id,
        name=directory.optional("name") or type_id,
        description=directory.optional("description") or "",
        available_instances=available,
        existing=uuids,
    )


def _counts(
    function: PciFunction, type_id: str, directory: Directory
) -> tuple[int, tuple[str, ...]]:
    """How many can be made, and those that there are, of one moment: one
    that is made between two reads must not count twice or not at all."""
    before = existing(function, type_id)
    for _ in range(READS):
        available = _available(directory)
        after = existing(function, type_id)
        if after == before:
            return available, after
        before = after
    raise UnreadableError(
        f"{directory.path}/devices", "changes faster than it can be read"
    )


def _available(directory: Directory) -> int:
    path = f"{directory.path}/available_instances"
    found = directory.text("available_instances")
    if not (found.isdecimal() and found.isascii()):
        raise UnreadableError(path, f"{found[:40]!r} is not a count")
    if len(found) > 9 or int(found) > MOST_INSTANCES:
        raise UnreadableError(path, f"{found[:40]} is more than a card has")
    return int(found)


def create(
    sysfs: Sysfs,
    writer: Writer,
    parent: PciFunction,
    *,
    type_id: str,
    identity: str,
    timeout: float,
) -> None:
    """Make the device `identity` (a uuid) of a type on `parent`.

    One that is there already, on this parent and of this type, is no error.
    Raises HardwareError where it exists elsewhere or cannot be made, and
    UnreadableError.
    """
    _check(identity)
    if identity in existing(parent, type_id):
        return
    if type_id not in type_ids(parent):
        raise HardwareError(f"{parent.address} offers no {type_id}")
    if os.path.lexists(_path(sysfs, identity)):
        raise _is_elsewhere(identity)
    try:
        writer.write(
            f"{parent.path}/{TYPES}/{type_id}/create", identity, timeout
        )
    except HardwareError as error:
        if identity in existing(parent, type_id):
            return
        if error.errno == errno.EEXIST:
            raise _is_elsewhere(identity) from error
        raise HardwareError(
            f"no {type_id} can be made on {parent.address}: {error}",
            error.errno,
        ) from error


def remove(
    sysfs: Sysfs, writer: Writer, identity: str, timeout: float
) -> None:
    """Remove the device `identity`; returns once it is gone.

    One that is not there is no error.  Raises HardwareError, also while a
    guest holds it: the kernel lets such a write wait until the guest ends,
    so that the writer gives it up, and the device goes when the guest does.
    """
    _check(identity)
    path = _path(sysfs, identity)
    if not os.path.lexists(path):
        return
    deadline = time.monotonic() + timeout
    try:
        writer.write(f"{path}/remove", "1", timeout)
    except HardwareError as error:
        if not os.path.lexists(path):
            return
        if error.errno in {None, errno.EBUSY}:
            raise HardwareError(
                f"mediated device {identity} is still in use by a guest:"
                f" {error}",
                error.errno,
            ) from error
        if error.errno not in {errno.EAGAIN, errno.ENODEV, errno.ENOENT}:
            raise
        # Another process removes it at the same time.
    _wait_until_gone(path, identity, deadline)


def _wait_until_gone(path: str, identity: str, deadline: float) -> None:
    while os.path.lexists(path):
        if time.monotonic() >= deadline:
            raise HardwareError(
                f"mediated device {identity} is being removed and does not go"
            )
        time.sleep(PAUSE)


def _path(sysfs: Sysfs, identity: str) -> str:
    return str(sysfs.root / "bus" / "mdev" / "devices" / identity)


def _check(identity: str) -> None:
    """The kernel takes 36 characters, and a path must hold nothing else."""
    try:
        good = str(uuid.UUID(identity)) == identity
    except ValueError:
        good = False
    if not good:
        raise HardwareError(f"{identity[:40]!r} is not a uuid")


def _is_elsewhere(identity: str) -> HardwareError:
    return HardwareError(
        f"a mediated device {identity} exists already, on another parent or"
        " of another type",
        errno.EEXIST,
    )

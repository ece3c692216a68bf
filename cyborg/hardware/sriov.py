# SPDX-License-Identifier: Apache-2.0
"""Virtual functions made and counted.

By sysfs (Documentation/ABI/testing/sysfs-bus-pci: `sriov_numvfs`), which is
written and never read: a read waits for the device's lock, for ever where
its driver hangs.
"""

from __future__ import annotations

import errno

from cyborg.hardware.files import Directory
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import virtual_functions
from cyborg.hardware.writes import Writer


def enable(
    writer: Writer, function: PciFunction, count: int, timeout: float
) -> None:
    """Gives a physical function that has none `count` virtual functions.

    One that has as many is left as it is.  Never takes away or changes those
    that there are: they may be in use.  Raises HardwareError where it has
    another number, or cannot have them.  A driver that makes all or none
    (QAT) may make more.
    """
    there = _count(function)
    if there == count:
        return
    if there:
        raise HardwareError(
            f"{function.address} has {there} virtual functions, not {count}; "
            "they may be in use and are left as they are"
        )
    _check(function, count)
    try:
        writer.write(f"{function.path}/sriov_numvfs", str(count), timeout)
    except HardwareError as error:
        if error.errno != errno.ENOENT:
            raise
        raise HardwareError(
            f"{function.address} has no virtual functions: its driver "
            f"{function.driver} cannot make them",
            error.errno,
        ) from error
    made = _count(function)
    if made < count:
        raise HardwareError(
            f"{function.address} has {made} virtual functions though {count} "
            "were made"
        )


def _check(function: PciFunction, count: int) -> None:
    """Raises HardwareError where it can have no such number."""
    total = _total(function)
    if total is None:
        raise HardwareError(
            f"{function.address} cannot have virtual functions: it is no "
            "physical function of SR-IOV"
        )
    if not 0 < count <= total:
        raise HardwareError(
            f"{function.address} can have 1 to {total} virtual functions, "
            f"not {count}"
        )
    if function.driver is None:
        raise HardwareError(
            f"{function.address} has no driver, which would make its virtual "
            "functions"
        )


def _total(function: PciFunction) -> int | None:
    try:
        return _directory(function).number("sriov_totalvfs")
    except UnreadableError as error:
        raise HardwareError(str(error)) from error


def _count(function: PciFunction) -> int:
    """How many there are now."""
    try:
        return len(virtual_functions(_directory(function)))
    except UnreadableError as error:
        raise HardwareError(str(error)) from error


def _directory(function: PciFunction) -> Directory:
    try:
        return Directory(function.path)
    except OSError as error:
        raise HardwareError(
            f"{function.path}: {error.strerror}", error.errno
        ) from error

# SPDX-License-Identifier: Apache-2.0
"""Function-level reset: a function forgets what its last user left in it.

By sysfs (Documentation/ABI/testing/sysfs-bus-pci: `reset`, `reset_method`).
"""

from __future__ import annotations

import logging
import time

from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.writes import Writer

LOG = logging.getLogger(__name__)

METHODS = ("flr", "af_flr")
"""Resets of a function alone; every other may reset its neighbours, or
nothing."""

RESTORE_SECONDS = 10.0


def can_reset(function: PciFunction) -> bool:
    """Whether the function offers a reset of itself alone (`METHODS`)."""
    return any(method in METHODS for method in function.reset_methods)


def reset(writer: Writer, function: PciFunction, timeout: float) -> None:
    """Resets one function, by `flr` or `af_flr` and nothing else.

    The kernel takes the first method of its list: where that is another one
    the list is changed meanwhile.  Raises HardwareError.
    """
    if not can_reset(function):
        raise HardwareError(
            f"{function.address} cannot be reset alone: of the methods "
            f"{' '.join(METHODS)} it offers none"
        )
    methods = function.reset_methods
    if methods[0] in METHODS:
        _reset(writer, function, timeout)
        return
    deadline = time.monotonic() + timeout
    wanted = next(method for method in methods if method in METHODS)
    writer.write(f"{function.path}/reset_method", wanted, timeout)
    try:
        _reset(writer, function, max(deadline - time.monotonic(), 0))
    finally:
        _restore(writer, function)


def _reset(writer: Writer, function: PciFunction, timeout: float) -> None:
    writer.write(f"{function.path}/reset", "1", timeout)


def _restore(writer: Writer, function: PciFunction) -> None:
    """The methods as they were; a failure is no failure of the reset, and
    those that are there instead are no worse."""
    path = f"{function.path}/reset_method"
    methods = " ".join(function.reset_methods)
    try:
        writer.write(path, methods, RESTORE_SECONDS)
    except HardwareError as error:
        LOG.warning("Reset methods are not %s again: %s", methods, error)

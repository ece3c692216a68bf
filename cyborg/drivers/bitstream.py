# SPDX-License-Identifier: Apache-2.0
"""What the drivers that program cards by a vendor's tool have in common."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import card
from cyborg.drivers.base import DriverHost
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.tools import ToolError

LOG = logging.getLogger(__name__)


def function_of(host: DriverHost, controlpath: str) -> PciFunction:
    """The function that is a device's control path.  Raises DeviceFailed
    where the host has it no more."""
    return card.unit_function(
        host,
        inventory.AttachHandle(inventory.AttachType.PCI, controlpath),
    )


def write(
    host: DriverHost,
    command: Sequence[str],
    image: Path,
    timeout: float,
    meanings: Mapping[int, str] | None = None,
) -> None:
    """Has the tool write the image to its card.

    `command` names the image by its path, which no message shows: API users
    read them.  `meanings` says what the tool's exit codes mean.  Raises
    DeviceFailed.
    """
    _check(image)
    try:
        said = host.tools.run(command, timeout)
    except ToolError as error:
        meaning = (meanings or {}).get(error.status or 0)
        reason = str(error).replace(str(image), "the image")
        raise exception.DeviceFailed(
            f"{meaning} ({reason})" if meaning else reason
        ) from error
    LOG.debug("%s said: %s", command[0], said.strip()[-2000:])


def _check(image: Path) -> None:
    """Raises DeviceFailed for an image that no card can take."""
    try:
        size = image.stat().st_size
    except OSError as error:
        raise exception.DeviceFailed(
            f"the image cannot be read: {error.strerror}"
        ) from error
    if not size:
        raise exception.DeviceFailed("the image is empty")

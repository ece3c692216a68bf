# SPDX-License-Identifier: Apache-2.0
"""Writes to sysfs, done by the privileged helper.

Only the files that `privileged.WRITABLE` names can be written, and a write
that the kernel never lets return is given up.
"""

from __future__ import annotations

from cyborg import privsep
from cyborg.hardware import privileged
from cyborg.hardware.pci import HardwareError


class Writer:
    """Writes single values to files of sysfs."""

    def write(self, path: str, value: str, timeout: float = 10.0) -> None:
        """Writes `value` to the file at `path`, within `timeout` seconds.

        EBUSY is tried again meanwhile.  Raises HardwareError that names the
        path and the kernel's reason; `errno` of it is None where the time
        was up, or the helper itself failed.
        """
        try:
            privsep.call(privileged.write, path, value, timeout=timeout)
        except privileged.PrivilegedError as error:
            raise HardwareError(
                f"{path}: {error.reason}", error.errno
            ) from error
        except privsep.HelperError as error:
            raise HardwareError(f"{path}: {error}") from error

# SPDX-License-Identifier: Apache-2.0
"""What the host's own FPGA driver knows of a card.

Two drivers show the same things at different places: the kernel's DFL
(`Documentation/fpga/dfl.rst`, `ABI/testing/sysfs-platform-dfl-{fme,port}`)
and the older `intel-fpga`, which is not part of the kernel.  Both have
management engines (FME), through which a card is programmed, and ports,
behind each of which is an accelerator function (AFU).

Every number in these paths is the system's and independent of the others.
"""

from __future__ import annotations

import dataclasses
import errno
import fnmatch
import re
from collections.abc import Callable
from collections.abc import Iterable

from cyborg.hardware.files import UnreadableError
from cyborg.hardware.files import children
from cyborg.hardware.files import text

_ID = re.compile(r"[0-9a-f]{32}")
_NO_ERROR = re.compile(r"0x0+|0*")


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """Where a driver shows things: `container` below a PCI function,
    `manager` and `port` below that, `interface` below a manager."""

    name: str
    container: str
    manager: str
    port: str
    interface: str


_LAYOUTS = (
    _Layout(
        "dfl",
        "fpga_region/region*",
        "dfl-fme.*",
        "dfl-port.*",
        "dfl-fme-region.*/fpga_region/region*/compat_id",
    ),
    _Layout(
        "intel-fpga",
        "fpga/intel-fpga-dev.*",
        "intel-fpga-fme.*",
        "intel-fpga-port.*",
        "pr/interface_id",
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Fpga:
    """What a PCI function shows as an FPGA.

    `layout` is the driver whose layout it has, `dfl` or `intel-fpga`.
    `managed`: it has a management engine, which a virtual function never
    has.  `interface_ids` say which bitstreams its regions take, `afu_ids`
    what they are programmed with: 32 lower-case hex digits each, sorted,
    those alone that can be read now.  `port_errors` are the error registers
    of its ports that are not zero, such as `0x4`.
    """

    layout: str
    managed: bool = False
    interface_ids: tuple[str, ...] = ()
    afu_ids: tuple[str, ...] = ()
    port_errors: tuple[str, ...] = ()


def read_fpga(path: str, read: Callable[[str], str] = text) -> Fpga | None:
    """What the PCI function at `path` (its sysfs directory) shows; None
    where no FPGA driver of the host has it.

    An id whose file is not there (ENOENT, as that of a region without one)
    or busy (EBUSY, as that of a port that is released or disabled) is
    unknown, which is normal.  Raises UnreadableError for anything else.
    """
    for layout in _LAYOUTS:
        containers = _matching((path,), layout.container)
        if containers:
            return _fpga(layout, containers, read)
    return None


def _fpga(
    layout: _Layout, containers: Iterable[str], read: Callable[[str], str]
) -> Fpga:
    managers = _matching(containers, layout.manager)
    ports = _matching(containers, layout.port)
    return Fpga(
        layout=layout.name,
        managed=bool(managers),
        interface_ids=_ids(_matching(managers, layout.interface), read),
        afu_ids=_ids(_matching(ports, "afu_id"), read),
        port_errors=tuple(
            found
            for file in _matching(ports, "errors/errors")
            if not _NO_ERROR.fullmatch(found := _known(file, read))
        ),
    )


def _matching(paths: Iterable[str], pattern: str) -> list[str]:
    """The paths below any of `paths` that a pattern such as `a.*/b` names,
    in a fixed order.  Raises UnreadableError."""
    found = list(paths)
    for part in pattern.split("/"):
        found = [
            f"{parent}/{name}"
            for parent in found
            for name in children(parent)
            if fnmatch.fnmatchcase(name, part)
        ]
    return found


def _ids(files: Iterable[str], read: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(sorted({_id(file, read) for file in files} - {""}))


def _id(path: str, read: Callable[[str], str]) -> str:
    """The id in a file, empty where it is unknown now."""
    found = _known(path, read)
    digits = found.lower().removeprefix("0x").replace("-", "")
    if found and not _ID.fullmatch(digits):
        raise UnreadableError(path, f"{found[:40]!r} is not 32 hex digits")
    return digits


def _known(path: str, read: Callable[[str], str]) -> str:
    """What a file holds, empty where the driver does not say it now."""
    try:
        return read(path)
    except UnreadableError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (
            errno.ENOENT,
            errno.EBUSY,
        ):
            return ""
        raise

# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's driver adds to sysfs and proc, and its tool for VFs.

- vGPUs of vendor-specific virtual functions (`<VF>/nvidia/…`, from vGPU 17
  on kernels without its mediated devices; vendor's vGPU user guide);
- the instances that a card is cut into by MIG
  (`/proc/driver/nvidia/capabilities`, driver source);
- `sriov-manage`, without which its cards have no virtual functions.
"""

from __future__ import annotations

import dataclasses
import errno
import time
from collections.abc import Mapping

from cyborg.hardware import files
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import Address
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pci import parse_address
from cyborg.hardware.tools import ToolError
from cyborg.hardware.tools import Tools
from cyborg.hardware.writes import Writer

SRIOV_MANAGE = "sriov-manage"
"""In `/usr/lib/nvidia`, where the privileged helper looks for it."""

LOCKED = "Cannot obtain unbindLock"
"""What the tool says while another client of the driver has the card."""

HIGHEST_PLACE = 0xFFFF
"""Of a function in its PCI domain: bus, device and function."""

PAUSE = 1.0
"""Seconds until the tool is tried again."""


@dataclasses.dataclass(frozen=True, slots=True)
class VendorVgpu:
    """The vGPU of a vendor-specific virtual function.

    `current` is the number of its type, 0 where it has none.  `creatable`
    are the types (number: name) that could be made on it now; on a full
    card none.
    """

    current: int
    creatable: Mapping[int, str]


def vendor_vgpu(function: PciFunction) -> VendorVgpu | None:
    """The function's vGPU, None where it is no such virtual function.

    Raises UnreadableError.
    """
    path = f"{function.path}/nvidia"
    if "current_vgpu_type" not in files.children(path):
        return None
    return VendorVgpu(
        current=_current(function),
        creatable=_creatable(f"{path}/creatable_vgpu_types"),
    )


def make_vgpu(
    writer: Writer, function: PciFunction, type_number: int, timeout: float
) -> None:
    """Give the virtual function a vGPU of this type.

    One that it has already is no error.  Raises HardwareError, also where
    it has another one, and UnreadableError.
    """
    if type_number < 1:
        raise HardwareError(f"{type_number} is no vGPU type")
    current = _current(function)
    if current == type_number:
        return
    if current:
        raise HardwareError(
            f"{function.address} has a vGPU of type {current} already"
        )
    _set_type(writer, function, type_number, timeout)


def unmake_vgpu(
    writer: Writer, function: PciFunction, type_number: int, timeout: float
) -> None:
    """Take its vGPU of this type from the virtual function.

    One that it does not have, or of another type, is left alone.  Raises
    HardwareError, also while a guest has it, and UnreadableError where its
    driver has left it: then nobody can tell.
    """
    if _current(function) != type_number:
        return
    try:
        _set_type(writer, function, 0, timeout)
    except HardwareError as error:
        if error.errno != errno.EBUSY:
            raise
        raise HardwareError(
            f"the vGPU of {function.address} is still in use by a guest:"
            f" {error}",
            error.errno,
        ) from error


def _set_type(
    writer: Writer, function: PciFunction, type_number: int, timeout: float
) -> None:
    path = _current_path(function)
    writer.write(path, str(type_number), timeout)
    current = _current(function)
    if current != type_number:
        raise HardwareError(
            f"{path}: is {current} after {type_number} was written"
        )


def _current_path(function: PciFunction) -> str:
    return f"{function.path}/nvidia/current_vgpu_type"


def _current(function: PciFunction) -> int:
    path = _current_path(function)
    return _number(path, files.text(path))


def _creatable(path: str) -> dict[int, str]:
    """The lines `1147  : NVIDIA L40S-1Q` after one that starts with `ID`."""
    found = {}
    for line in files.text(path).splitlines():
        number, colon, name = (part.strip() for part in line.partition(":"))
        if number.startswith("ID") or not line.strip():
            continue
        if not colon:
            raise UnreadableError(path, f"{line[:40]!r} is not `id : name`")
        found[_number(path, number)] = name
    return found


def _number(path: str, text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) < 10):
        raise UnreadableError(path, f"{text[:40]!r} is not a number")
    return int(text)


@dataclasses.dataclass(frozen=True, slots=True)
class MigInstances:
    """How many instances of both kinds MIG has made of a card."""

    gpu: int = 0
    compute: int = 0


def mig_instances(sysfs: Sysfs, function: PciFunction) -> MigInstances:
    """What MIG has made of the card; none where its driver does not say.

    Raises UnreadableError.
    """
    driver = f"{sysfs.proc}/driver/nvidia"
    minor = _minor(f"{driver}/gpus/{function.address}")
    if minor is None:
        return MigInstances()
    path = f"{driver}/capabilities/gpu{minor}/mig"
    gpu = [name for name in files.children(path) if _is_numbered(name, "gi")]
    return MigInstances(
        gpu=len(gpu),
        compute=sum(
            _is_numbered(name, "ci")
            for instance in gpu
            for name in files.children(f"{path}/{instance}")
        ),
    )


def _minor(card: str) -> int | None:
    """The card's number in the driver's other directories."""
    path = f"{card}/information"
    if "information" not in files.children(card):
        return None
    for line in files.text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Device Minor":
            return _number(path, value.strip())
    return None


def _is_numbered(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name[len(prefix) :].isdecimal()


def possible_virtual_functions(function: PciFunction) -> frozenset[str]:
    """The addresses of all virtual functions that the card can have,
    whether they are there or not; none where it does not say.

    A VF's routing id is its PF's plus offset plus n times stride (PCIe
    SR-IOV).  Raises UnreadableError.
    """
    offset = _sriov(function, "offset")
    stride = _sriov(function, "stride")
    if not offset:
        return frozenset()
    own = parse_address(function.address)
    first = (own.bus << 8 | own.device << 3 | own.function) + offset
    total = min(_sriov(function, "totalvfs"), HIGHEST_PLACE)
    places = (first + number * stride for number in range(total))
    return frozenset(
        str(Address(own.domain, place >> 8, place >> 3 & 0x1F, place & 7))
        for place in places
        if place <= HIGHEST_PLACE
    )


def _sriov(function: PciFunction, name: str) -> int:
    """A number of its SR-IOV capability, 0 where it has none."""
    file = f"sriov_{name}"
    if file not in files.children(function.path):
        return 0
    path = f"{function.path}/{file}"
    return _number(path, files.text(path))


def enable_virtual_functions(
    sysfs: Sysfs,
    tools: Tools,
    address: str,
    timeout: float,
    pause: float = PAUSE,
) -> int:
    """Make all virtual functions of a card by NVIDIA's own tool (its driver
    refuses `sriov_numvfs`); how many there are.

    A card that has some is left as it is: they may be in use.  The tool
    gives all or none, and is tried again while another client has the card.
    Raises HardwareError.
    """
    there = _count(sysfs, address)
    if there:
        return there
    deadline = time.monotonic() + timeout
    while True:
        output = _sriov_manage(tools, address, deadline - time.monotonic())
        if LOCKED not in output:
            break
        if time.monotonic() + pause >= deadline:
            raise HardwareError(
                f"{address}: another client of the driver had the card for"
                f" {round(timeout, 2):g} s: {_last_line(output)}"
            )
        time.sleep(pause)
    made = _count(sysfs, address)
    if not made:
        raise HardwareError(
            f"{address}: {SRIOV_MANAGE} gave it no virtual function:"
            f" {_last_line(output)}"
        )
    return made


def _count(sysfs: Sysfs, address: str) -> int:
    function = sysfs.function(address)
    return len(function.virtual_functions) if function else 0


def _sriov_manage(tools: Tools, address: str, timeout: float) -> str:
    """What the tool said; a locked card is no error yet."""
    try:
        return tools.run([SRIOV_MANAGE, "-e", address], timeout)
    except ToolError as error:
        if LOCKED in str(error):
            return str(error)
        raise HardwareError(f"{address}: {error}") from error


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["it said nothing"])[-1][:200]

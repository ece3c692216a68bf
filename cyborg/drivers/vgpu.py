# SPDX-License-Identifier: Apache-2.0
"""What a function of an NVIDIA GPU offers of the vGPU type that it is given.

Two ways: mediated devices below the function, or (newer kernels) the
function itself, a vendor-specific virtual function.  Reads hardware, changes
nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg import inventory
from cyborg.drivers import vgpu_types
from cyborg.drivers.vgpu_types import VgpuType
from cyborg.hardware import mdev
from cyborg.hardware import nvidia
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import PciFunction

Names = Mapping[tuple[str, int], str]
"""What vGPU types are called, by product id and type number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """The units of one type on one function.

    `name` is the type's (empty: not known).  `fault` says in words why no
    unit can be had now; `mistaken` that this is because the options are
    wrong.
    """

    name: str = ""
    handles: tuple[inventory.AttachHandle, ...] = ()
    fault: str = ""
    mistaken: bool = False


def offer(function: PciFunction, kind: VgpuType, names: Names) -> Offer:
    """What the function offers of a type.  Raises UnreadableError."""
    if mdev.type_ids(function):
        return _mediated(function, kind)
    if function.physical_function:
        return _vendor_specific(function, kind, names)
    return _mistake(function, kind, _why_no_types(function))


def names(functions: Iterable[PciFunction]) -> dict[tuple[str, int], str]:
    """What the types are called that vendor-specific virtual functions
    could be given now.

    A full card tells none, so whoever needs a name keeps it.
    """
    found = {}
    for function in functions:
        if not function.physical_function:
            continue
        # It is left out with a warning where it is reported.
        with contextlib.suppress(UnreadableError):
            vgpu = nvidia.vendor_vgpu(function)
            for number, name in vgpu.creatable.items() if vgpu else ():
                found[function.device, number] = name
    return found


def _mediated(function: PciFunction, kind: VgpuType) -> Offer:
    """As many units as exist and could be made: which of them exist does
    not change them."""
    found = mdev.find(function, kind.id)
    if found is None:
        offered = (mdev.find(function, one) for one in mdev.type_ids(function))
        return _mistake(
            function,
            kind,
            "it offers "
            + _listing({one.id: one.name for one in offered if one}),
        )
    return Offer(
        name=found.name,
        handles=tuple(
            inventory.AttachHandle(
                inventory.AttachType.MDEV,
                inventory.pci_json(
                    function.address,
                    {
                        inventory.MADE_KEY: kind.id,
                        "vgpu_mark": f"{kind.id}_{number}",
                    },
                ),
            )
            for number in range(found.total)
        ),
        fault="" if found.total else _why_none(function, kind),
    )


def _vendor_specific(
    function: PciFunction, kind: VgpuType, names: Names
) -> Offer:
    """One unit: the virtual function, once it has the type."""
    handle = inventory.AttachHandle(
        inventory.AttachType.PCI,
        inventory.pci_json(function.address, {inventory.MADE_KEY: kind.id}),
    )
    found = nvidia.vendor_vgpu(function)
    key = (function.device, kind.number)
    if found and found.creatable and not found.current and key not in names:
        offered = {str(one): name for one, name in found.creatable.items()}
        return _mistake(
            function, kind, f"it offers {_listing(offered)}", (handle,)
        )
    return Offer(
        name=kind.name or names.get(key, ""),
        handles=(handle,),
        fault=_why_no_vgpu(function, kind, found),
    )


def _why_no_vgpu(
    function: PciFunction, kind: VgpuType, found: nvidia.VendorVgpu | None
) -> str:
    if found is None:
        return f"it offers no vGPU types ({_driver(function)})"
    if found.current == kind.number:
        return ""
    if found.current:
        return f"it has a vGPU of another type ({found.current})"
    if kind.number not in found.creatable:
        return f"the card has no room for another {kind.id} now"
    return ""


def _mistake(
    function: PciFunction,
    kind: VgpuType,
    reason: str,
    handles: tuple[inventory.AttachHandle, ...] = (),
) -> Offer:
    return Offer(
        handles=handles,
        fault=(
            f"{vgpu_types.ENABLED}, {kind.addresses_option}:"
            f" {function.address} does not support {kind.id}: {reason}"
        ),
        mistaken=True,
    )


def _why_no_types(function: PciFunction) -> str:
    why = f"it offers no vGPU types ({_driver(function)})"
    if nvidia.possible_virtual_functions(function):
        # Every card that could have some: a T4, too, never has types there.
        why += "; where they are on its virtual functions: name those"
    return why


def _why_none(function: PciFunction, kind: VgpuType) -> str:
    """Why a type that the card has cannot be made, not even once."""
    others = [
        other
        for other in mdev.type_ids(function)
        if mdev.existing(function, other)
    ]
    because = (
        f"mediated devices of {', '.join(others)} exist on it"
        if others
        else "the card has no room for it"
    )
    return f"no {kind.id} can be made now: {because}"


def _driver(function: PciFunction) -> str:
    return f"its driver is {function.driver or 'none'}"


def _listing(names: Mapping[str, str]) -> str:
    """Types (id: name) in words."""
    return ", ".join(
        f"{one} ({name})" if name != one else one
        for one, name in names.items()
    )

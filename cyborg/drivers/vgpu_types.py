# SPDX-License-Identifier: Apache-2.0
"""Which vGPU types an operator wants on which functions, and what a type's
name says.

`[gpu_devices] enabled_vgpu_types` names the types (`nvidia-222`); each has a
group `[vgpu_<type>]` whose `device_addresses` say where it is offered.  Reads
options alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from cyborg import inventory
from cyborg.conf import pci
from cyborg.drivers.base import DriverHost
from cyborg.drivers.base import OptionError
from cyborg.hardware.pci import parse_address

ENABLED = "[gpu_devices] enabled_vgpu_types"

_TYPE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NUMBER = re.compile(r"(?<=-)[1-9][0-9]{0,8}$")
_MIG_BACKED = re.compile(r"-\d+-\d+[A-Za-z]+$")
_BRANDS = frozenset({"GRID", "NVIDIA"})


@dataclasses.dataclass(frozen=True, slots=True)
class VgpuType:
    """A type that is enabled.

    `id` is the kernel's name for it, `name` what the operator calls it
    (empty: not said).
    """

    id: str
    name: str = ""

    @property
    def number(self) -> int:
        """The driver's own number of the type: 1147 of `nvidia-1147`; -1
        where it has none, which no type is."""
        match = _NUMBER.search(self.id)
        return int(match.group()) if match else -1

    @property
    def addresses_option(self) -> str:
        """Where it says on which functions the type is offered."""
        return f"[{_group(self.id)}] device_addresses"


def read(host: DriverHost) -> dict[str, VgpuType]:
    """The wanted type of each function by its address.

    Raises OptionError for an id that cannot be one, a type without
    addresses, a malformed address, and an address that two types have.
    """
    found: dict[str, VgpuType] = {}
    for type_id in _enabled(host):
        host.conf.register_opts(pci.vgpu_type_options(), group=_group(type_id))
        kind = VgpuType(type_id, host.option(_group(type_id), "name").strip())
        for address in _addresses(host, kind):
            other = found.setdefault(address, kind)
            if other is not kind:
                raise OptionError(
                    kind.addresses_option,
                    f"{address} is given to {other.id} as well"
                    f" ({other.addresses_option})",
                )
    return found


def _group(type_id: str) -> str:
    return f"vgpu_{type_id}"


def _enabled(host: DriverHost) -> Iterable[str]:
    texts = host.option("gpu_devices", "enabled_vgpu_types")
    for type_id in dict.fromkeys(text.strip() for text in texts):
        if not type_id:
            continue
        if _TYPE_ID.fullmatch(type_id) is None:
            raise OptionError(
                ENABLED, f"{type_id!r} is no vGPU type such as nvidia-222"
            )
        yield type_id


def _addresses(host: DriverHost, kind: VgpuType) -> list[str]:
    texts = host.option(_group(kind.id), "device_addresses")
    found = []
    for text in filter(None, (text.strip() for text in texts)):
        try:
            found.append(str(parse_address(text)))
        except ValueError as error:
            raise OptionError(kind.addresses_option, str(error)) from error
    if not found:
        raise OptionError(
            kind.addresses_option,
            f"is empty, and {ENABLED} has {kind.id}: name the functions that"
            " offer it",
        )
    return found


def traits(product: str, name: str) -> tuple[str, ...]:
    """The traits of a vGPU type called `name` on a card.

    `CUSTOM_NVIDIA_<PRODUCT>_<TYPE>`, TYPE being the name's last word and,
    where it has more than two, also all of it but the brand in front.
    """
    words = name.split()
    if not words:
        return ()
    kinds = [words[-1]]
    if len(words) > 2:
        branded = words[0].upper() in _BRANDS
        kinds.append(" ".join(words[1:] if branded else words))
    return tuple(
        inventory.custom_name("NVIDIA", product, kind) for kind in kinds
    )


def is_mig_backed(name: str) -> bool:
    """Whether a vGPU of this type is a MIG instance: its name counts the
    slices (`A100X-3-20C`)."""
    return _MIG_BACKED.search(name) is not None


def attributes(kind: VgpuType, name: str) -> tuple[tuple[str, str], ...]:
    """What the type is, as plain attributes."""
    return (
        ("vgpu_type", kind.id),
        *((("vgpu_name", _plain(name)),) if name else ()),
        *((("vgpu_mig_backed", "true"),) if is_mig_backed(name) else ()),
    )


def _plain(text: str) -> str:
    """A name that every database takes."""
    return "".join(
        letter if letter.isprintable() and letter <= "\uffff" else "?"
        for letter in text
    )[:255]

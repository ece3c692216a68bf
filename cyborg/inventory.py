# SPDX-License-Identifier: Apache-2.0
"""What hardware a host has, as values.

A report of an agent is one tree: a `HostReport` holds `Device`, a device
holds `Deployable` (each a resource provider), a deployable holds
`AttachHandle` (each a unit that can be given to an instance).  Nothing here
knows of databases, messages or HTTP.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import re
import uuid
from collections.abc import Iterable
from collections.abc import Mapping

import os_resource_classes
import os_traits

MAX_TRAIT_LENGTH = 255
"""Placement refuses longer names of traits and resource classes."""

MAX_PROVIDER_NAME = 200
"""Placement refuses longer names of resource providers."""

MAX_TEXT_BYTES = 65_535
"""What MariaDB's TEXT holds."""

OWNER_TRAIT = "OWNER_CYBORG"
"""The os-traits name by which an operator tells our providers from Nova's."""


class DeviceType(str, enum.Enum):
    """The kinds of device that the database and the API know."""

    GPU = "GPU"
    FPGA = "FPGA"
    AICHIP = "AICHIP"
    QAT = "QAT"
    NIC = "NIC"
    SSD = "SSD"
    MDEV = "MDEV"
    PCI = "PCI"
    NVME = "NVME"

    __str__ = str.__str__


class AttachType(str, enum.Enum):
    """How a unit is handed to an instance."""

    PCI = "PCI"
    MDEV = "MDEV"
    TEST_PCI = "TEST_PCI"

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, slots=True)
class AttachHandle:
    """One attachable unit; `attach_info` is JSON text (`pci_json`)."""

    attach_type: AttachType
    attach_info: str


@dataclasses.dataclass(frozen=True, slots=True)
class Deployable:
    """One resource provider below its host.

    `attributes` are (key, value) in the order reported: `rc` is the resource
    class, each key that starts with `trait` one Placement trait, every other
    key plain metadata.  `fault` says in words why nothing on it may be
    scheduled now, though its device is healthy.
    """

    name: str
    num_accelerators: int
    driver_name: str
    attributes: tuple[tuple[str, str], ...] = ()
    attach_handles: tuple[AttachHandle, ...] = ()
    fault: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One card; `controlpath` (JSON text of its PCI address) identifies it
    on its host across reports.

    `driver` is the entry-point name of the driver that reports it (and that
    programs or cleans it).  `fault` says in words why nothing on it may be
    scheduled now; empty means that it is healthy.  `clean_seconds` is how
    long its driver may take to clean one of its units once that is given
    back; None where a unit goes to the next instance as it is.
    """

    controlpath: str
    type: DeviceType
    vendor: str
    model: str
    driver: str
    std_board_info: str | None = None
    vendor_board_info: str | None = None
    fault: str = ""
    deployables: tuple[Deployable, ...] = ()
    clean_seconds: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DriverFault:
    """A driver that could not answer; its devices keep their last state."""

    driver: str
    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class HostReport:
    """All that one agent knows of its host.

    `host` is `[DEFAULT] host` (the agent's RPC server name).
    `provider_name` is the name of the host's root resource provider, which
    is also the `hostname` of its devices; `provider_uuid` is None while
    Placement does not have that provider.
    """

    host: str
    provider_name: str
    provider_uuid: str | None
    devices: tuple[Device, ...] = ()
    faults: tuple[DriverFault, ...] = ()

    def digest(self) -> str:
        """SHA-256 (hex) of the report: equal digests, equal reports."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """What turns one set of devices into another, by control path."""

    added: tuple[Device, ...] = ()
    removed: tuple[Device, ...] = ()
    changed: tuple[tuple[Device, Device], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def diff(stored: Iterable[Device], reported: Iterable[Device]) -> Changes:
    """What must change in `stored` so that it equals `reported`.

    The order of devices does not count, and that of the result is theirs.
    `changed` holds (old, new) pairs.
    """
    old = {device.controlpath: device for device in stored}
    new = {device.controlpath: device for device in reported}
    return Changes(
        added=tuple(new[key] for key in new if key not in old),
        removed=tuple(old[key] for key in old if key not in new),
        changed=tuple(
            (old[key], new[key])
            for key in new
            if key in old and old[key] != new[key]
        ),
    )


def apply(changes: Changes, devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices after `changes`, in no particular order."""
    result = {device.controlpath: device for device in devices}
    for device in changes.removed:
        del result[device.controlpath]
    for _, device in changes.changed:
        result[device.controlpath] = device
    for device in changes.added:
        result[device.controlpath] = device
    return tuple(result.values())


def provider_uuid(name: str) -> str:
    """The uuid of the resource provider of the deployable called `name`."""
    return str(uuid.uuid3(uuid.NAMESPACE_DNS, name))


def resource_class(attributes: Iterable[tuple[str, str]]) -> str | None:
    """The resource class that a deployable offers, None where it has none."""
    return next((value for key, value in attributes if key == "rc"), None)


def traits(attributes: Iterable[tuple[str, str]]) -> frozenset[str]:
    """The Placement traits of a deployable, `OWNER_CYBORG` among them."""
    return frozenset(
        value for key, value in attributes if key.startswith("trait")
    ) | {OWNER_TRAIT}


def is_trait(name: str) -> bool:
    """Whether Placement takes `name` as a trait."""
    return _is_legal(name, _standard_traits())


def is_resource_class(name: str) -> bool:
    """Whether Placement takes `name` as a resource class."""
    return _is_legal(name, _standard_classes())


def _is_legal(name: str, standard: frozenset[str]) -> bool:
    return len(name) <= MAX_TRAIT_LENGTH and (
        name in standard
        or re.fullmatch(r"CUSTOM_[A-Z0-9_]+", name) is not None
    )


@functools.cache
def _standard_traits() -> frozenset[str]:
    return frozenset(os_traits.get_traits())


@functools.cache
def _standard_classes() -> frozenset[str]:
    return frozenset(os_resource_classes.STANDARDS)


MADE_KEY = "asked_type"
"""The key of an attach handle's information that names what has to be made
on the host before an instance can have it (a vGPU type)."""


def is_made(attach_type: str, attach_info: str) -> bool:
    """Whether the host has to make the unit when it is bound, and to remove
    it when it is given back."""
    return attach_type == AttachType.MDEV.value or (
        f'"{MADE_KEY}"' in attach_info
    )


def canonical(text: str) -> str:
    """`text` with its JSON object spelled in the one way that is ours.

    Databases and drivers of other releases space and order it differently;
    what is not a JSON object is left as it is.
    """
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if not isinstance(value, dict):
        return text
    return json.dumps(value, sort_keys=True)


def custom_name(*words: str) -> str:
    """A legal custom trait or class from free words, `CUSTOM_A_B`.

    Upper case, each other character `_`, at most 255 characters.
    """
    text = "_".join(("CUSTOM", *words)).upper()
    return re.sub(r"[^A-Z0-9_]", "_", text)[:MAX_TRAIT_LENGTH]


def pci_json(address: str, extra: Mapping[str, str] | None = None) -> str:
    """JSON text of a PCI address such as `0000:5e:00.1`, keys sorted.

    `extra` adds string keys (a NIC's `physical_network`).
    Raises ValueError where the address is not `domain:bus:device.function`.
    """
    match = re.fullmatch(
        r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{1,2})\.([0-9a-f])",
        address.lower(),
    )
    if match is None:
        raise ValueError(f"not a PCI address: {address!r}")
    domain, bus, device, function = match.groups()
    return json.dumps(
        {
            "domain": domain,
            "bus": bus,
            "device": device,
            "function": function,
            **(extra or {}),
        },
        sort_keys=True,
    )

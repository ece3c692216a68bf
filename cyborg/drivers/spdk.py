# SPDX-License-Identifier: Apache-2.0
"""`nvmf_spdk_driver` and `vhost_spdk_driver`: block devices that an SPDK
application on this host exports.

A device is the disk that they lie on, a deployable one exported bdev.  What
an instance is given is an NQN or a socket, which no PCI handle can stand
for: the handles are of the type that Nova's virt driver ignores, and say
where to connect.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import ClassVar

from cyborg import inventory
from cyborg.drivers import card
from cyborg.drivers.base import DriverError
from cyborg.drivers.base import DriverHost
from cyborg.drivers.base import OptionError
from cyborg.drivers.base import attributes
from cyborg.hardware import pciids
from cyborg.hardware import spdk
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction

OPTION = "[agent] spdk_socket"
ANSWER_SECONDS = 10.0
"""For all that is asked of SPDK in one look."""

NO_ADDRESS = "ffff:ff:1f.7"
"""In the handle of a bdev that is on no PCI device: handles must have an
address, and no host has a function at the last one there is."""

MOST_HANDLE = 255
"""Characters of an attach handle's information."""

TOO_LONG = "where to connect to it is too long for an attach handle"

_Pairs = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Export:
    """One way to reach a bdev.

    `connection` is what a handle must say, `hint` what it says where there
    is room; `plain` are attributes.
    """

    bdev: str
    connection: _Pairs
    hint: _Pairs
    plain: _Pairs
    fault: str = ""


_Unit = tuple[spdk.Bdev, Export]


class SpdkDriver(abc.ABC):
    """What both drivers have in common."""

    name: ClassVar[str]
    driver_name: ClassVar[str]

    def __init__(self, host: DriverHost) -> None:
        self.host = host
        self._socket = str(host.option("agent", "spdk_socket") or "")
        if not self._socket.startswith("/"):
            raise OptionError(OPTION, f"{self._socket!r} is no absolute path")

    @abc.abstractmethod
    def exports(self, rpc: spdk.Connection) -> Iterable[Export]:
        """What is exported; a bdev may come more than once."""

    def discover(self) -> Iterable[inventory.Device]:
        try:
            with spdk.Connection(self._socket, ANSWER_SECONDS) as rpc:
                exports = list(self.exports(rpc))
                bdevs = spdk.bdevs(rpc)
        except spdk.SpdkError as error:
            raise DriverError(f"{OPTION}: {self._socket}: {error}") from error
        return self._devices(exports, bdevs)

    def _devices(
        self, exports: Iterable[Export], bdevs: Iterable[spdk.Bdev]
    ) -> list[inventory.Device]:
        """The exported bdevs by the disk that they lie on."""
        by_name = {name: bdev for bdev in bdevs for name in bdev.names}
        first: dict[str, Export] = {}
        for export in exports:
            # One that is unknown went away between the two answers.
            if export.bdev in by_name:
                first.setdefault(by_name[export.bdev].name, export)
        disks: dict[str, tuple[spdk.Bdev, list[_Unit]]] = {}
        for name in sorted(first):
            root = _root(by_name[name], by_name)
            _, units = disks.setdefault(_controlpath(root), (root, []))
            units.append((by_name[name], first[name]))
        return [
            self._device(controlpath, root, units)
            for controlpath, (root, units) in disks.items()
        ]

    def _device(
        self,
        controlpath: str,
        root: spdk.Bdev,
        units: Sequence[_Unit],
    ) -> inventory.Device:
        disk = root.disk or spdk.NvmeDisk()
        return inventory.Device(
            controlpath=controlpath,
            type=inventory.DeviceType.SSD,
            vendor=disk.vendor or "SPDK",
            model=(disk.model or root.product or root.name)[:255],
            driver=self.name,
            std_board_info=json.dumps(
                {
                    "firmware": disk.firmware,
                    "product": root.product,
                    "serial": disk.serial,
                },
                sort_keys=True,
            ),
            deployables=tuple(
                self._deployable(disk, bdev, export) for bdev, export in units
            ),
        )

    def _deployable(
        self, disk: spdk.NvmeDisk, bdev: spdk.Bdev, export: Export
    ) -> inventory.Deployable:
        handles = _handles(disk.address or NO_ADDRESS, export)
        words = [self.driver_name]
        if disk.vendor in pciids.VENDOR_WORDS:
            words.append(pciids.vendor_word(disk.vendor))
        return inventory.Deployable(
            name=_unit_name(self.host.name, bdev.name),
            num_accelerators=len(handles),
            driver_name=self.driver_name,
            attributes=attributes(
                (
                    inventory.custom_name("SSD_SPDK"),
                    *(inventory.custom_name("SSD_SPDK", w) for w in words),
                ),
                "CUSTOM_SSD",
                (
                    *self._topology(disk.address, bdev),
                    ("bdev", bdev.name),
                    ("size", str(bdev.size)),
                    *export.plain,
                ),
            ),
            attach_handles=handles,
            fault=export.fault or ("" if handles else TOO_LONG),
        )

    def _topology(self, address: str, bdev: spdk.Bdev) -> _Pairs:
        """As sysfs has it, and SPDK's own word for the NUMA node where that
        does not say."""
        function = self._function(address)
        places = card.topology(function) if function else ()
        if bdev.numa_node is None or "numa_node" in dict(places):
            return places
        return (("numa_node", str(bdev.numa_node)), *places)

    def _function(self, address: str) -> PciFunction | None:
        try:
            return self.host.sysfs.function(address) if address else None
        except HardwareError:
            return None


class NvmfDriver(SpdkDriver):
    """Namespaces of NVMe-oF subsystems."""

    name = "nvmf_spdk_driver"
    driver_name = "NVMF"

    def exports(self, rpc: spdk.Connection) -> Iterable[Export]:
        for subsystem in sorted(spdk.subsystems(rpc), key=lambda one: one.nqn):
            listeners = sorted(subsystem.listeners, key=dataclasses.astuple)
            for nsid, bdev in sorted(subsystem.namespaces):
                connection = (("nqn", subsystem.nqn), ("nsid", str(nsid)))
                yield Export(
                    bdev=bdev,
                    connection=connection,
                    hint=tuple(
                        dataclasses.asdict(listeners[0]).items()
                        if listeners
                        else ()
                    ),
                    plain=(
                        *connection,
                        ("listeners", " ".join(map(_url, listeners))),
                    ),
                    fault=_subsystem_fault(subsystem),
                )


class VhostDriver(SpdkDriver):
    """Bdevs behind vhost sockets."""

    name = "vhost_spdk_driver"
    driver_name = "VHOST"

    def exports(self, rpc: spdk.Connection) -> Iterable[Export]:
        for controller in sorted(
            spdk.vhost_controllers(rpc), key=lambda one: one.name
        ):
            others = len(controller.bdevs) - 1
            for bdev in controller.bdevs:
                yield Export(
                    bdev=bdev,
                    connection=(
                        ("socket", controller.socket),
                        ("bdev", bdev),
                    ),
                    hint=(),
                    plain=(
                        ("socket", controller.socket),
                        ("vhost_controller", controller.name),
                        ("vhost_type", controller.kind),
                    ),
                    fault=(
                        f"the vhost controller {controller.name} has"
                        f" {others} other bdevs: who has its socket has all"
                        if others
                        else ""
                    ),
                )


def _url(listener: spdk.Listener) -> str:
    return f"{listener.trtype}://{listener.traddr}:{listener.trsvcid}"


def _subsystem_fault(subsystem: spdk.Subsystem) -> str:
    """Why a namespace of it cannot be given to one instance."""
    if len(subsystem.namespaces) > 1:
        return (
            f"the subsystem {subsystem.nqn} has {len(subsystem.namespaces)}"
            " namespaces: who connects to it has all"
        )
    if not subsystem.listeners:
        return f"the subsystem {subsystem.nqn} listens nowhere"
    return ""


def _unit_name(host: str, bdev: str) -> str:
    """The name of a deployable; one that Placement would not take is cut
    and stays different from others."""
    name = f"{host}_{bdev}"
    if len(name) <= inventory.MAX_PROVIDER_NAME:
        return name
    return f"{name[: inventory.MAX_PROVIDER_NAME - 17]}_{_digest(name)[:16]}"


def _root(bdev: spdk.Bdev, by_name: Mapping[str, spdk.Bdev]) -> spdk.Bdev:
    """The bdev at the bottom: what a logical volume lies on."""
    seen = {bdev.name}
    while bdev.base in by_name and by_name[bdev.base].name not in seen:
        bdev = by_name[bdev.base]
        seen.add(bdev.name)
    return bdev


def _controlpath(root: spdk.Bdev) -> str:
    """The PCI address of a disk in this host.

    A bdev that has none (memory, a file, a remote disk) gets one that no
    function has, made from its name.
    """
    if root.disk and root.disk.address:
        return inventory.pci_json(root.disk.address)
    return inventory.pci_json(f"f{_digest(root.name)[:7]}:ff:1f.7")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _handles(
    address: str, export: Export
) -> tuple[inventory.AttachHandle, ...]:
    """Where to connect, with the hint if it fits; none where even the
    connection does not fit."""
    for pairs in ((*export.connection, *export.hint), export.connection):
        text = inventory.pci_json(address, dict(pairs))
        if len(text) <= MOST_HANDLE:
            return (
                inventory.AttachHandle(inventory.AttachType.TEST_PCI, text),
            )
    return ()

# SPDX-License-Identifier: Apache-2.0
"""`nvidia_gpu_driver`: NVIDIA's GPUs, whole or as vGPUs.

Each function is a device of its own.  One whose address is given to a vGPU
type (drivers/vgpu_types.py) offers units of that type (drivers/vgpu.py), any
other offers itself whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers import card
from cyborg.drivers import vgpu
from cyborg.drivers import vgpu_types
from cyborg.drivers.vgpu_types import VgpuType
from cyborg.hardware import mdev
from cyborg.hardware import nvidia
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction

LOG = logging.getLogger(__name__)

VGPU = "VGPU"

NOT_OFFERED = (
    "NVIDIA's vendor-specific vGPUs are not offered: Nova attaches them with"
    " managed='yes', which takes the function from its driver and breaks it;"
    " see [gpu_devices] offer_vendor_vgpus"
)


class NvidiaGpuDriver(card.PciCardDriver):
    """GPUs by class: neither NVSwitches (0680) nor their audio (0403)."""

    name = "nvidia_gpu_driver"
    driver_name = "NVIDIA"
    type = inventory.DeviceType.GPU
    resource_class = "PGPU"
    vendor = "10de"
    classes = ("0300", "0302")
    traits = ("GPU_NVIDIA", "GPU_PRODUCT_ID_{product}", "NVIDIA_{product}")
    virtual_functions = True

    def __init__(self, host: base.DriverHost) -> None:
        super().__init__(host)
        self._wanted = vgpu_types.read(host)
        self._leaves_vfs_out = host.option("gpu_devices", "filter_sriov_vfs")
        self._offers_vendor_vgpus = host.option(
            "gpu_devices", "offer_vendor_vgpus"
        )
        self._clean_limit = card.clean_limit(host, self.name)
        self._names: dict[tuple[str, int], str] = {}
        self._mistakes: set[str] = set()
        self._said: set[str] = set()

    def discover(self) -> Iterable[inventory.Device]:
        functions = [
            function
            for function in self.host.sysfs.functions()
            if self.claims(function)
        ]
        self._names |= vgpu.names(functions)
        self._mistakes = set(self._without_gpu(functions))
        devices = card.each(self.host, self.name, functions, self.device)
        for text in sorted(self._mistakes - self._said):
            LOG.error("%s", text)
        self._said = self._mistakes
        return devices

    def claims(self, function: PciFunction) -> bool:
        """A virtual function only with a vGPU type, unless the operator
        says otherwise."""
        return super().claims(function) and (
            function.address in self._wanted
            or not function.physical_function
            or not self._leaves_vfs_out
        )

    def device(self, function: PciFunction) -> inventory.Device:
        kind = self._wanted.get(function.address)
        if kind is None:
            return self._whole(function)
        return self._with_type(function, kind)

    def why_not(self, function: PciFunction) -> str:
        """Why it is not a whole GPU that an instance could have."""
        return (
            super().why_not(function)
            or self._why_kept(function)
            or _why_a_part(function)
        )

    def clean_seconds(self, function: PciFunction) -> int | None:
        """A vGPU is always removed when it is given back: one that stayed
        would take its last user's data to the next.  A whole GPU is reset
        where the operator wants it."""
        if function.address in self._wanted:
            return self._clean_limit
        return super().clean_seconds(function)

    def clean(
        self,
        unit: inventory.AttachHandle,
        controlpath: str,
        timeout: float,
        progress: Callable[[int], None],
    ) -> None:
        """Whole GPUs alone: a vGPU is removed, and a reset of the card that
        it is on would hit every other guest there."""
        if inventory.is_made(unit.attach_type, unit.attach_info):
            raise exception.DeviceFailed(
                "a vGPU is cleaned by its removal, never by a reset"
            )
        super().clean(unit, controlpath, timeout, progress)

    def create(
        self, unit: inventory.AttachHandle, identity: str, timeout: float
    ) -> None:
        """Make a mediated device, or give a virtual function its type."""
        kind = _asked_type(unit)
        function = card.unit_function(self.host, unit)
        with _told():
            if unit.attach_type == inventory.AttachType.MDEV:
                mdev.create(
                    self.host.sysfs,
                    self.host.writer,
                    function,
                    type_id=kind.id,
                    identity=identity,
                    timeout=timeout,
                )
            else:
                nvidia.make_vgpu(
                    self.host.writer, function, kind.number, timeout
                )

    def remove(
        self, unit: inventory.AttachHandle, identity: str, timeout: float
    ) -> None:
        """Remove a mediated device, or take a virtual function's type."""
        with _told():
            if unit.attach_type == inventory.AttachType.MDEV:
                mdev.remove(
                    self.host.sysfs, self.host.writer, identity, timeout
                )
                return
            kind = _asked_type(unit)
            function = self.host.sysfs.function(card.unit_address(unit))
            if function is not None:
                nvidia.unmake_vgpu(
                    self.host.writer, function, kind.number, timeout
                )

    def carve(self, function: PciFunction, count: int, timeout: float) -> None:
        """By NVIDIA's tool, which gives a card all virtual functions."""
        most = card.most_virtual_functions(function)
        if not most or count != most:
            raise exception.Invalid(
                f"{function.address} can have {most} virtual functions or"
                f" none, not {count}"
            )
        with _told():
            nvidia.enable_virtual_functions(
                self.host.sysfs, self.host.tools, function.address, timeout
            )

    def _whole(self, function: PciFunction) -> inventory.Device:
        fault = self.why_not(function)
        mig = nvidia.mig_instances(self.host.sysfs, function)
        if not mig.gpu:
            return self._device(function, self.deployable(function), fault)
        plain = (
            ("mig_instances", str(mig.gpu)),
            ("mig_compute_instances", str(mig.compute)),
        )
        return self._device(
            function,
            self.deployable(function, plain=plain),
            fault or f"{mig.gpu} GPU instances of MIG exist on it",
        )

    def _why_kept(self, function: PciFunction) -> str:
        """Its virtual functions are to have vGPUs: once given away whole,
        it could not be given them."""
        if not self._wanted:
            return ""
        kept = self._wanted.keys() & nvidia.possible_virtual_functions(
            function
        )
        if not kept:
            return ""
        option = self._wanted[min(kept)].addresses_option
        return f"kept for the vGPUs of its virtual functions ({option})"

    def _with_type(
        self, function: PciFunction, kind: VgpuType
    ) -> inventory.Device:
        found = vgpu.offer(function, kind, self._names)
        if found.mistaken:
            self._mistakes.add(found.fault)
        deployable = inventory.Deployable(
            name=f"{self.host.name}_{function.address}",
            num_accelerators=len(found.handles),
            driver_name=self.driver_name,
            attributes=base.attributes(
                vgpu_types.traits(function.device, found.name),
                VGPU,
                (
                    *card.topology(function),
                    *vgpu_types.attributes(kind, found.name),
                ),
            ),
            attach_handles=found.handles,
        )
        fault = found.fault or self._why_no_unit(function, found)
        return self._device(function, deployable, fault)

    def _why_no_unit(self, function: PciFunction, found: vgpu.Offer) -> str:
        """A function that is itself the unit has to be free; the parent of
        mediated devices stays with the host."""
        if found.handles[0].attach_type is inventory.AttachType.MDEV:
            return base.why_not_attachable(
                dataclasses.replace(function, mediated=(), boot_vga=False)
            )
        if not self._offers_vendor_vgpus:
            return NOT_OFFERED
        return self.host.why_not(function)

    def _device(
        self,
        function: PciFunction,
        deployable: inventory.Deployable,
        fault: str,
    ) -> inventory.Device:
        return card.pci_device(
            self.host,
            function,
            driver=self.name,
            kind=self.type,
            fault=fault,
            deployables=(deployable,),
            clean_seconds=self.clean_seconds(function),
        )

    def _without_gpu(self, functions: Iterable[PciFunction]) -> Iterable[str]:
        """What is wrong with addresses at which there is none."""
        missing = self._wanted.keys() - {one.address for one in functions}
        for address in missing:
            # One that cannot be read was warned of by the scan.
            with contextlib.suppress(HardwareError):
                self.host.sysfs.function(address)
                option = self._wanted[address].addresses_option
                yield f"{option}: there is no NVIDIA GPU at {address}"


def _why_a_part(function: PciFunction) -> str:
    if function.physical_function and nvidia.vendor_vgpu(function):
        return "a virtual function that is nothing without a vGPU type"
    return ""


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What the hardware refuses is the device's failure."""
    try:
        yield
    except (HardwareError, UnreadableError) as error:
        raise exception.DeviceFailed(str(error)) from error


def _asked_type(unit: inventory.AttachHandle) -> VgpuType:
    asked = json.loads(unit.attach_info).get(inventory.MADE_KEY)
    if not isinstance(asked, str):
        raise exception.DeviceFailed(
            f"the attach handle has no {inventory.MADE_KEY}"
        )
    return VgpuType(asked)

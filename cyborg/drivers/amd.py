# SPDX-License-Identifier: Apache-2.0
"""`amd_gpu_driver`: AMD's Instinct and Radeon Pro cards.

Product ids are those of the PCI id list.
"""

from __future__ import annotations

from cyborg import exception
from cyborg import inventory
from cyborg.conf import pci
from cyborg.drivers import base
from cyborg.drivers import card
from cyborg.hardware.pci import PciFunction

GROUP = "amd_gpu"

VIRTUAL = frozenset({"7410", "74b5", "74b6", "74b9", "74bc", "73ae", "692f"})
"""Virtual functions by their own ids: a host that is a guest itself sees
them without their physical function."""

INTEGRATED = frozenset(
    {
        *(f"{number:04x}" for number in range(0x1304, 0x1308)),
        *(f"{number:04x}" for number in range(0x1309, 0x1314)),
        *("1315", "1316", "1317", "1318", "131b", "131c", "131d"),  # Kaveri
        *("9874", "98e4"),  # Carrizo, Stoney
        *("15d8", "15dd", "1636", "1638", "164c", "15e7"),  # Raven to Barcelo
        *("163f", "164d", "1681", "1506"),  # Van Gogh, Rembrandt, Mendocino
        *("15bf", "15c8", "164f"),  # Phoenix
        "164e",  # Raphael: EPYC 4004, too
        # Newer than the list of April 2023, against which the rest is
        # checked: Granite Ridge, Hawk Point, Strix, Krackan, Strix Halo.
        *("13c0", "1900", "1901", "150e", "1114", "1586"),
    }
)
"""Graphics that are part of a processor: no card that a cloud sells, and
handed over only at the price of the host's own memory and console."""


class AmdGpuDriver(card.PciCardDriver):
    """GPUs by class, one accelerator each."""

    name = "amd_gpu_driver"
    driver_name = "AMD"
    type = inventory.DeviceType.GPU
    resource_class = "PGPU"
    vendor = "1002"
    classes = ("0300", "0380", "1200")
    traits = ("GPU_AMD", "GPU_PRODUCT_ID_{product}", "AMD_{product}")
    virtual_functions = True

    def __init__(self, host: base.DriverHost) -> None:
        super().__init__(host)
        host.conf.register_opts(pci.amd_gpu_options(), group=GROUP)
        self._offers_virtual = host.option(GROUP, "virtual_functions")

    def claims(self, function: PciFunction) -> bool:
        return super().claims(function) and (
            self._offers_virtual or not _is_virtual(function)
        )

    def trait_names(self, function: PciFunction) -> list[str]:
        names = super().trait_names(function)
        return [*names, "CUSTOM_VF"] if _is_virtual(function) else names

    def why_not(self, function: PciFunction) -> str:
        if function.device in INTEGRATED:
            return "graphics of the host's processor, not a card"
        return super().why_not(function)

    def carve(self, function: PciFunction, count: int, timeout: float) -> None:
        """By the driver `gim`, if the card has that one."""
        try:
            super().carve(function, count, timeout)
        except exception.DeviceFailed as error:
            raise exception.DeviceFailed(
                f"{error} (AMD's driver gim makes virtual functions, as many"
                " as its parameter vf_num says)"
            ) from error


def _is_virtual(function: PciFunction) -> bool:
    return bool(function.physical_function) or function.device in VIRTUAL

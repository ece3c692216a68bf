# SPDX-License-Identifier: Apache-2.0
"""`intel_qat_driver`: Intel QuickAssist, crypto and compression engines.

A chipset's endpoints (three of a C62x) are cards of their own.
"""

from __future__ import annotations

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import card
from cyborg.drivers.sriov_card import SriovCardDriver
from cyborg.hardware import files
from cyborg.hardware.pci import PciFunction

VIRTUAL_BY_PHYSICAL = {
    "0434": "0442",  # DH89xxCC
    "0435": "0443",  # DH895xCC
    "18a0": "18a1",  # C4xxx
    "18ee": "18ef",  # 200xx
    "19e2": "19e3",  # C3xxx
    "1f18": "1f19",  # C2000
    "37c8": "37c9",  # C62x
    "4940": "4941",  # 4xxx
    "4942": "4943",  # 401xx
    "4944": "4945",  # 402xx
    "4946": "4947",  # 420xx
    "4948": "4949",  # 6xxx
    "6f54": "6f55",  # D15xx
}
"""Product ids of the physical function and of its virtual ones, from the
PCI id list."""


class IntelQatDriver(SriovCardDriver):
    """A virtual function bears the trait of its own product id, so that a
    profile can tell it from a whole card."""

    name = "intel_qat_driver"
    driver_name = "intel"
    type = inventory.DeviceType.QAT
    resource_class = "CUSTOM_QAT"
    vendor = "8086"
    products = frozenset(VIRTUAL_BY_PHYSICAL) | frozenset(
        VIRTUAL_BY_PHYSICAL.values()
    )
    classes = ("0b40",)
    traits = ("QAT_INTEL", "QAT_PRODUCT_ID_{product}")

    def fault(self, function: PciFunction) -> str:
        """Virtual functions work while their parent's device is up.

        It says so in `qat/state` (4xxx and newer; kernel documentation,
        sysfs-driver-qat).  A parent that is handed out itself is started
        anew by the guest's driver.  The error counters of `qat_ras` are
        not looked at: they count since boot and do not say what is now.
        """
        if "state" not in files.children(f"{function.path}/qat"):
            return ""
        path = f"{function.path}/qat/state"
        state = files.text(path)
        if state not in ("up", "down"):
            raise files.UnreadableError(
                path, f"{state[:40]!r} is neither up nor down"
            )
        return "the device is down" if state == "down" else ""

    def carve(self, function: PciFunction, count: int, timeout: float) -> None:
        """All virtual functions or none: the kernel's driver enables all of
        them whatever number is written (adf_sriov.c)."""
        most = card.most_virtual_functions(function)
        if most and count != most:
            raise exception.Invalid(
                f"{function.address} cannot have {count} virtual functions:"
                f" a QAT device has all {most} of them or none"
            )
        super().carve(function, count, timeout)

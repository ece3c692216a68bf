# SPDX-License-Identifier: Apache-2.0
"""`intel_gpu_driver`: Intel's Data Center GPUs Flex and Max.

Product ids are those of the PCI id list.
"""

from __future__ import annotations

from cyborg import inventory
from cyborg.drivers import card
from cyborg.hardware.pci import PciFunction

FLEX = frozenset({"56c0", "56c1", "56c2"})
MAX = frozenset(
    {
        *("0bd0", "0bd4", "0bd5", "0bd6", "0bd7", "0bd8", "0bd9"),
        *("0bda", "0bdb", "0b69", "0b6e", "0be0", "0be1", "0be5"),
    }
)


class IntelGpuDriver(card.PciCardDriver):
    """Whole GPUs, and the virtual functions of those that have some.

    A virtual function has its GPU's product id; its trait `CUSTOM_VF` tells
    them apart.
    """

    name = "intel_gpu_driver"
    driver_name = "intel"
    type = inventory.DeviceType.GPU
    resource_class = "PGPU"
    vendor = "8086"
    products = FLEX | MAX
    traits = ("GPU_INTEL", "GPU_PRODUCT_ID_{product}")
    virtual_functions = True

    def trait_names(self, function: PciFunction) -> list[str]:
        names = super().trait_names(function)
        return [*names, "CUSTOM_VF"] if function.physical_function else names

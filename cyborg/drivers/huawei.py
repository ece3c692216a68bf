# SPDX-License-Identifier: Apache-2.0
"""`huawei_ascend_driver`: Huawei's Ascend chips for neural networks."""

from __future__ import annotations

import dataclasses

from cyborg import inventory
from cyborg.drivers.card import PciCardDriver
from cyborg.hardware.pci import PciFunction

MODELS = {
    "d100": "Ascend 310",
    "d500": "Ascend 310P",
    "d801": "Ascend 910",
    "d802": "Ascend 910B",
    "d803": "Ascend 910_93",
}
"""By product id, from the vendor's own tools: they are in no pci.ids.  The
vendor's id alone says nothing: it is on network cards and disks as well."""

NEVER_RESET = frozenset({"d500"})
"""A reset makes a 310P enumerate anew, which breaks its passthrough
(vendor's documentation)."""


class AscendDriver(PciCardDriver):
    """Each chip is a device; a card may have several."""

    name = "huawei_ascend_driver"
    driver_name = "huawei"
    type = inventory.DeviceType.AICHIP
    resource_class = "CUSTOM_NPU"
    vendor = "19e5"
    products = frozenset(MODELS)
    classes = ("1200",)
    traits = ("NPU_HUAWEI_{product}",)

    def device(self, function: PciFunction) -> inventory.Device:
        return dataclasses.replace(
            super().device(function), model=MODELS[function.device]
        )

    def can_clean(self, function: PciFunction) -> bool:
        return function.device not in NEVER_RESET and super().can_clean(
            function
        )

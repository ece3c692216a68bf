# SPDX-License-Identifier: Apache-2.0
"""`inspur_fpga_driver`: Inspur's FPGA cards, such as the F10A (1bd4:0911)."""

from __future__ import annotations

from cyborg import inventory
from cyborg.drivers import card


class InspurFpgaDriver(card.PciCardDriver):
    """Every processing accelerator (class 1200) of Inspur, as a whole."""

    name = "inspur_fpga_driver"
    driver_name = "INSPUR"
    type = inventory.DeviceType.FPGA
    resource_class = "FPGA"
    vendor = "1bd4"
    classes = ("1200",)
    traits = ("FPGA_INSPUR", "FPGA_PRODUCT_ID_{product}")

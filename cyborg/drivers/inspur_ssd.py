# SPDX-License-Identifier: Apache-2.0
"""`inspur_nvme_ssd_driver`: Inspur's NVMe disks."""

from __future__ import annotations

from cyborg import inventory
from cyborg.drivers.nvme import NvmeCardDriver


class InspurSsdDriver(NvmeCardDriver):
    """Each disk is one accelerator."""

    name = "inspur_nvme_ssd_driver"
    driver_name = "INSPUR"
    type = inventory.DeviceType.SSD
    resource_class = "CUSTOM_SSD"
    vendor = "1bd4"
    traits = ("SSD_INSPUR", "SSD_PRODUCT_ID_{product}")

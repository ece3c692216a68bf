# SPDX-License-Identifier: Apache-2.0
"""`acme_driver`: the coprocessors of Acme, a vendor that does not exist."""

from __future__ import annotations

from oslo_config import cfg

from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers import card
from cyborg.hardware.pci import PciFunction

OPTIONS = [cfg.StrOpt("grade", default="gold", help="What the cards are.")]
GRADES = ("gold", "silver")


class AcmeDriver(card.PciCardDriver):
    """Each card is one accelerator."""

    name = "acme_driver"
    driver_name = "ACME"
    type = inventory.DeviceType.AICHIP
    resource_class = "CUSTOM_NPU"
    vendor = "1234"
    products = frozenset({"abcd"})
    traits = ("NPU_ACME", "NPU_PRODUCT_ID_{product}")

    def __init__(self, host: base.DriverHost) -> None:
        super().__init__(host)
        host.conf.register_opts(OPTIONS, group=self.name)
        self._grade = host.option(self.name, "grade")
        if self._grade not in GRADES:
            raise base.OptionError(
                f"[{self.name}] grade", f"{self._grade!r} is none of {GRADES}"
            )

    def trait_names(self, function: PciFunction) -> list[str]:
        grade = inventory.custom_name("NPU_ACME", self._grade)
        return [*super().trait_names(function), grade]

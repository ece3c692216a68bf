# SPDX-License-Identifier: Apache-2.0
"""`fake_driver`: accelerators that are not there.

For trying the service, and for simulating a fleet: many devices, devices
that are plugged and unplugged, break, or fail to be programmed.  Reads no
hardware.  Attach handles are of a type that Nova's virt driver ignores.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers.fake_inventory import MOST_ACCELERATORS
from cyborg.drivers.fake_inventory import FakeCard
from cyborg.drivers.fake_inventory import read
from cyborg.hardware.pci import Address

CONTRACT_ADDRESS = Address(0, 0x0C, 0, 0)
"""Of the one device there is by default; the others' names tell theirs."""

FLEET_DOMAIN = 0xFA00
"""Where further devices are: not where a real card is, which they would
hide from other drivers."""

VENDOR_BOARD_INFO = "fake_vendor_info"
STD_BOARD_INFO = '{"device_id": "0xabcd", "class": "Fake class"}'


class FakeDriver:
    """Devices by `[fake]`: a count of equal ones, or an inventory file."""

    name = "fake_driver"
    simulated = True
    """The agent programs it even where there is no Glance."""

    def __init__(self, host: base.DriverHost) -> None:
        self.host = host
        self._cancelled = threading.Event()
        self._check_options()

    def discover(self) -> Iterable[inventory.Device]:
        return [self._device(card) for card in self._cards()]

    def program(
        self,
        deployable_name: str,
        controlpath: str,
        image: Path,
        properties: Mapping[str, str],
        timeout: float,
    ) -> None:
        card = self._card(deployable_name, controlpath)
        if not card.programmable:
            raise exception.Conflict(f"{deployable_name} cannot be programmed")
        if card.health:
            raise exception.DeviceFailed(f"{deployable_name}: {card.health}")
        try:
            image.stat()
        except OSError as error:
            raise exception.DeviceFailed(
                f"{deployable_name}: the image cannot be read"
            ) from error
        self._take_time(deployable_name, timeout)
        if self._option("program_failure"):
            raise exception.DeviceFailed(
                f"{deployable_name}: simulated failure of programming"
            )

    def cancel(self) -> None:
        """Programming that runs fails now, and so does any later one."""
        self._cancelled.set()

    def health(self, controlpath: str) -> str:
        """The simulated fault of a device, empty where it is well."""
        for card in self._cards():
            if inventory.pci_json(str(card.address)) == controlpath:
                return card.health
        return "the device is gone"

    def _take_time(self, deployable_name: str, timeout: float) -> None:
        needed = self._option("program_seconds")
        if self._cancelled.wait(min(needed, timeout)):
            raise exception.DeviceFailed(
                f"{deployable_name}: programming was cancelled"
            )
        if needed > timeout:
            raise exception.DeviceFailed(
                f"{deployable_name}: not programmed within {timeout:g} s"
            )

    def _card(self, deployable_name: str, controlpath: str) -> FakeCard:
        for card in self._cards():
            if (
                self._deployable_name(card.address) == deployable_name
                and inventory.pci_json(str(card.address)) == controlpath
            ):
                return card
        raise exception.NotFound(f"there is no deployable {deployable_name}")

    def _option(self, name: str) -> Any:
        """Its value now: a lab changes some while the agent runs."""
        return self.host.option("fake", name)

    def _check_options(self) -> None:
        for name in ("inventory_file", "program_failure", "program_seconds"):
            self._option(name)
        if self._option("devices") < 0:
            raise base.OptionError("[fake] devices", "is negative")
        accelerators = self._option("accelerators_per_device")
        if not 1 <= accelerators <= MOST_ACCELERATORS:
            raise base.OptionError(
                "[fake] accelerators_per_device",
                f"{accelerators} is not between 1 and {MOST_ACCELERATORS}",
            )

    def _cards(self) -> list[FakeCard]:
        accelerators = self._option("accelerators_per_device")
        file = self._option("inventory_file")
        if file:
            return read(Path(file), accelerators)
        return [
            FakeCard(_address(number), accelerators=accelerators)
            for number in range(self._option("devices"))
        ]

    def _device(self, card: FakeCard) -> inventory.Device:
        return inventory.Device(
            controlpath=inventory.pci_json(str(card.address)),
            type=card.type,
            vendor=card.vendor,
            model=card.model,
            driver=self.name,
            std_board_info=STD_BOARD_INFO,
            vendor_board_info=VENDOR_BOARD_INFO,
            fault=card.health,
            deployables=(
                inventory.Deployable(
                    name=self._deployable_name(card.address),
                    num_accelerators=card.accelerators,
                    driver_name="fake",
                    attributes=base.attributes(
                        card.traits,
                        card.resource_class,
                        _plain(card),
                        first_trait=1,
                        trait_key="traits",
                    ),
                    attach_handles=tuple(_handles(card)),
                ),
            ),
        )

    def _deployable_name(self, address: Address) -> str:
        """`<host>_FakeDevice`, and with the address for each but the one
        that the contract knows."""
        name = f"{self.host.name}_FakeDevice"
        if address != CONTRACT_ADDRESS:
            name = f"{name}_{address}"
        return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _address(number: int) -> Address:
    """A bus of its own for each device, so that no two share a handle."""
    if number == 0:
        return CONTRACT_ADDRESS
    domain, bus = divmod(number, 0x100)
    return Address(FLEET_DOMAIN + domain, bus, 0, 0)


def _plain(card: FakeCard) -> tuple[tuple[str, str], ...]:
    if card.numa_node is None:
        return ()
    return (("numa_node", str(card.numa_node)),)


def _handles(card: FakeCard) -> Iterable[inventory.AttachHandle]:
    """Handle n is n places after the control path on its bus."""
    address = card.address
    for number in range(1, card.accelerators + 1):
        extra: dict[str, str] = {}
        place = address.device * 8 + address.function
        if card.attach_type is inventory.AttachType.MDEV:
            extra = {"asked_type": "fake-1", "vgpu_mark": f"fake-1_{number}"}
        elif not _is_whole(card):
            place += number
        device, function = divmod(place, 8)
        padded = card.attach_type is not inventory.AttachType.TEST_PCI
        width = 2 if padded else 1
        yield inventory.AttachHandle(
            card.attach_type,
            inventory.pci_json(
                f"{address.domain:04x}:{address.bus:02x}:"
                f"{device:0{width}x}.{function}",
                extra,
            ),
        )


def _is_whole(card: FakeCard) -> bool:
    """A PCI device with one accelerator is handed over itself."""
    return (
        card.attach_type is inventory.AttachType.PCI and card.accelerators == 1
    )

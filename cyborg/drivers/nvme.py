# SPDX-License-Identifier: Apache-2.0
"""`nvme_driver`: the NVMe disks that an operator names, and what any driver
of NVMe disks is made from.

A disk is cleaned before the next instance gets it (`nvme_cleaning.py`),
unless an operator switches that off.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TypeVar

from cyborg import inventory
from cyborg.drivers import card
from cyborg.drivers import whitelist
from cyborg.drivers.base import DriverHost
from cyborg.drivers.base import EntryError
from cyborg.drivers.base import OptionError
from cyborg.drivers.nvme_cleaning import Cleaner
from cyborg.drivers.nvme_cleaning import why_not_alone
from cyborg.drivers.nvme_erasure import OPTION
from cyborg.drivers.nvme_erasure import Action
from cyborg.drivers.nvme_erasure import Strategy
from cyborg.drivers.nvme_erasure import Wish
from cyborg.drivers.nvme_erasure import choose
from cyborg.hardware import nvme
from cyborg.hardware import pciids
from cyborg.hardware.nvme_cli import Capabilities
from cyborg.hardware.nvme_cli import NvmeCli
from cyborg.hardware.nvme_cli import SanitizeAction
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.tools import ToolError

LOG = logging.getLogger(__name__)

NVME_CLASS = "0108"
ASK_SECONDS = 5.0
"""For one disk to say what it can do."""
ASKING_SECONDS = 10.0
"""For all disks of one look: a driver's time is limited."""

_Word = TypeVar("_Word", Action, Strategy)


class NvmeCardDriver(card.PciCardDriver):
    """A driver of NVMe disks, declared as any `PciCardDriver`."""

    classes = (NVME_CLASS,)

    def __init__(
        self, host: DriverHost, cleaner: Cleaner | None = None
    ) -> None:
        super().__init__(host)
        self._cleaner = cleaner or Cleaner(host)
        self._seconds = _clean_seconds(host, self.name)

    def wish(self, function: PciFunction) -> Wish:
        """How the disk is to be cleaned."""
        return Wish()

    def clean_seconds(self, function: PciFunction) -> int | None:
        return self._seconds

    def why_not(self, function: PciFunction) -> str:
        controller = nvme.controller(function)
        return (
            super().why_not(function)
            or (controller.why_not if controller else "")
            or (self._why_not_clean(function, controller))
        )

    def clean(
        self,
        unit: inventory.AttachHandle,
        controlpath: str,
        timeout: float,
        progress: Callable[[int], None],
    ) -> None:
        function = card.unit_function(self.host, unit)
        self._cleaner.clean(function, self.wish(function), timeout, progress)

    def cancel(self) -> None:
        """No disk is waited for any more; what they do, they go on with."""
        self._cleaner.cancel()

    def _why_not_clean(
        self, function: PciFunction, controller: nvme.Controller | None
    ) -> str:
        if self._seconds is None:
            return ""
        if function.physical_function:
            return (
                "a virtual function cannot be cleaned without the disk of"
                f" all ({function.physical_function})"
            )
        return why_not_alone(self.host, controller) if controller else ""


class NvmeDriver(NvmeCardDriver):
    """Each disk that `[nvme] device_spec` names."""

    name = "nvme_driver"
    type = inventory.DeviceType.NVME
    resource_class = "CUSTOM_NVME"

    def __init__(
        self, host: DriverHost, cleaner: Cleaner | None = None
    ) -> None:
        super().__init__(host, cleaner)
        self._specs = parse(host.option("nvme", "device_spec"))
        self._disks = Disks(host)
        if not self._specs:
            LOG.warning("%s is empty: %s offers nothing", OPTION, self.name)

    def discover(self) -> Iterable[inventory.Device]:
        self._disks.begin()
        return super().discover()

    def claims(self, function: PciFunction) -> bool:
        return function.class_code.startswith(NVME_CLASS) and any(
            spec.entry.matches(function) for spec in self._specs
        )

    def wish(self, function: PciFunction) -> Wish:
        return next(
            (
                spec.wish
                for spec in self._specs
                if spec.entry.matches(function)
            ),
            Wish(),
        )

    def device(self, function: PciFunction) -> inventory.Device:
        disk = self._disks.look(function)
        return card.pci_device(
            self.host,
            function,
            driver=self.name,
            kind=self.type,
            fault=self.why_not(function)
            or self._why_not_wished(function, disk),
            deployables=(
                card.pci_deployable(
                    self.host,
                    function,
                    driver_name=self._vendor(function.vendor),
                    traits=_traits(function, disk),
                    resource_class=self.resource_class,
                    plain=_identity(disk.controller) if disk else (),
                ),
            ),
            clean_seconds=self.clean_seconds(function),
        )

    def _why_not_wished(self, function: PciFunction, disk: Disk | None) -> str:
        """Why the disk could not be cleaned as wanted, where it is known
        what it can do."""
        if self._seconds is None or not (disk and disk.capabilities):
            return ""
        try:
            choose(disk.capabilities, self.wish(function))
        except ValueError as error:
            return f"it could not be cleaned: {error}"
        return ""

    def _vendor(self, vendor: str) -> str:
        """For people: our word, the host's name for it, or the id."""
        if vendor in pciids.VENDOR_WORDS:
            return pciids.vendor_word(vendor)
        return (self.host.names.vendor(vendor) or vendor).upper()[:100]


@dataclasses.dataclass(frozen=True, slots=True)
class Disk:
    """A disk as it was last seen; `capabilities` are None where it did not
    say what it can do."""

    controller: nvme.Controller
    capabilities: Capabilities | None


class Disks:
    """What is known of the host's disks, also while guests have them.

    To ask what a disk can do needs a tool and root, which discovery must do
    without: each is asked once, and one that does not answer is not asked
    again before it is another one (or has other firmware).
    """

    def __init__(
        self,
        host: DriverHost,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cli = NvmeCli(host.tools)
        self._clock = clock
        self._until = 0.0
        self._known: dict[tuple[str, ...], Disk] = {}
        self._said = threading.Event()

    def begin(self) -> None:
        """A look at the host begins."""
        self._until = self._clock() + ASKING_SECONDS

    def look(self, function: PciFunction) -> Disk | None:
        """The disk of a function; None where it was never seen.

        Raises UnreadableError.
        """
        place = (function.address, function.vendor, function.device)
        known = self._known.get(place)
        now = nvme.controller(function)
        if now is None or (
            known and _identity(known.controller) == _identity(now)
        ):
            return known
        if now.state != nvme.LIVE or self._clock() >= self._until:
            return Disk(now, None)
        disk = Disk(now, self._ask(now))
        self._known[place] = disk
        return disk

    def _ask(self, controller: nvme.Controller) -> Capabilities | None:
        try:
            return self._cli.identify(controller, ASK_SECONDS)
        except ToolError as error:
            level = logging.DEBUG if self._said.is_set() else logging.WARNING
            self._said.set()
            LOG.log(
                level,
                "What %s can do is not reported (HW_NVME_* traits): %s",
                controller.name,
                error,
            )
            return None


def _identity(controller: nvme.Controller) -> tuple[tuple[str, str], ...]:
    """What tells a disk from another one, as plain attributes."""
    return (
        ("controller_model", controller.model),
        ("serial", controller.serial),
        ("firmware", controller.firmware),
    )


def _traits(function: PciFunction, disk: Disk | None) -> list[str]:
    """Ours, and those of os-traits as that means them: sanitize by crypto
    and by block erase, and the command Write Zeroes."""
    traits = [
        inventory.custom_name("NVME", pciids.vendor_word(function.vendor)),
        inventory.custom_name("NVME_PRODUCT_ID", function.device),
    ]
    can = disk.capabilities if disk else None
    if can is not None:
        crypto, block = SanitizeAction.CRYPTO_ERASE, SanitizeAction.BLOCK_ERASE
        traits += ["HW_NVME_CES"] * can.sanitizes(crypto)
        traits += ["HW_NVME_BES"] * can.sanitizes(block)
        traits += ["HW_NVME_WZS"] * can.writes_zeroes
    return traits


def _clean_seconds(host: DriverHost, name: str) -> int | None:
    """How long a disk may be cleaned: `[agent] clean_timeouts`, else
    `[nvme] cleanup_timeout`.  None where an operator wants none cleaned."""
    seconds = card.clean_seconds(host, name, default=True)
    if seconds is None or name in host.option("agent", "clean_timeouts"):
        return seconds
    return int(host.option("nvme", "cleanup_timeout"))


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """One object of the option: which disks, and how they are cleaned."""

    entry: whitelist.Entry
    wish: Wish


def parse(values: Sequence[str]) -> tuple[Spec, ...]:
    """The objects of `[nvme] device_spec`, in order.

    Raises OptionError that names the option, the value's place and what is
    wrong with it.
    """
    whitelist.parse(OPTION, values)
    specs: list[Spec] = []
    for number, value in enumerate(values, 1):
        for entry in whitelist.parse(OPTION, [value]):
            try:
                specs.append(Spec(entry, _wish(entry)))
            except EntryError as error:
                raise OptionError(
                    OPTION, f"value {number}: {error}: {value[:200]}"
                ) from error
    return tuple(specs)


def _wish(entry: whitelist.Entry) -> Wish:
    tags = dict(entry.tags)
    action = _word(Action, "clear_action", tags)
    strategy = _word(Strategy, "clear_strategy", tags)
    foreign = [
        *(["devname"] if entry.interface else []),
        *(["resource_class"] if entry.resource_class else []),
        *(["traits"] if entry.traits else []),
        *tags,
    ]
    if foreign:
        raise EntryError(f"unknown key {', '.join(map(repr, foreign))}")
    if action is Action.ZERO and strategy is not Strategy.AUTO:
        raise EntryError("clear_strategy means nothing with clear_action zero")
    return Wish(action, strategy)


def _word(words: type[_Word], key: str, tags: dict[str, str]) -> _Word:
    """Takes a key out of `tags`; `auto` where it is not there."""
    text = tags.pop(key, "auto")
    try:
        return words(text)
    except ValueError:
        every: Iterable[enum.Enum] = words
        allowed = ", ".join(str(word) for word in every)
        raise EntryError(f"{key} {text!r} is none of {allowed}") from None

# SPDX-License-Identifier: Apache-2.0
"""`xilinx_fpga_driver`: Xilinx's Alveo boards.

A board shows two functions: one to manage it (driver `xclmgmt`) and one to
use it (driver `xocl`).  It is one device with one accelerator, and an
instance gets both.  It is programmed by XRT's `xbmgmt` through the management
function, which the host must have at that time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import bitstream
from cyborg.drivers import card
from cyborg.drivers.base import DriverHost
from cyborg.drivers.xilinx_shells import NewShells
from cyborg.hardware.pci import PciFunction

LOG = logging.getLogger(__name__)

VENDOR = "10ee"
CLASS = "1200"

KIND = "kind"
"""The property of an image that says what it is: `bitstream`, also where it
says nothing, or `firmware`, a shell."""

MANAGEMENT = "xclmgmt"
USER = "xocl"

GOLDEN = (
    "it has no user function: it runs its golden image and needs a shell, or"
    " is no Alveo board"
)
NEW_SHELL = "its new shell runs after a cold reboot of the host"


@dataclasses.dataclass(frozen=True, slots=True)
class Board:
    """What the functions of a board are for; `user` is None for one that
    runs its golden image."""

    management: PciFunction
    user: PciFunction | None

    @property
    def functions(self) -> tuple[PciFunction, ...]:
        """Those that an instance gets."""
        if self.user is None:
            return (self.management,)
        return (self.management, self.user)


class XilinxFpgaDriver:
    """Every processing accelerator (class 1200) of Xilinx."""

    name = "xilinx_fpga_driver"

    def __init__(self, host: DriverHost) -> None:
        self.host = host
        self._shells = NewShells(host.sysfs, _state_file(host))

    def discover(self) -> Iterable[inventory.Device]:
        boards = {
            board.management.address: board
            for board in _boards(self.host.sysfs.functions())
        }
        return card.each(
            self.host,
            self.name,
            (board.management for board in boards.values()),
            lambda management: self._device(boards[management.address]),
        )

    def program(
        self,
        deployable_name: str,
        controlpath: str,
        image: Path,
        properties: Mapping[str, str],
        timeout: float,
    ) -> None:
        """The board gets a bitstream (.xclbin), or, by an image whose
        property `kind` is `firmware`, a shell (.xsabin).

        A shell is written to the board's flash, and runs after a cold
        reboot of the host alone.
        """
        management = self._management(controlpath)
        kind = properties.get(KIND, "bitstream").strip().lower()
        if kind not in ("bitstream", "firmware"):
            raise exception.DeviceFailed(
                f"an image of kind {kind[:40]!r} is nothing for an FPGA"
            )
        what, ending = (
            (("--user",), ".xclbin")
            if kind == "bitstream"
            else (("--base", "--image"), ".xsabin")
        )
        with _called(image, ending) as file:
            command = (
                *("xbmgmt", "program", "--device", management.address),
                *(*what, str(file), "--force"),
            )
            bitstream.write(self.host, command, file, timeout)
        if kind == "firmware":
            self._shells.add(management.address)
            LOG.warning("FPGA %s: %s", management.address, NEW_SHELL)

    def _management(self, controlpath: str) -> PciFunction:
        """The function by which a board is programmed, which the host must
        have.  Raises DeviceFailed."""
        wanted = bitstream.function_of(self.host, controlpath).address
        board = next(
            (
                board
                for board in _boards(self.host.sysfs.functions())
                if wanted in {one.address for one in board.functions}
            ),
            None,
        )
        if board is None:
            raise exception.DeviceFailed(f"{wanted} is no Xilinx FPGA")
        management = board.management
        if management.driver != MANAGEMENT:
            raise exception.DeviceFailed(
                f"the board's management function {management.address} is"
                f" bound to {management.driver or 'no driver'}, not to"
                f" {MANAGEMENT}: the host cannot program it now"
            )
        return management

    def _device(self, board: Board) -> inventory.Device:
        management = board.management
        return card.pci_device(
            self.host,
            management,
            driver=self.name,
            kind=inventory.DeviceType.FPGA,
            fault=self._why_not(board),
            deployables=(self._deployable(board),),
        )

    def _deployable(self, board: Board) -> inventory.Deployable:
        management = board.management
        new_shell = self._shells.has(management.address)
        fault = GOLDEN if board.user is None else ""
        if new_shell:
            fault = NEW_SHELL
        deployable = card.pci_deployable(
            self.host,
            management,
            driver_name="XILINX",
            traits=(
                inventory.custom_name("FPGA_XILINX"),
                *(
                    inventory.custom_name("FPGA_PRODUCT_ID", one.device)
                    for one in board.functions
                ),
            ),
            resource_class="FPGA",
            plain=(("needs_cold_reboot", "true"),) if new_shell else (),
            fault=fault,
        )
        return dataclasses.replace(
            deployable,
            attach_handles=tuple(
                inventory.AttachHandle(
                    inventory.AttachType.PCI, inventory.pci_json(one.address)
                )
                for one in board.functions
            ),
        )

    def _why_not(self, board: Board) -> str:
        """Why an instance cannot have the board's functions now."""
        together = [one.address for one in board.functions]
        for function in board.functions:
            reason = self.host.why_not(function, together)
            if reason:
                return f"{function.address}: {reason}"
        return ""


def _boards(functions: Iterable[PciFunction]) -> Iterator[Board]:
    """The boards of a host, from its functions by address."""
    ours = (
        one
        for one in functions
        if one.vendor == VENDOR
        and one.class_code.startswith(CLASS)
        and not one.physical_function
    )
    for _, group in itertools.groupby(
        ours, lambda one: one.address.rpartition(".")[0]
    ):
        yield _board(list(group))


def _board(functions: list[PciFunction]) -> Board:
    """Told by their drivers; where those are away (a guest has the board),
    the first function is the management's and the next the user's."""
    management = next(
        (one for one in functions if one.driver == MANAGEMENT),
        next((one for one in functions if one.driver != USER), functions[0]),
    )
    others = [one for one in functions if one is not management]
    user = next(
        (one for one in others if one.driver == USER),
        others[0] if others else None,
    )
    return Board(management, user)


@contextlib.contextmanager
def _called(image: Path, ending: str) -> Iterator[Path]:
    """The image under a name that ends as xbmgmt wants it."""
    if image.suffix == ending:
        yield image
        return
    link = image.with_name(f"{image.name}{ending}")
    try:
        os.link(image, link)
    except OSError as error:
        raise exception.DeviceFailed(
            f"the image cannot be prepared: {error.strerror}"
        ) from error
    try:
        yield link
    finally:
        link.unlink(missing_ok=True)


def _state_file(host: DriverHost) -> Path | None:
    """One for each agent that keeps its state in the same directory."""
    if not host.conf.state_path:
        return None
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host.name)
    return Path(host.conf.state_path) / f"xilinx-shells-{name}.json"

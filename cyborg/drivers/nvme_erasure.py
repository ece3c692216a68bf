# SPDX-License-Identifier: Apache-2.0
"""How an NVMe disk is to be erased: what an operator wants, of what the disk
can do.  Pure."""

from __future__ import annotations

import dataclasses
import enum

from cyborg.hardware.nvme_cli import Capabilities
from cyborg.hardware.nvme_cli import FormatErase
from cyborg.hardware.nvme_cli import SanitizeAction

OPTION = "[nvme] device_spec"


class Action(str, enum.Enum):
    """`clear_action` of the option."""

    AUTO = "auto"
    SANITIZE = "sanitize"
    ZERO = "zero"

    __str__ = str.__str__


class Strategy(str, enum.Enum):
    """`clear_strategy` of the option."""

    AUTO = "auto"
    CRYPTO = "crypto"
    BLOCK = "block"

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """How an operator wants a disk cleaned."""

    action: Action = Action.AUTO
    strategy: Strategy = Strategy.AUTO


class Erasure(enum.Enum):
    """The ways to erase a disk, the one to prefer first.

    Crypto before block: it takes seconds and reaches spare blocks, too.
    Overwriting last: it takes hours, and wears the flash.
    """

    SANITIZE_CRYPTO = SanitizeAction.CRYPTO_ERASE
    SANITIZE_BLOCK = SanitizeAction.BLOCK_ERASE
    FORMAT_CRYPTO = FormatErase.CRYPTO
    FORMAT_BLOCK = FormatErase.USER_DATA
    SANITIZE_OVERWRITE = SanitizeAction.OVERWRITE

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")

    def suits(self, wish: Wish) -> bool:
        """Whether it is what an operator asks for."""
        action, strategy = self.name.split("_")
        return (wish.action is Action.AUTO or action == wish.action.name) and (
            wish.strategy is Strategy.AUTO or strategy == wish.strategy.name
        )

    def can(self, capabilities: Capabilities) -> bool:
        """Whether the disk can do it."""
        if isinstance(self.value, SanitizeAction):
            return capabilities.sanitizes(self.value)
        return capabilities.formats(self.value)


def choose(capabilities: Capabilities, wish: Wish) -> Erasure | None:
    """How to erase a disk; None where zeros are asked for.

    Raises ValueError, in words for an operator, where it cannot be erased
    as they want.
    """
    if wish.action is Action.ZERO:
        return None
    possible = [way for way in Erasure if way.can(capabilities)]
    for way in possible:
        if way.suits(wish):
            return way
    if possible:
        raise ValueError(
            f"{OPTION} asks for clear_action {wish.action} with"
            f" clear_strategy {wish.strategy}, the disk can only"
            f" {', '.join(map(str, possible))}"
        )
    raise ValueError(
        "the disk can neither sanitize nor format;"
        f' {OPTION} with "clear_action": "zero" fills it with zeros'
    )

# SPDX-License-Identifier: Apache-2.0
"""What nvme-cli (and, for zeros, blkdiscard) does to an NVMe disk.

Only words that nvme-cli 2.3 (Debian 12) and 3.0 both know: actions by
number, JSON by `-o json`, no `--wait`.  `sanitize` never gets `--force`, so
that a version which looks refuses a disk in use; `format` does, since
without it the tool sleeps first.  Bits are those of the NVMe base
specification (Identify Controller, Sanitize Status log).
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Sequence

from cyborg.hardware.nvme import Controller
from cyborg.hardware.nvme import Namespace
from cyborg.hardware.tools import ToolError
from cyborg.hardware.tools import Tools

ALL_NAMESPACES = 0xFFFFFFFF
MOST_MILLISECONDS = 2**32 - 1
SAID_LIMIT = 200


class SanitizeAction(enum.Enum):
    """The numbers of `nvme sanitize -a`."""

    EXIT_FAILURE = 1
    BLOCK_ERASE = 2
    OVERWRITE = 3
    CRYPTO_ERASE = 4


class SanitizeStatus(enum.Enum):
    """How the most recent sanitize ended; also over a reboot."""

    NEVER = 0
    DONE = 1
    IN_PROGRESS = 2
    FAILED = 3
    DONE_NOT_DEALLOCATED = 4


class FormatErase(enum.Enum):
    """The numbers of `nvme format -s`."""

    USER_DATA = 1
    CRYPTO = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """What `id-ctrl` says that a controller can do.

    `sanicap`, `oacs`, `fna` and `oncs` are the fields of that name.
    """

    serial: str
    sanicap: int
    oacs: int
    fna: int
    oncs: int

    def sanitizes(self, action: SanitizeAction | None = None) -> bool:
        """Whether it can sanitize so (None: in any way)."""
        bits = {
            None: 0b111,
            SanitizeAction.CRYPTO_ERASE: 0b001,
            SanitizeAction.BLOCK_ERASE: 0b010,
            SanitizeAction.OVERWRITE: 0b100,
        }
        return bool(self.sanicap & bits[action])

    def formats(self, erase: FormatErase) -> bool:
        """Whether a format can erase so."""
        crypto = bool(self.fna & 0b100) or erase is not FormatErase.CRYPTO
        return bool(self.oacs & 0b10) and crypto

    @property
    def manages_namespaces(self) -> bool:
        """Whether there may be namespaces that are not attached."""
        return bool(self.oacs & 0b1000)

    @property
    def erases_all_at_once(self) -> bool:
        """Whether an erasing format hits all namespaces, attached or not,
        and may be told so."""
        return bool(self.fna & 0b10) and not self.fna & 0b1000

    @property
    def writes_zeroes(self) -> bool:
        """Whether it knows the command Write Zeroes."""
        return bool(self.oncs & 0b1000)


@dataclasses.dataclass(frozen=True, slots=True)
class SanitizeLog:
    """How the most recent sanitize goes; `said` are the tool's words."""

    status: SanitizeStatus
    percent: int
    said: str


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How a namespace is formatted: what a new format must ask for to keep
    it (else the tool goes back to format 0 without metadata)."""

    lba_format: int
    metadata: int = 0
    protection: int = 0
    protection_place: int = 0


class NvmeCli:
    """The commands; each raises ToolError, also where what a tool printed
    makes no sense."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def identify(self, one: Controller, timeout: float) -> Capabilities:
        """What the controller can do."""
        answer = self._ask(["nvme", "id-ctrl", one.node], timeout)
        return Capabilities(
            serial=answer.text("sn").strip(),
            sanicap=answer.number("sanicap"),
            oacs=answer.number("oacs"),
            fna=answer.number("fna"),
            oncs=answer.number("oncs"),
        )

    def sanitize_log(self, one: Controller, timeout: float) -> SanitizeLog:
        """How the most recent sanitize goes.

        The number in parentheses counts, the words differ from version to
        version; `sprog` are parts of 65536.
        """
        log = self._ask(["nvme", "sanitize-log", one.node], timeout).only()
        said = log.inner("sstat").text("status")
        match = re.match(r"\((\d+)\)", said)
        try:
            status = SanitizeStatus(int(match.group(1)) if match else -1)
        except ValueError:
            raise log.wrong("an unknown status") from None
        return SanitizeLog(status, log.number("sprog") * 100 // 65536, said)

    def sanitize(
        self,
        one: Controller,
        action: SanitizeAction,
        timeout: float,
        unrestricted: bool = False,
    ) -> None:
        """Starts to sanitize the whole NVM subsystem (or leaves the failure
        mode) and returns.

        `unrestricted`: one that fails may be left without another one.
        """
        command = ["nvme", "sanitize", one.node, "-a", str(action.value)]
        if action is SanitizeAction.OVERWRITE:
            command += ["-n", "1", "-p", "0x0"]
        if unrestricted:
            command += ["--ause"]
        self._tools.run(command, timeout)

    def namespaces(
        self, one: Controller, timeout: float, allocated: bool = False
    ) -> tuple[int, ...]:
        """The numbers of the attached namespaces, or of all there are."""
        command = ["nvme", "list-ns", one.node]
        answer = self._ask(command + ["-a"] * allocated, timeout)
        return tuple(
            entry.number("nsid") for entry in answer.objects("nsid_list")
        )

    def layout(self, one: Controller, nsid: int, timeout: float) -> Layout:
        """How a namespace is formatted now.

        `flbas`: bits 3:0 and 6:5 the format, bit 4 metadata in the data;
        `dps`: bits 2:0 the type of protection, bit 3 its place.
        """
        answer = self._ask(
            ["nvme", "id-ns", one.node, "-n", str(nsid)], timeout
        )
        flbas, dps = answer.number("flbas"), answer.number("dps")
        return Layout(
            lba_format=flbas & 0xF | (flbas >> 5 & 0b11) << 4,
            metadata=flbas >> 4 & 1,
            protection=dps & 0b111,
            protection_place=dps >> 3 & 1,
        )

    def format(
        self,
        one: Controller,
        nsid: int,
        layout: Layout,
        erase: FormatErase,
        timeout: float,
    ) -> None:
        """Erases a namespace (`ALL_NAMESPACES`: all), returns once done.

        `-t` is in milliseconds; 2.3 takes it and leaves the kernel's own
        limit (`nvme_core.admin_timeout`).
        """
        milliseconds = min(int(timeout * 1000), MOST_MILLISECONDS)
        number = hex(nsid) if nsid == ALL_NAMESPACES else str(nsid)
        command = ["nvme", "format", one.node, "-n", number]
        command += ["-s", str(erase.value), "-l", str(layout.lba_format)]
        for option, value in (
            ("-m", layout.metadata),
            ("-i", layout.protection),
            ("-p", layout.protection_place),
        ):
            command += [option, str(value)] if value else []
        command += ["-t", str(milliseconds), "--force"]
        self._tools.run(command, timeout)

    def zero(
        self, disk: Namespace, offset: int, length: int, timeout: float
    ) -> None:
        """Writes zeros to `length` bytes of a block device from `offset`;
        refused by the kernel where something has the disk open."""
        command = ["blkdiscard", "-z", "-o", str(offset), "-l", str(length)]
        self._tools.run([*command, disk.node], timeout)

    def _ask(self, command: Sequence[str], timeout: float) -> _Answer:
        said = self._tools.run([*command, "-o", "json"], timeout)
        name = " ".join(command[:2])
        try:
            value = json.loads(said)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ToolError(f"{name} printed no JSON: {said[:SAID_LIMIT]!r}")
        return _Answer(name, value, said)


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """A JSON object that a tool printed, read strictly."""

    tool: str
    values: dict[str, object]
    said: str

    def number(self, key: str) -> int:
        """A number that is not negative.  `type`: True is an int."""
        value = self.values.get(key)
        if not isinstance(value, int) or type(value) is bool or value < 0:
            raise self.wrong(f"no number {key!r}")
        return value

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self.wrong(f"no text {key!r}")
        return value

    def inner(self, key: str) -> _Answer:
        return self._part(self.values.get(key), key)

    def objects(self, key: str) -> list[_Answer]:
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.wrong(f"no list {key!r}")
        return [self._part(item, key) for item in value]

    def only(self) -> _Answer:
        """What its one key holds, whatever that is called."""
        if len(self.values) != 1:
            raise self.wrong("not one object")
        return self.inner(next(iter(self.values)))

    def wrong(self, reason: str) -> ToolError:
        """What is wrong, with the tool's name and what it said."""
        return ToolError(
            f"{self.tool} printed {reason}: {self.said[:SAID_LIMIT]!r}"
        )

    def _part(self, value: object, key: str) -> _Answer:
        if not isinstance(value, dict):
            raise self.wrong(f"no object {key!r}")
        return _Answer(self.tool, value, self.said)

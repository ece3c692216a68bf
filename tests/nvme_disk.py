# SPDX-License-Identifier: Apache-2.0
"""An NVMe disk behind nvme-cli: it keeps what was written until it is erased.

It takes and prints what nvme-cli 2.3 of Debian 12 does (recorded from that
tool), and nothing else: an option that it does not know fails.
"""

from __future__ import annotations

import dataclasses
import json

from cyborg.hardware.tools import ToolError

WORDS = {
    0: "NVM Subsystem has never been sanitized.",
    1: "Most Recent Sanitize Command Completed Successfully.",
    2: "Sanitize in Progress.",
    3: "Most Recent Sanitize Command Failed.",
    4: "Most Recent Sanitize Command (No-Deallocate After Sanitize)"
    " Completed Successfully.",
}
EVERYTHING = "0xffffffff"


@dataclasses.dataclass
class Namespace:
    """`flbas` and `dps` as Identify Namespace has them."""

    flbas: int = 0
    dps: int = 0
    dirty: bool = True
    attached: bool = True


class NvmeDisk:
    """`steps`: what `sprog` is at each look while it sanitizes; then it is
    done, or has failed where `fails` says how often it will.
    `restricted`: whether a failed sanitize can only be left by another one.
    """

    def __init__(
        self,
        serial: str = "PHLJ000000001P0A",
        *,
        sanicap: int = 0,
        oacs: int = 0,
        fna: int = 0,
        oncs: int = 0,
    ) -> None:
        self.serial = serial
        self.fields = {
            "sanicap": sanicap,
            "oacs": oacs,
            "fna": fna,
            "oncs": oncs,
        }
        self.namespaces = {1: Namespace()}
        self.status = 0
        self.steps: list[int] = [0, 32768]
        self.fails = 0
        self.restricted = False
        self._left: list[int] = []

    def __call__(self, command: list[str]) -> str:
        _, verb, node, *rest = command
        assert node.startswith("/dev/nvme")
        match verb, rest:
            case "id-ctrl", ["-o", "json"]:
                return self._identity()
            case "sanitize-log", ["-o", "json"]:
                return self._log(node.rpartition("/")[2])
            case "list-ns", [*options, "-o", "json"] if options in (
                [],
                ["-a"],
            ):
                return self._list(bool(options))
            case "id-ns", ["-n", number, "-o", "json"]:
                return self._layout(self.namespaces[int(number)])
            case "sanitize", ["-a", action, *options]:
                return self._sanitize(int(action), options)
            case "format", ["-n", number, "-s", erase, "-l", *options]:
                return self._format(number, erase, options)
        raise ToolError(f"nvme failed with exit status 1: Usage: nvme {verb}")

    @property
    def is_clean(self) -> bool:
        return not any(one.dirty for one in self.namespaces.values())

    def begin(self, *steps: int) -> None:
        """A sanitize that somebody started runs."""
        self.status, self._left = 2, list(steps)

    def _identity(self) -> str:
        return json.dumps(
            {
                "vid": 32902,
                "ssvid": 32902,
                "sn": f"{self.serial:<20}",
                "mn": f"{'INTEL SSDPE2KX010T8':<40}",
                "fr": "VDV10131",
                "tnvmcap": "1000204886016",
                **self.fields,
                "psds": [{"max_power": 2500, "flags": 0}],
            },
            indent=2,
        )

    def _log(self, name: str) -> str:
        if not self.fields["sanicap"]:
            raise _refused("Invalid Log Page: The log page indicated", 0x109)
        progress = 65535
        if self.status == 2:
            if self._left:
                progress = self._left.pop(0)
            else:
                self._end()
        state = {
            "global_erased": int(self.is_clean),
            "no_cmplted_passes": 0,
            "status": f"({self.status}) {WORDS[self.status]}",
        }
        return json.dumps(
            {name: {"sprog": progress, "sstat": state, "cdw10_info": 2}},
            indent=2,
        )

    def _end(self) -> None:
        if self.fails:
            self.fails -= 1
            self.status = 3
            return
        self.status = 1
        for one in self.namespaces.values():
            one.dirty = False

    def _sanitize(self, action: int, options: list[str]) -> str:
        ause = options[-1:] == ["--ause"]
        rest = options[:-1] if ause else options
        assert rest == (["-n", "1", "-p", "0x0"] if action == 3 else [])
        if action == 1:
            if self.status == 3 and self.restricted:
                raise _refused("Sanitize Failed: The most recent", 0x1C)
            self.status = 0
            return ""
        if self.status == 2:
            raise _refused("Sanitize In Progress: The requested", 0x1D)
        if self.status == 3 and self.restricted and ause:
            raise _refused("Sanitize Failed: The most recent", 0x1C)
        if not self.fields["sanicap"] & {4: 1, 2: 2, 3: 4}[action]:
            raise _refused("Invalid Field in Command", 0x2)
        self.restricted = not ause
        self.begin(*self.steps)
        return ""

    def _format(self, number: str, erase: str, options: list[str]) -> str:
        lba_format, *rest = options
        assert rest[-3] == "-t"
        assert int(rest[-2]) > 0
        assert rest[-1] == "--force"
        crypto = erase == "2"
        fna = self.fields["fna"]
        if not self.fields["oacs"] & 2 or (crypto and not fna & 4):
            raise _refused("Invalid Field in Command", 0x2)
        if self.status in {2, 3}:
            raise _refused("Sanitize Failed or In Progress", 0x1C)
        keys = dict(zip(rest[:-3:2], rest[1:-3:2], strict=True))
        assert keys.keys() <= {"-m", "-i", "-p"}
        flbas = int(lba_format) & 0xF | int(keys.get("-m", 0)) << 4
        dps = int(keys.get("-i", 0)) | int(keys.get("-p", 0)) << 3
        for nsid, one in self.namespaces.items():
            meant = number == EVERYTHING or str(nsid) == number
            if meant and one.attached:
                one.flbas, one.dps = flbas, dps
            if (meant and one.attached) or fna & 2:
                one.dirty = False
        return f"Success formatting namespace:{number}\n"

    def _list(self, every: bool) -> str:
        return json.dumps(
            {
                "nsid_list": [
                    {"nsid": nsid}
                    for nsid, one in self.namespaces.items()
                    if every or one.attached
                ]
            },
            indent=2,
        )

    def _layout(self, one: Namespace) -> str:
        return json.dumps(
            {
                "nsze": 1953525168,
                "nlbaf": 3,
                "flbas": one.flbas,
                "dps": one.dps,
                "nvmcap": "0",
                "lbafs": [{"ms": 0, "ds": 9, "rp": 0}],
            },
            indent=2,
        )


def _refused(words: str, code: int) -> ToolError:
    return ToolError(
        f"nvme failed with exit status 1: NVMe status: {words}({code:#x})"
    )

# SPDX-License-Identifier: Apache-2.0
"""Names of PCI vendors and devices.

Two sources.  `vendor_word` is a short table of ours, the same on every host
and in every year: traits are made from it, because a profile must schedule
on hosts whose lists of names differ.  `PciNames` reads the host's own list
(pci.ids, or where there is none udev's) and is for people's eyes alone.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Iterable
from pathlib import Path

LOG = logging.getLogger(__name__)

DEFAULT_PATHS = (
    Path("/usr/share/misc/pci.ids"),
    Path("/usr/share/hwdata/pci.ids"),
    Path("/usr/lib/udev/hwdb.d/20-pci-vendor-model.hwdb"),
    Path("/lib/udev/hwdb.d/20-pci-vendor-model.hwdb"),
)
HWDB = ".hwdb"
"""What the name of udev's list (hwdb(7)) ends with."""

VENDOR_WORDS = {
    "1002": "AMD",
    "1022": "AMD",
    "1077": "QLOGIC",
    "10b5": "PLX",
    "10de": "NVIDIA",
    "10ee": "XILINX",
    "1137": "CISCO",
    "1172": "ALTERA",
    "1425": "CHELSIO",
    "144d": "SAMSUNG",
    "14e4": "BROADCOM",
    "15b3": "MELLANOX",
    "15b7": "SANDISK",
    "177d": "CAVIUM",
    "17cb": "QUALCOMM",
    "18ec": "CESNET",
    "1924": "SOLARFLARE",
    "19e5": "HUAWEI",
    "19ee": "NETRONOME",
    "1a03": "ASPEED",
    "1af4": "VIRTIO",
    "1bd4": "INSPUR",
    "1c5c": "SKHYNIX",
    "1d0f": "AMAZON",
    "1da3": "HABANA",
    "1dd8": "PENSANDO",
    "1de5": "EIDETICOM",
    "1e52": "TENSTORRENT",
    "1344": "MICRON",
    "8086": "INTEL",
}
"""One word per vendor.  Words may be added, never changed: they are in
traits, and traits are in operators' device profiles."""


def vendor_word(vendor: str) -> str:
    """The vendor's word in capitals, or its id where we have no word."""
    return VENDOR_WORDS.get(vendor, vendor.upper())


class PciNames:
    """The names of a pci.ids file, or of udev's; the first of `paths` that
    is there.

    Nothing is read before the first question.  Without a file there are no
    names, which is no error.
    """

    def __init__(self, paths: Iterable[Path] = DEFAULT_PATHS) -> None:
        self._paths = tuple(paths)
        self._lock = threading.Lock()
        self._text: str | None = None
        self._section = functools.lru_cache(maxsize=256)(self._find_section)

    def vendor(self, vendor: str) -> str | None:
        """The vendor's name, e.g. `NVIDIA Corporation` for `10de`."""
        return _line(self._section(vendor), "", vendor)

    def device(self, vendor: str, device: str) -> str | None:
        """The device's name, e.g. `TU104GL [Tesla T4]`."""
        return _line(self._section(vendor), "\t", device)

    def _find_section(self, vendor: str) -> str:
        """The lines of one vendor, its own first."""
        match = re.search(
            rf"^{re.escape(vendor)}  .*\n?(?:[\t#].*\n?|\n)*",
            self._read(),
            re.MULTILINE,
        )
        return match.group() if match else ""

    def _read(self) -> str:
        with self._lock:
            if self._text is None:
                self._text = self._first()
            return self._text

    def _first(self) -> str:
        path = next((path for path in self._paths if path.is_file()), None)
        if path is None:
            return ""
        try:
            text = path.read_text("utf-8", errors="replace")
        except OSError as error:
            LOG.warning("No names of PCI devices: %s: %s", path, error)
            return ""
        return _as_pci_ids(text) if path.suffix == HWDB else text


def _as_pci_ids(hwdb: str) -> str:
    """The vendors and devices of udev's list in the shape of pci.ids.

    A device comes after its vendor there too, and what is said of both with
    a subsystem is left out.
    """
    return "".join(
        f"\t{device[-4:].lower()}  {name}\n"
        if device
        else f"{vendor[-4:].lower()}  {name}\n"
        for vendor, device, name in re.findall(
            r"^pci:v([0-9A-F]{8})(?:d([0-9A-F]{8}))?\*\n"
            r" ID_(?:VENDOR|MODEL)_FROM_DATABASE=(.*)",
            hwdb,
            re.MULTILINE,
        )
    )


def _line(section: str, indent: str, identity: str) -> str | None:
    match = re.search(
        rf"^{indent}{re.escape(identity)}  (.*\S)", section, re.MULTILINE
    )
    return match.group(1) if match else None

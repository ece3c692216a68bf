# SPDX-License-Identifier: Apache-2.0
"""Names from a pci.ids file, and our own words for vendors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cyborg.hardware.pciids import DEFAULT_PATHS
from cyborg.hardware.pciids import VENDOR_WORDS
from cyborg.hardware.pciids import PciNames
from cyborg.hardware.pciids import vendor_word

LIST = """\
#
#\tList of PCI ID's
#
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t740f  Aldebaran/MI200 [Instinct MI210]
10de  NVIDIA Corporation
# a remark inside
\t1db4  GV100GL [Tesla V100 PCIe 16GB]
\t\t10de 1214  Tesla V100

\t1eb8  TU104GL [Tesla T4]
ffff  Illegal Vendor ID

C 03  Display controller
\t00  VGA compatible controller
\t\t00  VGA controller
\t02  3D controller
"""

HWDB = """\
# This file is part of systemd.
#
# Data imported from: https://pci-ids.ucw.cz/v2.2/pci.ids

pci:v00001002*
 ID_VENDOR_FROM_DATABASE=Advanced Micro Devices, Inc. [AMD/ATI]

pci:v00001002d0000740F*
 ID_MODEL_FROM_DATABASE=Aldebaran/MI200 [Instinct MI210]

pci:v000010DE*
 ID_VENDOR_FROM_DATABASE=NVIDIA Corporation

pci:v000010DEd00001DB4*
 ID_MODEL_FROM_DATABASE=GV100GL [Tesla V100 PCIe 16GB]

pci:v000010DEd00001DB4sv000010DEsd00001214*
 ID_MODEL_FROM_DATABASE=GV100GL [Tesla V100 PCIe 16GB] (Tesla V100)

pci:v000010DEd00001EB8*
 ID_MODEL_FROM_DATABASE=TU104GL [Tesla T4]

pci:v*d*sv*sd*bc03*
 ID_PCI_CLASS_FROM_DATABASE=Display controller

pci:v0000FFFF*
 ID_VENDOR_FROM_DATABASE=Illegal Vendor ID
"""


@pytest.fixture(params=["pci.ids", "20-pci-vendor-model.hwdb"])
def names(tmp_path: Path, request: pytest.FixtureRequest) -> PciNames:
    """From either list: the same names."""
    path = tmp_path / str(request.param)
    path.write_text(HWDB if path.suffix == ".hwdb" else LIST, "utf-8")
    return PciNames((tmp_path / "elsewhere", path))


def test_udevs_list_is_for_hosts_without_the_other(tmp_path: Path) -> None:
    ids = tmp_path / "pci.ids"
    udev = tmp_path / "x.hwdb"
    udev.write_text(HWDB.replace("NVIDIA", "udev's NVIDIA"), "utf-8")

    assert PciNames((ids, udev)).vendor("10de") == "udev's NVIDIA Corporation"
    ids.write_text(LIST, "utf-8")
    assert PciNames((ids, udev)).vendor("10de") == "NVIDIA Corporation"


def test_what_this_machine_has_is_read() -> None:
    """No list, a distribution's own, or udev's."""
    names = PciNames(DEFAULT_PATHS)
    there = any(path.is_file() for path in DEFAULT_PATHS)

    assert names.vendor("10de") == ("NVIDIA Corporation" if there else None)
    assert names.device("10de", "1eb8") == (
        "TU104GL [Tesla T4]" if there else None
    )


def test_vendors_and_devices_have_names(names: PciNames) -> None:
    assert names.vendor("10de") == "NVIDIA Corporation"
    assert names.device("10de", "1db4") == "GV100GL [Tesla V100 PCIe 16GB]"
    assert names.device("10de", "1eb8") == "TU104GL [Tesla T4]"
    assert names.device("1002", "740f") == "Aldebaran/MI200 [Instinct MI210]"


def test_a_device_is_looked_for_under_its_own_vendor(
    names: PciNames,
) -> None:
    assert names.device("1002", "1eb8") is None
    assert names.device("ffff", "1eb8") is None
    assert names.device("10de", "1214") is None


def test_what_is_not_in_the_list_has_no_name(names: PciNames) -> None:
    assert names.vendor("1234") is None
    assert names.device("1234", "abcd") is None


def test_a_host_without_a_list_has_no_names(tmp_path: Path) -> None:
    names = PciNames((tmp_path / "pci.ids",))

    assert names.vendor("10de") is None
    assert names.device("10de", "1eb8") is None


def test_a_list_that_is_a_directory_gives_no_names(tmp_path: Path) -> None:
    assert PciNames((tmp_path,)).vendor("10de") is None


def test_a_list_with_bytes_that_are_no_text_is_read_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pci.ids"
    path.write_bytes(b"1000  Soci\xe9t\xe9\n10de  NVIDIA Corporation\n")

    assert PciNames((path,)).vendor("10de") == "NVIDIA Corporation"


def test_nothing_is_read_before_the_first_question(tmp_path: Path) -> None:
    path = tmp_path / "pci.ids"
    names = PciNames((path,))
    path.write_text(LIST, "utf-8")

    assert names.vendor("10de") == "NVIDIA Corporation"
    path.unlink()
    assert names.device("10de", "1eb8") == "TU104GL [Tesla T4]"


def test_our_words_are_one_legal_word_each() -> None:
    for vendor, word in VENDOR_WORDS.items():
        assert re.fullmatch(r"[0-9a-f]{4}", vendor)
        assert re.fullmatch(r"[A-Z0-9]+", word)
    assert vendor_word("8086") == "INTEL"
    assert vendor_word("abcd") == "ABCD"


def test_a_class_is_not_taken_for_a_device(names: PciNames) -> None:
    assert names.device("ffff", "02") is None

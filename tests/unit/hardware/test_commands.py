# SPDX-License-Identifier: Apache-2.0
"""Each command of the drivers is one that the helper runs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from cyborg.drivers.intel_fpga import IntelFpgaDriver
from cyborg.drivers.xilinx import XilinxFpgaDriver
from cyborg.hardware import nvidia
from cyborg.hardware.commands import is_allowed
from cyborg.hardware.nvme import Controller
from cyborg.hardware.nvme import Namespace
from cyborg.hardware.nvme_cli import ALL_NAMESPACES
from cyborg.hardware.nvme_cli import FormatErase
from cyborg.hardware.nvme_cli import Layout
from cyborg.hardware.nvme_cli import NvmeCli
from cyborg.hardware.nvme_cli import SanitizeAction
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.tools import ToolError
from cyborg.inventory import pci_json
from tests.driver_host import driver_host
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree


@pytest.fixture
def tools() -> RecordedTools:
    tools = RecordedTools()
    for name in ("nvme", "blkdiscard", "fpgaconf", "xbmgmt", "sriov-manage"):
        tools.answer(name, "")
    return tools


def test_every_command_to_a_disk_is_allowed(tools: RecordedTools) -> None:
    cli = NvmeCli(tools)
    one = Controller("nvme12", "m", "s", "f", "live", "", "")
    for ask in (cli.identify, cli.sanitize_log, cli.namespaces):
        with contextlib.suppress(ToolError):
            ask(one, 1.0)
    with contextlib.suppress(ToolError):
        cli.namespaces(one, 1.0, allocated=True)
    with contextlib.suppress(ToolError):
        cli.layout(one, 2**32 - 2, 1.0)
    for action in SanitizeAction:
        for unrestricted in (False, True):
            cli.sanitize(one, action, 1.0, unrestricted)
    for erase in FormatErase:
        cli.format(one, ALL_NAMESPACES, Layout(63, 1, 3, 1), erase, 9e9)
        cli.format(one, 1, Layout(0), erase, 1.0)
    cli.zero(Namespace("nvme0n1", 1, 2**60), 2**59, 2**59, 1.0)

    assert len(tools.commands) == 5 + 8 + 4 + 1
    assert [one for one in tools.commands if not is_allowed(one)] == []


def test_every_command_to_a_card_is_allowed(
    tools: RecordedTools, tmp_path: Path
) -> None:
    tree = SysfsTree(tmp_path / "sys")
    tree.add_intel_pac_arria10()
    tree.add_xilinx_u250()
    host = driver_host(tree.root, tools=tools)
    image = tmp_path / "an image"
    image.write_bytes(b"x")
    IntelFpgaDriver(host).program("", pci_json("0000:5e:00.0"), image, {}, 1.0)
    for kind in ("bitstream", "firmware"):
        XilinxFpgaDriver(host).program(
            "", pci_json("0000:3b:00.0"), image, {"kind": kind}, 1.0
        )
    tree.add_nvidia_l40s(vfs=0)
    with pytest.raises(HardwareError, match="no virtual function"):
        nvidia.enable_virtual_functions(host.sysfs, tools, "0000:82:00.0", 1.0)

    assert len(tools.commands) == 4
    assert [one for one in tools.commands if not is_allowed(one)] == []

# SPDX-License-Identifier: Apache-2.0
"""What the drivers of single vendors show of their cards in a fake tree."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cyborg.drivers.testing.cards import Card
from cyborg.drivers.testing.drawing import link
from cyborg.drivers.testing.drawing import write
from cyborg.drivers.testing.tree import SysfsTree

AFU_ID = "d8424dc4a4a3c413f89e433683f9040b"
INTERFACE_ID = "69528db6eb31577a8c3668f9faa081f6"
NVIDIA_PROC = "driver/nvidia"


def draw(tree: SysfsTree, card: Card, path: Path) -> None:
    """The vendor's parts of a function; nothing where it has none."""
    if card.parts == "dfl" or (card.physical and card.driver == "dfl-pci"):
        dfl(tree, path, is_virtual=card.physical is not None)
    elif card.parts == "intel-fpga":
        intel_fpga(tree, path)
    elif card.parts == "accel":
        accel = path / "accel" / f"accel{tree.next_number('accel')}"
        write(accel / "dev", f"261:{accel.name.removeprefix('accel')}")
        link(accel / "device", path)
        link(tree.root / "class" / "accel" / accel.name, accel)
    elif card.driver == "nvidia" and not card.physical:
        nvidia(tree, card.address)


def dfl(tree: SysfsTree, path: Path, is_virtual: bool) -> None:
    """The mainline kernel's layout; every number is system-wide."""
    region = path / "fpga_region" / f"region{tree.next_number('region')}"
    region.mkdir(parents=True)
    # Reading it gives ENOENT though the file is there.
    (region / "compat_id").symlink_to("no-such-file")
    link(tree.root / "class" / "fpga_region" / region.name, region)
    if not is_virtual:
        _dfl_engine(tree, region)
    port = region / f"dfl-port.{tree.next_number('dfl-port')}"
    for name, text in (
        ("afu_id", AFU_ID),
        ("id", "0"),
        ("power_state", "0x0"),
        ("errors/errors", "0x0"),
    ):
        write(port / name, text)


def _dfl_engine(tree: SysfsTree, region: Path) -> None:
    """The management engine and the region that it programs."""
    engine = region / f"dfl-fme.{tree.next_number('dfl-fme')}"
    for name, text in (
        ("ports_num", "1"),
        ("bitstream_id", "0x23000110010309"),
        ("bitstream_metadata", "0x1f0c2c5"),
        ("socket_id", "0"),
        ("cache_size", "0"),
        ("fabric_version", "0"),
        ("errors/fme_errors", "0x0"),
        ("dev", "240:0"),
    ):
        write(engine / name, text)
    number = tree.next_number("region")
    inner = (
        engine
        / f"dfl-fme-region.{tree.next_number('dfl-fme-region')}"
        / "fpga_region"
        / f"region{number}"
    )
    write(inner / "compat_id", INTERFACE_ID)
    link(tree.root / "class" / "fpga_region" / inner.name, inner)


def intel_fpga(tree: SysfsTree, path: Path) -> None:
    """The older out-of-tree driver's layout."""
    number = tree.next_number("intel-fpga-dev")
    device = path / "fpga" / f"intel-fpga-dev.{number}"
    engine = device / f"intel-fpga-fme.{number}"
    for name, text in (
        ("pr/interface_id", INTERFACE_ID),
        ("bitstream_id", "0x23000110010309"),
        ("bitstream_metadata", "0x1f0c2c5"),
        ("ports_num", "1"),
        ("socket_id", "0"),
    ):
        write(engine / name, text)
    port = device / f"intel-fpga-port.{number}"
    write(port / "afu_id", AFU_ID)
    write(port / "id", "0")
    link(device / "device", path)
    link(tree.root / "class" / "fpga" / device.name, device)


def nvidia(tree: SysfsTree, address: str) -> None:
    """The proc file by which the driver's numbers are found."""
    number = tree.next_number("nvidia")
    tree.write_proc(
        f"{NVIDIA_PROC}/gpus/{address}/information",
        "Model: \t\t NVIDIA\n"
        "IRQ:   \t\t 120\n"
        f"GPU UUID: \t GPU-00000000-0000-0000-0000-{number:012}\n"
        "Video BIOS: \t 92.00.45.00.03\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 47 bits\n"
        "DMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {address}\n"
        f"Device Minor: \t {number}\n",
    )


def mig(tree: SysfsTree, address: str, instances: Iterable[int]) -> None:
    """GPU instances of these numbers, each with one compute instance."""
    information = tree.proc / NVIDIA_PROC / "gpus" / address / "information"
    gpu = f"gpu{information.read_text().split()[-1]}"
    minors = []
    for place, number in enumerate(instances):
        for name in (f"gi{number}", f"gi{number}/ci0"):
            minor = 4 + 9 * place + name.count("/")
            tree.write_proc(
                f"{NVIDIA_PROC}/capabilities/{gpu}/mig/{name}/access",
                f"DeviceFileMinor: {minor}\n"
                "DeviceFileMode: 292\n"
                "DeviceFileModify: 1\n",
            )
            minors.append(f"{gpu}/{name}/access {minor}\n")
    tree.write_proc("driver/nvidia-caps/mig-minors", "".join(minors))

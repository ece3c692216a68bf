# SPDX-License-Identifier: Apache-2.0
"""Single things of a fake sysfs: files, links, and what drivers of the
kernel add to a function."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

VGPU_HEADER = "ID    : vGPU Name"


def write(path: Path, text: str) -> None:
    """A file with one value, as sysfs shows it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def write_only(path: Path) -> None:
    """A file that takes values and cannot be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o200)


def link(path: Path, target: Path) -> None:
    """A symbolic link as relative as the kernel's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def interface(root: Path, path: Path, name: str, number: int) -> None:
    """A network interface of the function at `path`."""
    directory = path / "net" / name
    for file, text in (
        ("address", f"3c:fd:fe:00:{number >> 8:02x}:{number & 0xFF:02x}"),
        ("operstate", "up"),
        ("carrier", "1"),
        ("speed", "25000"),
        ("mtu", "1500"),
    ):
        write(directory / file, text)
    link(directory / "device", path)
    link(root / "class" / "net" / name, directory)


def mdev_types(
    root: Path, path: Path, types: Iterable[str], most: int | None
) -> None:
    """What `mdev_supported_types` holds; `most` instances of each at the
    most, where given."""
    for text in types:
        identity, name, instances = text.split(":")
        available = min(int(instances), most or int(instances))
        directory = path / "mdev_supported_types" / identity
        (directory / "devices").mkdir(parents=True)
        write(directory / "name", name)
        write(
            directory / "description",
            f"num_heads=4, frl_config=45, framebuffer=1024M, "
            f"max_resolution=5120x2880, max_instance={instances}",
        )
        write(directory / "available_instances", str(available))
        write(directory / "device_api", "vfio-pci")
        write_only(directory / "create")
    if types:
        link(root / "class" / "mdev_bus" / path.name, path)


def vgpu_types(path: Path, types: Iterable[str]) -> None:
    """The `nvidia` directory of a vendor-specific virtual function."""
    write(path / "nvidia" / "creatable_vgpu_types", vgpu_table(types))
    write(path / "nvidia" / "current_vgpu_type", "0")
    write(path / "nvidia" / "vgpu_params", "")


def vgpu_table(types: Iterable[str]) -> str:
    """What `creatable_vgpu_types` says of `id:name:most` texts."""
    return "\n".join(
        (
            VGPU_HEADER,
            *(
                "{:<6}: {}".format(*text.split(":")[:2]).rstrip()
                for text in types
            ),
        )
    )


def nvme(root: Path, path: Path, model: str, number: int) -> None:
    """A controller with one namespace, without multipath."""
    controller = path / "nvme" / f"nvme{number}"
    for file, text in (
        ("model", f"{model:<40}"),
        ("serial", f"{f'PHLJ{number:08}1P0A':<20}"),
        ("firmware_rev", f"{'VDV10131':<8}"),
        ("state", "live"),
        ("address", path.name),
        ("transport", "pcie"),
        ("cntlid", str(number)),
        ("numa_node", "0"),
        ("queue_count", "65"),
        ("sqsize", "1023"),
        ("subsysnqn", f"nqn.2014.08.org.nvmexpress:{number:08}"),
        ("cntrltype", "io"),
        ("dev", f"239:{number}"),
    ):
        write(controller / file, text)
    write_only(controller / "reset_controller")
    write_only(controller / "rescan_controller")
    link(controller / "device", path)
    link(root / "class" / "nvme" / controller.name, controller)
    namespace = controller / f"nvme{number}n1"
    for file, text in (
        ("nsid", "1"),
        ("wwid", f"eui.0100000001000000e4d25c{number:010x}"),
        ("size", "1953525168"),
        ("dev", f"259:{number * 16}"),
        ("queue/logical_block_size", "512"),
    ):
        write(namespace / file, text)
    (namespace / "holders").mkdir()
    link(namespace / "device", controller)
    link(root / "class" / "block" / namespace.name, namespace)

# SPDX-License-Identifier: Apache-2.0
"""Time one look at a host that is full of cards, by every driver at once.

`python -m benchmarks.hardware`, from the source tree, in the tests'
environment.  It needs no server, and no hardware: the tree is a fake one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from cyborg.agent.discovery import Discovery
from cyborg.hardware.pci import Sysfs
from tests.driver_host import driver_host
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

DRIVERS = (
    "nvidia_gpu_driver",
    "amd_gpu_driver",
    "intel_gpu_driver",
    "intel_fpga_driver",
    "xilinx_fpga_driver",
    "inspur_fpga_driver",
    "intel_qat_driver",
    "intel_nic_driver",
    "huawei_ascend_driver",
    "inspur_nvme_ssd_driver",
    "nvme_driver",
    "pci_driver",
    "fake_driver",
)
"""All but SPDK's, which ask another process and not the hardware."""

OPTIONS = {
    "nvme": {"device_spec": ['{"vendor_id": "8086"}']},
    "pci": {
        "passthrough_whitelist": [
            json.dumps([{"vendor_id": one} for one in ("15b3", "1da3")])
        ]
    },
}


def fill(tree: SysfsTree, functions: int) -> int:
    """At least so many functions: every card, then a T4 on each bus that is
    free; how many there are."""
    tree.add_every_card()
    for number in range(0x8000):
        if len(tree.cards) >= functions:
            break
        tree.add_nvidia_t4(f"{1 + number // 256:04x}:{number % 256:02x}:1f.0")
    return len(tree.cards)


def timed(repeat: int, look: object) -> str:
    """The middle and the longest of so many looks, in milliseconds."""
    assert callable(look)
    took = []
    for _ in range(repeat):
        began = time.perf_counter()
        look()
        took.append((time.perf_counter() - began) * 1000)
    return f"{statistics.median(took):8.1f} {max(took):8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hardware")
    parser.add_argument("--functions", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=20)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = SysfsTree(Path(folder) / "sys")
        functions = fill(tree, told.functions)
        host = driver_host(tree.root, OPTIONS, tools=RecordedTools())
        every = Discovery(DRIVERS, host, limit=60)
        found = every.look()
        assert found is not None
        assert not found.faults
        print(f"{functions} functions, {len(found.devices)} devices")
        print("one look                     p50 ms   max ms")
        scan = Sysfs(tree.root).functions
        print(f"{'the scan alone':<26} {timed(told.repeat, scan)}")
        for name in DRIVERS:
            one = Discovery([name], host, limit=60)
            one.look()
            print(f"{name:<26} {timed(told.repeat, one.look)}")
        print(f"{'all drivers at once':<26} {timed(told.repeat, every.look)}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A host with cards for a real agent and its real privileged helper.

Its sysfs is a fake tree with a kernel's thread behind it (fake_kernel.py),
its vendors' tools keep what they were asked (fake_tool.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cards import CARDS
from tests.integration import deployment
from tests.integration import resources
from tests.integration.fake_kernel import Kernel
from tests.integration.fake_kernel import Mediated
from tests.sysfs import SysfsTree

TOOLS = ("blkdiscard", "fpgaconf", "nvme", "sriov-manage", "xbmgmt")

VGPU = "nvidia-222"
T4, OTHER_T4 = "0000:af:00.0", "0000:d8:00.0"
A100 = "0000:41:00.0"
A100_VFS = 4
QAT = "0000:3d:00.0"
QAT_VFS = 16
DISK = "0000:5f:00.0"
PAC = "0000:5e:00.0"
ALVEO = "0000:3b:00.0"
PARTS = 5 + QAT_VFS
"""Deployables with an inventory in Placement: the T4s, the disk, the PAC,
the Alveo, and the virtual functions of the QAT.  The A100 keeps none for
itself once it has virtual functions."""

DRIVERS = (
    "nvidia_gpu_driver",
    "nvme_driver",
    "intel_fpga_driver",
    "xilinx_fpga_driver",
    "intel_qat_driver",
)

CONFIGURATION = f"""
[agent]
enabled_drivers = {{drivers}}
sysfs_root = {{root}}
clean_timeouts = nvme_driver:{{nvme_seconds}}
virtual_functions = {QAT}={QAT_VFS}, {A100}=max
[gpu_devices]
enabled_vgpu_types = {VGPU}
[vgpu_{VGPU}]
device_addresses = {T4}, {OTHER_T4}
[nvme]
device_spec = {{{{"address": "{DISK}"}}}}
"""


class FakeHost:
    """The host of a deployment's agent."""

    def __init__(
        self, cyborg: deployment.Deployment, nvme_seconds: int
    ) -> None:
        self.cyborg = cyborg
        self.tree = SysfsTree(cyborg.folder / "host" / "sys")
        self._tools = cyborg.folder / "host" / "tools"
        self._state = cyborg.folder / "host" / "state"
        self._tools.mkdir()
        self._state.mkdir()
        self._install_tools()
        self.kernel = Kernel(self.tree.root)
        self._plug_in()
        with cyborg.configuration.open("a") as file:
            file.write(
                CONFIGURATION.format(
                    drivers=", ".join(DRIVERS),
                    root=self.tree.root,
                    nvme_seconds=nvme_seconds,
                )
            )

    def close(self) -> None:
        self.kernel.close()

    # The agent -----------------------------------------------------------

    def start_agent(self, **environment: str) -> None:
        """The agent of this host, once it listens."""
        path = f"{self._tools}{os.pathsep}{os.environ['PATH']}"
        agent = self.cyborg.launch(
            "agent", environment={"PATH": path, **environment}
        )
        queue = f"cyborg-agent.{self.cyborg.host}"
        resources.wait_until(
            lambda: not agent.running or self.cyborg.vhost.consumers(queue),
            deployment.READY_SECONDS,
            "the agent listens",
        )
        assert agent.running, agent.tail()

    def helpers(self) -> list[int]:
        """The pids of the privileged helper and of its children that
        write."""
        found = []
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = place.read_bytes().split(b"\0")
                if str(self.cyborg.configuration).encode() in words and any(
                    word.endswith(b"privsep-helper") for word in words
                ):
                    found.append(int(place.parent.name))
        return found

    def ledger(self) -> set[str]:
        """The uuids of the units that the agent would make again."""
        file = self.cyborg.folder / f"made-{self.cyborg.host}.json"
        if not file.exists():
            return set()
        return {unit["uuid"] for unit in json.loads(file.read_text())["units"]}

    # Hardware ------------------------------------------------------------

    def _plug_in(self) -> None:
        tree = self.tree
        for address in (T4, OTHER_T4):
            tree.add_nvidia_t4(address)
        tree.add_function(
            dataclasses.replace(
                CARDS["nvidia_a100"],
                total_vfs=A100_VFS,
                vf_mdev_types=(),
            )
        )
        tree.add_intel_c62x(QAT)
        tree.add_intel_p4510(DISK)
        tree.add_intel_pac_arria10(PAC)
        tree.add_xilinx_u250(ALVEO)
        self.vgpus = Mediated(tree, self.kernel, T4, VGPU)
        self.other_vgpus = Mediated(tree, self.kernel, OTHER_T4, VGPU)
        self.change_disk(
            identity={
                "sn": "PHLJ000000001P0A".ljust(20),
                "mn": "INTEL SSDPE2KX010T8".ljust(40),
                "sanicap": 0b001,
                "oacs": 0,
                "fna": 0,
                "oncs": 0,
            },
            status=0,
            sprog=65535,
        )
        os.mkfifo(self._state / "sriov.done")
        self.kernel.watch(self._state / "sriov.ask", self._sriov_manage)
        self._await_vfs()

    def _await_vfs(self) -> None:
        self.kernel.gate(
            self.tree.path(QAT) / "sriov_numvfs",
            lambda: self._make_vfs(QAT, QAT_VFS),
        )

    def _sriov_manage(self, words: str) -> None:
        assert words == f"-e {A100}"
        self._make_vfs(A100, A100_VFS)
        (self._state / "sriov.done").write_text("Enabling VFs\n")

    def _make_vfs(self, address: str, count: int) -> None:
        self.tree.add_virtual_functions(self.tree.cards[address], count)

    def virtual_functions(self, address: str) -> int:
        return len(list(self.tree.path(address).glob("virtfn*")))

    def reboot(self) -> None:
        """What a host forgets while it is down."""
        self.vgpus.lose_all()
        self.other_vgpus.lose_all()
        for address in (QAT, A100):
            self.tree.remove_virtual_functions(address)
        self._await_vfs()

    def disk(self) -> dict[str, Any]:
        """The fake NVMe as it is: its `status` is the sanitize log's."""
        found: dict[str, Any] = json.loads(self._disk.read_text())
        return found

    def change_disk(self, **values: object) -> None:
        known = self.disk() if self._disk.exists() else {}
        new = self._disk.with_suffix(".test")
        new.write_text(json.dumps({**known, **values}))
        new.replace(self._disk)

    @property
    def _disk(self) -> Path:
        return self._state / "nvme0"

    # Tools ---------------------------------------------------------------

    def _install_tools(self) -> None:
        script = Path(__file__).with_name("fake_tool.py").read_text()
        for name in TOOLS:
            path = self._tools / name
            path.write_text(f"#!{sys.executable} -IS\n{script}")
            path.chmod(0o755)
        (self._state / "commands").touch()

    def runs(self, tool: str) -> list[dict[str, Any]]:
        """Each run of the tool: its `words`, and the `files` among them."""
        lines = (self._state / "commands").read_text().splitlines()
        runs = map(json.loads, lines)
        return [run for run in runs if run["words"][0] == tool]

    def commands(self, tool: str) -> list[list[str]]:
        """The argument vectors of the tool's runs."""
        return [run["words"] for run in self.runs(tool)]

    def forget_commands(self) -> None:
        (self._state / "commands").write_text("")

    @contextlib.contextmanager
    def failing(self, tool: str, status: int, text: str) -> Iterator[None]:
        """Meanwhile the tool fails so."""
        file = self._state / f"{tool}.failure"
        file.write_text(json.dumps([status, text]))
        try:
            yield
        finally:
            file.unlink()

    @contextlib.contextmanager
    def holding(self, tool: str) -> Iterator[None]:
        """Meanwhile the tool hangs; what hangs goes on afterwards."""
        gate = self._state / f"{tool}.gate"
        os.mkfifo(gate)
        try:
            yield
        finally:
            # Opened for both: whoever waits for a writer finds one.
            end = os.open(gate, os.O_RDWR | os.O_NONBLOCK)
            gate.unlink()
            os.close(end)

# SPDX-License-Identifier: Apache-2.0
"""Every driver of ours keeps the promises of drivers."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from cyborg.agent import vetting
from cyborg.drivers.testing.abilities import Cleans
from cyborg.drivers.testing.abilities import MakesUnits
from cyborg.drivers.testing.abilities import Programs
from cyborg.drivers.testing.abilities import TellsHealth
from cyborg.drivers.testing.conformance import Conformance
from cyborg.drivers.testing.conformance import WrongOption
from cyborg.drivers.testing.host import Options
from cyborg.drivers.testing.reports import NAMESPACE
from cyborg.drivers.testing.tools import RecordedTools
from cyborg.drivers.testing.tree import SysfsTree as AnyTree
from tests import spdk_stand_in as spdk
from tests.cards import CARDS
from tests.spdk_stand_in import SpdkStandIn
from tests.spdk_stand_in import spdk_stand_in
from tests.sysfs import SysfsTree

__all__ = ("spdk_stand_in",)

CLEANING: tuple[WrongOption, ...] = tuple(
    (
        "[agent] clean_timeouts",
        {
            "agent": {
                "clean_on_release": True,
                "clean_timeouts": {name: text},
            }
        },
    )
    for name in ("nvme_driver",)
    for text in ("soon", "0", "-1", "86401")
)


def wrong(group: str, name: str, *values: object) -> tuple[WrongOption, ...]:
    """An option with each value that it must not have."""
    return tuple(
        (f"[{group}] {name}", {group: {name: value}}) for value in values
    )


class Ours(Conformance):
    """With our cards by name, and the agent's own opinion."""

    tree_class: ClassVar[type[AnyTree]] = SysfsTree

    def plug(self, tree: AnyTree) -> None:
        assert isinstance(tree, SysfsTree)
        self.add(tree)

    def add(self, tree: SysfsTree) -> None:
        """Plugs the cards in."""
        raise NotImplementedError

    def test_the_agent_takes_each_device(self, root: Path) -> None:
        name = self.kind().name
        for device in self.look(self.host(root)):
            assert vetting.addresses(vetting.vetted(name, device))


class TestFake(TellsHealth, Ours):
    driver = "fake_driver"
    options: ClassVar[Options] = {
        "fake": {"devices": 3, "accelerators_per_device": 4}
    }
    wrong_options = (
        *wrong("fake", "devices", -1),
        *wrong("fake", "accelerators_per_device", 0, 5000),
        *wrong("fake", "program_seconds", "soon"),
        *wrong("fake", "program_failure", "perhaps"),
    )

    # There is no file of its cards to break, and nothing to pull out.
    test_one_bad_path_costs_at_most_its_card_and_one_warning = None
    test_a_card_that_goes_while_it_is_looked_at_is_no_fault = None

    def add(self, tree: SysfsTree) -> None:
        tree.add_unknown()

    def test_a_host_without_its_cards_has_nothing_to_report(
        self, tmp_path: Path
    ) -> None:
        """Its cards are options: none is there where they say so."""
        host = self.host(tmp_path, options={"fake": {"devices": 0}})

        assert self.look(host) == ()


class TestPci(Cleans, Ours):
    driver = "pci_driver"
    options: ClassVar[Options] = {
        "pci": {
            "passthrough_whitelist": [
                '{"vendor_id": "10de"}',
                '{"devname": "eth2", "physical_network": "physnet1"}',
                '{"devname": "eth3", "physical_network": "physnet2"}',
                '{"vendor_id": "1234", "traits": ["NEW"],'
                ' "resource_class": "CUSTOM_THING"}',
            ]
        }
    }
    wrong_options = wrong(
        "pci",
        "passthrough_whitelist",
        ["{"],
        ["[1]"],
        ["{}"],
        ['{"address": "x"}'],
        ['{"address": "*", "devname": "eth0"}'],
        ['{"vendor_id": 1}'],
    )

    def add(self, tree: SysfsTree) -> None:
        tree.add_nvidia_t4()
        tree.add_nvidia_a100(vfs=2)
        tree.add_intel_x710(vfs=1)
        tree.add_unknown()


class TestNvidiaWhole(Cleans, Ours):
    driver = "nvidia_gpu_driver"
    wrong_options = (
        *wrong("gpu_devices", "filter_sriov_vfs", "perhaps"),
        *wrong("gpu_devices", "offer_vendor_vgpus", "perhaps"),
        *wrong("gpu_devices", "enabled_vgpu_types", ["../222"]),
    )

    def add(self, tree: SysfsTree) -> None:
        tree.add_nvidia_t4()
        tree.add_nvidia_a100_mig()
        tree.add_nvidia_m60()


class TestNvidiaMediated(MakesUnits, Cleans, Ours):
    driver = "nvidia_gpu_driver"
    options: ClassVar[Options] = {
        "gpu_devices": {"enabled_vgpu_types": ["nvidia-222", "nvidia-468"]},
        "vgpu_nvidia-222": {"device_addresses": ["0000:af:00.0"]},
        "vgpu_nvidia-468": {
            "device_addresses": ["0000:41:00.4", "0000:41:00.5"]
        },
    }
    wrong_options = (
        *wrong("vgpu_nvidia-222", "device_addresses", "", "x", "0000:41:00.4"),
    )

    def add(self, tree: SysfsTree) -> None:
        tree.add_nvidia_t4()
        tree.add_nvidia_a100(vfs=2)


class TestNvidiaVendorVgpu(MakesUnits, Cleans, Ours):
    driver = "nvidia_gpu_driver"
    options: ClassVar[Options] = {
        "gpu_devices": {
            "enabled_vgpu_types": ["nvidia-1147"],
            "offer_vendor_vgpus": True,
        },
        "vgpu_nvidia-1147": {
            "device_addresses": ["0000:82:00.4", "0000:82:00.5"]
        },
    }

    def add(self, tree: SysfsTree) -> None:
        tree.add_nvidia_l40s(vfs=2)
        tree.add_nvidia_h200()


class TestAmd(Cleans, Ours):
    driver = "amd_gpu_driver"
    options: ClassVar[Options] = {"amd_gpu": {"virtual_functions": True}}
    wrong_options = wrong("amd_gpu", "virtual_functions", "perhaps")

    def add(self, tree: SysfsTree) -> None:
        tree.add_amd_mi210()
        tree.add_amd_mi300x(vfs=1)


class TestIntelGpu(Cleans, Ours):
    driver = "intel_gpu_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_intel_flex_170(vfs=2)
        tree.add_intel_max_1100()


class TestIntelFpgaMainline(Cleans, Programs, Ours):
    driver = "intel_fpga_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_intel_pac_arria10()
        tree.add_intel_n6001()


class TestIntelFpgaWithVirtualFunction(Cleans, Programs, Ours):
    driver = "intel_fpga_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_intel_pac_arria10(vfs=1)
        tree.add_intel_d5005()


class TestIntelFpgaOlder(Cleans, Programs, Ours):
    driver = "intel_fpga_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_intel_pac_arria10_old()
        tree.add_intel_pac_arria10_old("0000:60:00.0", vfs=0)


class TestXilinx(Programs, Ours):
    driver = "xilinx_fpga_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_xilinx_u250()
        tree.add_xilinx_u250("0000:d8:00.0")


class TestInspurFpga(Cleans, Ours):
    driver = "inspur_fpga_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_inspur_f10a()
        tree.add_inspur_f10a("0000:87:00.0")


class TestIntelQat(Cleans, Ours):
    driver = "intel_qat_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_intel_4xxx()
        tree.add_intel_c62x(vfs=2)


class TestIntelQatWithVirtualFunctions(Cleans, Ours):
    driver = "intel_qat_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_intel_4xxx("0000:3b:00.0", vfs=2)
        tree.add_intel_c62x()


class TestIntelNic(Cleans, Ours):
    driver = "intel_nic_driver"
    options: ClassVar[Options] = {
        "nic_devices": {"enabled_nic_types": ["x710_static"]},
        "x710_static": {
            "physical_device_mappings": ["physnet1:eth2", "physnet2:eth3"],
            "function_device_mappings": ["GTPv1:eth3|eth2"],
        },
    }
    wrong_options = (
        *wrong("x710_static", "physical_device_mappings", "eth2", ":eth2"),
        *wrong("x710_static", "function_device_mappings", "GTPv1:"),
        *wrong("x710_static", "device_addresses", "05:00.0", "x"),
    )

    def add(self, tree: SysfsTree) -> None:
        tree.add_intel_x710(vfs=2)
        tree.add_function(
            dataclasses.replace(
                CARDS["intel_x710"],
                address="0000:0a:00.0",
                interfaces=("eth4",),
            )
        )


class TestInspurSsd(Cleans, Ours):
    driver = "inspur_nvme_ssd_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_inspur_ns8500()
        tree.add_inspur_ns8500("0000:66:00.0")


class TestAscend(Cleans, Ours):
    driver = "huawei_ascend_driver"

    def add(self, tree: SysfsTree) -> None:
        tree.add_huawei_ascend_910()
        tree.add_huawei_ascend_310()
        tree.add_huawei_ascend_310p()


IDENTITY = {
    "vid": 0x8086,
    "oacs": 2,
    "fna": 4,
    "sanicap": 3,
    "oncs": 8,
    "sn": "serial",
    "mn": "model",
    "fr": "firmware",
}


class TestNvme(Cleans, Ours):
    driver = "nvme_driver"
    options: ClassVar[Options] = {
        "nvme": {"device_spec": ['{"address": "*"}']}
    }
    wrong_options = (
        *wrong(
            "nvme",
            "device_spec",
            ["{"],
            ["{}"],
            ['{"address": "*", "clear_action": "burn"}'],
            ['{"address": "*", "clear_strategy": "burn"}'],
        ),
        *wrong("nvme", "cleanup_timeout", "soon", "1"),
        *CLEANING,
    )
    discover_tools = frozenset({"nvme"})

    def tools(self) -> RecordedTools:
        tools = RecordedTools()
        tools.answer("nvme id-ctrl", json.dumps(IDENTITY))
        return tools

    def add(self, tree: SysfsTree) -> None:
        tree.add_intel_p4510()
        tree.add_nvme_behind_vmd()


class Spdk(Ours):
    """Two disks whose bdevs an SPDK application exports."""

    wrong_options = wrong("agent", "spdk_socket", "", "var/tmp/spdk.sock")

    @pytest.fixture(autouse=True)
    def _serve(self, request: pytest.FixtureRequest) -> None:
        stand_in: SpdkStandIn = request.getfixturevalue("spdk_stand_in")
        self.stand_in = stand_in
        self.options = {"agent": {"spdk_socket": str(stand_in.path)}}
        self.answer("0000:5e:00.0", "0000:5f:00.0")

    def answer(self, *addresses: str) -> None:
        """SPDK has the disks at these addresses."""
        names = [f"Nvme{number}n1" for number in range(len(addresses))]
        self.stand_in.answers = {
            "bdev_get_bdevs": [
                spdk.nvme_bdev(name, address)
                for name, address in zip(names, addresses, strict=True)
            ],
            "nvmf_get_subsystems": [
                spdk.subsystem(f"nqn.2016-06.io:{name}", name)
                for name in names
            ],
            "vhost_get_controllers": [
                spdk.vhost_block(f"vhost-{name}", name) for name in names
            ],
        }

    def add(self, tree: SysfsTree) -> None:
        for address in ("0000:5e:00.0", "0000:5f:00.0"):
            tree.add_intel_p4510(address)
            tree.unbind(address)

    def unplug(self, tree: AnyTree, addresses: Sequence[str]) -> None:
        super().unplug(tree, addresses)
        self.stand_in.answers["bdev_get_bdevs"] = [
            bdev
            for bdev in self.stand_in.answers["bdev_get_bdevs"]
            if bdev["driver_specific"]["nvme"][0]["pci_address"]
            not in addresses
        ]

    def test_a_host_without_its_cards_has_nothing_to_report(
        self, tmp_path: Path
    ) -> None:
        """Its cards are what SPDK says."""
        self.answer()

        super().test_a_host_without_its_cards_has_nothing_to_report(tmp_path)


class TestNvmfSpdk(Spdk):
    driver = "nvmf_spdk_driver"


class TestVhostSpdk(Spdk):
    driver = "vhost_spdk_driver"


def test_every_driver_of_ours_is_tested() -> None:
    names = {
        point.name
        for point in importlib.metadata.distribution(
            "openstack-cyborg"
        ).entry_points
        if point.group == NAMESPACE
    }

    tested = {
        kind.driver
        for kind in globals().values()
        if isinstance(kind, type)
        and issubclass(kind, Ours)
        and kind not in {Ours, Spdk}
    }

    assert tested == names

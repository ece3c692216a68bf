# SPDX-License-Identifier: Apache-2.0
"""A host full of cards, seen by every driver at once as an agent sees it.

What is expected is written from the driver contract, card by card.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cyborg import inventory
from cyborg.agent.discovery import Discovery
from cyborg.agent.discovery import Findings
from cyborg.hardware.pci import Sysfs
from tests.driver_host import driver_host
from tests.recorded_tools import RecordedTools
from tests.spdk_stand_in import SpdkStandIn
from tests.spdk_stand_in import nvme_bdev
from tests.spdk_stand_in import spdk_stand_in
from tests.spdk_stand_in import subsystem
from tests.sysfs import SysfsTree

__all__ = ("spdk_stand_in",)

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
    "nvmf_spdk_driver",
    "vhost_spdk_driver",
    "pci_driver",
    "fake_driver",
)

VGPU_T4 = "0000:37:00.0"
"""A second T4, which is offered in parts."""

SPDK_DISK = "0000:67:00.0"

NOBODY_ELSES = [
    {"vendor_id": "15b3"},
    {"vendor_id": "1da3"},
    {"vendor_id": "1234"},
    {"vendor_id": "1a03"},
    {"vendor_id": "8086", "product_id": "159b"},
]

OPTIONS: dict[str, dict[str, object]] = {
    "gpu_devices": {
        "enabled_vgpu_types": [
            "nvidia-222",
            "nvidia-18",
            "nvidia-471",
            "nvidia-1147",
        ],
        "offer_vendor_vgpus": True,
    },
    "vgpu_nvidia-222": {"device_addresses": [VGPU_T4]},
    "vgpu_nvidia-18": {"device_addresses": ["0000:84:00.0"]},
    "vgpu_nvidia-471": {"device_addresses": ["0000:41:00.4", "0000:41:00.5"]},
    "vgpu_nvidia-1147": {"device_addresses": ["0000:82:00.4"]},
    "amd_gpu": {"virtual_functions": True},
    "nic_devices": {"enabled_nic_types": ["x710_static"]},
    "x710_static": {
        "physical_device_mappings": ["physnet1:eth2", "physnet2:eth3"],
        "function_device_mappings": ["GTPv1:eth3|eth2"],
    },
    "nvme": {"device_spec": ['{"vendor_id": "8086"}']},
    "pci": {"passthrough_whitelist": [json.dumps(NOBODY_ELSES)]},
}

AFU = "CUSTOM_FPGA_FUNCTION_ID_INTEL_D8424DC4A4A3C413F89E433683F9040B"
REGION = "CUSTOM_FPGA_REGION_INTEL_69528DB6EB31577A8C3668F9FAA081F6"


class Row(NamedTuple):
    """What one device is reported as.

    `units` is how many attach handles it has in all; `reason` a part of why
    it is not offered, empty where it is.  `traits` are those of each of its
    deployables, without `OWNER_CYBORG`.
    """

    driver: str
    type: str
    resource_class: str
    traits: set[str]
    units: int = 1
    reason: str = ""
    attach: str = "PCI"


def _nvidia(product: str, reason: str = "") -> Row:
    return Row(
        "nvidia_gpu_driver",
        "GPU",
        "PGPU",
        {
            "CUSTOM_GPU_NVIDIA",
            f"CUSTOM_GPU_PRODUCT_ID_{product}",
            f"CUSTOM_NVIDIA_{product}",
        },
        reason=reason,
    )


def _vgpu(trait: str, units: int = 1, attach: str = "MDEV") -> Row:
    return Row(
        "nvidia_gpu_driver", "GPU", "VGPU", {trait}, units, attach=attach
    )


def _amd(product: str, *more: str, reason: str = "") -> Row:
    traits = {
        "CUSTOM_GPU_AMD",
        f"CUSTOM_GPU_PRODUCT_ID_{product}",
        f"CUSTOM_AMD_{product}",
        *more,
    }
    return Row("amd_gpu_driver", "GPU", "PGPU", traits, reason=reason)


def _intel_gpu(product: str) -> Row:
    traits = {"CUSTOM_GPU_INTEL", f"CUSTOM_GPU_PRODUCT_ID_{product}"}
    return Row("intel_gpu_driver", "GPU", "PGPU", traits)


def _intel_fpga(word: str) -> Row:
    traits = {"CUSTOM_FPGA_INTEL", f"CUSTOM_FPGA_INTEL_{word}", AFU, REGION}
    return Row("intel_fpga_driver", "FPGA", "FPGA", traits)


def _qat(product: str, units: int = 1) -> Row:
    traits = {"CUSTOM_QAT_INTEL", f"CUSTOM_QAT_PRODUCT_ID_{product}"}
    return Row("intel_qat_driver", "QAT", "CUSTOM_QAT", traits, units)


def _nic(network: str) -> Row:
    traits = {"CUSTOM_VF", f"CUSTOM_{network}", "CUSTOM_GTPV1"}
    return Row("intel_nic_driver", "NIC", "CUSTOM_NIC", traits, 2)


def _npu(product: str) -> Row:
    traits = {f"CUSTOM_NPU_HUAWEI_{product}"}
    return Row("huawei_ascend_driver", "AICHIP", "CUSTOM_NPU", traits)


def _nvme(reason: str = "") -> Row:
    traits = {"CUSTOM_NVME_INTEL", "CUSTOM_NVME_PRODUCT_ID_0A54"}
    return Row("nvme_driver", "NVME", "CUSTOM_NVME", traits, reason=reason)


def _pci(kind: str, vendor: str, product: str, reason: str = "") -> Row:
    traits = {f"CUSTOM_PCI_{vendor}", f"CUSTOM_PCI_PRODUCT_ID_{product}"}
    return Row("pci_driver", kind, "CUSTOM_PCI", traits, reason=reason)


EXPECTED = {
    # NVIDIA, whole
    "0000:af:00.0": _nvidia("1EB8"),
    "0000:3b:00.0": _nvidia("1DB4"),
    "0000:41:00.0": _nvidia("20F1", "16 virtual functions"),
    "0000:c1:00.0": _nvidia("20B2", "MIG"),
    "0000:1b:00.0": _nvidia("2330"),
    "0000:61:00.0": _nvidia("2331"),
    "0000:9d:00.0": _nvidia("2335"),
    "0000:82:00.0": _nvidia("26B9", "4 virtual functions"),
    "0000:26:00.0": _nvidia("27B8"),
    "0000:85:00.0": _nvidia("13F2"),
    # NVIDIA, in parts
    VGPU_T4: _vgpu("CUSTOM_NVIDIA_1EB8_T4_1B", 16),
    "0000:84:00.0": _vgpu("CUSTOM_NVIDIA_13F2_M60_2Q", 4),
    "0000:41:00.4": _vgpu("CUSTOM_NVIDIA_20F1_A100_10C"),
    "0000:41:00.5": _vgpu("CUSTOM_NVIDIA_20F1_A100_10C"),
    "0000:82:00.4": _vgpu("CUSTOM_NVIDIA_26B9_L40S_1Q", attach="PCI"),
    # Other GPUs
    "0000:c3:00.0": _amd("740F"),
    "0000:87:00.0": _amd("74A1", reason="1 virtual functions"),
    "0000:87:02.0": _amd("74B5", "CUSTOM_VF"),
    "0000:4d:00.0": _intel_gpu("56C0"),
    "0000:29:00.0": _intel_gpu("0BDA"),
    # FPGAs
    "0000:5e:00.0": _intel_fpga("PAC_ARRIA10"),
    "0000:60:00.0": _intel_fpga("PAC_ARRIA10"),
    "0000:b2:00.0": _intel_fpga("PAC_D5005"),
    "0000:b1:00.0": _intel_fpga("N6001"),
    "0000:d8:00.0": Row(
        "xilinx_fpga_driver",
        "FPGA",
        "FPGA",
        {
            "CUSTOM_FPGA_XILINX",
            "CUSTOM_FPGA_PRODUCT_ID_5004",
            "CUSTOM_FPGA_PRODUCT_ID_5005",
        },
        2,
    ),
    "0000:86:00.0": Row(
        "inspur_fpga_driver",
        "FPGA",
        "FPGA",
        {"CUSTOM_FPGA_INSPUR", "CUSTOM_FPGA_PRODUCT_ID_0911"},
    ),
    # QAT
    "0000:3d:00.0": _qat("37C9", 16),
    "0000:3f:00.0": _qat("37C8"),
    "0000:da:00.0": _qat("37C8"),
    "0000:6b:00.0": _qat("4940"),
    "0000:70:00.0": _qat("4941", 16),
    # Networks
    "0000:05:00.0": _nic("PHYSNET1"),
    "0000:05:00.1": _nic("PHYSNET2"),
    "0000:17:00.0": _pci("NIC", "INTEL", "159B"),
    "0000:06:00.0": _pci("NIC", "MELLANOX", "A2D6"),
    "0000:06:00.1": _pci("NIC", "MELLANOX", "A2D6"),
    "0000:06:00.2": _pci("PCI", "MELLANOX", "C2D3"),
    # Disks
    "0000:5f:00.0": _nvme(),
    "10000:01:00.0": _nvme("more than four digits"),
    "0000:65:00.0": Row(
        "inspur_nvme_ssd_driver",
        "SSD",
        "CUSTOM_SSD",
        {"CUSTOM_SSD_INSPUR", "CUSTOM_SSD_PRODUCT_ID_1003"},
    ),
    SPDK_DISK: Row(
        "nvmf_spdk_driver",
        "SSD",
        "CUSTOM_SSD",
        {"CUSTOM_SSD_SPDK", "CUSTOM_SSD_SPDK_NVMF", "CUSTOM_SSD_SPDK_INTEL"},
        attach="TEST_PCI",
    ),
    # AI chips and others
    "0000:0e:00.0": _npu("D100"),
    "0000:0d:00.0": _npu("D500"),
    "0000:81:00.0": _npu("D801"),
    "0000:83:00.0": _npu("D802"),
    "0000:19:00.0": _pci("AICHIP", "HABANA", "1020"),
    "0000:02:00.0": _pci("PCI", "1234", "ABCD"),
    "0000:03:00.0": _pci("GPU", "ASPEED", "2000", "boot display"),
    "0000:0c:00.0": Row(
        "fake_driver",
        "FPGA",
        "FPGA",
        {"CUSTOM_FAKE_DEVICE"},
        16,
        attach="TEST_PCI",
    ),
}


@pytest.fixture(scope="module")
def tree() -> Iterator[SysfsTree]:
    """Where another user can read it, as every user can read sysfs.

    It has thousands of files: who changes one puts it back.
    """
    directory = Path(tempfile.mkdtemp(prefix="cyborg-cards-"))
    directory.chmod(0o755)
    tree = SysfsTree(directory / "sys")
    tree.add_every_card()
    tree.add_nvidia_t4(VGPU_T4)
    yield tree
    shutil.rmtree(directory)


@pytest.fixture
def discovery(tree: SysfsTree, spdk_stand_in: SpdkStandIn) -> Discovery:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [nvme_bdev("Nvme0n1", SPDK_DISK)],
        "nvmf_get_subsystems": [subsystem("nqn.2016-06.io:a", "Nvme0n1")],
        "vhost_get_controllers": [],
    }
    options = {**OPTIONS, "agent": {"spdk_socket": str(spdk_stand_in.path)}}
    host = driver_host(tree.root, options, tools=RecordedTools())
    return Discovery(DRIVERS, host, limit=60)


def _look(discovery: Discovery) -> Findings:
    findings = discovery.look()
    assert findings is not None
    return findings


def _address(text: str) -> str:
    parts = json.loads(text)
    return "{domain}:{bus}:{device}.{function}".format(**parts)


def _row(device: inventory.Device) -> Row:
    """What of a device the table says; the whole reason, though."""
    handles = [h for d in device.deployables for h in d.attach_handles]
    (name,) = {
        inventory.resource_class(one.attributes) for one in device.deployables
    }
    (attach,) = {str(handle.attach_type) for handle in handles}
    (traits,) = {
        inventory.traits(one.attributes) for one in device.deployables
    }
    assert name is not None
    return Row(
        device.driver,
        str(device.type),
        name,
        set(traits) - {inventory.OWNER_TRAIT},
        len(handles),
        device.fault
        or next((one.fault for one in device.deployables if one.fault), ""),
        attach,
    )


def _digest(findings: Findings) -> str:
    return inventory.HostReport(
        "compute-1", "compute-1", None, findings.devices
    ).digest()


def test_every_card_is_reported_once_as_the_contract_says(
    discovery: Discovery,
) -> None:
    findings = _look(discovery)

    assert findings.faults == ()
    paths = [_address(one.controlpath) for one in findings.devices]
    assert sorted(paths) == sorted(EXPECTED)
    for path, device in zip(paths, findings.devices, strict=True):
        expected, found = EXPECTED[path], _row(device)
        assert expected.reason in found.reason
        assert bool(expected.reason) == bool(found.reason), found
        assert found._replace(reason=expected.reason) == expected


def test_a_second_look_gives_the_same_digest(discovery: Discovery) -> None:
    first = _digest(_look(discovery))

    assert _digest(_look(discovery)) == first


def test_no_unit_is_offered_by_two_and_names_are_of_host_and_address(
    discovery: Discovery,
) -> None:
    devices = _look(discovery).devices

    offered = [
        _address(handle.attach_info)
        for device in devices
        if not device.fault
        for deployable in device.deployables
        for handle in deployable.attach_handles
        if handle.attach_type is inventory.AttachType.PCI
    ]
    assert len(offered) == len(set(offered))
    assert not [one for one in offered if len(one) > len("0000:00:00.0")]
    single = [
        device
        for device in devices
        if len(device.deployables) == 1
        and device.driver not in {"fake_driver", "nvmf_spdk_driver"}
    ]
    assert len(single) > 40
    for device in single:
        (deployable,) = device.deployables
        assert deployable.name == (f"compute-1_{_address(device.controlpath)}")
    for device in devices:
        for deployable in device.deployables:
            handles = len(deployable.attach_handles)
            assert handles % deployable.num_accelerators == 0


def test_a_virtual_function_of_a_nic_says_its_network_to_nova(
    discovery: Discovery,
) -> None:
    networks = {
        deployable.name: json.loads(handle.attach_info)["physical_network"]
        for device in _look(discovery).devices
        if device.driver == "intel_nic_driver"
        for deployable in device.deployables
        for handle in deployable.attach_handles
    }

    assert networks == {
        "compute-1_0000:05:02.0": "physnet1",
        "compute-1_0000:05:02.1": "physnet1",
        "compute-1_0000:05:0a.0": "physnet2",
        "compute-1_0000:05:0a.1": "physnet2",
    }


def test_one_broken_card_leaves_every_other_reported(
    tree: SysfsTree, discovery: Discovery, caplog: pytest.LogCaptureFixture
) -> None:
    before = _look(discovery).devices
    caplog.clear()
    file = tree.path("0000:c3:00.0") / "class"
    whole = file.read_text()

    file.write_text("rubbish\n")
    after = _look(discovery).devices
    file.write_text(whole)

    gone = {d.controlpath for d in before} - {d.controlpath for d in after}
    assert gone == {inventory.pci_json("0000:c3:00.0")}
    assert caplog.text.count("is left out") == 1


READ_AS_NOBODY = """\
import os, sys
from pathlib import Path
from cyborg.agent.discovery import Discovery
from tests.driver_host import driver_host
from tests.functional.drivers.test_all_cards import DRIVERS, OPTIONS, _digest
from tests.recorded_tools import RecordedTools

def look():
    names = [name for name in DRIVERS if "spdk" not in name]
    host = driver_host(Path(sys.argv[1]), OPTIONS, tools=RecordedTools())
    return Discovery(names, host, limit=120).look()

look()  # so that all code is loaded: it may be in a directory of root's
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
found = look()
print(os.getuid(), len(found.faults), _digest(found))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another")
def test_discovery_needs_no_root(tree: SysfsTree) -> None:
    names = [name for name in DRIVERS if "spdk" not in name]
    host = driver_host(tree.root, OPTIONS, tools=RecordedTools())
    expected = _digest(_look(Discovery(names, host, limit=60)))

    done = subprocess.run(
        [sys.executable, "-c", READ_AS_NOBODY, str(tree.root)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "HOME": "/nonexistent", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["65534", "0", expected]


@pytest.mark.skipif(
    not Path("/sys/bus/pci/devices").is_dir(), reason="no PCI bus here"
)
def test_this_hosts_own_functions_can_be_reported() -> None:
    """On hardware that is really there, whatever it is."""
    options = {"pci": {"passthrough_whitelist": ['{"address": "*"}']}}
    host = driver_host(Path("/sys"), options)
    discovery = Discovery(["pci_driver"], host, limit=60)

    first, second = _look(discovery), _look(discovery)

    functions = Sysfs(Path("/sys")).functions()
    assert len(first.devices) == len(functions)
    assert _digest(first) == _digest(second)

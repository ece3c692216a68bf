# SPDX-License-Identifier: Apache-2.0
"""A mistake in a driver's option stops that driver alone, by the option's
name, and everything else is reported as before."""

from __future__ import annotations

import importlib.metadata
import textwrap
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import service
from cyborg.agent import discovery
from cyborg.agent import isolation
from cyborg.drivers.base import DriverHost
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pciids import PciNames
from tests.kernel import Kernel
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

LIMIT = 30
DRIVERS = sorted(
    point.name
    for point in importlib.metadata.entry_points(group=isolation.GROUP)
)
SPDK = {"nvmf_spdk_driver", "vhost_spdk_driver"}
"""At fault on every host without SPDK."""

GOOD = {
    "pci": '[pci]\npassthrough_whitelist = {"vendor_id": "1234"}',
    "gpu": (
        "[gpu_devices]\nenabled_vgpu_types = nvidia-222\n"
        "[vgpu_nvidia-222]\ndevice_addresses = 0000:af:00.0"
    ),
    "nic": (
        "[nic_devices]\nenabled_nic_types = x710_static\n"
        "[x710_static]\nphysical_device_mappings = physnet1:eth2"
    ),
    "nvme": '[nvme]\ndevice_spec = {"vendor_id": "8086"}',
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> SysfsTree:
    made = SysfsTree(tmp_path_factory.mktemp("host") / "sys")
    made.add_every_card()
    return made


def findings(
    tree: SysfsTree, directory: Path, text: str
) -> discovery.Findings:
    """One look of an agent with every driver and this configuration."""
    file = directory / "cyborg.conf"
    file.write_text(textwrap.dedent(text))
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf(
        args=["--config-file", str(file)],
        project="cyborg",
        default_config_dirs=[],
    )
    service.validate(conf)
    host = DriverHost(
        name="compute-1",
        sysfs=Sysfs(tree.root),
        conf=conf,
        names=PciNames(()),
        writer=Kernel(tree),
        tools=RecordedTools(),
    )
    found = discovery.Discovery(DRIVERS, host, LIMIT).look()
    assert found is not None
    return found


def mistake(*lines: str, **instead: str) -> str:
    """A configuration that is good but for these parts, or these lines."""
    return "\n".join((*(GOOD | instead).values(), *lines)) + "\n"


@pytest.fixture(scope="module")
def good(tree, tmp_path_factory) -> discovery.Findings:
    """What a configuration without a mistake leads to."""
    return findings(tree, tmp_path_factory.mktemp("good"), mistake())


def test_without_a_mistake_every_driver_but_spdks_answers(good):
    assert {fault.driver for fault in good.faults} == SPDK
    assert len(good.devices) > 20


FAKE = {"fake_driver"}
GPU = {"nvidia_gpu_driver"}
NIC = {"intel_nic_driver"}
NVME = {"nvme_driver"}
PCI = {"pci_driver"}


@pytest.mark.parametrize(
    ("drivers", "option", "text"),
    [
        (FAKE, "[fake] devices", mistake("[fake]\ndevices = many")),
        (FAKE, "[fake] devices", mistake("[fake]\ndevices =")),
        (FAKE, "[fake] devices", mistake("[fake]\ndevices = -1")),
        (FAKE, "[fake] devices", mistake("[fake]\ndevices = 100001")),
        (FAKE, "[fake] devices", mistake("[fake]\ndevices = $none")),
        (
            FAKE,
            "[fake] accelerators_per_device",
            mistake("[fake]\naccelerators_per_device = 0"),
        ),
        (
            FAKE,
            "[fake] accelerators_per_device",
            mistake("[fake]\naccelerators_per_device = 1.5"),
        ),
        (
            FAKE,
            "[fake] program_seconds",
            mistake("[fake]\nprogram_seconds = nan"),
        ),
        (
            FAKE,
            "[fake] program_seconds",
            mistake("[fake]\nprogram_seconds ="),
        ),
        (
            FAKE,
            "[fake] program_seconds",
            mistake("[fake]\nprogram_seconds = 1e400"),
        ),
        (
            FAKE,
            "[fake] program_failure",
            mistake("[fake]\nprogram_failure = perhaps"),
        ),
        (
            FAKE,
            "[fake] program_failure",
            mistake("[fake]\nprogram_failure ="),
        ),
        (
            FAKE,
            "[fake] inventory_file",
            mistake("[fake]\ninventory_file = /proc/nowhere"),
        ),
        *(
            (
                PCI,
                "[pci] passthrough_whitelist",
                mistake(pci=f"[pci]\npassthrough_whitelist = {value}"),
            )
            for value in ("nonsense", "5", "[1]", "$none", '{"address": "x"}')
        ),
        *(
            (
                GPU,
                "[gpu_devices] enabled_vgpu_types",
                mistake(gpu=f"[gpu_devices]\nenabled_vgpu_types = {value}"),
            )
            for value in ("a b", "nvidia/222", "$none")
        ),
        *(
            (
                GPU,
                "[vgpu_nvidia-222] device_addresses",
                mistake(
                    gpu="[gpu_devices]\nenabled_vgpu_types = nvidia-222\n"
                    f"[vgpu_nvidia-222]\ndevice_addresses = {value}"
                ),
            )
            for value in ("", "af:00.0", "0000:af:00.0,x", "$none")
        ),
        *(
            (
                GPU,
                f"[gpu_devices] {name}",
                mistake(gpu=f"[gpu_devices]\n{name} = {value}"),
            )
            for name in ("filter_sriov_vfs", "offer_vendor_vgpus")
            for value in ("perhaps", "", "$none")
        ),
        *(
            (
                NIC,
                "[nic_devices] enabled_nic_types",
                mistake(nic=f"[nic_devices]\nenabled_nic_types = {value}"),
            )
            for value in ("$none",)
        ),
        *(
            (
                NIC,
                f"[x710_static] {name}",
                mistake(
                    nic="[nic_devices]\nenabled_nic_types = x710_static\n"
                    f"[x710_static]\n{name} = {value}"
                ),
            )
            for name in (
                "physical_device_mappings",
                "function_device_mappings",
                "device_addresses",
            )
            for value in ("nonsense", "$none")
        ),
        *(
            (
                NVME,
                "[nvme] device_spec",
                mistake(nvme=f"[nvme]\ndevice_spec = {value}"),
            )
            for value in ("nonsense", "5", "[1]", "$none")
        ),
        *(
            (
                NVME | {"inspur_nvme_ssd_driver"},
                "[nvme] cleanup_timeout",
                mistake(nvme=GOOD["nvme"] + f"\ncleanup_timeout = {value}"),
            )
            for value in ("soon", "5", "", "$none")
        ),
        *(
            (
                {"amd_gpu_driver"},
                "[amd_gpu] virtual_functions",
                mistake(f"[amd_gpu]\nvirtual_functions = {value}"),
            )
            for value in ("perhaps", "")
        ),
        *(
            (
                SPDK,
                "[agent] spdk_socket",
                mistake(f"[agent]\nspdk_socket = {value}"),
            )
            for value in ("", "spdk.sock", "$none")
        ),
        *(
            (
                NVME,
                "[agent] clean_timeouts",
                mistake(f"[agent]\nclean_timeouts = nvme_driver:{value}"),
            )
            for value in ("soon", "0", "-1", "1.5", "99999999", "nan")
        ),
    ],
)
def test_a_mistake_stops_its_own_driver_alone(
    tree, tmp_path, good, drivers, option, text
):
    found = findings(tree, tmp_path, text)
    errors = {fault.driver: fault.error for fault in found.faults}
    assert errors.keys() == drivers | SPDK
    for name in drivers:
        assert errors[name].startswith(option)
        assert "LocationInfo" not in errors[name]
    assert {one.controlpath for one in found.devices} >= {
        one.controlpath for one in good.devices if one.driver not in drivers
    }


def test_a_list_that_nobody_can_read_stops_those_who_must(tree, tmp_path):
    text = mistake("[agent]\nclean_on_release = true\nclean_timeouts = x")
    found = findings(tree, tmp_path, text)
    errors = {fault.driver: fault.error for fault in found.faults}
    assert {"nvme_driver", "intel_qat_driver"} <= errors.keys()
    assert not errors.keys() & {"fake_driver"}
    for name in errors.keys() - SPDK:
        assert errors[name].startswith("[agent] clean_timeouts: ")

# SPDX-License-Identifier: Apache-2.0
"""`nvidia_gpu_driver` on fake hosts."""

from __future__ import annotations

import errno
import json
import shutil
import uuid
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import exception
from cyborg import inventory
from cyborg.conductor import report_check
from cyborg.drivers import base
from cyborg.drivers import vgpu_types
from cyborg.drivers.nvidia import NvidiaGpuDriver
from cyborg.hardware.pci import Sysfs
from tests.cards import Card
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.recorded_tools import RecordedTools
from tests.sysfs import SysfsTree

T4 = "0000:af:00.0"
A100 = "0000:41:00.0"
A100_VFS = ("0000:41:00.4", "0000:41:00.5")
L40S = "0000:82:00.0"
L40S_VFS = ("0000:82:00.4", "0000:82:00.5")
M60 = ("0000:84:00.0", "0000:85:00.0")
FIRST = str(uuid.UUID(int=1))
SECOND = str(uuid.UUID(int=2))

Types = Mapping[str, Sequence[str]]


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _options(types: Types, **gpu: object) -> dict[str, dict[str, object]]:
    """`types` as an operator enables them on their addresses."""
    return {
        "gpu_devices": {"enabled_vgpu_types": list(types), **gpu},
        **{
            f"vgpu_{kind}": {"device_addresses": list(addresses)}
            for kind, addresses in types.items()
            if addresses
        },
    }


def _driver(
    tree: SysfsTree,
    types: Types | None = None,
    tools: RecordedTools | None = None,
    kernel: Kernel | None = None,
    agent: Mapping[str, object] | None = None,
    **gpu: Any,
) -> NvidiaGpuDriver:
    options = _options(types or {}, **gpu)
    if agent:
        options["agent"] = dict(agent)
    return NvidiaGpuDriver(
        driver_host(
            tree.root,
            options,
            writer=kernel or Kernel(tree),
            tools=tools or RecordedTools(),
        )
    )


def _by_address(
    devices: Iterable[inventory.Device],
) -> dict[str, inventory.Device]:
    found = list(devices)
    report = inventory.HostReport("compute-1", "compute-1", None, tuple(found))
    assert report_check.check(report)[1] == {}
    result = {
        device.deployables[0].name.removeprefix("compute-1_"): device
        for device in found
    }
    assert len(result) == len(found)
    return result


def _devices(
    tree: SysfsTree, types: Types | None = None, **gpu: Any
) -> dict[str, inventory.Device]:
    return _by_address(_driver(tree, types, **gpu).discover())


def _traits(device: inventory.Device) -> frozenset[str]:
    (deployable,) = device.deployables
    return inventory.traits(deployable.attributes) - {"OWNER_CYBORG"}


def _attributes(device: inventory.Device) -> dict[str, str]:
    (deployable,) = device.deployables
    return dict(deployable.attributes)


def _handles(device: inventory.Device) -> tuple[inventory.AttachHandle, ...]:
    (deployable,) = device.deployables
    assert deployable.num_accelerators == len(deployable.attach_handles)
    return deployable.attach_handles


# Whole GPUs --------------------------------------------------------------


def test_a_t4_is_reported_wholly(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()

    (device,) = _driver(tree).discover()

    address = (
        '{"bus": "af", "device": "00", "domain": "0000", "function": "0"}'
    )
    assert device == inventory.Device(
        controlpath=address,
        type=inventory.DeviceType.GPU,
        vendor="10de",
        model="10de:1eb8",
        driver="nvidia_gpu_driver",
        std_board_info=(
            '{"class": "030200", "product_id": "1eb8", "revision": "a1",'
            ' "subsystem": "10de:12a2"}'
        ),
        deployables=(
            inventory.Deployable(
                name="compute-1_0000:af:00.0",
                num_accelerators=1,
                driver_name="NVIDIA",
                attributes=(
                    ("trait0", "CUSTOM_GPU_NVIDIA"),
                    ("trait1", "CUSTOM_GPU_PRODUCT_ID_1EB8"),
                    ("trait2", "CUSTOM_NVIDIA_1EB8"),
                    ("rc", "PGPU"),
                    ("numa_node", "0"),
                    ("pcie_root", "pci0000:00/0000:00:15.7"),
                    ("iommu_group", "1"),
                ),
                attach_handles=(
                    inventory.AttachHandle(inventory.AttachType.PCI, address),
                ),
            ),
        ),
    )


def test_gpus_of_both_classes_are_offered_and_nothing_else_of_nvidia(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_m60()
    tree.add_nvidia_v100()
    for address, ids, code in (
        ("0000:84:00.1", "10de:0fbb", "040300"),
        ("0000:05:00.0", "10de:1af4", "068000"),
        ("0000:06:00.0", "10de:22a3", "068000"),
    ):
        tree.add_function(Card(address, ids, code))
    tree.add_host_display()

    devices = _devices(tree)

    assert sorted(devices) == ["0000:3b:00.0", *M60]
    assert {device.fault for device in devices.values()} == {""}


def test_a_gpu_that_is_the_hosts_display_is_listed_and_not_offered(
    tree: SysfsTree,
) -> None:
    tree.add_function(
        Card("0000:84:00.0", "10de:13f2", "030000", "nvidia", boot_vga=1)
    )

    assert "boot display" in _devices(tree)["0000:84:00.0"].fault


def test_virtual_functions_are_not_whole_gpus_and_hide_theirs(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_a100(vfs=16)
    tree.add_nvidia_t4()

    devices = _devices(tree)

    assert sorted(devices) == [A100, T4]
    assert "16 virtual functions" in devices[A100].fault
    assert devices[T4].fault == ""


def test_virtual_functions_are_offered_where_the_operator_asks(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_a100(vfs=2)

    devices = _devices(tree, filter_sriov_vfs=False)

    assert sorted(devices) == [A100, *A100_VFS]
    assert devices[A100].fault
    assert [devices[vf].fault for vf in A100_VFS] == ["", ""]
    assert _attributes(devices[A100_VFS[0]])["rc"] == "PGPU"


def test_a_vendor_specific_vf_is_nothing_as_a_whole_gpu(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=2)

    devices = _devices(tree, filter_sriov_vfs=False)

    assert "without a vGPU type" in devices[L40S_VFS[0]].fault


def test_a_gpu_with_mediated_devices_is_not_offered(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()
    tree.add_mdev(T4, "nvidia-222", FIRST)

    assert "1 mediated devices exist" in _devices(tree)[T4].fault


def test_a_gpu_that_mig_has_cut_says_so_and_is_not_offered(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_a100_mig(instances=(7, 8))
    tree.add_nvidia_h100()

    devices = _devices(tree)

    cut = devices["0000:c1:00.0"]
    assert cut.fault == "2 GPU instances of MIG exist on it"
    assert _attributes(cut)["mig_instances"] == "2"
    assert _attributes(cut)["mig_compute_instances"] == "2"
    assert _attributes(cut)["rc"] == "PGPU"
    assert devices["0000:1b:00.0"].fault == ""
    assert "mig_instances" not in _attributes(devices["0000:1b:00.0"])


def test_a_card_whose_proc_file_is_broken_is_left_out_alone(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_nvidia_h100()
    tree.add_nvidia_t4()
    tree.write_proc(
        "driver/nvidia/gpus/0000:1b:00.0/information", "Device Minor: x\n"
    )
    driver = _driver(tree)

    first = _by_address(driver.discover())
    second = _by_address(driver.discover())

    assert list(first) == list(second) == [T4]
    (record,) = caplog.records
    assert "1b:00.0/information" in record.getMessage()


def test_a_gpu_that_is_kept_for_its_virtual_functions_is_not_given_away(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_nvidia_a100(vfs=0)

    devices = _devices(tree, {"nvidia-471": ["0000:41:02.3"]})

    assert list(devices) == [A100]
    assert devices[A100].fault == (
        "kept for the vGPUs of its virtual functions"
        " ([vgpu_nvidia-471] device_addresses)"
    )
    assert "no NVIDIA GPU at 0000:41:02.3" in caplog.text


def test_the_same_hardware_gives_the_same_report(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()
    tree.add_nvidia_l40s(vfs=3)
    tree.add_nvidia_a100(vfs=4)
    types = {"nvidia-222": [T4], "nvidia-1155": [*L40S_VFS]}
    driver = _driver(tree, types)

    first = list(driver.discover())

    assert list(driver.discover()) == first
    assert list(_driver(tree, types).discover()) == first


# vGPUs as mediated devices -----------------------------------------------


def test_a_vgpu_type_of_a_t4_is_reported_wholly(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()

    device = _devices(tree, {"nvidia-222": [T4]})[T4]

    assert device.type is inventory.DeviceType.GPU
    assert device.fault == ""
    assert device.clean_seconds == 120
    (deployable,) = device.deployables
    assert deployable.name == "compute-1_0000:af:00.0"
    assert deployable.driver_name == "NVIDIA"
    assert deployable.num_accelerators == 16
    assert deployable.attributes == (
        ("trait0", "CUSTOM_NVIDIA_1EB8_T4_1B"),
        ("rc", "VGPU"),
        ("numa_node", "0"),
        ("pcie_root", "pci0000:00/0000:00:15.7"),
        ("iommu_group", "1"),
        ("vgpu_type", "nvidia-222"),
        ("vgpu_name", "GRID T4-1B"),
    )
    assert deployable.attach_handles == tuple(
        inventory.AttachHandle(
            inventory.AttachType.MDEV,
            '{"asked_type": "nvidia-222", "bus": "af", "device": "00",'
            ' "domain": "0000", "function": "0",'
            f' "vgpu_mark": "nvidia-222_{number}"}}',
        )
        for number in range(16)
    )


def test_units_are_the_same_however_many_exist(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()
    driver = _driver(tree, {"nvidia-223": [T4]})
    before = list(driver.discover())

    for number in range(8):
        tree.add_mdev(T4, "nvidia-223", str(uuid.UUID(int=number)))
        assert list(driver.discover()) == before

    assert len(_handles(before[0])) == 8


def test_each_device_of_a_board_has_its_own_type(tree: SysfsTree) -> None:
    tree.add_nvidia_m60()

    devices = _devices(tree, {"nvidia-11": [M60[0]], "nvidia-18": [M60[1]]})

    assert len(_handles(devices[M60[0]])) == 16
    assert len(_handles(devices[M60[1]])) == 4
    assert _traits(devices[M60[0]]) == {"CUSTOM_NVIDIA_13F2_M60_0B"}
    assert _traits(devices[M60[1]]) == {"CUSTOM_NVIDIA_13F2_M60_2Q"}


def test_a_card_without_a_type_stays_whole_beside_one_with_a_type(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_m60()

    devices = _devices(tree, {"nvidia-11": [M60[0]]})

    assert _attributes(devices[M60[0]])["rc"] == "VGPU"
    assert _attributes(devices[M60[1]])["rc"] == "PGPU"


def test_types_of_virtual_functions_are_one_unit_each(tree: SysfsTree) -> None:
    tree.add_nvidia_a100(vfs=16)

    devices = _devices(tree, {"nvidia-471": A100_VFS})

    assert sorted(devices) == [A100, *A100_VFS]
    assert devices[A100].fault
    for address in A100_VFS:
        assert devices[address].fault == ""
        (handle,) = _handles(devices[address])
        assert handle.attach_type is inventory.AttachType.MDEV
        assert json.loads(handle.attach_info)["vgpu_mark"] == "nvidia-471_0"


def test_what_another_type_leaves_no_room_for_is_listed_with_no_unit(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    tree.add_mdev(T4, "nvidia-223", FIRST)

    device = _devices(tree, {"nvidia-222": [T4]})[T4]

    assert device.fault == (
        "no nvidia-222 can be made now:"
        " mediated devices of nvidia-223 exist on it"
    )
    assert _handles(device) == ()
    assert _traits(device) == {"CUSTOM_NVIDIA_1EB8_T4_1B"}


def test_a_virtual_function_of_a_full_card_is_listed_with_no_unit(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_a100(vfs=16)
    for number, address in enumerate(
        ("0000:41:00.6", "0000:41:00.7", "0000:41:01.0", "0000:41:01.1")
    ):
        tree.add_mdev(address, "nvidia-471", str(uuid.UUID(int=number)))

    device = _devices(tree, {"nvidia-471": A100_VFS})[A100_VFS[0]]

    assert "the card has no room" in device.fault
    assert _handles(device) == ()


def test_a_mediated_device_beyond_novas_domains_is_not_offered(
    tree: SysfsTree,
) -> None:
    address = "10000:01:00.0"
    tree.add("nvidia_t4", address)

    device = _devices(tree, {"nvidia-222": [address]})[address]

    assert "more than four digits" in device.fault


def test_a_broken_count_leaves_its_card_out_with_one_warning(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_nvidia_t4()
    tree.add_nvidia_m60()
    path = tree.path(T4) / "mdev_supported_types" / "nvidia-222"
    (path / "available_instances").write_text("some\n")
    driver = _driver(tree, {"nvidia-222": [T4]})

    driver.discover()
    devices = _by_address(driver.discover())

    assert sorted(devices) == [*M60]
    (record,) = caplog.records
    assert "nvidia-222/available_instances" in record.getMessage()


# vGPUs of vendor-specific virtual functions -------------------------------


def test_a_vendor_specific_vgpu_is_one_unit_to_be_made(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=2)

    devices = _devices(
        tree, {"nvidia-1155": [L40S_VFS[0]]}, offer_vendor_vgpus=True
    )

    assert sorted(devices) == [L40S, L40S_VFS[0]]
    assert "2 virtual functions" in devices[L40S].fault
    device = devices[L40S_VFS[0]]
    assert device.fault == ""
    assert device.clean_seconds == 120
    assert _traits(device) == {"CUSTOM_NVIDIA_26B9_L40S_24Q"}
    assert _attributes(device)["rc"] == "VGPU"
    assert _handles(device) == (
        inventory.AttachHandle(
            inventory.AttachType.PCI,
            '{"asked_type": "nvidia-1155", "bus": "82", "device": "00",'
            ' "domain": "0000", "function": "4"}',
        ),
    )
    (handle,) = _handles(device)
    assert inventory.is_made(handle.attach_type, handle.attach_info)


def test_a_vendor_specific_vgpu_is_listed_where_it_is_not_to_be_offered(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=1)

    device = _devices(tree, {"nvidia-1155": [L40S_VFS[0]]})[L40S_VFS[0]]

    assert "managed='yes'" in device.fault
    assert "[gpu_devices] offer_vendor_vgpus" in device.fault
    assert len(_handles(device)) == 1


def test_a_vgpu_in_use_and_one_without_room_keep_their_names(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=3)
    kernel = Kernel(tree)
    third = "0000:82:00.6"
    driver = _driver(
        tree,
        {"nvidia-1155": [*L40S_VFS, third]},
        kernel=kernel,
        offer_vendor_vgpus=True,
    )
    before = _by_address(driver.discover())
    for address in L40S_VFS:
        (handle,) = _handles(before[address])
        driver.create(handle, FIRST, 1)

    after = _by_address(driver.discover())

    assert [after[address] for address in L40S_VFS] == [
        before[address] for address in L40S_VFS
    ]
    assert after[third].fault == (
        "the card has no room for another nvidia-1155 now"
    )
    assert after[third].deployables == before[third].deployables


def test_an_operator_can_name_a_type_that_a_full_card_does_not(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=1)
    directory = tree.path(L40S_VFS[0]) / "nvidia"
    (directory / "current_vgpu_type").write_text("1155\n")
    (directory / "creatable_vgpu_types").write_text("ID    : vGPU Name\n")
    options = _options({"nvidia-1155": [L40S_VFS[0]]}, offer_vendor_vgpus=True)

    (_, unnamed) = NvidiaGpuDriver(driver_host(tree.root, options)).discover()
    options["vgpu_nvidia-1155"]["name"] = "NVIDIA L40S-24Q"
    (_, named) = NvidiaGpuDriver(driver_host(tree.root, options)).discover()

    assert _traits(unnamed) == frozenset()
    assert _traits(named) == {"CUSTOM_NVIDIA_26B9_L40S_24Q"}
    assert unnamed.fault == named.fault == ""


def test_a_function_with_a_vgpu_of_another_type_is_not_offered(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=1)
    path = tree.path(L40S_VFS[0]) / "nvidia" / "current_vgpu_type"
    path.write_text("1147\n")

    device = _devices(
        tree, {"nvidia-1155": [L40S_VFS[0]]}, offer_vendor_vgpus=True
    )[L40S_VFS[0]]

    assert device.fault == "it has a vGPU of another type (1147)"


def test_a_function_that_nova_took_from_its_driver_says_so(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_l40s(vfs=1)
    address = L40S_VFS[0]
    tree.unbind(address)
    tree.bind(tree.cards[address], tree.path(address), "vfio-pci")

    device = _devices(
        tree, {"nvidia-1155": [address]}, offer_vendor_vgpus=True
    )[address]

    assert device.fault == "it offers no vGPU types (its driver is vfio-pci)"
    assert len(_handles(device)) == 1


def test_a_mig_backed_type_says_so(tree: SysfsTree) -> None:
    tree.add_nvidia_h200(vfs=2)
    address = "0000:9d:00.4"

    devices = _devices(
        tree,
        {"nvidia-1414": [address], "nvidia-1428": ["0000:9d:00.5"]},
        offer_vendor_vgpus=True,
    )

    assert _attributes(devices[address])["vgpu_mig_backed"] == "true"
    assert "vgpu_mig_backed" not in _attributes(devices["0000:9d:00.5"])


def test_a_vgpu_of_a_gpu_that_mig_has_cut_is_offered(tree: SysfsTree) -> None:
    tree.add_nvidia_a100_mig(vfs=1)
    address = "0000:c1:00.4"
    directory = tree.path(address) / "mdev_supported_types" / "nvidia-465"
    (directory / "devices").mkdir(parents=True)
    (directory / "name").write_text("GRID A100X-3-20C\n")
    (directory / "available_instances").write_text("1\n")

    devices = _devices(tree, {"nvidia-465": [address]})

    assert devices[address].fault == ""
    assert _attributes(devices[address])["vgpu_mig_backed"] == "true"
    assert _traits(devices[address]) == {"CUSTOM_NVIDIA_20B2_A100X_3_20C"}


# Options -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "option"),
    [
        ({"nvidia-222": []}, "[vgpu_nvidia-222] device_addresses"),
        ({"nvidia-222": ["af:00.0"]}, "[vgpu_nvidia-222] device_addresses"),
        ({"nvidia-222": [T4, "x"]}, "[vgpu_nvidia-222] device_addresses"),
        (
            {"nvidia-222": [T4], "nvidia-223": ["0000:AF:00.0"]},
            "[vgpu_nvidia-223] device_addresses",
        ),
        (
            {"nvidia-222": [T4], "nvidia-223": ["00000000:AF:00.0"]},
            "[vgpu_nvidia-223] device_addresses",
        ),
        ({"../x": [T4]}, "[gpu_devices] enabled_vgpu_types"),
        ({"a b": [T4]}, "[gpu_devices] enabled_vgpu_types"),
        ({"x" * 65: [T4]}, "[gpu_devices] enabled_vgpu_types"),
    ],
)
def test_a_wrong_option_stops_the_driver_and_is_named(
    tree: SysfsTree, types: Types, option: str
) -> None:
    with pytest.raises(base.OptionError) as raised:
        _driver(tree, types)

    assert str(raised.value).startswith(f"{option}: ")


def test_an_address_that_two_types_have_names_both(tree: SysfsTree) -> None:
    with pytest.raises(base.OptionError) as raised:
        _driver(tree, {"nvidia-222": [T4], "nvidia-223": [T4]})

    assert str(raised.value) == (
        "[vgpu_nvidia-223] device_addresses: 0000:af:00.0 is given to"
        " nvidia-222 as well ([vgpu_nvidia-222] device_addresses)"
    )


@pytest.mark.parametrize("texts", [[], [""], ["", " "]])
def test_no_type_is_no_vgpu_and_no_error(
    tree: SysfsTree, texts: list[str]
) -> None:
    tree.add_nvidia_t4()
    options = {"gpu_devices": {"enabled_vgpu_types": texts}}

    (device,) = NvidiaGpuDriver(driver_host(tree.root, options)).discover()

    assert _attributes(device)["rc"] == "PGPU"


def test_a_type_and_an_address_may_be_repeated_and_written_as_nvidia_does(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    options = _options({"nvidia-222": [T4, "00000000:AF:00.0"]})
    options["gpu_devices"]["enabled_vgpu_types"] = ["nvidia-222"] * 2
    host = driver_host(tree.root, options)

    (device,) = NvidiaGpuDriver(host).discover()
    (again,) = NvidiaGpuDriver(host).discover()

    assert len(_handles(device)) == 16
    assert again == device


def test_a_type_that_a_card_does_not_support_stops_that_card_alone(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_nvidia_m60()
    tree.add_nvidia_t4()
    driver = _driver(tree, {"nvidia-999": [M60[0]], "nvidia-222": [T4]})

    devices = _by_address(driver.discover())
    driver.discover()

    fault = devices[M60[0]].fault
    assert fault == (
        "[gpu_devices] enabled_vgpu_types, [vgpu_nvidia-999]"
        " device_addresses: 0000:84:00.0 does not support nvidia-999:"
        " it offers nvidia-11 (GRID M60-0B), nvidia-18 (GRID M60-2Q)"
    )
    assert _handles(devices[M60[0]]) == ()
    assert devices[T4].fault == devices[M60[1]].fault == ""
    assert [record.getMessage() for record in caplog.records] == [fault]


@pytest.mark.parametrize("kind", ["nvidia-222", "nvidia-0", "nvidia-x", "y"])
def test_a_type_that_a_vendor_specific_card_does_not_support_is_named(
    tree: SysfsTree, kind: str
) -> None:
    tree.add_nvidia_l40s(vfs=1)

    device = _devices(tree, {kind: [L40S_VFS[0]]}, offer_vendor_vgpus=True)[
        L40S_VFS[0]
    ]

    assert device.fault.startswith(
        f"[gpu_devices] enabled_vgpu_types, [vgpu_{kind}] device_addresses"
    )
    assert "1147 (NVIDIA L40S-1Q)" in device.fault


def test_a_gpu_whose_types_are_on_its_virtual_functions_says_so(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_a100(vfs=2)
    tree.add_nvidia_h100_pcie()

    devices = _devices(tree, {"nvidia-471": [A100, "0000:61:00.0"]})

    assert "on its virtual functions: name those" in devices[A100].fault
    assert "its driver is vfio-pci" in devices["0000:61:00.0"].fault
    assert _attributes(devices[A100])["rc"] == "VGPU"
    assert _handles(devices[A100]) == ()


def test_a_gpu_whose_host_driver_makes_no_vgpus_is_not_blamed_on_functions(
    tree: SysfsTree,
) -> None:
    """A T4 has the capability for virtual functions and never any types
    there: what is missing is NVIDIA's vGPU manager."""
    types = tree.add_nvidia_t4() / "mdev_supported_types"
    shutil.rmtree(types)

    fault = _devices(tree, {"nvidia-222": [T4]})[T4].fault

    assert "it offers no vGPU types (its driver is nvidia)" in fault


@pytest.mark.parametrize(
    "address", ["0000:77:00.0", "0000:3d:00.0", "0000:03:00.0"]
)
def test_an_address_without_a_gpu_is_said_once_and_hides_nothing(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    tree.add_intel_c62x()
    tree.add_host_display()
    tree.add_nvidia_m60()
    driver = _driver(tree, {"nvidia-11": [M60[0], address]})

    devices = _by_address(driver.discover())
    driver.discover()

    assert sorted(devices) == [*M60]
    assert [record.getMessage() for record in caplog.records] == [
        "[vgpu_nvidia-11] device_addresses: there is no NVIDIA GPU at"
        f" {address}"
    ]


def test_an_address_that_cannot_be_read_is_warned_of_by_the_scan_alone(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_nvidia_m60()
    (tree.path(M60[0]) / "vendor").write_text("x\n")

    devices = _devices(tree, {"nvidia-11": [M60[0]]})

    assert sorted(devices) == [M60[1]]
    (record,) = caplog.records
    assert f"{M60[0]}/vendor" in record.getMessage()


def test_a_wrong_time_for_cleaning_stops_the_driver(tree: SysfsTree) -> None:
    with pytest.raises(base.OptionError, match="clean_timeouts"):
        _driver(tree, agent={"clean_timeouts": {"nvidia_gpu_driver": "soon"}})


# Names -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GRID T4-1B", ["T4_1B"]),
        ("NVIDIA L40S-1Q", ["L40S_1Q"]),
        ("A100", ["A100"]),
        ("GRID", ["GRID"]),
        ("nvidia-222", ["NVIDIA_222"]),
        (
            "NVIDIA RTX Pro 6000 Blackwell DC-48Q",
            ["DC_48Q", "RTX_PRO_6000_BLACKWELL_DC_48Q"],
        ),
        (
            "grid RTX Pro 6000 Blackwell DC-3Q",
            ["DC_3Q", "RTX_PRO_6000_BLACKWELL_DC_3Q"],
        ),
        ("Quadro RTX6000-1Q", ["RTX6000_1Q"]),
        ("Quadro RTX 6000-1Q", ["6000_1Q", "QUADRO_RTX_6000_1Q"]),
        ("  GRID   T4-1B ", ["T4_1B"]),
        ("GRID Té-1B™", ["T__1B_"]),
        ("???", ["___"]),
        ("", []),
    ],
)
def test_a_type_name_becomes_the_traits_that_profiles_ask_for(
    name: str, expected: list[str]
) -> None:
    assert vgpu_types.traits("1eb8", name) == tuple(
        f"CUSTOM_NVIDIA_1EB8_{kind}" for kind in expected
    )


@given(name=st.text(max_size=400))
def test_no_type_name_makes_an_illegal_trait(name: str) -> None:
    traits = vgpu_types.traits("1eb8", name)

    assert bool(traits) == bool(name.split())
    assert all(inventory.is_trait(trait) for trait in traits)


@pytest.mark.parametrize(
    "name", ["A100", "???", "GRID 💥", "a\u0000b", "x" * 5000, "\u202e T4"]
)
def test_a_card_with_any_type_name_can_be_stored(
    tree: SysfsTree, name: str
) -> None:
    tree.add_nvidia_t4()
    path = tree.path(T4) / "mdev_supported_types" / "nvidia-222" / "name"
    path.write_text(f"{name}\n")

    device = _devices(tree, {"nvidia-222": [T4]})[T4]

    assert len(_handles(device)) == 16
    assert _traits(device)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100X-3-20C", True),
        ("GRID A30-1-6CME", True),
        ("NVIDIA H200X-1-18C", True),
        ("NVIDIA RTX Pro 6000 Blackwell DC-1-24Q", True),
        ("GRID T4-1B4", False),
        ("NVIDIA L40S-24Q", False),
        ("NVIDIA RTX Pro 6000 Blackwell DC-48Q", False),
        ("", False),
    ],
)
def test_a_mig_backed_type_is_known_by_its_name(
    name: str, expected: bool
) -> None:
    assert vgpu_types.is_mig_backed(name) is expected


# Making and removing -----------------------------------------------------


def _unit(tree: SysfsTree) -> inventory.AttachHandle:
    tree.add_nvidia_t4()
    return _handles(_devices(tree, {"nvidia-222": [T4]})[T4])[3]


def test_a_mediated_unit_is_made_and_removed(tree: SysfsTree) -> None:
    unit = _unit(tree)
    kernel = Kernel(tree)
    driver = _driver(tree, {"nvidia-222": [T4]}, kernel=kernel)

    driver.create(unit, FIRST, 1)
    driver.create(unit, FIRST, 1)
    made = Sysfs(tree.root).function(T4)
    driver.remove(unit, FIRST, 1)
    driver.remove(unit, FIRST, 1)
    removed = Sysfs(tree.root).function(T4)

    assert made is not None
    assert removed is not None
    assert made.mediated == (FIRST,)
    assert removed.mediated == ()
    assert [value for _, value in kernel.writes] == [FIRST, "1"]
    assert isinstance(driver, base.Mediated)
    assert isinstance(driver, base.Cleanable)
    assert isinstance(driver, base.Carving)


def test_a_vendor_specific_unit_is_made_and_removed(tree: SysfsTree) -> None:
    tree.add_nvidia_l40s(vfs=2)
    kernel = Kernel(tree)
    driver = _driver(
        tree,
        {"nvidia-1155": L40S_VFS},
        kernel=kernel,
        offer_vendor_vgpus=True,
    )
    device = _by_address(driver.discover())[L40S_VFS[1]]
    (unit,) = _handles(device)

    driver.create(unit, FIRST, 1)
    driver.create(unit, FIRST, 1)
    driver.remove(unit, FIRST, 1)
    driver.remove(unit, FIRST, 1)

    path = f"bus/pci/devices/{L40S_VFS[1]}/nvidia/current_vgpu_type"
    assert kernel.writes == [(path, "1155"), (path, "0")]
    tree.remove_virtual_functions(L40S)
    driver.remove(unit, FIRST, 1)
    with pytest.raises(exception.DeviceFailed, match="no PCI function"):
        driver.create(unit, FIRST, 1)


def test_a_unit_that_a_guest_holds_is_said_to_be_in_use(
    tree: SysfsTree,
) -> None:
    unit = _unit(tree)
    kernel = Kernel(tree)
    driver = _driver(tree, {"nvidia-222": [T4]}, kernel=kernel)
    driver.create(unit, FIRST, 1)
    kernel.hang("*/remove")

    with pytest.raises(
        exception.DeviceFailed, match="still in use by a guest"
    ):
        driver.remove(unit, FIRST, 1)


@pytest.mark.parametrize("number", [errno.EUSERS, errno.ENODEV, errno.EINVAL])
def test_a_unit_that_cannot_be_made_fails_with_the_reason(
    tree: SysfsTree, number: int
) -> None:
    unit = _unit(tree)
    kernel = Kernel(tree)
    kernel.fail("*/create", number)
    driver = _driver(tree, {"nvidia-222": [T4]}, kernel=kernel)

    with pytest.raises(
        exception.DeviceFailed, match="no nvidia-222 can be made"
    ):
        driver.create(unit, FIRST, 1)


@pytest.mark.parametrize(
    "asked", ["nvidia-0", "nvidia--1", "nvidia-1147", "nvidia-x", "", "0"]
)
def test_a_type_that_is_not_a_functions_is_never_given_to_it(
    tree: SysfsTree, asked: str
) -> None:
    tree.add_nvidia_l40s(vfs=1)
    path = tree.path(L40S_VFS[0]) / "nvidia" / "current_vgpu_type"
    path.write_text("1155\n")
    kernel = Kernel(tree)
    unit = inventory.AttachHandle(
        inventory.AttachType.PCI,
        inventory.pci_json(L40S_VFS[0], {"asked_type": asked}),
    )

    with pytest.raises(exception.DeviceFailed):
        _driver(tree, kernel=kernel).create(unit, FIRST, 1)

    assert kernel.writes == []


def test_a_unit_that_asks_for_nothing_cannot_be_made(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()
    unit = inventory.AttachHandle(
        inventory.AttachType.PCI, inventory.pci_json(T4)
    )

    with pytest.raises(exception.DeviceFailed, match="has no asked_type"):
        _driver(tree).create(unit, FIRST, 1)


# Cleaning and carving ----------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "whole", "vgpu"),
    [(None, None, 120), (True, 120, 120), (False, None, 120)],
)
def test_vgpus_are_always_removed_and_whole_gpus_reset_where_asked(
    tree: SysfsTree, wanted: bool | None, whole: int | None, vgpu: int | None
) -> None:
    tree.add_nvidia_t4()
    tree.add_nvidia_h100()
    driver = _driver(
        tree, {"nvidia-222": [T4]}, agent={"clean_on_release": wanted}
    )

    devices = _by_address(driver.discover())

    assert devices["0000:1b:00.0"].clean_seconds == whole
    assert devices[T4].clean_seconds == vgpu


def test_a_whole_gpu_is_cleaned_by_a_reset_of_itself(tree: SysfsTree) -> None:
    tree.add_nvidia_h100()
    kernel = Kernel(tree)
    driver = _driver(tree, kernel=kernel)
    (device,) = driver.discover()

    driver.clean(_handles(device)[0], device.controlpath, 5, lambda _: None)

    assert kernel.resets == [("0000:1b:00.0", "flr")]


def test_a_vgpu_never_resets_the_card_that_it_is_on(tree: SysfsTree) -> None:
    unit = _unit(tree)
    kernel = Kernel(tree)

    with pytest.raises(exception.DeviceFailed, match="never by a reset"):
        _driver(tree, kernel=kernel).clean(
            unit, inventory.pci_json(T4), 5, lambda _: None
        )

    assert kernel.writes == []


def test_a_card_gets_its_virtual_functions_by_nvidias_tool(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_a100(vfs=0)
    kernel = Kernel(tree)
    tools = RecordedTools()
    tools.answer("sriov-manage", kernel.sriov_manage)
    driver = _driver(tree, tools=tools, kernel=kernel)
    (function,) = filter(driver.claims, driver.host.sysfs.functions())

    driver.carve(function, 16, 5)

    assert tools.commands == [["sriov-manage", "-e", A100]]
    assert kernel.writes == []
    after = driver.host.sysfs.function(A100)
    assert after is not None
    assert len(after.virtual_functions) == 16


@pytest.mark.parametrize("count", [0, -1, 8, 17])
def test_a_number_that_the_tool_cannot_give_is_refused(
    tree: SysfsTree, count: int
) -> None:
    tree.add_nvidia_a100(vfs=0)
    tools = RecordedTools()
    driver = _driver(tree, tools=tools)
    (function,) = filter(driver.claims, driver.host.sysfs.functions())

    with pytest.raises(exception.Invalid, match="16 virtual functions or"):
        driver.carve(function, count, 5)

    assert tools.commands == []


def test_a_card_that_gets_none_fails_with_the_tools_words(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    tools = RecordedTools()
    tools.answer("sriov-manage", "SR-IOV is not supported\n")
    driver = _driver(tree, tools=tools)
    (function,) = filter(driver.claims, driver.host.sysfs.functions())

    with pytest.raises(exception.DeviceFailed, match="is not supported"):
        driver.carve(function, 16, 5)

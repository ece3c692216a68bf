# SPDX-License-Identifier: Apache-2.0
"""`nvmf_spdk_driver` and `vhost_spdk_driver`, with a stand-in of SPDK."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cyborg import inventory
from cyborg.agent import vetting
from cyborg.drivers import base
from cyborg.drivers.spdk import ANSWER_SECONDS
from cyborg.drivers.spdk import NvmfDriver
from cyborg.drivers.spdk import SpdkDriver
from cyborg.drivers.spdk import VhostDriver
from tests.driver_host import driver_host
from tests.spdk_stand_in import RpcError
from tests.spdk_stand_in import SpdkStandIn
from tests.spdk_stand_in import bdev
from tests.spdk_stand_in import discovery_subsystem
from tests.spdk_stand_in import nvme_bdev
from tests.spdk_stand_in import spdk_stand_in
from tests.spdk_stand_in import subsystem
from tests.spdk_stand_in import vhost_block
from tests.spdk_stand_in import vhost_scsi
from tests.sysfs import SysfsTree

__all__ = ("spdk_stand_in",)

A, B = "nqn.2024-01.org.example:a", "nqn.2024-01.org.example:b"
DISK = '{"bus": "5e", "device": "00", "domain": "0000", "function": "0"}'


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _driver(
    kind: type[SpdkDriver], tree: SysfsTree, stand_in: SpdkStandIn
) -> SpdkDriver:
    options = {"agent": {"spdk_socket": str(stand_in.path)}}
    return kind(driver_host(tree.root, options))


def _look(
    kind: type[SpdkDriver], tree: SysfsTree, stand_in: SpdkStandIn
) -> list[inventory.Device]:
    """What is found, if an agent would take it as it is."""
    driver = _driver(kind, tree, stand_in)
    devices = list(driver.discover())
    assert [vetting.vetted(driver.name, one) for one in devices] == devices
    assert list(driver.discover()) == devices
    return devices


def _units(
    devices: list[inventory.Device],
) -> dict[str, inventory.Deployable]:
    return {
        one.name.removeprefix("compute-1_"): one
        for device in devices
        for one in device.deployables
    }


def test_a_namespace_on_a_disk_of_this_host_is_reported_wholly(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    tree.add("intel_p4510", "0000:5e:00.0")
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [nvme_bdev(), nvme_bdev("Idle0n1", "0000:5f:00.0")],
        "nvmf_get_subsystems": [
            discovery_subsystem(),
            subsystem(
                A,
                "Nvme0n1",
                listeners=(
                    ("TCP", "192.0.2.1", "4420"),
                    ("RDMA", "192.0.2.2", "4420"),
                ),
            ),
        ],
    }

    (device,) = _look(NvmfDriver, tree, spdk_stand_in)

    assert device.controlpath == DISK
    assert device.type is inventory.DeviceType.SSD
    assert (device.vendor, device.model) == ("8086", "INTEL SSDPE2KX010T8")
    assert device.driver == "nvmf_spdk_driver"
    assert (device.fault, device.clean_seconds) == ("", None)
    assert json.loads(device.std_board_info or "") == {
        "firmware": "VDV10131",
        "product": "NVMe disk",
        "serial": "PHLJ0000000001P0A",
    }
    (unit,) = device.deployables
    assert unit.name == "compute-1_Nvme0n1"
    assert (unit.num_accelerators, unit.driver_name) == (1, "NVMF")
    assert unit.fault == ""
    assert inventory.resource_class(unit.attributes) == "CUSTOM_SSD"
    assert inventory.traits(unit.attributes) == {
        "CUSTOM_SSD_SPDK",
        "CUSTOM_SSD_SPDK_NVMF",
        "CUSTOM_SSD_SPDK_INTEL",
        "OWNER_CYBORG",
    }
    plain = dict(unit.attributes)
    assert plain["numa_node"] == "0"
    assert plain["pcie_root"].startswith("pci0000:00/")
    assert plain["bdev"] == "Nvme0n1"
    assert plain["size"] == str(64 * 2**20)
    assert plain["listeners"] == "RDMA://192.0.2.2:4420 TCP://192.0.2.1:4420"
    (handle,) = unit.attach_handles
    assert handle.attach_type is inventory.AttachType.TEST_PCI
    assert handle.attach_info == inventory.pci_json(
        "0000:5e:00.0",
        {
            "nqn": A,
            "nsid": "1",
            "trtype": "RDMA",
            "traddr": "192.0.2.2",
            "trsvcid": "4420",
        },
    )


def test_a_bdev_behind_a_vhost_socket_is_reported_with_the_socket(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [nvme_bdev(numa_id=1)],
        "vhost_get_controllers": [vhost_block("vhost.0", "Nvme0n1")],
    }

    (device,) = _look(VhostDriver, tree, spdk_stand_in)

    assert device.controlpath == DISK
    assert device.driver == "vhost_spdk_driver"
    (unit,) = device.deployables
    assert unit.driver_name == "VHOST"
    assert "CUSTOM_SSD_SPDK_VHOST" in inventory.traits(unit.attributes)
    plain = dict(unit.attributes)
    # No such function in this host's sysfs: SPDK's own word.
    assert plain["numa_node"] == "1"
    assert plain["vhost_type"] == "block"
    info = json.loads(unit.attach_handles[0].attach_info)
    assert info == {
        **json.loads(DISK),
        "socket": "/var/tmp/vhost.0",
        "bdev": "Nvme0n1",
    }


def test_volumes_of_one_disk_are_deployables_of_one_device(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    volumes = [
        bdev(
            f"0f3c-{number}",
            "Logical Volume",
            aliases=(f"lvs0/vol{number}",),
            lvol={"base_bdev": "Nvme0n1p0"},
        )
        for number in range(2)
    ]
    part = bdev("Nvme0n1p0", "GPT Disk", gpt={"base_bdev": "Nvme0n1"})
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [*volumes, part, nvme_bdev()],
        "nvmf_get_subsystems": [
            subsystem(A, "0f3c-0"),
            # By its other name.
            subsystem(B, "lvs0/vol1"),
        ],
    }

    (device,) = _look(NvmfDriver, tree, spdk_stand_in)

    assert device.controlpath == DISK
    assert device.model == "INTEL SSDPE2KX010T8"
    assert sorted(_units([device])) == ["0f3c-0", "0f3c-1"]


def test_bdevs_without_a_pci_device_are_devices_of_their_own(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [
            bdev("Malloc0"),
            bdev("Aio0", "AIO disk", aio={"filename": "/dev/sdb"}),
            nvme_bdev("Remote0n1", address=None),
            # One that lies on itself, or on nothing that is there.
            bdev("Odd0", odd={"base_bdev": "Odd1"}),
            bdev("Odd1", odd={"base_bdev_name": "Odd0"}),
            bdev("Odd2", odd={"base_bdev": "gone"}),
        ],
        "vhost_get_controllers": [
            vhost_block(f"vhost.{number}", name)
            for number, name in enumerate(
                ("Malloc0", "Aio0", "Remote0n1", "Odd0", "Odd1", "Odd2")
            )
        ],
    }

    devices = _look(VhostDriver, tree, spdk_stand_in)

    found = {device.deployables[0].name: device for device in devices}
    assert len(devices) == len({device.controlpath for device in devices}) == 6
    assert found["compute-1_Malloc0"].vendor == "SPDK"
    assert found["compute-1_Malloc0"].model == "Malloc disk"
    assert found["compute-1_Remote0n1"].vendor == "8086"
    for device in devices:
        # Nowhere that a function can be, and the same each time.
        domain = json.loads(device.controlpath)["domain"]
        assert len(domain) == 8
        assert domain.startswith("f")
        info = json.loads(device.deployables[0].attach_handles[0].attach_info)
        assert info["domain"] == "ffff"


def test_what_would_give_an_instance_more_than_it_asked_for_is_listed_alone(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [bdev("M0"), bdev("M1"), bdev("M2"), nvme_bdev()],
        "nvmf_get_subsystems": [
            subsystem(A, "M0", "M1"),
            subsystem(B, "M2", listeners=()),
            subsystem(f"{B}2", "Nvme0n1"),
        ],
        "vhost_get_controllers": [
            vhost_scsi("vhost.0", "M0", "Nvme0n1"),
            vhost_scsi("vhost.1", "M1"),
            vhost_scsi("vhost.2"),
        ],
    }

    nvmf = _units(_look(NvmfDriver, tree, spdk_stand_in))
    vhost = _units(_look(VhostDriver, tree, spdk_stand_in))

    assert "has 2 namespaces" in nvmf["M0"].fault
    assert A in nvmf["M1"].fault
    assert "listens nowhere" in nvmf["M2"].fault
    assert nvmf["Nvme0n1"].fault == ""
    assert "vhost.0 has 1 other" in vhost["M0"].fault
    assert "vhost.0" in vhost["Nvme0n1"].fault
    assert vhost["M1"].fault == ""
    assert vhost.keys() == {"M0", "M1", "Nvme0n1"}


def test_two_luns_of_one_disk_have_handles_of_their_own(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [nvme_bdev(), nvme_bdev("Nvme0n2", nsid=2)],
        "vhost_get_controllers": [vhost_scsi("vhost.0", "Nvme0n1", "Nvme0n2")],
    }

    (device,) = _look(VhostDriver, tree, spdk_stand_in)

    handles = [one.attach_handles for one in device.deployables]
    assert len(set(handles)) == 2


def test_a_bdev_that_is_exported_twice_is_one_accelerator(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [bdev("M0", aliases=("other",))],
        "nvmf_get_subsystems": [subsystem(B, "other"), subsystem(A, "M0")],
    }

    (device,) = _look(NvmfDriver, tree, spdk_stand_in)

    (unit,) = device.deployables
    assert dict(unit.attributes)["nqn"] == A


def test_a_handle_says_as_much_as_fits(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    middle, longest = A + "m" * 130, A + "l" * 198
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [bdev("M0"), bdev("M1")],
        "nvmf_get_subsystems": [
            subsystem(middle, "M0"),
            subsystem(longest, "M1"),
        ],
    }

    units = _units(_look(NvmfDriver, tree, spdk_stand_in))

    info = json.loads(units["M0"].attach_handles[0].attach_info)
    assert info["nqn"] == middle
    assert "traddr" not in info
    assert "192.0.2.1" in dict(units["M0"].attributes)["listeners"]
    assert units["M1"].attach_handles == ()
    assert units["M1"].num_accelerators == 0
    assert "too long" in units["M1"].fault
    assert dict(units["M1"].attributes)["nqn"] == longest


def test_names_too_long_for_placement_are_cut_and_stay_different(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    names = ["x" * 250 + "1", "x" * 250 + "2"]
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [bdev(name) for name in names],
        "nvmf_get_subsystems": [
            subsystem(A, names[0]),
            subsystem(B, names[1]),
        ],
    }

    units = _units(_look(NvmfDriver, tree, spdk_stand_in))

    assert len(units) == 2
    assert all(name.startswith("xxxx") for name in units)


def test_a_bdev_that_went_away_between_two_answers_is_left_out(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [bdev("M1")],
        "nvmf_get_subsystems": [subsystem(A, "M0"), subsystem(B, "M1")],
    }

    assert list(_units(_look(NvmfDriver, tree, spdk_stand_in))) == ["M1"]


def test_an_spdk_that_exports_nothing_has_no_device(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [nvme_bdev()],
        "nvmf_get_subsystems": [discovery_subsystem()],
        "vhost_get_controllers": [],
    }

    assert _look(NvmfDriver, tree, spdk_stand_in) == []
    assert _look(VhostDriver, tree, spdk_stand_in) == []


def test_the_order_in_which_spdk_lists_does_not_count(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    bdevs = [bdev("M0"), nvme_bdev(), bdev("M1")]
    exported = [subsystem(A, "M0"), subsystem(B, "Nvme0n1")]
    spdk_stand_in.answers = {
        "bdev_get_bdevs": bdevs,
        "nvmf_get_subsystems": exported,
    }
    first = _look(NvmfDriver, tree, spdk_stand_in)
    spdk_stand_in.answers = {
        "bdev_get_bdevs": bdevs[::-1],
        "nvmf_get_subsystems": exported[::-1],
    }

    assert _look(NvmfDriver, tree, spdk_stand_in) == first


def test_a_look_is_two_questions_over_one_connection(
    tree: SysfsTree, spdk_stand_in: SpdkStandIn
) -> None:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [],
        "nvmf_get_subsystems": [],
    }

    list(_driver(NvmfDriver, tree, spdk_stand_in).discover())

    assert spdk_stand_in.connections == 1
    assert spdk_stand_in.asked == ["nvmf_get_subsystems", "bdev_get_bdevs"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RpcError(-32601, "Method not found"), "has no such part"),
        (RpcError(-1, "Method may only be called after"), "not started"),
        ({"not": "a list"}, "the result is no list"),
    ],
)
def test_who_cannot_know_raises_and_names_the_option(
    tree: SysfsTree,
    spdk_stand_in: SpdkStandIn,
    error: object,
    words: str,
) -> None:
    spdk_stand_in.answers = {
        "bdev_get_bdevs": [],
        "vhost_get_controllers": error,
    }

    with pytest.raises(base.DriverError) as caught:
        _driver(VhostDriver, tree, spdk_stand_in).discover()

    assert "[agent] spdk_socket" in str(caught.value)
    assert str(spdk_stand_in.path) in str(caught.value)
    assert "vhost_get_controllers" in str(caught.value)
    assert words in str(caught.value)


def test_without_an_spdk_nothing_is_known(
    tree: SysfsTree, tmp_path: Path
) -> None:
    path = str(tmp_path / "none.sock")
    options = {"agent": {"spdk_socket": path}}

    with pytest.raises(base.DriverError, match=r"spdk_socket.*No such file"):
        NvmfDriver(driver_host(tree.root, options)).discover()


@pytest.mark.parametrize("path", ["", "spdk.sock"])
def test_a_socket_that_is_no_path_is_a_wrong_option(
    tree: SysfsTree, path: str
) -> None:
    options = {"agent": {"spdk_socket": path}}

    with pytest.raises(base.OptionError, match=r"\[agent\] spdk_socket"):
        NvmfDriver(driver_host(tree.root, options))


def test_a_look_takes_less_than_an_agent_waits_for() -> None:
    conf = driver_host(Path("/none")).conf

    assert conf.agent.driver_timeout > ANSWER_SECONDS

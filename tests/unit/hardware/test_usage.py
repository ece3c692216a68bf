# SPDX-License-Identifier: Apache-2.0
"""What the host uses itself is seen, and nothing else is taken for it."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from cyborg.drivers.testing.drawing import link
from cyborg.drivers.testing.drawing import write
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.usage import host_use
from tests.cards import Card
from tests.sysfs import SysfsTree

P4510 = "0000:5f:00.0"
X710 = "0000:05:00.0"
T4 = "0000:af:00.0"

ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\t"
    "MTU\tWindow\tIRTT\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _why(tree: SysfsTree, address: str, together: tuple[str, ...] = ()) -> str:
    sysfs = Sysfs(tree.root)
    function = sysfs.function(address)
    assert function is not None
    return host_use(sysfs).why(function, together)


def _mount(
    tree: SysfsTree,
    number: str,
    place: str = "/data",
    source: str = "/dev/x",
    process: str = "1",
) -> None:
    before = tree.proc / process / "mountinfo"
    text = before.read_text() if before.exists() else ""
    tree.write_proc(
        f"{process}/mountinfo",
        "22 28 0:20 / /proc rw,nosuid shared:12 - proc proc rw\n"
        f"{text}"
        f"36 28 {number} / {place} rw,noatime shared:1 - ext4 {source} rw\n",
    )


def _block(tree: SysfsTree, name: str) -> Path:
    return (tree.root / "class" / "block" / name).resolve()


def _made_of(tree: SysfsTree, name: str, number: str, *parts: str) -> None:
    """A device-mapper or md device over others."""
    path = tree.root / "devices" / "virtual" / "block" / name
    write(path / "dev", number)
    (path / "holders").mkdir()
    link(tree.root / "class" / "block" / name, path)
    for part in parts:
        link(_block(tree, part) / "holders" / name, path)


def _route(tree: SysfsTree, interface: str, destination: str = "0") -> None:
    tree.write_proc(
        "net/route",
        f"{ROUTES}"
        f"lan0\t0000A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
        f"{interface}\t{destination:0>8}\t0101A8C0\t0003\t0\t0\t100\t"
        f"{destination:0>8}\t0\t0\t0\n",
    )


def _over(tree: SysfsTree, upper: str, *lower: str) -> Path:
    """An interface that is over others, as `lower_*` and `upper_*` say."""
    path = tree.root / "devices" / "virtual" / "net" / upper
    write(path / "operstate", "up")
    link(tree.root / "class" / "net" / upper, path)
    for name in lower:
        place = (tree.root / "class" / "net" / name).resolve()
        link(path / f"lower_{name}", place)
        link(place / f"upper_{upper}", path)
    return path


def _share_a_group(tree: SysfsTree, *addresses: str) -> None:
    group = (tree.path(addresses[0]) / "iommu_group").resolve()
    for address in addresses[1:]:
        own = tree.path(address) / "iommu_group"
        own.unlink()
        link(own, group)
        link(group / "devices" / address, tree.path(address))


# Nothing -------------------------------------------------------------------


def test_a_host_that_uses_nothing_of_its_cards(tree: SysfsTree) -> None:
    tree.add_every_card()
    sysfs = Sysfs(tree.root)
    use = host_use(sysfs)

    used = [
        function.address
        for function in sysfs.functions()
        if use.why(function) and not function.boot_vga
    ]

    assert used == []


def test_without_proc_nothing_is_known_to_be_used(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_intel_p4510()
    tree.add_intel_x710()

    assert _why(tree, P4510) == _why(tree, X710) == ""
    assert not caplog.records


def test_a_host_without_a_bus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="bus/pci/devices"):
        host_use(Sysfs(tmp_path))


# Displays ------------------------------------------------------------------


def test_the_boot_display_is_the_hosts(tree: SysfsTree) -> None:
    tree.add_host_display()

    assert _why(tree, "0000:03:00.0") == "the host's boot display"


def test_a_boot_display_that_was_taken_from_the_host_is_not(
    tree: SysfsTree,
) -> None:
    tree.add_function(
        Card(
            "0000:03:00.0",
            "10de:13f2",
            "030000",
            "vfio-pci",
            boot_vga=1,
        )
    )

    assert _why(tree, "0000:03:00.0") == ""


# Disks ---------------------------------------------------------------------


def test_a_disk_without_a_mount_is_free(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    tree.add_partition("nvme0n1")
    _mount(tree, "8:1", "/")

    assert _why(tree, P4510) == ""


def test_a_mounted_disk_is_in_use(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    _mount(tree, "259:0")

    assert _why(tree, P4510) == (
        "in use by the host: nvme0n1 is mounted at /data"
    )


def test_a_mounted_partition_is_in_use(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    tree.add_inspur_ns8500()
    tree.add_partition("nvme1n1", 2)
    _mount(tree, "259:18", "/")

    assert _why(tree, "0000:65:00.0") == (
        "in use by the host: nvme1n1p2 is mounted at /"
    )
    assert _why(tree, P4510) == ""


def test_of_several_mounts_always_the_same_is_named(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    for place in ("/var/lib/x", "/", "/boot"):
        _mount(tree, "259:0", place)

    assert _why(tree, P4510).endswith("is mounted at /")


def test_the_mounts_are_those_of_the_hosts_first_process(
    tree: SysfsTree,
) -> None:
    """The agent's own, where the other's cannot be seen."""
    tree.add_intel_p4510()
    _mount(tree, "259:0", process="self")
    assert "mounted" in _why(tree, P4510)

    _mount(tree, "8:1", process="1")
    assert _why(tree, P4510) == ""


@pytest.mark.parametrize(
    "source", ["/dev/nvme0n1p1", "/dev/nvme9n1p1:/dev/nvme0n1p1:/dev/sda"]
)
def test_a_file_system_with_a_number_of_its_own_is_known_by_its_device(
    tree: SysfsTree, source: str
) -> None:
    """btrfs; and others that name all their devices."""
    tree.add_intel_p4510()
    tree.add_partition("nvme0n1")
    _mount(tree, "0:44", "/srv", source)

    assert _why(tree, P4510) == (
        "in use by the host: nvme0n1p1 is mounted at /srv"
    )


def test_every_disk_of_a_btrfs_is_in_use(tree: SysfsTree) -> None:
    """Its mount names one of them."""
    tree.add_intel_p4510()
    pool = tree.root / "fs" / "btrfs" / "0f7a1c6e-2f3b-4c52-9c39-5a0f5fd2b1a7"
    link(pool / "devices" / "nvme0n1", _block(tree, "nvme0n1"))

    assert _why(tree, P4510) == (
        "in use by the host: nvme0n1 is part of a btrfs"
    )


def test_swap_is_use(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    tree.add_partition("nvme0n1", 3)
    tree.write_proc(
        "swaps",
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        "/swap.img file 8388604 0 -2\n"
        "/dev/nvme0n1p3                          partition\t8388604\t0\t-2\n",
    )

    assert _why(tree, P4510) == ("in use by the host: it swaps on nvme0n1p3")


def test_what_is_made_of_a_disk_makes_it_used(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    tree.add_partition("nvme0n1")
    _made_of(tree, "md127", "9:127", "nvme0n1p1")

    assert _why(tree, P4510) == (
        "in use by the host: md127 is made of nvme0n1p1"
    )


def test_the_mount_is_found_through_all_that_is_made_of_a_disk(
    tree: SysfsTree,
) -> None:
    """A logical volume in a RAID over two disks."""
    tree.add_intel_p4510()
    tree.add_inspur_ns8500()
    tree.add_partition("nvme0n1")
    _made_of(tree, "md127", "9:127", "nvme0n1p1", "nvme1n1")
    _made_of(tree, "dm-3", "253:3", "md127")
    _mount(tree, "253:3", "/var", "/dev/mapper/vg-var")

    for address in (P4510, "0000:65:00.0"):
        assert _why(tree, address) == (
            "in use by the host: dm-3 is mounted at /var"
        )


def test_holders_that_go_round_end(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    _made_of(tree, "dm-0", "253:0", "nvme0n1")
    _made_of(tree, "dm-1", "253:1", "dm-0")
    link(_block(tree, "dm-1") / "holders" / "dm-0", _block(tree, "dm-0"))

    assert _why(tree, P4510).startswith("in use by the host: dm-")


def _multipath(tree: SysfsTree, address: str, partition: int = 0) -> None:
    """Native multipath: the disk is in the subsystem, hidden in the
    controller; the subsystem's number is its own."""
    controller = tree.path(address) / "nvme" / "nvme0"
    old = controller / "nvme0n1"
    (tree.root / "class/block/nvme0n1").unlink()
    old.rename(controller / "nvme7c0n1")
    (controller / "nvme7c0n1" / "dev").unlink()
    subsystem = tree.root / "devices/virtual/nvme-subsystem/nvme-subsys7"
    disk = subsystem / "nvme7n1"
    write(disk / "dev", "259:40")
    (disk / "holders").mkdir()
    link(tree.root / "class/nvme-subsystem/nvme-subsys7", subsystem)
    link(subsystem / "nvme0", controller)
    if partition:
        part = disk / f"nvme7n1p{partition}"
        write(part / "dev", f"259:{40 + partition}")
        write(part / "partition", str(partition))


def test_a_disk_of_native_multipath_is_seen(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    _multipath(tree, P4510)
    assert _why(tree, P4510) == ""

    _mount(tree, "259:40")

    assert _why(tree, P4510) == (
        "in use by the host: nvme7n1 is mounted at /data"
    )


def test_a_partition_of_native_multipath_is_seen(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    _multipath(tree, P4510, partition=2)
    _mount(tree, "259:42", "/boot")

    assert _why(tree, P4510) == (
        "in use by the host: nvme7n1p2 is mounted at /boot"
    )


def test_a_disk_behind_vmd_uses_both_functions(tree: SysfsTree) -> None:
    tree.add_nvme_behind_vmd()
    _mount(tree, "259:0")

    for address in ("10000:01:00.0", "0000:5d:05.5"):
        assert "nvme0n1 is mounted" in _why(tree, address)


def test_any_controllers_disk_is_seen(tree: SysfsTree) -> None:
    """A RAID controller, or a virtio disk, that an operator whitelisted."""
    path = tree.add_unknown()
    disk = path / "host0" / "target0:0:0" / "0:0:0:0" / "block" / "sda"
    write(disk / "dev", "8:0")
    link(tree.root / "class" / "block" / "sda", disk)
    _mount(tree, "8:0", "/")

    assert _why(tree, "0000:02:00.0") == (
        "in use by the host: sda is mounted at /"
    )


def test_a_disk_that_vfio_has_is_not_in_use(tree: SysfsTree) -> None:
    tree.add_function(Card(P4510, "8086:0a54", "010802", "vfio-pci"))
    _mount(tree, "259:0")

    assert _why(tree, P4510) == ""


def test_a_disk_that_cannot_be_read_is_perhaps_in_use(
    tree: SysfsTree,
) -> None:
    """And no other is."""
    tree.add_intel_p4510()
    tree.add_inspur_ns8500()
    number = _block(tree, "nvme0n1") / "dev"
    number.unlink()
    number.mkdir()

    reason = _why(tree, P4510)

    assert reason.startswith("perhaps in use by the host")
    assert "nvme0n1/dev" in reason
    assert _why(tree, "0000:65:00.0") == ""


@pytest.mark.parametrize("table", ["self/mountinfo", "swaps"])
def test_a_disk_is_perhaps_in_use_while_a_table_cannot_be_read(
    tree: SysfsTree, table: str
) -> None:
    tree.add_intel_p4510()
    tree.add_nvidia_t4()
    (tree.proc / table).mkdir(parents=True)

    reason = _why(tree, P4510)

    assert reason.startswith("perhaps in use by the host")
    assert table in reason
    assert _why(tree, T4) == ""


def test_the_agents_own_mounts_stand_for_those_that_cannot_be_read(
    tree: SysfsTree,
) -> None:
    tree.add_intel_p4510()
    (tree.proc / "1/mountinfo").mkdir(parents=True)
    assert "1/mountinfo" in _why(tree, P4510)

    _mount(tree, "0:99", process="self")
    assert _why(tree, P4510) == ""
    _mount(tree, "259:0", process="self")
    assert "nvme0n1 is mounted" in _why(tree, P4510)


@pytest.mark.parametrize(
    "table", ["net/route", "net/ipv6_route", "net/if_inet6"]
)
def test_an_interface_is_perhaps_in_use_while_a_table_cannot_be_read(
    tree: SysfsTree, table: str
) -> None:
    tree.add_intel_x710()
    tree.add_nvidia_t4()
    (tree.proc / table).mkdir(parents=True)

    assert table in _why(tree, X710)
    assert _why(tree, T4) == ""


def test_rubbish_in_the_tables_is_passed_over(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    tree.add_intel_x710()
    for name in (
        *("1/mountinfo", "swaps"),
        *("net/route", "net/ipv6_route", "net/if_inet6"),
    ):
        tree.write_proc(name, "\n \n-\n - \na b - \n/dev/\n\t\t\n" + "x " * 99)

    assert _why(tree, P4510) == _why(tree, X710) == ""


# Networks ------------------------------------------------------------------


def test_the_interface_with_the_default_route_is_in_use(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()
    _route(tree, "eth2")

    assert _why(tree, X710) == (
        "in use by the host: its default route goes over eth2"
    )
    assert _why(tree, "0000:05:00.1") == ""


def test_a_link_local_route_is_no_use(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    _route(tree, "eth2", destination="0000FEA9")

    assert _why(tree, X710) == ""


def test_a_default_route_of_ipv6_counts(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    zeros = "0" * 32
    tree.write_proc(
        "net/ipv6_route",
        f"fe80{'0' * 28} 40 {zeros} 00 {zeros} 00000100 00000001 00000000 "
        "00000001     eth3\n"
        f"{zeros} 00 {zeros} 00 fe80{'0' * 27}1 00000400 00000001 00000000 "
        "00450003     eth2\n"
        f"{zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200"
        "       lo\n",
    )

    assert "over eth2" in _why(tree, X710)
    assert _why(tree, "0000:05:00.1") == ""


def test_the_ports_of_a_bond_are_in_use(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    bond = _over(tree, "bond0")
    for name in ("eth2", "eth3"):
        place = (tree.root / "class" / "net" / name).resolve()
        link(place / "master", bond)
    _route(tree, "bond0")

    assert _why(tree, X710) == (
        "in use by the host: its default route goes over eth2 (bond0)"
    )
    assert "eth3 (bond0)" in _why(tree, "0000:05:00.1")


def test_a_bridge_over_a_vlan_over_a_bond_is_seen_through(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()
    _over(tree, "bond0", "eth2")
    _over(tree, "bond0.100", "bond0")
    _over(tree, "br-lan", "bond0.100")
    _route(tree, "br-lan")

    assert "eth2 (br-lan)" in _why(tree, X710)
    assert _why(tree, "0000:05:00.1") == ""


def test_interfaces_that_go_round_end(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    _over(tree, "one", "eth2")
    _over(tree, "two", "one")
    link(
        (tree.root / "class/net/two").resolve() / "upper_one",
        tree.root / "class/net/one",
    )
    _route(tree, "lan9")

    assert _why(tree, X710) == "in use by the host: one is made of eth2"


def test_an_interface_with_an_address_alone_is_in_use(
    tree: SysfsTree,
) -> None:
    """Of a network for storage or management that leads nowhere else."""
    tree.add_intel_x710()
    tree.write_proc(
        "net/route",
        f"{ROUTES}eth2\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF"
        "\t0\t0\t0\n",
    )

    assert _why(tree, X710) == "in use by the host: it has an address on eth2"
    assert _why(tree, "0000:05:00.1") == ""


def test_an_address_of_ipv6_that_is_not_the_links_alone_counts(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()
    tree.write_proc(
        "net/if_inet6",
        f"fe80{'0' * 24}0002 04 40 20 80     eth3\n"
        f"fd00{'0' * 24}0001 03 40 00 80     eth2\n",
    )

    assert "an address on eth2" in _why(tree, X710)
    assert _why(tree, "0000:05:00.1") == ""


@pytest.mark.parametrize("route", ["br-ex", "eth3"])
def test_a_port_of_open_vswitch_is_in_use_wherever_the_route_is(
    tree: SysfsTree, route: str
) -> None:
    """Its other ports are those of guests."""
    tree.add_intel_x710()
    link(
        (tree.root / "class/net/eth2").resolve() / "master",
        _over(tree, "ovs-system"),
    )
    _over(tree, "br-ex")
    _route(tree, route)

    assert _why(tree, X710) == (
        "in use by the host: ovs-system is made of eth2"
    )
    assert ("eth3" in _why(tree, "0000:05:00.1")) is (route == "eth3")


def test_a_port_of_a_bond_is_in_use_without_a_route(tree: SysfsTree) -> None:
    tree.add_intel_x710(vfs=1)
    link(
        (tree.root / "class/net/eth2").resolve() / "master",
        _over(tree, "bond0"),
    )

    assert _why(tree, X710) == "in use by the host: bond0 is made of eth2"
    assert _why(tree, "0000:05:00.1") == ""
    assert _why(tree, "0000:05:02.0") == ""


def test_virtual_functions_are_not_used_by_their_parents_route(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=2)
    _route(tree, "eth2")

    assert _why(tree, "0000:05:02.0") == ""


def test_a_virtual_function_with_the_route_itself_is_in_use(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=1)
    virtual = tree.path("0000:05:02.0")
    (virtual / "net" / "eth9").mkdir(parents=True)
    link(tree.root / "class" / "net" / "eth9", virtual / "net" / "eth9")
    _route(tree, "eth9")

    assert "over eth9" in _why(tree, "0000:05:02.0")


# IOMMU groups --------------------------------------------------------------


def test_a_neighbour_that_the_host_uses_keeps_its_group(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    tree.add_intel_p4510()
    _share_a_group(tree, P4510, T4)
    _mount(tree, "259:0", "/")

    number = (tree.path(T4) / "iommu_group").resolve().name
    assert _why(tree, T4) == (
        f"{P4510}, which shares IOMMU group {number} with it, is in use by "
        "the host: nvme0n1 is mounted at /"
    )


def test_a_neighbour_with_a_driver_of_the_host_keeps_its_group(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    tree.add_intel_c62x()
    _share_a_group(tree, T4, "0000:3d:00.0")

    assert _why(tree, T4).endswith("is bound to c6xx")
    assert _why(tree, "0000:3d:00.0").endswith("is bound to nvidia")


@pytest.mark.parametrize(
    "driver", [None, "vfio-pci", "pci-stub", "mlx5_vfio_pci"]
)
def test_a_neighbour_that_no_driver_of_the_host_has_is_none(
    tree: SysfsTree, driver: str | None
) -> None:
    tree.add_nvidia_t4()
    tree.add_function(Card("0000:02:00.0", "15b3:101e", "020000", driver))
    _share_a_group(tree, T4, "0000:02:00.0")

    assert _why(tree, T4) == ""


def test_bridges_in_a_group_do_not_count(tree: SysfsTree) -> None:
    path = tree.add_nvidia_t4()
    _share_a_group(tree, T4, path.parent.name)

    assert _why(tree, T4) == ""


def test_what_goes_together_is_no_stranger(tree: SysfsTree) -> None:
    tree.add_xilinx_u250()
    both = ("0000:3b:00.0", "0000:3b:00.1")
    _share_a_group(tree, *both)

    assert "xocl" in _why(tree, both[0])
    assert _why(tree, both[0], together=both) == ""
    assert _why(tree, both[1], together=both) == ""


def test_functions_without_a_group_have_no_neighbours(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    tree.add_intel_c62x()
    for address in (T4, "0000:3d:00.0"):
        (tree.path(address) / "iommu_group").unlink()

    assert _why(tree, T4) == ""


# Functions that are lost ---------------------------------------------------


def _lose(path: Path) -> None:
    write(path / "power_state", "D0")
    write(path / "current_link_speed", "Unknown")
    (path / "config").write_bytes(b"\xff" * 64)


def test_a_function_that_fell_off_the_bus_is_said_to_have(
    tree: SysfsTree,
) -> None:
    _lose(tree.add_nvidia_t4())

    assert "not on the PCI bus any more" in _why(tree, T4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("power_state", b"D3cold\n"),
        ("power_state", b"unknown\n"),
        ("current_link_speed", b"16.0 GT/s PCIe\n"),
        ("config", b"\xde\x10\xb8\x1e" + b"\xff" * 60),
        ("config", b""),
        ("power_state", None),
        ("current_link_speed", None),
        ("config", None),
    ],
)
def test_one_sign_that_speaks_against_it_is_enough(
    tree: SysfsTree, name: str, text: bytes | None
) -> None:
    path = tree.add_nvidia_t4()
    _lose(path)
    (path / name).unlink()
    if text is not None:
        (path / name).write_bytes(text)

    assert _why(tree, T4) == ""


def test_a_virtual_function_is_not_lost_for_its_registers(
    tree: SysfsTree,
) -> None:
    """The standard has them read all ones."""
    tree.add_intel_x710(vfs=1)
    _lose(tree.path("0000:05:02.0"))

    assert _why(tree, "0000:05:02.0") == ""


# As a whole ----------------------------------------------------------------


def test_a_table_that_cannot_be_read_is_warned_of_once(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_intel_p4510()
    swaps = tree.proc / "swaps"
    swaps.mkdir(parents=True)
    sysfs = Sysfs(tree.root)

    for _ in range(3):
        host_use(sysfs)
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert str(swaps) in caplog.text

    swaps.rmdir()
    host_use(sysfs)
    swaps.mkdir()
    host_use(sysfs)
    assert len(caplog.records) == 2


def test_in_a_shared_look_the_host_is_read_once(tree: SysfsTree) -> None:
    tree.add_intel_p4510()
    sysfs = Sysfs(tree.root)

    with sysfs.shared():
        first = sysfs.once(host_use)
        _mount(tree, "259:0")
        assert sysfs.once(host_use) is first
    function = sysfs.function(P4510)
    assert function is not None
    assert "mounted" in sysfs.once(host_use).why(function)


def test_scan_and_use_of_200_functions_take_milliseconds(
    tree: SysfsTree,
) -> None:
    """Fifty when nothing else runs; ten times that here."""
    for number in range(50):
        tree.add("intel_p4510", f"0000:{0x10 + number:02x}:00.0")
        tree.add_partition(f"nvme{number}n1")
        tree.add("inspur_f10a", f"0000:{0x50 + number:02x}:00.0")
    _mount(tree, "259:1")
    sysfs = Sysfs(tree.root)

    started = time.process_time()
    with sysfs.shared():
        functions = sysfs.functions()
        use = sysfs.once(host_use)
        used = [one.address for one in functions if use.why(one)]

    assert time.process_time() - started < 0.5
    assert len(functions) == 200
    assert "0000:10:00.0" in used

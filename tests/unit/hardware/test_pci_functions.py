# SPDX-License-Identifier: Apache-2.0
"""The sysfs reader on fake trees, on broken ones and on this host's own."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies

from cyborg.hardware.pci import Address
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pci import parse_address
from tests.cards import Card
from tests.sysfs import SysfsTree
from tests.sysfs import addresses

ADDRESSES = strategies.builds(
    Address,
    strategies.integers(0, 0xFFFFFFFF),
    strategies.integers(0, 0xFF),
    strategies.integers(0, 0x1F),
    strategies.integers(0, 7),
)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _function(tree: SysfsTree, address: str) -> PciFunction:
    function = Sysfs(tree.root).function(address)
    assert function is not None
    return function


@settings(deadline=None)
@given(ADDRESSES)
def test_an_address_reads_back_what_it_writes(address: Address) -> None:
    assert parse_address(str(address)) == address
    assert parse_address(str(address).upper()) == address


@settings(deadline=None)
@given(strategies.text(max_size=16))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0000:5e:00.1", "0000:5e:00.1"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("00000000:AF:00.0", "0000:af:00.0"),
        ("FFFF:ff:1f.7", "ffff:ff:1f.7"),
    ],
)
def test_an_address_is_written_as_the_kernel_does(
    text: str, canonical: str
) -> None:
    assert str(parse_address(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5e:00.1",
        "0000:5e:00",
        "0000:5e:20.0",
        "0000:5e:00.8",
        "000:5e:00.0",
        "0000:5e:00.0\n",
        " 0000:5e:00.0",
        "0000:5g:00.0",
        "\N{FULLWIDTH DIGIT ZERO}000:5e:00.0",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a PCI address"):
        parse_address(text)


def test_a_card_is_read_with_all_its_facts(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()

    function = _function(tree, "0000:af:00.0")

    assert function == PciFunction(
        address="0000:af:00.0",
        vendor="10de",
        device="1eb8",
        class_code="030200",
        subsystem_vendor="10de",
        subsystem_device="12a2",
        revision="a1",
        driver="nvidia",
        numa_node=0,
        iommu_group=1,
        reset_methods=("flr", "bus"),
        root="pci0000:00/0000:00:15.7",
    )


def test_virtual_functions_and_their_parent_know_each_other(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_a100(vfs=16)

    parent = _function(tree, "0000:41:00.0")
    last = _function(tree, "0000:41:02.3")

    assert len(parent.virtual_functions) == 16
    assert parent.virtual_functions[0] == "0000:41:00.4"
    assert parent.virtual_functions[15] == "0000:41:02.3"
    assert last.physical_function == "0000:41:00.0"
    assert last.virtual_functions == ()


def test_virtual_functions_are_in_the_order_of_their_numbers(
    tree: SysfsTree,
) -> None:
    tree.add_intel_c62x(vfs=12)

    found = _function(tree, "0000:3d:00.0").virtual_functions

    assert found[10:] == ("0000:3d:02.2", "0000:3d:02.3")


def test_interfaces_are_named_and_may_be_several(tree: SysfsTree) -> None:
    tree.add_intel_x710(vfs=2)
    tree.add_mellanox_bluefield2()

    assert _function(tree, "0000:05:00.1").interfaces == ("eth3",)
    assert _function(tree, "0000:05:0a.0").interfaces == ()
    assert _function(tree, "0000:06:00.0").interfaces == ("p0", "pf0hpf")


def test_a_virtio_function_has_its_interface_one_level_lower(
    tree: SysfsTree,
) -> None:
    path = tree.add_unknown()
    (path / "virtio3" / "net" / "eth9").mkdir(parents=True)

    assert _function(tree, "0000:02:00.0").interfaces == ("eth9",)


def test_mediated_devices_on_a_card_are_seen(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()
    assert _function(tree, "0000:af:00.0").mediated == ()

    tree.add_mdev("0000:af:00.0", "nvidia-222", "an-identity")

    assert _function(tree, "0000:af:00.0").mediated == ("an-identity",)


def test_the_boot_display_says_so(tree: SysfsTree) -> None:
    tree.add_host_display()

    assert _function(tree, "0000:03:00.0").boot_vga


def test_a_five_digit_domain_is_read_and_comes_last(tree: SysfsTree) -> None:
    tree.add_nvme_behind_vmd()
    tree.add_unknown("0000:f8:00.0")

    functions = Sysfs(tree.root).functions()

    assert addresses(functions) == [
        "0000:5d:05.5",
        "0000:f8:00.0",
        "10000:01:00.0",
    ]
    assert functions[-1].root == "pci0000:00/0000:00:0b.5"


def test_a_function_on_the_root_bus_hangs_on_the_bridge(
    tree: SysfsTree,
) -> None:
    tree.add_unknown("0000:00:1e.0")

    assert _function(tree, "0000:00:1e.0").root == "pci0000:00"


def test_files_that_not_every_kernel_has_may_be_missing(
    tree: SysfsTree,
) -> None:
    path = tree.add_unknown()
    for name in (
        "numa_node",
        "revision",
        "subsystem_vendor",
        "subsystem_device",
        "iommu_group",
    ):
        (path / name).unlink()

    function = _function(tree, "0000:02:00.0")

    assert function.numa_node is None
    assert function.iommu_group is None
    assert function.subsystem_vendor == "0000"


def test_an_unknown_numa_node_is_none(tree: SysfsTree) -> None:
    (tree.add_unknown() / "numa_node").write_text("-1\n")

    assert _function(tree, "0000:02:00.0").numa_node is None


def _missing(path: Path) -> None:
    path.unlink()


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _words(path: Path) -> None:
    path.write_text("not a number\n")


def _empty(path: Path) -> None:
    path.write_text("")


def _binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


BREAKAGES = [_missing, _directory, _loop, _pipe, _words, _empty, _binary]


@pytest.mark.parametrize("name", ["vendor", "device", "class"])
@pytest.mark.parametrize("broken", BREAKAGES)
def test_a_broken_file_leaves_out_its_device_with_one_warning(
    tree: SysfsTree,
    caplog: pytest.LogCaptureFixture,
    name: str,
    broken: object,
) -> None:
    path = tree.add_unknown()
    tree.add_nvidia_t4()
    assert callable(broken)
    broken(path / name)
    sysfs = Sysfs(tree.root)

    for _ in range(3):
        assert addresses(sysfs.functions()) == ["0000:af:00.0"]

    warnings = [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]
    assert len(warnings) == 1
    assert f"0000:02:00.0/{name}" in warnings[0].getMessage()


@pytest.mark.parametrize("name", ["numa_node", "revision", "boot_vga"])
@pytest.mark.parametrize("broken", BREAKAGES[1:])
def test_a_file_that_may_be_missing_must_not_be_broken(
    tree: SysfsTree, name: str, broken: object
) -> None:
    path = tree.add_host_display()
    tree.add_nvidia_t4()
    assert callable(broken)
    broken(path / name)

    found = addresses(Sysfs(tree.root).functions())

    assert found == ["0000:af:00.0"]


@pytest.mark.parametrize("name", ["driver", "iommu_group", "reset_method"])
def test_a_link_that_is_none_leaves_out_its_device(
    tree: SysfsTree, name: str
) -> None:
    path = tree.add_host_display()
    tree.add_nvidia_t4()
    (path / name).unlink()
    (path / name).mkdir()

    found = addresses(Sysfs(tree.root).functions())

    assert found == ["0000:af:00.0"]


def test_a_device_that_breaks_again_is_warned_of_again(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    vendor = tree.add_unknown() / "vendor"
    tree.add_nvidia_t4()
    sysfs = Sysfs(tree.root)

    for text in ("broken", "0x1234", "broken"):
        vendor.write_text(text)
        sysfs.functions()

    assert len(caplog.records) == 2


def test_a_device_that_leaves_broken_and_returns_is_warned_of_again(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_nvidia_t4()
    sysfs = Sysfs(tree.root)

    for _ in range(2):
        (tree.add_unknown() / "vendor").unlink()
        sysfs.functions()
        tree.unplug("0000:02:00.0")
        sysfs.functions()

    assert len(caplog.records) == 2


def test_a_name_that_is_no_address_is_left_out_with_a_warning(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_nvidia_t4()
    (tree.root / "bus/pci/devices/rubbish").symlink_to(tree.root)

    functions = Sysfs(tree.root).functions()

    assert addresses(functions) == ["0000:af:00.0"]
    assert "rubbish" in caplog.text


def test_a_device_that_vanished_is_left_out_silently(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    path = tree.add_unknown()
    tree.add_nvidia_t4()
    shutil.rmtree(path)  # the link on the bus stays, as in the middle of it

    functions = Sysfs(tree.root).functions()

    assert addresses(functions) == ["0000:af:00.0"]
    assert not caplog.records
    assert Sysfs(tree.root).function("0000:02:00.0") is None


def test_devices_may_come_and_go_while_the_bus_is_read(
    tree: SysfsTree,
) -> None:
    """Another process plugs and unplugs as fast as it can."""
    tree.add_nvidia_t4()
    plug = (
        "import sys, pathlib\n"
        "from tests.sysfs import SysfsTree\n"
        "tree = SysfsTree.__new__(SysfsTree)\n"
        "tree.root, tree._groups = pathlib.Path(sys.argv[1]), 10**6\n"
        "for _ in range(150):\n"
        "    tree.add_unknown()\n"
        "    tree.unplug('0000:02:00.0')\n"
    )
    sysfs = Sysfs(tree.root)
    with subprocess.Popen(
        [sys.executable, "-c", plug, str(tree.root)],
        cwd=Path(__file__).parents[3],
    ) as process:
        scans = 0
        while process.poll() is None:
            assert "0000:af:00.0" in addresses(sysfs.functions())
            scans += 1

    assert process.returncode == 0
    assert scans > 10
    assert addresses(sysfs.functions()) == ["0000:af:00.0"]


def test_a_host_without_a_pci_bus_is_an_error_and_not_empty(
    tmp_path: Path,
) -> None:
    with pytest.raises(HardwareError, match="bus/pci/devices"):
        Sysfs(tmp_path).functions()


def test_a_bus_of_which_nothing_can_be_read_is_an_error(
    tree: SysfsTree,
) -> None:
    tree.add_function(
        Card("0000:00:1f.0", "1234:0001", "ff0000", None)
    ).joinpath("vendor").unlink()

    with pytest.raises(HardwareError, match=r"0000:00:1f\.0/vendor"):
        Sysfs(tree.root).functions()


def test_a_bus_without_devices_is_empty(tree: SysfsTree) -> None:
    assert Sysfs(tree.root).functions() == []


def test_one_broken_function_asked_for_is_an_error(tree: SysfsTree) -> None:
    (tree.add_unknown() / "class").unlink()

    with pytest.raises(HardwareError, match="class"):
        Sysfs(tree.root).function("0000:02:00.0")


def test_reading_twice_gives_the_same(tree: SysfsTree) -> None:
    tree.add_every_card()
    sysfs = Sysfs(tree.root)

    assert sysfs.functions() == sysfs.functions()


@pytest.mark.skipif(
    not Path("/sys/bus/pci/devices").is_dir(), reason="no PCI bus here"
)
def test_the_hosts_own_bus_is_read_wholly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    functions = Sysfs(Path("/sys")).functions()

    names = sorted(
        path.name for path in Path("/sys/bus/pci/devices").iterdir()
    )
    assert sorted(function.address for function in functions) == names
    for function in functions:
        text = Path("/sys/bus/pci/devices", function.address, "vendor")
        assert text.read_text().strip() == f"0x{function.vendor}"
        assert function.root.startswith("pci")
    assert not caplog.records

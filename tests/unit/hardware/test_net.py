# SPDX-License-Identifier: Apache-2.0
"""Which network interface is a function's own, on fake trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from cyborg.hardware import net
from cyborg.hardware.files import UnreadableError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import Sysfs
from tests.sysfs import SysfsTree


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _own(tree: SysfsTree, address: str) -> str | None:
    sysfs = Sysfs(tree.root)
    function = sysfs.function(address)
    assert function is not None
    return net.own_interface(sysfs, function.interfaces)


def _write(tree: SysfsTree, interface: str, name: str, text: str) -> None:
    path = tree.root / "class" / "net" / interface
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(f"{text}\n")


def _interface(tree: SysfsTree, address: str, place: str) -> None:
    """An interface at `place` below a function."""
    path = tree.path(address) / place
    path.mkdir(parents=True)
    link = tree.root / "class" / "net" / path.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(path)


def test_a_single_interface_is_its_functions_own(tree: SysfsTree) -> None:
    tree.add_intel_x710()

    assert _own(tree, "0000:05:00.0") == "eth2"
    assert _own(tree, "0000:05:00.1") == "eth3"


def test_a_function_may_have_no_interface(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()

    assert _own(tree, "0000:af:00.0") is None


def test_an_interface_that_stands_for_another_function_is_set_aside(
    tree: SysfsTree,
) -> None:
    tree.add_mellanox_bluefield2()
    for place in ("a_pf0vf0", "a_pf0sf1", "a_c1pf0vf3"):
        _interface(tree, "0000:06:00.0", f"net/{place}")
        _write(tree, place, "phys_port_name", place.removeprefix("a_"))
    _write(tree, "p0", "phys_port_name", "p0")
    _write(tree, "pf0hpf", "phys_port_name", "pf0hpf")

    assert _own(tree, "0000:06:00.0") == "p0"


def test_a_function_may_have_representors_alone(tree: SysfsTree) -> None:
    tree.add_mellanox_bluefield2()
    _write(tree, "p0", "phys_port_name", "pf1")
    _write(tree, "pf0hpf", "phys_port_name", "pf0hpf")

    assert _own(tree, "0000:06:00.0") is None


def test_of_several_ports_the_first_counts_whatever_its_name(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()
    for place, port in (("eth10", "0"), ("eth2", "1")):
        if place != "eth2":
            _interface(tree, "0000:05:00.0", f"net/{place}")
        _write(tree, place, "dev_port", port)

    assert _own(tree, "0000:05:00.0") == "eth10"


def test_a_driver_that_refuses_to_name_its_port_has_no_representor(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()
    _interface(tree, "0000:05:00.0", "net/eth1")
    # Reading it fails, as it does with EOPNOTSUPP.
    (tree.root / "class/net/eth1/phys_port_name").mkdir()

    assert _own(tree, "0000:05:00.0") == "eth1"


def test_a_malformed_port_number_is_an_error_that_names_the_file(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()
    _interface(tree, "0000:05:00.0", "net/eth1")
    _write(tree, "eth1", "dev_port", "first")

    with pytest.raises(UnreadableError, match="class/net/eth1/dev_port"):
        _own(tree, "0000:05:00.0")


def test_a_virtio_function_has_its_interface_one_level_lower(
    tree: SysfsTree,
) -> None:
    tree.add_unknown()
    _interface(tree, "0000:02:00.0", "virtio0/net/ens3")

    assert _own(tree, "0000:02:00.0") == "ens3"


def _function(address: str, *interfaces: str) -> PciFunction:
    return PciFunction(
        address, "8086", "1572", "020000", interfaces=interfaces
    )


def test_the_interface_of_a_function_with_a_guest_is_remembered() -> None:
    seen = net.LastSeen()
    seen.look([_function("0000:05:00.0", "eth2")])
    seen.look([_function("0000:05:00.0")])
    seen.look([_function("0000:05:00.0")])

    assert seen.of("0000:05:00.0") == ("eth2",)
    assert seen.of("0000:05:00.1") == ()


def test_what_is_seen_now_counts_more_than_what_was() -> None:
    seen = net.LastSeen()
    seen.look([_function("0000:05:00.0", "eth2")])
    seen.look([_function("0000:05:00.0", "enp5s0f0")])

    assert seen.of("0000:05:00.0") == ("enp5s0f0",)


def test_a_function_that_was_unplugged_is_forgotten() -> None:
    seen = net.LastSeen()
    seen.look([_function("0000:05:00.0", "eth2")])
    seen.look([])
    seen.look([_function("0000:05:00.0")])

    assert seen.of("0000:05:00.0") == ()


def test_an_interface_that_another_function_has_now_is_not_remembered() -> (
    None
):
    seen = net.LastSeen()
    seen.look([_function("0000:05:00.0", "eth2")])
    seen.look([_function("0000:05:00.0"), _function("0000:06:00.0", "eth2")])

    assert seen.of("0000:05:00.0") == ()
    assert seen.of("0000:06:00.0") == ("eth2",)

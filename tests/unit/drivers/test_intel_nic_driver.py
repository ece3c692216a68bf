# SPDX-License-Identifier: Apache-2.0
"""`intel_nic_driver` on fake hosts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers.intel_nic import IntelNicDriver
from cyborg.hardware.pci import PciFunction
from tests.cards import Card
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.sysfs import SysfsTree

CONTRACT = {
    "physical_device_mappings": "physnet1:eth2|eth3",
    "function_device_mappings": "GTPv1:eth3|eth2",
}
ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\t"
    "Window\tIRTT\n"
    "{interface}\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _driver(tree: SysfsTree, **sections: dict[str, str]) -> IntelNicDriver:
    """One whose configuration enables and holds these sections."""
    types = {"nic_devices": {"enabled_nic_types": list(sections)}}
    return IntelNicDriver(driver_host(tree.root, {**types, **sections}))


def _deployables(driver: IntelNicDriver) -> dict[str, inventory.Deployable]:
    """By address."""
    return {
        deployable.name.removeprefix("compute-1_"): deployable
        for device in driver.discover()
        for deployable in device.deployables
    }


def _traits(deployable: inventory.Deployable) -> set[str]:
    return set(inventory.traits(deployable.attributes)) - {"OWNER_CYBORG"}


def _network(deployable: inventory.Deployable) -> str | None:
    (handle,) = deployable.attach_handles
    network = json.loads(handle.attach_info).get("physical_network")
    assert network is None or isinstance(network, str)
    return network


# Ports and their virtual functions -------------------------------------------


def test_a_port_without_virtual_functions_is_reported_wholly(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()

    device = list(_driver(tree, x710_static=CONTRACT).discover())[1]

    assert device == inventory.Device(
        controlpath=inventory.pci_json("0000:05:00.1"),
        type=inventory.DeviceType.NIC,
        vendor="8086",
        model="8086:1572",
        driver="intel_nic_driver",
        std_board_info=(
            '{"class": "020000", "product_id": "1572", "revision": "00",'
            ' "subsystem": "0000:0000"}'
        ),
        deployables=(
            inventory.Deployable(
                name="compute-1_0000:05:00.1",
                num_accelerators=1,
                driver_name="intel",
                attributes=(
                    ("trait0", "CUSTOM_PF"),
                    ("trait1", "CUSTOM_PHYSNET1"),
                    ("trait2", "CUSTOM_GTPV1"),
                    ("rc", "CUSTOM_NIC"),
                    ("numa_node", "0"),
                    ("pcie_root", "pci0000:00/0000:00:00.5"),
                    ("iommu_group", "2"),
                ),
                attach_handles=(
                    inventory.AttachHandle(
                        inventory.AttachType.PCI,
                        '{"bus": "05", "device": "00", "domain": "0000",'
                        ' "function": "1", "physical_network": "physnet1"}',
                    ),
                ),
            ),
        ),
    )


def test_virtual_functions_are_offered_and_their_port_is_not(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=2)

    devices = list(_driver(tree, x710_static=CONTRACT).discover())

    assert [device.controlpath for device in devices] == [
        inventory.pci_json("0000:05:00.0"),
        inventory.pci_json("0000:05:00.1"),
    ]
    assert not any(device.fault for device in devices)
    assert [
        [deployable.name for deployable in device.deployables]
        for device in devices
    ] == [
        ["compute-1_0000:05:02.0", "compute-1_0000:05:02.1"],
        ["compute-1_0000:05:0a.0", "compute-1_0000:05:0a.1"],
    ]
    for device in devices:
        for deployable in device.deployables:
            assert deployable.fault == ""
            assert _traits(deployable) == {
                "CUSTOM_VF",
                "CUSTOM_PHYSNET1",
                "CUSTOM_GTPV1",
            }
            assert _network(deployable) == "physnet1"


@pytest.mark.parametrize("product", ["158a", "158b", "1572"])
def test_every_product_is_known(tree: SysfsTree, product: str) -> None:
    tree.add_function(Card("0000:05:00.0", f"8086:{product}", "020000"))

    assert _deployables(_driver(tree)).keys() == {"0000:05:00.0"}


def test_other_cards_of_the_vendor_are_none_of_them(tree: SysfsTree) -> None:
    tree.add_intel_e810(vfs=2)
    tree.add_intel_4xxx(vfs=2)

    assert list(_driver(tree).discover()) == []


def test_a_virtual_function_of_another_card_of_the_series_is_a_device(
    tree: SysfsTree,
) -> None:
    facts = Card(
        "0000:05:00.0",
        "8086:1583",
        "020000",
        "i40e",
        total_vfs=64,
        vf="154c",
        interfaces=("eth2",),
    )
    tree.add_function(facts)
    tree.add_virtual_functions(facts, 1)

    (device,) = _driver(tree, x710_static=CONTRACT).discover()

    assert device.controlpath == inventory.pci_json("0000:05:00.1")
    assert _traits(device.deployables[0]) == {
        "CUSTOM_VF",
        "CUSTOM_PHYSNET1",
        "CUSTOM_GTPV1",
    }


def test_a_virtual_function_in_a_guest_that_is_the_host_is_a_device(
    tree: SysfsTree,
) -> None:
    tree.add_function(
        Card("0000:00:05.0", "8086:154c", "020000", "iavf", interfaces=("e5",))
    )
    section = {"physical_device_mappings": "physnet1:e5"}

    (device,) = _driver(tree, x710_static=section).discover()

    assert device.controlpath == inventory.pci_json("0000:00:05.0")
    assert _traits(device.deployables[0]) == {"CUSTOM_VF", "CUSTOM_PHYSNET1"}


def test_the_port_of_the_default_route_is_kept_and_its_parts_are_not(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()
    for place in ("net/route", "1/net/route", "self/net/route"):
        tree.write_proc(place, ROUTES.format(interface="eth2"))
    driver = _driver(tree)

    whole = [device.fault for device in driver.discover()]
    tree.add_virtual_functions(tree.cards["0000:05:00.0"], 2)
    parts = next(iter(driver.discover()))

    assert whole[0] != ""
    assert whole[1] == ""
    assert parts.fault == ""
    assert [one.fault for one in parts.deployables] == ["", ""]


# Networks and functions ------------------------------------------------------


def test_what_is_mapped_follows_the_interface_of_the_port(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=1)
    tree.add_function(
        Card("0000:07:00.0", "8086:158b", "020000", "i40e", interfaces=("e9",))
    )
    driver = _driver(
        tree,
        x710_static={
            "physical_device_mappings": "physnet1:eth2, phys-net.2:eth3",
            "function_device_mappings": "GTPv1:eth3|eth2, ip_sec:eth3",
        },
    )

    found = _deployables(driver)

    assert {name: _traits(one) for name, one in found.items()} == {
        "0000:05:02.0": {"CUSTOM_VF", "CUSTOM_PHYSNET1", "CUSTOM_GTPV1"},
        "0000:05:0a.0": {
            "CUSTOM_VF",
            "CUSTOM_PHYS_NET_2",
            "CUSTOM_GTPV1",
            "CUSTOM_IP_SEC",
        },
        "0000:07:00.0": {"CUSTOM_PF"},
    }
    assert {name: _network(one) for name, one in found.items()} == {
        "0000:05:02.0": "physnet1",
        "0000:05:0a.0": "phys-net.2",
        "0000:07:00.0": None,
    }


@pytest.mark.parametrize(
    "sections", [{}, {"x710_static": {}}, {"one": {}, "another": {}}]
)
def test_without_mappings_everything_is_reported_without_them(
    tree: SysfsTree, sections: dict[str, dict[str, str]]
) -> None:
    tree.add_intel_x710(vfs=1)

    found = _deployables(_driver(tree, **sections))

    assert found.keys() == {"0000:05:02.0", "0000:05:0a.0"}
    for deployable in found.values():
        assert _traits(deployable) == {"CUSTOM_VF"}
        assert _network(deployable) is None


def test_several_types_say_of_their_own_functions_what_they_say(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=2)
    driver = _driver(
        tree,
        gateway={
            "physical_device_mappings": "physnet1:eth2|eth3",
            "function_device_mappings": "GTPv1:eth2|eth3",
            "device_addresses": "0000:05:02.0",
        },
        tunnel={
            "physical_device_mappings": "physnet1:eth3",
            "function_device_mappings": "ipsec:eth2|eth3",
            "device_addresses": "0000:05:02.1, 0000:05:00.1",
        },
    )

    found = _deployables(driver)

    assert {name: _traits(one) for name, one in found.items()} == {
        "0000:05:02.0": {"CUSTOM_VF", "CUSTOM_PHYSNET1", "CUSTOM_GTPV1"},
        "0000:05:02.1": {"CUSTOM_VF", "CUSTOM_IPSEC"},
        "0000:05:0a.0": {"CUSTOM_VF", "CUSTOM_PHYSNET1", "CUSTOM_IPSEC"},
        "0000:05:0a.1": {"CUSTOM_VF", "CUSTOM_PHYSNET1", "CUSTOM_IPSEC"},
    }


def test_an_interface_that_is_nowhere_yet_is_no_mistake(
    tree: SysfsTree,
) -> None:
    section = {"physical_device_mappings": "physnet1:eth2|eth77"}
    driver = _driver(tree, x710_static=section)
    assert list(driver.discover()) == []

    tree.add_intel_x710()

    networks = {k: _network(v) for k, v in _deployables(driver).items()}
    assert networks == {"0000:05:00.0": "physnet1", "0000:05:00.1": None}


def test_a_representor_is_not_taken_for_the_port(tree: SysfsTree) -> None:
    path = tree.add_intel_x710(vfs=1)[0]
    directory = path / "net" / "eth0"
    directory.mkdir()
    (directory / "phys_port_name").write_text("pf0vf0\n")
    (tree.root / "class/net/eth0").symlink_to(directory)
    (path / "net/eth2/phys_port_name").write_text("p0\n")
    driver = _driver(
        tree,
        x710_static={
            "physical_device_mappings": "wrong:eth0, physnet1:eth2",
        },
    )

    assert _network(_deployables(driver)["0000:05:02.0"]) == "physnet1"


def test_a_port_that_a_guest_has_stays_the_same_unit(tree: SysfsTree) -> None:
    path = tree.add_intel_x710()[0]
    driver = _driver(tree, x710_static=CONTRACT)
    before = list(driver.discover())

    tree.unbind(path.name)
    tree.bind(tree.cards[path.name], path, "vfio-pci")

    assert not (path / "net").exists()
    assert list(driver.discover()) == before


def test_a_port_without_an_interface_has_no_network(tree: SysfsTree) -> None:
    path = tree.add_intel_x710(vfs=1)[0]
    shutil.rmtree(path / "net")

    found = _deployables(_driver(tree, x710_static=CONTRACT))

    assert _traits(found["0000:05:02.0"]) == {"CUSTOM_VF"}
    assert _network(found["0000:05:0a.0"]) == "physnet1"


def test_a_port_of_unreadable_interfaces_is_left_out_with_one_warning(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    path = tree.add_intel_x710(vfs=1)[0]
    directory = path / "net" / "eth1"
    directory.mkdir()
    (directory / "dev_port").write_text("first\n")
    (tree.root / "class/net/eth1").symlink_to(directory)
    driver = _driver(tree, x710_static=CONTRACT)

    for _ in range(2):
        assert _deployables(driver).keys() == {"0000:05:0a.0"}
    assert caplog.text.count("eth1/dev_port") == 1


# Restrictions ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "virtual", "reported"),
    [
        ("", 2, {"05:02.0", "05:02.1", "05:0a.0", "05:0a.1"}),
        ("0000:05:00.0", 2, {"05:02.0", "05:02.1"}),
        ("0000:05:00.0", 0, {"05:00.0"}),
        ("0000:05:0a.1", 2, {"05:0a.1"}),
        ("0000:05:0A.1", 2, {"05:0a.1"}),
        ("00000000:05:0a.1", 2, {"05:0a.1"}),
        ("0000:05:0a.1", 0, set()),
        ("0000:05:00.0,0000:05:0a.0", 2, {"05:02.0", "05:02.1", "05:0a.0"}),
        ("0000:05:00.0,", 0, {"05:00.0"}),
        ("0000:99:00.0", 2, set()),
    ],
)
def test_addresses_restrict_what_is_reported(
    tree: SysfsTree, addresses: str, virtual: int, reported: set[str]
) -> None:
    tree.add_intel_x710(vfs=virtual)
    driver = _driver(tree, x710_static={"device_addresses": addresses})

    assert _deployables(driver).keys() == {
        f"0000:{address}" for address in reported
    }
    assert all(device.deployables for device in driver.discover())


def test_a_restriction_of_one_type_does_not_restrict_another(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=1)
    driver = _driver(
        tree,
        one={"device_addresses": "0000:05:02.0"},
        rest={"physical_device_mappings": "physnet1:eth3"},
    )

    assert _deployables(driver).keys() == {"0000:05:02.0", "0000:05:0a.0"}


# Mistakes --------------------------------------------------------------------


@pytest.mark.parametrize("option", list(CONTRACT))
@pytest.mark.parametrize(
    "text",
    [
        "physnet1",
        "physnet1:",
        ":eth2",
        "physnet1:eth2|",
        "physnet1:|eth2",
        "physnet1:eth2||eth3",
        "physnet1:eth2:eth3",
        "physnet1:eth 2",
        "physnet1:sixteen-letters-",
        "physnet1:eth2/0",
        "phys net:eth2",
        "physñet:eth2",
        "a" * 65 + ":eth2",
        "physnet1:eth2, physnet2",
    ],
)
def test_a_malformed_mapping_is_an_error_that_names_the_option(
    tree: SysfsTree, option: str, text: str
) -> None:
    with pytest.raises(base.OptionError) as caught:
        _driver(tree, x710_static={option: text})
    assert str(caught.value).startswith(f"[x710_static] {option}: ")


@pytest.mark.parametrize(
    "text", ["5:00.0", "0000:05:00", "0000:05:00.8", "eth2", "*:05:00.*"]
)
def test_a_malformed_address_is_an_error_that_names_the_option(
    tree: SysfsTree, text: str
) -> None:
    with pytest.raises(base.OptionError) as caught:
        _driver(
            tree, other={}, x710_static={"device_addresses": f"{text},05:0.0"}
        )
    assert str(caught.value).startswith("[x710_static] device_addresses: ")
    assert text in str(caught.value)


def test_an_interface_on_two_networks_is_an_error(tree: SysfsTree) -> None:
    mapping = "physnet1:eth2|eth3, physnet2:eth3"

    with pytest.raises(base.OptionError) as caught:
        _driver(tree, x710_static={"physical_device_mappings": mapping})
    assert str(caught.value) == (
        "[x710_static] physical_device_mappings:"
        " eth3 is on physnet1 and on physnet2"
    )


def test_an_interface_on_two_networks_of_two_types_is_an_error(
    tree: SysfsTree,
) -> None:
    with pytest.raises(base.OptionError) as caught:
        _driver(
            tree,
            one={"physical_device_mappings": "physnet1:eth2"},
            two={"physical_device_mappings": "physnet2:eth2"},
        )
    assert str(caught.value) == (
        "[two] physical_device_mappings: eth2 is on physnet1 and on physnet2"
    )


def test_one_network_may_be_said_twice(tree: SysfsTree) -> None:
    tree.add_intel_x710()
    driver = _driver(
        tree,
        one={"physical_device_mappings": "physnet1:eth2, physnet1:eth2|eth3"},
        two={"physical_device_mappings": "physnet1:eth2"},
    )

    networks = {_network(one) for one in _deployables(driver).values()}
    assert networks == {"physnet1"}


def test_the_name_of_the_longest_network_fits_an_attach_handle(
    tree: SysfsTree,
) -> None:
    tree.add("intel_x710", "ffff:05:00.0")
    driver = _driver(
        tree, one={"physical_device_mappings": '"' * 64 + ":eth2"}
    )

    (handle,) = _deployables(driver)["ffff:05:00.0"].attach_handles
    assert len(handle.attach_info) <= 255


# Cleaning and carving --------------------------------------------------------


def _function(tree: SysfsTree, address: str) -> PciFunction:
    function = driver_host(tree.root).sysfs.function(address)
    assert function is not None
    return function


def test_a_port_gets_as_many_virtual_functions_as_it_is_told(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710()
    host = driver_host(tree.root, writer=Kernel(tree))
    driver = IntelNicDriver(host)

    function = _function(tree, "0000:05:00.0")
    assert driver.claims(function)
    driver.carve(function, 3, 10)

    assert _deployables(driver).keys() == {
        "0000:05:02.0",
        "0000:05:02.1",
        "0000:05:02.2",
        "0000:05:00.1",
    }
    with pytest.raises(exception.Invalid, match="can have 64"):
        driver.carve(_function(tree, "0000:05:00.1"), 65, 10)


def test_virtual_functions_are_reset_where_an_operator_wants_it(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=1)
    kernel = Kernel(tree)
    options: dict[str, dict[str, object]] = {
        "agent": {"clean_on_release": True}
    }
    driver = IntelNicDriver(driver_host(tree.root, options, writer=kernel))

    (device, _) = driver.discover()
    (unit,) = device.deployables[0].attach_handles
    driver.clean(unit, device.controlpath, 10, lambda percent: None)

    assert device.clean_seconds == 120
    assert kernel.resets == [("0000:05:02.0", "flr")]
    assert next(iter(_driver(tree).discover())).clean_seconds is None

# SPDX-License-Identifier: Apache-2.0
"""`pci_driver` on fake hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers.base import OptionError
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.pci import device_type
from cyborg.hardware.pci import HardwareError
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pciids import PciNames
from tests.driver_host import driver_host
from tests.kernel import Kernel
from tests.sysfs import SysfsTree


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def _driver(
    tree: SysfsTree, *entries: object, names: PciNames | None = None
) -> PciDriver:
    values = [json.dumps(entry) for entry in entries]
    options = {"pci": {"passthrough_whitelist": values}}
    return PciDriver(driver_host(tree.root, options, names=names))


def _devices(tree: SysfsTree, *entries: object) -> dict[str, inventory.Device]:
    devices = list(_driver(tree, *entries).discover())
    result = {
        device.deployables[0].name.removeprefix("compute-1_"): device
        for device in devices
    }
    assert len(result) == len(devices)
    return result


def test_a_whitelisted_card_is_reported_wholly(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()
    tree.add_unknown()

    (device,) = _driver(tree, {"vendor_id": "10de"}).discover()

    address = (
        '{"bus": "af", "device": "00", "domain": "0000", "function": "0"}'
    )
    assert device == inventory.Device(
        controlpath=address,
        type=inventory.DeviceType.GPU,
        vendor="10de",
        model="10de:1eb8",
        driver="pci_driver",
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
                    ("trait0", "CUSTOM_PCI_NVIDIA"),
                    ("trait1", "CUSTOM_PCI_PRODUCT_ID_1EB8"),
                    ("rc", "CUSTOM_PCI"),
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


def test_nothing_is_offered_that_is_not_whitelisted(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add_every_card()

    assert _devices(tree) == {}
    assert "[pci] passthrough_whitelist is empty" in caplog.text
    assert _devices(tree, {"vendor_id": "beef"}) == {}


def test_a_vendor_that_no_table_knows_is_reported_by_its_id(
    tree: SysfsTree,
) -> None:
    tree.add_unknown()

    (device,) = _driver(tree, {"vendor_id": "1234"}).discover()

    assert device.type is inventory.DeviceType.PCI
    assert device.vendor == "1234"
    assert device.model == "1234:abcd"
    assert device.fault == ""
    (deployable,) = device.deployables
    assert deployable.driver_name == "1234"
    assert inventory.traits(deployable.attributes) == {
        "CUSTOM_PCI_1234",
        "CUSTOM_PCI_PRODUCT_ID_ABCD",
        "OWNER_CYBORG",
    }


def test_the_hosts_own_names_are_shown_and_make_no_trait(
    tree: SysfsTree, tmp_path: Path
) -> None:
    path = tmp_path / "pci.ids"
    path.write_text("1234  Technical Corp.\n\tabcd  A Board\n")
    tree.add_unknown()
    driver = _driver(tree, {"vendor_id": "1234"}, names=PciNames((path,)))

    (device,) = driver.discover()

    assert device.model == "A Board"
    assert device.deployables[0].driver_name == "TECHNICAL CORP."
    assert "CUSTOM_PCI_1234" in inventory.traits(
        device.deployables[0].attributes
    )


def test_the_address_of_a_parent_means_its_virtual_functions(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=2)

    devices = _devices(tree, {"address": "0000:05:00.1"})

    offered = {name for name, device in devices.items() if not device.fault}
    assert devices.keys() - offered == {"0000:05:00.1"}
    assert devices["0000:05:00.1"].fault == (
        "2 virtual functions of it are active"
    )
    assert offered == {"0000:05:0a.0", "0000:05:0a.1"}


def test_a_parent_without_virtual_functions_is_offered_itself(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=0)

    (device,) = _devices(tree, {"address": "0000:05:00.1"}).values()

    assert device.fault == ""


def test_a_product_id_chooses_virtual_functions_alone(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=2)

    devices = _devices(tree, {"address": "*:05:00.*", "product_id": "154c"})

    assert len(devices) == 4
    assert not any(device.fault for device in devices.values())


def test_an_interfaces_physical_network_reaches_the_attach_handle(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=1)

    devices = _devices(
        tree, {"devname": "eth3", "physical_network": "physnet2"}
    )

    (deployable,) = devices["0000:05:0a.0"].deployables
    assert json.loads(deployable.attach_handles[0].attach_info) == {
        "domain": "0000",
        "bus": "05",
        "device": "0a",
        "function": "0",
        "physical_network": "physnet2",
    }
    assert ("physical_network", "physnet2") in deployable.attributes
    assert devices.keys() == {"0000:05:00.1", "0000:05:0a.0"}


def test_an_entry_may_set_class_and_traits(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()

    (device,) = _devices(
        tree,
        {
            "vendor_id": "10de",
            "resource_class": "PGPU",
            "traits": ["fast", "CUSTOM_PCI_NVIDIA"],
        },
    ).values()

    attributes = device.deployables[0].attributes
    assert inventory.resource_class(attributes) == "PGPU"
    assert [value for key, value in attributes if key.startswith("trait")] == [
        "CUSTOM_PCI_NVIDIA",
        "CUSTOM_PCI_PRODUCT_ID_1EB8",
        "CUSTOM_FAST",
    ]


def test_what_cannot_be_attached_is_listed_with_the_reason(
    tree: SysfsTree,
) -> None:
    tree.add_host_display()
    tree.add_nvme_behind_vmd()
    tree.add_nvidia_t4()
    tree.add_mdev("0000:af:00.0", "nvidia-222", "an-identity")

    devices = _devices(tree, {"address": "*"})

    assert devices["0000:03:00.0"].fault == "the host's boot display"
    assert devices["10000:01:00.0"].fault.startswith("Nova cannot attach")
    assert "mediated" in devices["0000:af:00.0"].fault
    assert devices["0000:00:15.7"].fault == "a bridge of the host"
    assert devices["0000:5d:05.5"].fault == ""
    handle = devices["10000:01:00.0"].deployables[0].attach_handles[0]
    assert json.loads(handle.attach_info)["domain"] == "10000"


@pytest.mark.parametrize(
    ("ids", "class_code", "kind"),
    [
        ("10de:1eb8", "030200", "GPU"),
        ("1002:740f", "038000", "GPU"),
        ("8086:1572", "020000", "NIC"),
        ("15b3:101b", "020700", "NIC"),
        ("8086:0a54", "010802", "SSD"),
        ("8086:1234", "010400", "PCI"),
        ("8086:37c8", "0b4000", "QAT"),
        ("1002:74a1", "120000", "GPU"),
        ("1da3:1020", "120000", "AICHIP"),
        ("19e5:d801", "120000", "AICHIP"),
        ("17cb:a100", "120000", "AICHIP"),
        ("17cb:a101", "120000", "PCI"),
        ("8086:7d1d", "120000", "AICHIP"),
        ("8086:ad1d", "120000", "AICHIP"),
        ("8086:643e", "120000", "AICHIP"),
        ("8086:b03e", "120000", "AICHIP"),
        ("8086:09c4", "120000", "FPGA"),
        ("10ee:5004", "120000", "FPGA"),
        ("1bd4:0911", "120000", "FPGA"),
        ("1234:abcd", "120000", "PCI"),
        ("8086:0d52", "120100", "PCI"),
        ("1234:abcd", "ff0000", "PCI"),
        ("10de:1af1", "068000", "PCI"),
    ],
)
def test_the_type_follows_from_the_class(
    ids: str, class_code: str, kind: str
) -> None:
    vendor, device = ids.split(":")
    function = PciFunction("0000:02:00.0", vendor, device, class_code)

    assert device_type(function) is inventory.DeviceType(kind)


def test_a_switch_that_guests_may_have_is_no_bridge(tree: SysfsTree) -> None:
    path = tree.add_unknown()
    (path / "class").write_text("0x068000\n")

    (device,) = _devices(tree, {"vendor_id": "1234"}).values()

    assert device.fault == ""


def test_two_hosts_with_the_same_card_do_not_collide(tree: SysfsTree) -> None:
    tree.add("huawei_ascend_310")
    options = {"pci": {"passthrough_whitelist": ['{"vendor_id": "19e5"}']}}

    names = {
        device.deployables[0].name
        for host in ("compute-1", "compute-2")
        for device in PciDriver(
            driver_host(tree.root, options, name=host)
        ).discover()
    }

    assert names == {"compute-1_0000:0c:00.0", "compute-2_0000:0c:00.0"}


def test_a_wrong_whitelist_is_an_error_that_names_it(tree: SysfsTree) -> None:
    with pytest.raises(OptionError, match=r"^\[pci\] passthrough_whitelist"):
        _driver(tree, {"address": "*", "devname": "eth0"})


def test_a_host_without_a_bus_is_an_error_and_not_all_gone(
    tmp_path: Path,
) -> None:
    driver = _driver(SysfsTree(tmp_path / "sys"), {"vendor_id": "10de"})
    (tmp_path / "sys/bus/pci/devices").rmdir()

    with pytest.raises(HardwareError, match="bus/pci/devices"):
        driver.discover()


def test_a_card_that_is_plugged_or_unplugged_is_seen_next_time(
    tree: SysfsTree,
) -> None:
    driver = _driver(tree, {"vendor_id": "10de"})
    assert list(driver.discover()) == []

    tree.add_nvidia_t4()
    assert len(list(driver.discover())) == 1

    tree.unplug("0000:af:00.0")
    assert list(driver.discover()) == []


def test_a_function_that_a_guest_has_stays_the_same_unit(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=1)
    tree.remove_virtual_functions("0000:05:00.0")
    driver = _driver(tree, {"devname": "eth2", "physical_network": "physnet1"})
    before = list(driver.discover())
    assert len(before) == 1

    tree.unbind("0000:05:00.0")
    tree.bind(
        tree.cards["0000:05:00.0"], tree.path("0000:05:00.0"), "vfio-pci"
    )

    assert list(driver.discover()) == before


def test_a_whitelisted_function_is_reset_where_an_operator_wants_it(
    tree: SysfsTree,
) -> None:
    tree.add_nvidia_t4()
    tree.add_unknown()
    kernel = Kernel(tree)
    options: dict[str, dict[str, object]] = {
        "pci": {"passthrough_whitelist": ['{"address": "*"}']},
        "agent": {"clean_on_release": True, "clean_timeout": 7},
    }
    driver = PciDriver(driver_host(tree.root, options, writer=kernel))

    devices = {device.model: device for device in driver.discover()}

    assert devices["10de:1eb8"].clean_seconds == 7
    assert devices["1234:abcd"].clean_seconds is None
    (unit,) = devices["10de:1eb8"].deployables[0].attach_handles
    driver.clean(unit, "", 7, lambda percent: None)
    assert kernel.resets == [("0000:af:00.0", "flr")]
    (unit,) = devices["1234:abcd"].deployables[0].attach_handles
    with pytest.raises(exception.DeviceFailed, match="no reset of its own"):
        driver.clean(unit, "", 7, lambda percent: None)
    (device,) = _devices(tree, {"vendor_id": "10de"}).values()
    assert device.clean_seconds is None


def test_the_whitelist_says_which_cards_are_carved(tree: SysfsTree) -> None:
    tree.add_intel_x710(vfs=2)
    tree.remove_virtual_functions("0000:05:00.0")
    options = {"pci": {"passthrough_whitelist": ['{"devname": "eth2"}']}}
    host = driver_host(tree.root, options, writer=Kernel(tree))
    driver = PciDriver(host)
    functions = {one.address: one for one in host.sysfs.functions()}

    claimed = {
        address
        for address, function in functions.items()
        if driver.claims(function)
    }
    assert claimed == {"0000:05:00.0"}
    driver.carve(functions["0000:05:00.0"], 2, 10)

    functions = {one.address: one for one in host.sysfs.functions()}
    assert driver.claims(functions["0000:05:02.1"])
    assert not driver.claims(functions["0000:05:0a.0"])
    assert len(list(driver.discover())) == 3

# SPDX-License-Identifier: Apache-2.0
"""What drivers share: names, attributes, and cards declared as data."""

from __future__ import annotations

import re
from pathlib import Path

import os_traits
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies

from cyborg import inventory
from cyborg.drivers import base
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.pci import PciDriver
from tests.driver_host import driver_host
from tests.sysfs import SysfsTree


class CardDriver(base.PciCardDriver):
    """A driver as an out-of-tree package would declare it."""

    name = "example_gpu_driver"
    driver_name = "NVIDIA"
    type = inventory.DeviceType.GPU
    resource_class = "PGPU"
    vendor = "10de"
    classes = ("0300", "0302")
    traits = ("GPU_NVIDIA", "GPU_PRODUCT_ID_{product}", "NVIDIA_{product}")


class NetworkDriver(base.PciCardDriver):
    """One that takes certain products and their virtual functions."""

    name = "example_nic_driver"
    driver_name = "intel"
    type = inventory.DeviceType.NIC
    resource_class = "CUSTOM_NIC"
    vendor = "8086"
    products = frozenset({"1572", "154c"})
    virtual_functions = True


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


def test_a_declared_driver_reports_its_cards_with_their_traits(
    tree: SysfsTree,
) -> None:
    tree.add_every_card()
    driver = CardDriver(driver_host(tree.root))

    devices = {
        device.deployables[0].name: device for device in driver.discover()
    }

    assert len(devices) == 7
    t4 = next(d for d in devices.values() if d.model == "10de:1eb8")
    assert t4.type is inventory.DeviceType.GPU
    assert t4.driver == "example_gpu_driver"
    assert t4.fault == ""
    (deployable,) = t4.deployables
    assert deployable.driver_name == "NVIDIA"
    assert inventory.resource_class(deployable.attributes) == "PGPU"
    assert inventory.traits(deployable.attributes) == {
        "CUSTOM_GPU_NVIDIA",
        "CUSTOM_GPU_PRODUCT_ID_1EB8",
        "CUSTOM_NVIDIA_1EB8",
        "OWNER_CYBORG",
    }


def test_virtual_functions_are_no_whole_cards(tree: SysfsTree) -> None:
    tree.add_nvidia_a100(vfs=16)

    (device,) = CardDriver(driver_host(tree.root)).discover()

    assert device.controlpath == inventory.pci_json("0000:41:00.0")
    assert device.fault == "16 virtual functions of it are active"


def test_virtual_functions_are_reported_where_a_driver_wants_them(
    tree: SysfsTree,
) -> None:
    tree.add_intel_x710(vfs=2)

    devices = list(NetworkDriver(driver_host(tree.root)).discover())

    offered = [device for device in devices if not device.fault]
    assert len(devices) == 6
    assert [device.model for device in offered] == ["8086:154c"] * 4


def test_a_card_with_mediated_devices_is_not_offered(tree: SysfsTree) -> None:
    tree.add_nvidia_t4()
    tree.add_mdev("0000:af:00.0", "nvidia-222", "an-identity")

    (device,) = CardDriver(driver_host(tree.root)).discover()

    assert device.fault == "1 mediated devices exist on it"


def test_the_first_domain_of_five_digits_is_one_that_nova_cannot_attach(
    tree: SysfsTree,
) -> None:
    tree.add("unknown", "ffff:02:00.0")
    tree.add("unknown", "10000:02:00.0")
    host = driver_host(tree.root)

    faults = {
        function.address: base.why_not_attachable(function)
        for function in host.sysfs.functions()
        if function.vendor == "1234"
    }

    assert faults["ffff:02:00.0"] == ""
    assert "Nova cannot attach" in faults["10000:02:00.0"]


@settings(deadline=None)
@given(strategies.text(max_size=300))
def test_a_trait_is_legal_or_refused(text: str) -> None:
    try:
        trait = base.trait_name(text)
    except ValueError:
        return
    assert re.fullmatch(r"[A-Z0-9_]+", trait)
    assert len(trait) <= inventory.MAX_TRAIT_LENGTH
    assert trait.startswith("CUSTOM_") or trait in os_traits.get_traits()
    assert base.trait_name(trait) == trait


@pytest.mark.parametrize(
    ("text", "trait"),
    [
        ("HW_GPU_API_VULKAN", "HW_GPU_API_VULKAN"),
        ("hw_gpu_api_vulkan", "HW_GPU_API_VULKAN"),
        ("CUSTOM_RIG", "CUSTOM_RIG"),
        ("my rig!", "CUSTOM_MY_RIG_"),
        ("HW_UNHEARD_OF", "CUSTOM_HW_UNHEARD_OF"),
    ],
)
def test_a_trait_is_standard_or_made_custom(text: str, trait: str) -> None:
    assert base.trait_name(text) == trait


@pytest.mark.parametrize("text", ["", "  ", "CUSTOM_", "X" * 249])
def test_a_trait_of_nothing_or_too_much_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"empty|too long"):
        base.trait_name(text)


def test_attributes_are_traits_then_class_then_the_rest() -> None:
    assert base.attributes(
        ["CUSTOM_A", "CUSTOM_B", "CUSTOM_A"], "FPGA", [("numa_node", "1")]
    ) == (
        ("trait0", "CUSTOM_A"),
        ("trait1", "CUSTOM_B"),
        ("rc", "FPGA"),
        ("numa_node", "1"),
    )


def test_the_drivers_are_what_the_agent_asks_them_for(
    tree: SysfsTree,
) -> None:
    fake = FakeDriver(driver_host(tree.root))
    pci = PciDriver(driver_host(tree.root))

    assert isinstance(fake, base.Driver)
    assert isinstance(fake, base.Programmable)
    assert isinstance(fake, base.Monitored)
    assert isinstance(fake, base.Cancellable)
    assert isinstance(pci, base.Driver)
    for protocol in (base.Programmable, base.Mediated, base.Cleanable):
        assert not isinstance(pci, protocol)

# SPDX-License-Identifier: Apache-2.0
"""What drivers share: names, attributes, and reasons not to offer."""

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


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


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


@pytest.mark.parametrize(
    "plain",
    [
        [("rc", "PGPU")],
        [("trait0", "CUSTOM_A")],
        [("trait", "CUSTOM_A")],
        [("traits_of_it", "good")],
        [("numa_node", "0"), ("numa_node", "1")],
    ],
)
def test_a_plain_attribute_never_passes_for_another(
    plain: list[tuple[str, str]],
) -> None:
    with pytest.raises(ValueError, match=plain[-1][0]):
        base.attributes([], "FPGA", plain)


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
    assert isinstance(pci, base.Cleanable)
    assert isinstance(pci, base.Carving)
    assert not isinstance(pci, base.Programmable)
    assert not isinstance(pci, base.Mediated)
    assert not isinstance(fake, base.Cleanable)
    assert not isinstance(fake, base.Carving)

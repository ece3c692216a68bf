# SPDX-License-Identifier: Apache-2.0
"""A host full of cards, seen through the drivers as an agent sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cyborg import inventory
from cyborg.drivers.base import Driver
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.pci import PciDriver
from tests.driver_host import driver_host
from tests.sysfs import SysfsTree

EVERYTHING = {"pci": {"passthrough_whitelist": ['{"address": "*"}']}}


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path / "sys")
    tree.add_every_card()
    return tree


def _report(root: Path, *kinds: type[Driver]) -> inventory.HostReport:
    host = driver_host(root, EVERYTHING)
    return inventory.HostReport(
        host=host.name,
        provider_name=host.name,
        provider_uuid=None,
        devices=tuple(
            device for kind in kinds for device in kind(host).discover()
        ),
    )


def test_each_function_is_reported_once_and_twice_the_same(
    tree: SysfsTree,
) -> None:
    first = _report(tree.root, FakeDriver, PciDriver)
    second = _report(tree.root, FakeDriver, PciDriver)

    functions = list((tree.root / "bus/pci/devices").iterdir())
    paths = [device.controlpath for device in first.devices]
    assert len(paths) == len(set(paths)) == len(functions) + 1
    assert first.digest() == second.digest()


def test_each_report_fits_placement_nova_and_the_database(
    tree: SysfsTree,
) -> None:
    for device in _report(tree.root, PciDriver).devices:
        (deployable,) = device.deployables
        (handle,) = deployable.attach_handles
        for trait in inventory.traits(deployable.attributes):
            assert re.fullmatch(r"[A-Z0-9_]{1,255}", trait)
        assert inventory.resource_class(deployable.attributes) == "CUSTOM_PCI"
        assert len(deployable.name) <= 200
        assert len(device.model) <= 255
        assert len(handle.attach_info) <= 255
        parts = json.loads(handle.attach_info)
        assert list(parts) == ["bus", "device", "domain", "function"]
        assert device.fault or len(parts["domain"]) == 4


def test_what_is_offered_is_what_an_instance_can_have(
    tree: SysfsTree,
) -> None:
    devices = _report(tree.root, PciDriver).devices

    faults = {device.fault for device in devices if device.fault}
    offered = [device for device in devices if not device.fault]
    domain = (
        "Nova cannot attach a device whose PCI domain has more than four"
        " digits (10000:01:00.0)"
    )
    assert faults == {
        domain,
        "2 virtual functions of it are active",
        "16 virtual functions of it are active",
        "a bridge of the host",
        "the host's boot display",
    }
    assert len(offered) > 40
    assert {str(device.type) for device in offered} == {
        "GPU",
        "FPGA",
        "AICHIP",
        "QAT",
        "NIC",
        "SSD",
        "PCI",
    }


def test_one_broken_card_leaves_every_other_reported(
    tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    before = _report(tree.root, PciDriver).devices
    (tree.path("0000:c1:00.7") / "class").write_text("rubbish\n")

    after = _report(tree.root, PciDriver).devices

    gone = {d.controlpath for d in before} - {d.controlpath for d in after}
    assert gone == {inventory.pci_json("0000:c1:00.7")}
    assert caplog.text.count("is left out") == 1


@pytest.mark.skipif(
    not Path("/sys/bus/pci/devices").is_dir(), reason="no PCI bus here"
)
def test_this_hosts_own_functions_can_be_reported() -> None:
    first = _report(Path("/sys"), PciDriver)
    second = _report(Path("/sys"), PciDriver)

    functions = list(Path("/sys/bus/pci/devices").iterdir())
    assert len(first.devices) == len(functions)
    assert first.digest() == second.digest()

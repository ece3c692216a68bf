# SPDX-License-Identifier: Apache-2.0
"""Of two cards in one IOMMU group one is offered, whoever has which."""

from __future__ import annotations

import json

import pytest

from cyborg import inventory
from cyborg.agent import groups


def device(
    address: str,
    group: str | None,
    *,
    attach_type: inventory.AttachType = inventory.AttachType.PCI,
    also: str | None = None,
    fault: str = "",
) -> inventory.Device:
    addresses = [address] if also is None else [address, also]
    return inventory.Device(
        controlpath=inventory.pci_json(address),
        type=inventory.DeviceType.GPU,
        vendor="10de",
        model="card",
        driver="some_driver",
        fault=fault,
        deployables=(
            inventory.Deployable(
                name=f"compute-1_{address}",
                num_accelerators=1,
                driver_name="card",
                attributes=(
                    ("rc", "PGPU"),
                    *(() if group is None else (("iommu_group", group),)),
                ),
                attach_handles=tuple(
                    inventory.AttachHandle(
                        attach_type, inventory.pci_json(one)
                    )
                    for one in addresses
                ),
            ),
        ),
    )


def withheld(*devices: inventory.Device) -> list[str]:
    """The addresses of those that get a fault."""
    return [
        json.loads(one.controlpath)["bus"]
        for one in groups.settled(devices)
        if one.deployables[0].fault
    ]


@pytest.mark.parametrize("fault", ["", "bound to nvidia on the host"])
def test_the_first_by_address_is_offered_whatever_its_state(
    fault: str,
) -> None:
    one = device("0000:3b:00.0", "7", fault=fault)
    two = device("0000:5e:00.0", "7")
    assert withheld(one, two) == withheld(two, one) == ["5e"]


def test_the_fault_says_with_what_the_group_is_shared() -> None:
    _, two = groups.settled(
        [device("0000:3b:00.0", "7"), device("0000:5e:00.0", "7")]
    )
    assert two.deployables[0].fault.startswith(
        "it shares IOMMU group 7 with compute-1_0000:3b:00.0"
    )


def test_other_groups_and_hosts_without_any_are_left_alone() -> None:
    devices = (
        device("0000:3b:00.0", "7"),
        device("0000:5e:00.0", "8"),
        device("0000:af:00.0", None),
        device("0000:b0:00.0", None),
    )
    assert groups.settled(devices) == devices


def test_functions_that_go_together_share_a_group_in_peace() -> None:
    board = device("0000:3b:00.0", "7", also="0000:3b:00.1")
    assert groups.settled([board]) == (board,)


def test_a_mediated_device_is_not_of_its_parents_group() -> None:
    parent = device("0000:3b:00.0", "7", attach_type=inventory.AttachType.MDEV)
    assert withheld(parent, device("0000:5e:00.0", "7")) == []

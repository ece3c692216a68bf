# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from cyborg import inventory
from cyborg.conductor import places


def parts(**values: object) -> str:
    known = {"domain": "0000", "bus": "5e", "device": "1f", "function": "7"}
    return json.dumps(known | values)


@pytest.mark.parametrize(
    ("controlpath", "address"),
    [
        (inventory.pci_json("0000:5e:00.0"), "0000:5e:00.0"),
        (inventory.pci_json("10000:E1:1f.7"), "10000:e1:1f.7"),
        (parts(device="3"), "0000:5e:03.7"),
        (parts(), "0000:5e:1f.7"),
        (parts(bus="zz"), None),
        (parts(bus=None), None),
        (parts(function="8"), None),
        ('{"path": "/run/spdk.sock"}', None),
        ("[]", None),
        ("0000:5e:00.0", None),
        ("", None),
    ],
)
def test_the_address_is_that_of_the_control_path(
    controlpath: str, address: str | None
) -> None:
    assert places.address(controlpath) == address


@pytest.mark.parametrize(
    ("attributes", "node"),
    [
        ([("numa_node", "1"), ("rc", "GPU")], 1),
        ([("rc", "GPU")], None),
        ([("numa_node", "-1")], None),
        ([("numa_node", "many")], None),
        ([("numa_node", "1" * 20)], None),
    ],
)
def test_the_numa_node_is_that_of_the_first_deployable(
    attributes: list[tuple[str, str]], node: int | None
) -> None:
    def deployable(*pairs: tuple[str, str]) -> inventory.Deployable:
        return inventory.Deployable("n", 0, "d", attributes=pairs)

    device = inventory.Device(
        controlpath="{}",
        type=inventory.DeviceType.GPU,
        vendor="v",
        model="m",
        driver="d",
        deployables=(deployable(*attributes), deployable(("numa_node", "7"))),
    )
    assert places.numa_node(device) == node

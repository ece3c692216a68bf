# SPDX-License-Identifier: Apache-2.0
"""Where a device is in its host, as far as its report says."""

from __future__ import annotations

import json
import re

from cyborg import inventory

_PARTS = {
    "domain": r"[0-9a-f]{4,8}",
    "bus": r"[0-9a-f]{2}",
    "device": r"[0-9a-f]{1,2}",
    "function": r"[0-7]",
}


def address(controlpath: str) -> str | None:
    """The PCI address that a control path is, as the kernel writes it:
    `0000:5e:00.0`; None where it is none."""
    try:
        found = json.loads(controlpath)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    parts = {key: str(found.get(key, "")).lower() for key in _PARTS}
    if not all(re.fullmatch(_PARTS[key], parts[key]) for key in _PARTS):
        return None
    return "{domain}:{bus}:{device:0>2}.{function}".format(**parts)


def numa_node(device: inventory.Device) -> int | None:
    """The NUMA node of a device's first deployable, where it is known."""
    for deployable in device.deployables[:1]:
        for key, value in deployable.attributes:
            if key == "numa_node" and re.fullmatch("[0-9]{1,9}", value):
                return int(value)
    return None

# SPDX-License-Identifier: Apache-2.0
"""The resources of version 2, one module each."""

from __future__ import annotations

from cyborg.api.v2 import accelerator_requests
from cyborg.api.v2 import attributes
from cyborg.api.v2 import deployables
from cyborg.api.v2 import device_profiles
from cyborg.api.v2 import devices


def resources() -> list[object]:
    """Every resource that is served below /v2."""
    return [
        device_profiles.DeviceProfiles(),
        accelerator_requests.AcceleratorRequests(),
        devices.Devices(),
        deployables.Deployables(),
        attributes.Attributes(),
    ]

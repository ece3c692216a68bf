# SPDX-License-Identifier: Apache-2.0
"""Version discovery."""

from __future__ import annotations

from typing import Any

from cyborg.api import endpoint
from cyborg.api import microversions

DESCRIPTION = (
    "Cyborg is the OpenStack project for lifecycle management of hardware "
    "accelerators, such as GPUs,FPGAs, AI chips, security accelerators, etc."
)
"""As clients have always read it."""


def _version(href: str, identifier: str) -> dict[str, Any]:
    return {
        "id": identifier,
        "status": "CURRENT",
        "min_version": str(microversions.MINIMUM),
        "max_version": str(microversions.MAXIMUM),
        "links": [{"href": href, "rel": "self"}],
    }


class Discovery:
    """What keystoneauth reads before all else; served to everybody."""

    @endpoint.endpoint("GET", "/", None)
    def versions(self, call: endpoint.Call) -> dict[str, Any]:
        """All versions of the API, of which there is one."""
        version = _version(f"{call.base}/v2", "v2")
        return {
            "name": "OpenStack Cyborg API",
            "description": DESCRIPTION,
            "versions": [version],
            "default_version": version,
        }

    @endpoint.endpoint("GET", "/v2", None)
    def version(self, call: endpoint.Call) -> dict[str, Any]:
        """The range of microversions."""
        return _version(f"{call.base}/v2/", "v2.0")

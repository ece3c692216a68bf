# SPDX-License-Identifier: Apache-2.0
"""Version discovery."""

from __future__ import annotations

from typing import Any

from cyborg.api import endpoint
from cyborg.api import microversions
from cyborg.api import types

DESCRIPTION = (
    "Cyborg is the OpenStack project for lifecycle management of hardware "
    "accelerators, such as GPUs,FPGAs, AI chips, security accelerators, etc."
)
"""As clients have always read it."""


_VERSION = {
    "type": "object",
    "properties": {
        "id": types.TEXT,
        "status": {"const": "CURRENT"},
        "min_version": types.TEXT,
        "max_version": types.TEXT,
        "links": types.links("self"),
    },
    "required": ["id", "status", "min_version", "max_version", "links"],
    "additionalProperties": False,
}
_VERSIONS = {
    "type": "object",
    "properties": {
        "name": types.TEXT,
        "description": types.TEXT,
        "versions": {"type": "array", "items": _VERSION},
        "default_version": _VERSION,
    },
    "required": ["name", "description", "versions", "default_version"],
    "additionalProperties": False,
}


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

    @endpoint.endpoint("GET", "/", None, shape=_VERSIONS)
    def versions(self, call: endpoint.Call) -> dict[str, Any]:
        """All versions of the API, of which there is one."""
        version = _version(f"{call.base}/v2", "v2")
        return {
            "name": "OpenStack Cyborg API",
            "description": DESCRIPTION,
            "versions": [version],
            "default_version": version,
        }

    @endpoint.endpoint("GET", "/v2", None, shape=_VERSION)
    def version(self, call: endpoint.Call) -> dict[str, Any]:
        """The range of microversions."""
        return _version(f"{call.base}/v2/", "v2.0")

# SPDX-License-Identifier: Apache-2.0
"""One call to Placement, and what its refusals mean.

Three things can keep us from an aim: the service does not do its work
(`exception.PlacementUnavailable`), somebody changed the provider meanwhile
(`MovedError`, read again and redo), or it will not have what we ask
(`RefusedError`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keystoneauth1 import adapter as ks_adapter

from cyborg import exception
from cyborg.clients import session

MICROVERSION = "placement 1.26"
"""For all calls that name no other: trees (1.14), a body after creation
(1.20), codes in errors (1.23), `reserved` = `total` (1.26)."""

INVENTORY_IN_USE = "placement.inventory.inuse"
DUPLICATE_NAME = "placement.duplicate_name"

DETAIL_LENGTH = 300


class MovedError(Exception):
    """The provider is not as we knew it; the text says what was said."""


class RefusedError(Exception):
    """Placement will not have it, however often we ask."""


class Api:
    """Calls to Placement at one microversion."""

    def __init__(self, adapter: ks_adapter.Adapter) -> None:
        self._service = session.Service(
            adapter, "Placement", exception.PlacementUnavailable
        )

    def get(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        version: str = MICROVERSION,
    ) -> dict[str, Any]:
        """The answer of a read; raises MovedError for what is not there."""
        status, body = self.send("GET", path, params=params, version=version)
        if status == 404:
            raise MovedError(detail(body))
        if status != 200:
            raise RefusedError(f"{status} to GET {path}: {detail(body)}")
        return body

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        params: Mapping[str, str] | None = None,
        version: str = MICROVERSION,
    ) -> tuple[int, dict[str, Any]]:
        """The status and the decoded answer ({} where there is none)."""
        response = self._service.call(
            method, path, version=version, body=body, params=params
        )
        found = self._service.decoded(response) if response.content else {}
        return response.status_code, found


def code(body: Mapping[str, Any]) -> str:
    """What kind of refusal an answer is, by Placement's own code."""
    return str(_error(body).get("code", ""))


def detail(body: Mapping[str, Any]) -> str:
    """Why, in Placement's words, on one line."""
    text = str(_error(body).get("detail", "no reason given"))
    return " ".join(text.split())[:DETAIL_LENGTH]


def _error(body: Mapping[str, Any]) -> Mapping[str, Any]:
    errors = body.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        return errors[0]
    return {}

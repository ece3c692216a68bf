# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests that may be there though no client knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import requests

from cyborg.conductor.requests import uuids_of

REQUEST_ID = "X-OpenStack-Request-Id"


class Unheard:
    """Those of creates that were answered with an error, or not at all.

    What a create makes is called after the id of its request.
    """

    def __init__(self) -> None:
        self._uuids: set[str] = set()
        self._nameless = 0

    def note(self, answer: requests.Response | None, count: int) -> None:
        """A create of so many failed so; None where nothing came back."""
        if answer is None:
            self._nameless += count
        else:
            request_id = answer.headers[REQUEST_ID]
            self._uuids.update(uuids_of(request_id, count))

    def strangers(self, arqs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Those of these ARQs that no such create can have made."""
        found = sorted({arq["uuid"] for arq in arqs} - self._uuids)
        if len(found) > self._nameless:
            return found
        self._nameless -= len(found)
        return []

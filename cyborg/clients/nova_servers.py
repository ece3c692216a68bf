# SPDX-License-Identifier: Apache-2.0
"""Nova asked which instances there are.

A 404 to us may mean that our credential does not see an instance, not that
it is gone: what is destroyed because of it must rest on more.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator

import requests
from keystoneauth1 import adapter as ks_adapter
from oslo_utils import uuidutils

from cyborg.clients import nova
from cyborg.clients import session

PAGE = 1000
"""Servers per page, at most; Nova's `max_limit` may make it fewer."""


class Fate(enum.Enum):
    """What Nova says of an instance."""

    ALIVE = "alive"
    BUSY = "busy"
    """Alive, and something is being done with it just now."""
    GONE = "gone"
    MIGRATION = "migration"
    """None, but a migration of one."""
    UNTOLD = "untold"
    """Nova does not tell."""


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """An instance by what Nova says; `why` where it does not tell."""

    fate: Fate
    project_id: str | None = None
    why: str = ""


class Servers:
    """The instances of all projects; one object serves many threads.

    Each method raises Unavailable where Nova does not answer, fails, or
    refuses our credential.
    """

    def __init__(self, adapter: ks_adapter.Adapter) -> None:
        self._service = session.Service(adapter, "Nova")

    def all(self) -> Iterator[str]:
        """Every instance (uuid), but those that wait to be reclaimed."""
        query = {"all_tenants": "1", "limit": str(PAGE)}
        while True:
            page = self._list(query)
            yield from page
            if not page or query.get("marker") == page[-1]:
                return
            query["marker"] = page[-1]

    def find(self, uuid: str) -> Server:
        """What became of an instance (1 call where there is one, else 3)."""
        if not uuidutils.is_uuid_like(uuid):
            return Server(Fate.UNTOLD, why="it is no uuid of an instance")
        response = self._call(f"/servers/{uuid}")
        if response.status_code == 200:
            return _alive(self._service.decoded(response).get("server"))
        if response.status_code != 404:
            return _untold(f"Nova answered {response.status_code}")
        return self._absent(uuid)

    def _absent(self, uuid: str) -> Server:
        """What it means that Nova has no such instance for us.

        A list of all projects' servers is read with an administrator's
        eyes, or refused.
        """
        found = self._list({"all_tenants": "1", "uuid": uuid})
        if uuid in found:
            return Server(Fate.ALIVE)
        if found:
            return _untold("our user of Nova may not look for an instance")
        # Its marker must be a migration; 400 says that there is none.
        response = self._call("/os-migrations", {"limit": "1", "marker": uuid})
        if response.status_code == 200:
            return Server(Fate.MIGRATION)
        if response.status_code != 400:
            return _untold(
                f"Nova answered {response.status_code} when asked for"
                " migrations"
            )
        return Server(Fate.GONE)

    def _list(self, query: dict[str, str]) -> list[str]:
        response = self._call("/servers", query)
        if response.status_code != 200:
            raise self._service.failed(
                f"answered {response.status_code} to a list of servers"
            )
        found = self._service.decoded(response).get("servers")
        if not isinstance(found, list):
            raise self._service.failed("answered a list without servers")
        return [str(server["id"]) for server in found]

    def _call(
        self, path: str, query: dict[str, str] | None = None
    ) -> requests.Response:
        return self._service.call(
            "GET", path, version=nova.MICROVERSION, params=query
        )


def _untold(why: str) -> Server:
    return Server(Fate.UNTOLD, why=why)


def _alive(server: object) -> Server:
    if not isinstance(server, dict):
        return _untold("Nova answered without a server")
    busy = server.get("status") == "BUILD" or bool(
        server.get("OS-EXT-STS:task_state")
    )
    project = server.get("tenant_id")
    return Server(
        Fate.BUSY if busy else Fate.ALIVE, str(project) if project else None
    )

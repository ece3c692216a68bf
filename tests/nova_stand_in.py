# SPDX-License-Identifier: Apache-2.0
"""What we need of Nova, over HTTP on loopback.

It answers events as nova 34 does: 200 where all were taken, else 207 with a
code for each (200 taken, 404 no such instance, 422 on no host yet).  How it
fails instead, or how late it answers, is told by `tests.loopback`.
"""

from __future__ import annotations

import http.server
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from tests import loopback

VERSION = {
    "id": "v2.1",
    "status": "CURRENT",
    "min_version": "2.1",
    "version": "2.100",
}


class NovaStandIn(loopback.Loopback):
    """`codes`: instance uuid -> code of its events (200 if not there);
    `servers`: instance uuid -> project, for `GET /servers/<uuid>` and the
    list of all projects' servers, which is refused unless `shows_all`;
    `tasks`: instance uuid -> what is being done with it;
    `migrations`: their uuids;
    `events`: every event that was taken, in order; `page`: servers of a
    list at most.
    """

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.servers: dict[str, str] = {}
        self.tasks: dict[str, str] = {}
        self.migrations: set[str] = set()
        self.shows_all = True
        self.page = 1000
        self.events: list[dict[str, Any]] = []
        self._came = threading.Condition()
        super().__init__()

    def respond(
        self,
        request: loopback.Request,
        handler: http.server.BaseHTTPRequestHandler,
    ) -> None:
        path = request.path.partition("?")[0]
        if path.endswith("/os-server-external-events"):
            self._take(request, handler)
        elif "/servers/" in path:
            identifier = path.rpartition("/")[2]
            if identifier in self.servers:
                project = self.servers[identifier]
                server = {
                    "id": identifier,
                    "name": identifier,
                    "tenant_id": project,
                    "status": "ACTIVE",
                    "OS-EXT-STS:task_state": self.tasks.get(identifier),
                }
                loopback.send(handler, 200, {"server": server})
            else:
                loopback.send(handler, 404, {"itemNotFound": {"code": 404}})
        elif path.endswith("/servers"):
            self._list(request, handler)
        elif path.endswith("/os-migrations"):
            known = _query(request).get("marker") in self.migrations
            loopback.send(handler, 200 if known else 400, {"migrations": []})
        elif path.strip("/") == "v2.1":
            link = {"rel": "self", "href": f"{self.url}/v2.1/"}
            version = {**VERSION, "links": [link]}
            loopback.send(handler, 200, {"version": version})
        else:
            loopback.send(handler, 404)

    def _list(
        self,
        request: loopback.Request,
        handler: http.server.BaseHTTPRequestHandler,
    ) -> None:
        """A page of all projects' servers, as nova 34 gives them to an
        administrator."""
        query = _query(request)
        if not self.shows_all or query.get("all_tenants") != "1":
            loopback.send(handler, 403, {"forbidden": {"code": 403}})
            return
        found = sorted(self.servers)
        if "uuid" in query:
            found = [uuid for uuid in found if uuid == query["uuid"]]
        found = [uuid for uuid in found if uuid > query.get("marker", "")]
        page = found[: min(self.page, int(query.get("limit", self.page)))]
        loopback.send(handler, 200, {"servers": [{"id": u} for u in page]})

    def wait_for_events(
        self, count: int, timeout: float = 10
    ) -> list[dict[str, Any]]:
        """The events once there are `count` of them; AssertionError if not
        in time."""
        with self._came:
            came = self._came.wait_for(
                lambda: len(self.events) >= count, timeout
            )
        assert came, self.events
        return list(self.events)

    def _take(
        self,
        request: loopback.Request,
        handler: http.server.BaseHTTPRequestHandler,
    ) -> None:
        answers = []
        for event in request.json()["events"]:
            code = self.codes.get(event["server_uuid"], 200)
            status = event["status"] if code == 200 else "failed"
            answers.append({**event, "code": code, "status": status})
            if code == 200:
                with self._came:
                    self.events.append(event)
                    self._came.notify_all()
        taken = all(answer["code"] == 200 for answer in answers)
        loopback.send(handler, 200 if taken else 207, {"events": answers})


def _query(request: loopback.Request) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(request.path.partition("?")[2]))


@pytest.fixture
def nova_stand_in() -> Iterator[NovaStandIn]:
    with NovaStandIn() as stand_in:
        yield stand_in

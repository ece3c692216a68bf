# SPDX-License-Identifier: Apache-2.0
"""What we need of Nova, over HTTP on loopback.

It answers events as nova 34 does: 200 where all were taken, else 207 with a
code for each (200 taken, 404 no such instance, 422 on no host yet).
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests import loopback


class NovaStandIn(loopback.Loopback):
    """`codes`: instance uuid -> code of its events (200 if not there);
    `servers`: instance uuid -> project, for `GET /servers/<uuid>`;
    `events`: every event that was taken, in order.
    """

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.servers: dict[str, str] = {}
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
                server = {"id": identifier, "tenant_id": project}
                loopback.send(handler, 200, {"server": server})
            else:
                loopback.send(handler, 404, {"itemNotFound": {"code": 404}})
        else:
            loopback.send(handler, 404)

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


@pytest.fixture
def nova_stand_in() -> Iterator[NovaStandIn]:
    with NovaStandIn() as stand_in:
        yield stand_in

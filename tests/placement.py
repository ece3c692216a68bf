# SPDX-License-Identifier: Apache-2.0
"""The real Placement, in this process, on its own SQLite file.

Nothing of it is replaced: a transport for `requests` hands each call to its
WSGI application, counts it, and asks a hook whether it should fail instead.
Use the fixture `placement`, or `PlacementService(directory)` with `close()`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import urllib3
import webob
from cheroot import wsgi
from keystoneauth1 import adapter
from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from oslo_config import cfg
from oslo_db.sqlalchemy import engines
from placement import conf as placement_conf
from placement import db_api
from placement import deploy
from placement.db.sqlalchemy import migration

URL = "http://placement.test/placement"
PROJECT = str(uuid.UUID(int=1))
USER = str(uuid.UUID(int=2))


@dataclasses.dataclass(frozen=True)
class Call:
    """One request that reached us; `status` 0: it got no answer."""

    method: str
    path: str
    status: int


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a hook wants to be answered instead of Placement's own answer."""

    status: int
    body: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Hook = Callable[[str, str, bytes], "Answer | None"]
"""(method, path with query, body) -> an answer, None for Placement's own, or
an exception of `requests` (`ReadTimeout`, `ConnectionError`) raised."""


class _Template:
    """An empty Placement database and the application, made once."""

    def __init__(self) -> None:
        self._content = b""
        self._lock = threading.Lock()
        self.app: Any = None

    def copy(self, target: Path) -> Any:
        """Put an empty database at `target` and return its engine."""
        with self._lock:
            if not self._content:
                self._content = self._make(target.with_suffix(".template"))
        target.write_bytes(self._content)
        return engines.create_engine(f"sqlite:///{target}")

    def _make(self, path: Path) -> bytes:
        conf = cfg.ConfigOpts()
        placement_conf.register_opts(conf)
        conf.set_override(
            "connection", f"sqlite:///{path}", "placement_database"
        )
        conf.set_override("auth_strategy", "noauth2", "api")
        conf([], project="placement", default_config_files=[])
        db_api.configure(conf)
        engine = engines.create_engine(f"sqlite:///{path}")
        reset = db_api.placement_context_manager.patch_engine(engine)
        try:
            migration.create_schema(engine)
            self.app = deploy.loadapp(conf)
        finally:
            reset()
            engine.dispose()
        return path.read_bytes()


_TEMPLATE = _Template()


class _Transport(requests.adapters.HTTPAdapter):
    """Hands requests to a WSGI application in this process."""

    def __init__(self, service: PlacementService) -> None:
        super().__init__()
        self._service = service

    def send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        body = request.body or b""
        if isinstance(body, str):
            body = body.encode()
        status, headers, content = self._service.answer(
            request.method or "GET",
            request.path_url,
            dict(request.headers),
            body,
        )
        return self.build_response(
            request,
            urllib3.HTTPResponse(
                body=io.BytesIO(content),
                headers=headers,
                status=status,
                preload_content=False,
            ),
        )


class PlacementService:
    """One empty Placement; at most one is open at a time in a process."""

    def __init__(self, directory: Path) -> None:
        self._engine = _TEMPLATE.copy(directory / "placement.sqlite")
        self._reset = db_api.placement_context_manager.patch_engine(
            self._engine
        )
        self._lock = threading.Lock()
        self._server: wsgi.Server | None = None
        self.calls: list[Call] = []
        self.hook: Hook | None = None

    def close(self) -> None:
        """Stop serving and give Placement its own database back."""
        if self._server is not None:
            self._server.stop()
        self._reset()
        self._engine.dispose()

    # -- how it is reached

    def adapter(self) -> adapter.Adapter:
        """A new keystoneauth adapter, as `clients.session` would make one."""
        http = requests.Session()
        http.mount("http://", _Transport(self))
        return adapter.Adapter(
            session.Session(
                auth=token_endpoint.Token(URL, "admin"), session=http
            ),
            service_type="placement",
        )

    def serve(self) -> str:
        """Serve it over HTTP on a loopback port too, and return its URL.

        The token `admin` may do everything (`auth_type = admin_token`).
        """
        server = wsgi.Server(("127.0.0.1", 0), self._wsgi, numthreads=4)
        server.prepare()
        threading.Thread(target=server.serve, daemon=True).start()
        self._server = server
        return f"http://127.0.0.1:{server.bind_addr[1]}"

    def _wsgi(self, environ: dict[str, Any], start: Any) -> Any:
        request = webob.Request(environ)
        status, headers, content = self.answer(
            request.method,
            request.path_qs,
            dict(request.headers),
            request.body,
        )
        response = webob.Response(body=content, status=status)
        response.headers.update(headers)
        return response(environ, start)

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Answer one request, or fail as the hook says; always counted."""
        path = path.removeprefix("/placement")
        status = 0
        try:
            replaced = self.hook(method, path, body) if self.hook else None
            if replaced is None:
                status, found, content = self._ask(method, path, headers, body)
            else:
                status = replaced.status
                found = {"Content-Type": "application/json"}
                content = json.dumps(replaced.body).encode()
            return status, found, content
        finally:
            self.calls.append(Call(method, path, status))

    def _ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        request = webob.Request.blank(
            path, method=method, headers=dict(headers), body=body
        )
        with self._lock:  # SQLite has one writer
            response = request.get_response(_TEMPLATE.app)
        return response.status_int, dict(response.headers), response.body

    # -- what a test, Nova or an operator does

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[Call]]:
        """The calls made inside; filled in when the block ends."""
        before = len(self.calls)
        calls: list[Call] = []
        try:
            yield calls
        finally:
            calls.extend(self.calls[before:])

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        version: str = "1.39",
    ) -> Any:
        """The decoded answer of a request of another user, uncounted.

        Raises AssertionError where it is refused.
        """
        status, _, content = self._ask(
            method,
            path,
            {
                "X-Auth-Token": "admin",
                "OpenStack-API-Version": f"placement {version}",
                "Content-Type": "application/json",
                "Accept": "application/json",
            },
            b"" if body is None else json.dumps(body).encode(),
        )
        assert status < 400, (status, content)
        return json.loads(content) if content else None

    def create_provider(
        self,
        name: str,
        parent: str | None = None,
        identifier: str | None = None,
    ) -> str:
        """Make a provider (a root one as nova-compute does): its uuid."""
        body = {"name": name, "uuid": identifier or str(uuid.uuid4())}
        if parent is not None:
            body["parent_provider_uuid"] = parent
        return str(self.ask("POST", "/resource_providers", body)["uuid"])

    def providers(self, root: str) -> dict[str, dict[str, Any]]:
        """Every provider in the tree of `root` by name, the root too."""
        found = self.ask("GET", f"/resource_providers?in_tree={root}")
        return {entry["name"]: entry for entry in found["resource_providers"]}

    def inventories(self, provider: str) -> dict[str, dict[str, Any]]:
        """A provider's inventories by resource class."""
        found = self.ask("GET", f"/resource_providers/{provider}/inventories")
        return dict(found["inventories"])

    def traits(self, provider: str) -> set[str]:
        """A provider's traits."""
        found = self.ask("GET", f"/resource_providers/{provider}/traits")
        return set(found["traits"])

    def set_traits(self, provider: str, traits: set[str]) -> None:
        """Replace a provider's traits, as an operator would."""
        for trait in traits:
            if trait.startswith("CUSTOM_"):
                self.ask("PUT", f"/traits/{trait}")
        self.ask(
            "PUT",
            f"/resource_providers/{provider}/traits",
            {
                "traits": sorted(traits),
                "resource_provider_generation": self.generation(provider),
            },
        )

    def set_inventories(
        self, provider: str, inventories: Mapping[str, Mapping[str, object]]
    ) -> None:
        """Replace a provider's inventories, as an operator would."""
        self.ask(
            "PUT",
            f"/resource_providers/{provider}/inventories",
            {
                "inventories": inventories,
                "resource_provider_generation": self.generation(provider),
            },
        )

    def generation(self, provider: str) -> int:
        """A provider's generation now."""
        return int(
            self.ask("GET", f"/resource_providers/{provider}")["generation"]
        )

    def allocate(self, provider: str, resources: Mapping[str, int]) -> str:
        """Claim resources as Nova's scheduler does: the consumer's uuid."""
        consumer = str(uuid.uuid4())
        self.ask(
            "PUT",
            f"/allocations/{consumer}",
            {
                "allocations": {provider: {"resources": resources}},
                "project_id": PROJECT,
                "user_id": USER,
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            },
        )
        return consumer

    def release(self, consumer: str) -> None:
        """Give a consumer's allocations back."""
        self.ask("DELETE", f"/allocations/{consumer}")

    def candidates(self, query: str) -> list[str]:
        """The uuids of the providers that could serve `query`."""
        found = self.ask("GET", f"/allocation_candidates?{query}")
        return sorted(
            {
                provider
                for request in found["allocation_requests"]
                for provider in request["allocations"]
            }
        )


@pytest.fixture
def placement(tmp_path: Path) -> Iterator[PlacementService]:
    """An empty Placement for one test."""
    service = PlacementService(tmp_path)
    try:
        yield service
    finally:
        service.close()

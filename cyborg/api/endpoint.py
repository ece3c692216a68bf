# SPDX-License-Identifier: Apache-2.0
"""Endpoints declare, one hook enforces.

`endpoint` says of a method all that must hold before it may run: the path,
the policy rule, the first microversion, the query parameters and the schema
of the body; and how its result is shown.  `Gate`, Pecan's only hook, checks
it in one order for all: 404 (no such route) comes before it, then 406, 403,
and 400.  `Routes` serves what is declared, and nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import pecan
import webob
import webob.exc
from pecan import hooks
from webob import acceptparse

from cyborg import context as cyborg_context
from cyborg import exception
from cyborg import policy
from cyborg.api import body
from cyborg.api import document
from cyborg.api import envelope
from cyborg.api import microversions
from cyborg.api import types
from cyborg.api.caller import Caller
from cyborg.api.settings import Settings
from cyborg.db import engine
from cyborg.rpc import conductor

JSON = "application/json"
RECEIVED = "cyborg.received"
"""Environ: the environ as it was received, of which Pecan sees a part."""

_CALL = "cyborg.call"

_BREADTH = {"{uuid}": 1, "{name}": 2}
"""Placeholders of paths; what takes less is tried before what takes more."""

M = TypeVar("M", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Declaration:
    """All that is to be known of an endpoint, see `endpoint`."""

    method: str
    path: tuple[str, ...]
    rule: str | None
    since: microversions.Version
    schema: body.Schema | None
    optional_body_since: microversions.Version | None
    parameters: types.Parameters
    view: types.View | None
    many: bool
    key: str | None
    shape: Mapping[str, Any] | None
    status: int
    errors: frozenset[int]
    service_token: bool
    name: str
    summary: str

    @functools.cached_property
    def template(self) -> str:
        """The path with its placeholders: `/v2/devices/{uuid}`."""
        return "/" + "/".join(self.path)

    def answer(
        self, call: Call, response: webob.Response, result: Any
    ) -> webob.Response:
        """The response, made to show what the method returned."""
        if isinstance(result, document.Document):
            return result.fill(response)
        response.status_int = self.status
        if self.status in {202, 204}:
            response.headerlist = [("Content-Length", "0")]
            return response
        shown = result
        if self.view is not None:
            shown = self._shown(call, self.view, result)
        response.headerlist = [("Content-Type", JSON)]
        response.body = json.dumps(shown).encode()
        return response

    def _shown(self, call: Call, view: types.View, result: Any) -> Any:
        rows = view.render(
            result if self.many else [result], call.version, call.base
        )
        shown: Any = rows if self.many else rows[0]
        return shown if self.key is None else {self.key: shown}


def endpoint(
    method: str,
    path: str,
    rule: str | None,
    *,
    since: microversions.Version = microversions.MINIMUM,
    schema: body.Schema | None = None,
    optional_body_since: microversions.Version | None = None,
    parameters: types.Parameters = types.Parameters(),  # noqa: B008
    view: types.View | None = None,
    many: bool = False,
    key: str | None = None,
    shape: Mapping[str, Any] | None = None,
    status: int = 200,
    errors: Iterable[type[exception.CyborgError]] = (),
    service_token: bool = False,
) -> Callable[[M], M]:
    """Serve the method at `path`.

    `{uuid}` in the path takes a uuid, `{name}` any text that can be a name.
    `rule` is the policy rule; None serves everybody.  With `service_token`
    the request must come from a service.  The body must satisfy `schema`;
    with `optional_body_since` it may be absent, and before that version
    nobody looks at it.  `view` shows the row that the method returns, or
    the `many`, under `key` or bare; without a view `shape` is the schema of
    what it returns.  `errors` are those that only the method itself raises:
    what follows from the rest, `openapi` knows.
    """

    def decorate(function: M) -> M:
        declaration = Declaration(
            method,
            tuple(path.strip("/").split("/")) if path.strip("/") else (),
            rule,
            since,
            schema,
            optional_body_since,
            parameters,
            view,
            many,
            key,
            shape,
            status,
            frozenset(error.code for error in errors),
            service_token,
            function.__qualname__,
            (function.__doc__ or "").strip(),
        )

        @functools.wraps(function)
        def serve(
            self: Any,
            request: webob.Request,
            response: webob.Response,
            *arguments: str,
        ) -> webob.Response:
            call = request.environ[_CALL]
            return declaration.answer(
                call, response, function(self, call, *arguments)
            )

        del serve.__wrapped__
        pecan.expose(content_type=JSON)(serve)
        serve.declaration = declaration  # type: ignore[attr-defined]
        return serve  # type: ignore[return-value]

    return decorate


@dataclasses.dataclass(frozen=True)
class Service:
    """What endpoints work with."""

    settings: Settings
    database: engine.Database
    conductor: conductor.ConductorClient
    policy: policy.Policy


@dataclasses.dataclass
class Call:
    """One request, when everything that its endpoint declares holds."""

    service: Service
    version: microversions.Version
    base: str
    caller: Caller
    query: types.Query = dataclasses.field(default_factory=types.Query)
    body: Any = None

    @property
    def context(self) -> cyborg_context.RequestContext:
        """The identity for RPC."""
        return self.caller.context

    @property
    def database(self) -> engine.Database:
        """To read from."""
        return self.service.database

    @property
    def conductor(self) -> conductor.ConductorClient:
        """To change something by."""
        return self.service.conductor

    def require_service_token(self) -> None:
        """Raises Forbidden unless a service vouches for the request."""
        if not self.context.service_request:
            raise exception.Forbidden("This requires a service token.")


class Gate(hooks.PecanHook):  # type: ignore[misc]
    """The one hook: checks what the endpoint declares."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def before(self, state: Any) -> None:
        """Build the call, or raise what forbids it."""
        environ = state.request.environ[RECEIVED]
        declaration: Declaration = state.controller.declaration
        settings = self._service.settings
        call = Call(
            self._service,
            _version(environ, declaration),
            settings.public_endpoint or envelope.request_url(environ),
            Caller.of(settings, environ),
        )
        if declaration.rule is not None:
            self._authorize(call, declaration, declaration.rule)
            call.query = declaration.parameters.parse(
                environ.get("QUERY_STRING", ""), call.version
            )
        if declaration.schema is not None:
            call.body = self._body(
                environ,
                declaration.schema,
                call.version,
                declaration.optional_body_since,
            )
        state.request.environ[_CALL] = call

    def _authorize(
        self, call: Call, declaration: Declaration, rule: str
    ) -> None:
        call.caller.require_identity()
        self._service.policy.authorize(
            call.context, rule, {"project_id": call.context.project_id}
        )
        if declaration.service_token:
            call.require_service_token()

    def _body(
        self,
        environ: dict[str, Any],
        schema: body.Schema,
        version: microversions.Version,
        optional_since: microversions.Version | None,
    ) -> Any:
        if optional_since is not None and version < optional_since:
            return None
        data = body.read(environ, self._service.settings.max_body_size)
        if data:
            body.check_content_type(environ.get("CONTENT_TYPE") or "")
        elif optional_since is not None:
            return None
        value = body.parse(data)
        schema.check(value)
        return value


def _version(
    environ: dict[str, Any], declaration: Declaration
) -> microversions.Version:
    """The request's version, where it may ask this of us."""
    if not _takes_json(environ.get("HTTP_ACCEPT")):
        raise exception.NotAcceptable(
            "Answers are JSON, which the Accept header excludes."
        )
    version = environ[envelope.VERSION]
    if declaration.path and isinstance(version, exception.NotAcceptable):
        raise version
    if not isinstance(version, microversions.Version):
        return microversions.MINIMUM
    if version < declaration.since:
        raise exception.NotAcceptable(
            f"This needs {microversions.HEADER} {declaration.since} to "
            f"{microversions.MAXIMUM}, not {version}."
        )
    return version


@functools.lru_cache(maxsize=256)
def _takes_json(accept: str | None) -> bool:
    if not accept:
        return True
    header = acceptparse.create_accept_header(accept)
    if isinstance(header, acceptparse.AcceptInvalidHeader):
        return True
    return bool(header.acceptable_offers([JSON]))


class Routes:
    """Paths and methods -> endpoints, those that are declared."""

    def __init__(self, resources: Iterable[object]) -> None:
        self._by_path: dict[
            tuple[str, ...], dict[str, Callable[..., Any]]
        ] = {}
        for resource in resources:
            for name in dir(resource):
                self._add(getattr(resource, name))
        self._patterns: dict[int, list[tuple[str, ...]]] = {}
        for path in sorted(
            self._by_path,
            key=lambda path: [_BREADTH.get(part, 0) for part in path],
        ):
            self._patterns.setdefault(len(path), []).append(path)

    def _add(self, method: Any) -> None:
        declaration = getattr(method, "declaration", None)
        if isinstance(declaration, Declaration):
            methods = self._by_path.setdefault(declaration.path, {})
            if declaration.method in methods:
                raise ValueError(f"declared twice: {declaration.path}")
            methods[declaration.method] = method

    def declarations(self) -> list[Declaration]:
        """What is served."""
        return [
            method.declaration  # type: ignore[attr-defined]
            for methods in self._by_path.values()
            for method in methods.values()
        ]

    def find(
        self, method: str, segments: Sequence[str]
    ) -> tuple[Any, list[str]]:
        """The endpoint and its arguments.

        Raises NotFound, or MethodNotAllowed with what is allowed.
        """
        allowed: set[str] = set()
        for pattern in self._patterns.get(len(segments), ()):
            arguments = _match(pattern, segments)
            if arguments is None:
                continue
            methods = self._by_path[pattern]
            if method in methods:
                return methods[method], arguments
            allowed |= set(methods)
        if not allowed:
            raise exception.NotFound("There is nothing at this path.")
        if "GET" in allowed:
            allowed.add("HEAD")
        raise envelope.MethodNotAllowed(
            "The method is not known here.", allowed
        )


def _match(
    pattern: Sequence[str], segments: Sequence[str]
) -> list[str] | None:
    """The values of a pattern's placeholders, None where it does not fit."""
    arguments = []
    for part, segment in zip(pattern, segments, strict=True):
        if part == "{uuid}":
            value = types.as_uuid(segment) if "-" in segment else None
            if value is None:
                return None
            arguments.append(value)
        elif part == "{name}":
            if len(segment) > 255 or not body.storable(segment):
                return None
            arguments.append(segment)
        elif part != segment:
            return None
    return arguments

# SPDX-License-Identifier: Apache-2.0
"""The WSGI application, and the pipeline around it.

Deployers write their own pipelines (PasteDeploy) that name `app_factory`,
so that everything that must always work is inside of it.
"""

from __future__ import annotations

import configparser
import io
import logging
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import webob
from oslo_config import cfg
from oslo_middleware import cors
from oslo_middleware import healthcheck
from oslo_middleware import http_proxy_to_wsgi
from paste import deploy
from pecan import core

from cyborg import diagnosis
from cyborg import exception
from cyborg import metrics
from cyborg import metrics_listener
from cyborg import policy
from cyborg import service
from cyborg.api import endpoint
from cyborg.api import envelope
from cyborg.api import openapi
from cyborg.api import policies
from cyborg.api import root
from cyborg.api import settings as api_settings
from cyborg.api import v2
from cyborg.api.middleware import auth_token
from cyborg.db import engine
from cyborg.rpc import conductor as rpc_conductor
from cyborg.rpc import transport

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from _typeshed.wsgi import WSGIApplication
    from _typeshed.wsgi import WSGIEnvironment

LOG = logging.getLogger(__name__)

HEALTHCHECK = "/healthcheck"
DATABASE_SECONDS = 10
"""How long a database may be silent before it counts as down."""


def app_factory(
    _global_config: dict[str, str] | None, **_local: str
) -> WSGIApplication:
    """PasteDeploy's entry: the application, without authentication."""
    conf = service.configuration()
    _watch(conf)
    return make_app(conf)


def make_app(
    conf: cfg.ConfigOpts,
    database: engine.Database | None = None,
    conductor: rpc_conductor.ConductorClient | None = None,
) -> WSGIApplication:
    """The application, without authentication.

    Database and conductor are those of `conf` where none is given.
    """
    settings = api_settings.Settings.of(conf)
    if conductor is None:
        conductor = rpc_conductor.ConductorClient(
            transport.get_transport(conf), conf
        )
    application: WSGIApplication = Application(
        conf,
        endpoint.Service(
            settings,
            database or engine.Database(conf, DATABASE_SECONDS),
            conductor,
            policy.Policy(conf, policies.list_rules()),
        ),
    )
    if settings.proxied:
        application = ProxyHeaders(application, conf)
    return envelope.Envelope(application)


def load_app(conf: cfg.ConfigOpts) -> WSGIApplication:
    """The whole pipeline: the operator's, or ours where there is none."""
    service.adopt(conf)
    _watch(conf)
    path = conf.find_file(conf.api.api_paste_config)
    if path:
        return _pipeline(path)
    LOG.info(
        "There is no %s; the built-in pipeline serves.",
        conf.api.api_paste_config,
    )
    application = auth_token.AuthTokenMiddleware.wrap(make_app(conf), conf)
    crossing = cors.CORS(application, conf)
    result: WSGIApplication = (
        crossing if crossing.allowed_origins else application
    )
    return result


def _watch(conf: cfg.ConfigOpts) -> None:
    """Count with the other workers of the server that loads us, and report
    when that is asked for; our own services have seen to both."""
    if metrics.begin(
        "cyborg-api",
        service.version(),
        conf.state_path,
        workers=0,
        unless_begun=True,
    ):
        diagnosis.prepare(conf)


def _pipeline(path: str) -> WSGIApplication:
    """What an operator's file describes; raises service.Mistake."""
    try:
        pipeline: WSGIApplication = deploy.loadapp(
            "config:" + urllib.parse.quote(path)
        )
    except (
        configparser.Error,
        ImportError,
        LookupError,
        OSError,
        UnicodeError,
    ) as error:
        reason = " ".join(str(error).split())
        raise service.Mistake(
            f"[api] api_paste_config: {path}: {reason}"
        ) from error
    return pipeline


def routes() -> endpoint.Routes:
    """All that is served, its description included."""
    description = openapi.Description()
    served = endpoint.Routes([root.Discovery(), description, *v2.resources()])
    description.describe(served.declarations())
    return served


class Application:
    """Pecan behind a desk that hands it only what it shall interpret.

    Query, body and Accept header are read by `endpoint.Gate`; Pecan would
    read them too, its own way.
    """

    def __init__(self, conf: cfg.ConfigOpts, parts: endpoint.Service) -> None:
        self._health: WSGIApplication = healthcheck.Healthcheck(
            _nothing_here, conf
        )
        self._metrics_door = metrics_listener.Door(conf)
        self._pecan: WSGIApplication = Dispatcher(
            routes(),
            hooks=[endpoint.Gate(parts)],
            force_canonical=False,
            guess_content_type_from_ext=False,
            request_cls=webob.Request,
            response_cls=webob.Response,
        )

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a request, or raise one of our errors."""
        if environ["PATH_INFO"] == HEALTHCHECK:
            environ[envelope.ROUTE].append(HEALTHCHECK)
            return self._health(environ, start_response)
        if envelope.is_for_metrics(environ, self._metrics_door):
            environ[envelope.ROUTE].append(metrics_listener.PATH)
            return metrics_listener.answer(start_response)
        try:
            environ["PATH_INFO"].encode("latin-1").decode("utf-8")
        except UnicodeError as error:
            raise exception.NotFound("There is nothing here.") from error
        shown: dict[str, Any] = {
            **environ,
            endpoint.RECEIVED: environ,
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/octet-stream",
            "CONTENT_LENGTH": "0",
            "wsgi.input": io.BytesIO(),
        }
        for name in ("HTTP_ACCEPT", "HTTP_TRANSFER_ENCODING"):
            shown.pop(name, None)
        return self._pecan(shown, start_response)


class Dispatcher(core.ExplicitPecan):  # type: ignore[misc]
    """Pecan that routes by our table and takes our responses as they are.

    Its own traversal looks for attributes by the names that a client sends,
    and reads the signature of a method at each call.
    """

    def route(
        self, request: webob.Request, node: endpoint.Routes, _path: str
    ) -> tuple[Any, list[str]]:
        """The endpoint of the request, and its arguments."""
        path = request.path_info
        method, arguments = node.find(
            request.method, [part for part in path.split("/") if part]
        )
        request.environ[envelope.ROUTE].append(method.declaration.template)
        return method, arguments

    def invoke_controller(
        self,
        controller: Callable[..., webob.Response],
        arguments: Sequence[Any],
        _keywords: dict[str, Any],
        state: core.RoutingState,
    ) -> None:
        """Run the endpoint."""
        state.response = controller(*arguments)


def _nothing_here(
    _environ: WSGIEnvironment, _start_response: StartResponse
) -> Iterable[bytes]:
    raise exception.NotFound("There is nothing here.")


class ProxyHeaders:
    """What a trusted proxy says of the request's address.

    A pipeline may do the same before us; doing it twice must not repeat
    the proxy's prefix.
    """

    def __init__(
        self, application: WSGIApplication, conf: cfg.ConfigOpts
    ) -> None:
        self._parse: WSGIApplication = http_proxy_to_wsgi.HTTPProxyToWSGI(
            application, conf
        )

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Pass the request on with its outer address."""
        prefix = environ.get("HTTP_X_FORWARDED_PREFIX")
        environ.setdefault("SCRIPT_NAME", "")
        if prefix and environ["SCRIPT_NAME"].startswith(prefix):
            del environ["HTTP_X_FORWARDED_PREFIX"]
        return self._parse(environ, start_response)

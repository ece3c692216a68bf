# SPDX-License-Identifier: Apache-2.0
"""What every answer has in common: JSON errors, versions, a request id.

The outermost layer of ours.  Deployers' pipelines put authentication around
the application, so that this wraps both; only the outer one acts.
"""

from __future__ import annotations

import http
import json
import logging
import re
import time
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

from oslo_context import context as oslo_context
from oslo_db import exception as db_exception

from cyborg import exception
from cyborg import metrics
from cyborg import metrics_listener
from cyborg.api import microversions

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from _typeshed.wsgi import WSGIApplication
    from _typeshed.wsgi import WSGIEnvironment

LOG = logging.getLogger(__name__)

REQUEST_ID = "openstack.request_id"
GLOBAL_REQUEST_ID = "openstack.global_request_id"
VERSION = "cyborg.version"
"""Environ: the microversion of the request, or the error that it is."""
ROUTE = "cyborg.route"
"""Environ: a list whose last item names what is asked, as it is declared."""

_MARK = "cyborg.enveloped"
_METRICS = f"/v2{metrics_listener.PATH}"
"""As `path_of` has it, which knows nothing of it."""
_ID_FORMAT = re.compile(r"req-[a-f0-9]{8}(-[a-f0-9]{4}){3}-[a-f0-9]{12}")
_RETRY_AFTER = "5"
"""Seconds after which a client may try what was not available."""

_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])(?::[0-9]{1,5})?")

Headers = list[tuple[str, str]]


class MethodNotAllowed(exception.CyborgError):
    """The path exists and does not know the method."""

    code = 405
    slug = "method-not-allowed"

    def __init__(self, message: str = "", allowed: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.allowed = ", ".join(sorted(allowed))


_FOREIGN = {
    401: "The request you have made requires authentication.",
    404: "There is nothing at this path.",
    405: "The method is not known here.",
    406: "Answers are JSON, which the Accept header excludes.",
    413: "The body is too large.",
    503: "The service cannot answer now.",
}
"""What an error says that did not come from us: its own words may tell
more than a client should know."""

_SLUGS = {
    400: "invalid",
    401: "not-authenticated",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    406: "not-acceptable",
    413: "too-large",
    503: "unavailable",
}


def status_line(code: int) -> str:
    """`404 Not Found`."""
    try:
        return f"{code} {http.HTTPStatus(code).phrase}"
    except ValueError:
        return f"{code} Error"


def error_body(code: int, slug: str, detail: str, request_id: str) -> bytes:
    """The JSON that every error is, in both shapes that clients read."""
    message = {
        "faultcode": "Client" if code < 500 else "Server",
        "faultstring": detail,
        "debuginfo": None,
    }
    error = {
        "status": code,
        "title": status_line(code).partition(" ")[2],
        "detail": detail,
        "request_id": request_id,
        "code": f"accelerator.{slug}",
    }
    body = {"error_message": json.dumps(message), "errors": [error]}
    return json.dumps(body).encode()


def path_of(environ: WSGIEnvironment) -> str:
    """The path as it is served: one slash between segments, none at the
    end, with its version; `/` alone for the root."""
    segments = [
        part for part in environ.get("PATH_INFO", "").split("/") if part
    ]
    if not segments or segments == ["healthcheck"]:
        return "/" + "/".join(segments)
    if segments[0] != "v2":
        segments.insert(0, "v2")
    return "/" + "/".join(segments)


def is_for_metrics(
    environ: WSGIEnvironment, door: metrics_listener.Door
) -> bool:
    """Whether this asks for metrics and may have them.

    To all others there is no such path.
    """
    return (
        environ["REQUEST_METHOD"] == "GET"
        and path_of(environ) == _METRICS
        and door.is_open(environ)
    )


def request_url(environ: WSGIEnvironment) -> str:
    """Scheme, host and script name of the request as a URL.

    What is no host or scheme in a header counts as absent.
    """
    scheme = environ.get("wsgi.url_scheme", "http").lower()
    if scheme not in {"http", "https"}:
        scheme = "http"
    host = environ.get("HTTP_HOST", "")
    if not _HOST.fullmatch(host):
        host = _server(environ)
    host = host.removesuffix({"http": ":80", "https": ":443"}[scheme])
    prefix = urllib.parse.quote(
        environ.get("SCRIPT_NAME", "").strip("/"), safe="/", encoding="latin-1"
    )
    return f"{scheme}://{host}/{prefix}".rstrip("/")


def _server(environ: WSGIEnvironment) -> str:
    """The server's own name and port."""
    name = environ["SERVER_NAME"]
    if ":" in name and not name.startswith("["):
        name = f"[{name}]"
    port = str(environ["SERVER_PORT"])
    return f"{name}:{port}" if port else name


class Envelope:
    """WSGI middleware, see the module."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a request; nothing is raised, whatever happens inside."""
        if _MARK in environ:
            return self._application(environ, start_response)
        request_id = _identify(environ)
        # What this thread logs from now on belongs to this request.
        oslo_context.RequestContext(request_id=request_id)
        began = time.perf_counter()
        own = {**environ, _MARK: True, ROUTE: [metrics.OTHER]}
        exchange = _Exchange(own, start_response, request_id)
        answer = exchange.run(self._application)
        metrics.api_request(
            environ["REQUEST_METHOD"],
            own[ROUTE][-1],
            exchange.status,
            time.perf_counter() - began,
        )
        return answer


class _Exchange:
    """One request and its answer."""

    def __init__(
        self,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        request_id: str,
    ) -> None:
        self._environ = environ
        self._start = start_response
        self._request_id = request_id
        self._headers: Headers = [("x-openstack-request-id", self._request_id)]
        self._foreign: tuple[int, Headers] | None = None
        self.status = 0
        self._head = environ["REQUEST_METHOD"] == "HEAD"
        if self._head:
            environ["REQUEST_METHOD"] = "GET"
        self._negotiate()

    def _negotiate(self) -> None:
        environ = self._environ
        environ["PATH_INFO"] = path_of(environ)
        try:
            version = microversions.negotiate(
                environ.get("HTTP_OPENSTACK_API_VERSION")
            )
        except exception.NotAcceptable as error:
            environ[VERSION] = error
            version = microversions.MINIMUM
        else:
            environ[VERSION] = version
        if environ["PATH_INFO"].startswith("/v2"):
            self._headers += microversions.headers(version)

    def run(self, application: WSGIApplication) -> Iterable[bytes]:
        try:
            answer = application(self._environ, self._start_response)
        except exception.CyborgError as error:
            return self._fail(error)
        except db_exception.DBConnectionError:
            return self._fail(
                exception.Unavailable("The database does not answer.")
            )
        except Exception:
            LOG.exception("Unexpected error in request %s", self._request_id)
            return self._fail(exception.CyborgError(_unexpected()))
        if self._foreign is not None:
            return self._translate(answer, *self._foreign)
        return self._without_body(answer) if self._head else answer

    def _start_response(
        self, status: str, headers: Headers, exc_info: Any = None
    ) -> Callable[[bytes], object]:
        code = int(status[:3])
        self.status = code
        if code >= 400:
            self._foreign = code, headers
            return _ignore
        own = {name.lower() for name, _ in self._headers} - {"vary"}
        kept = [item for item in headers if item[0].lower() not in own]
        return self._start(status, kept + self._headers, exc_info)

    def _translate(
        self, answer: Iterable[bytes], code: int, headers: Headers
    ) -> Iterable[bytes]:
        """Our shape for an error of a library around or below us."""
        _close(answer)
        kept = [
            (name, value)
            for name, value in headers
            if name.lower() in {"www-authenticate", "allow", "retry-after"}
        ]
        detail = _FOREIGN.get(code, status_line(code).partition(" ")[2] + ".")
        slug = _SLUGS.get(code, "invalid" if code < 500 else "internal")
        return self._send(code, slug, detail, kept)

    def _fail(self, error: exception.CyborgError) -> Iterable[bytes]:
        code = error.code
        headers = []
        if isinstance(error, MethodNotAllowed):
            headers.append(("Allow", error.allowed))
        if isinstance(error, exception.NotAuthenticated):
            headers.append(("WWW-Authenticate", "Keystone"))
        if code >= 500:
            LOG.warning(
                "Request %s ends in %d: %s",
                self._request_id,
                code,
                error.message,
            )
        detail = error.message or status_line(code).partition(" ")[2] + "."
        return self._send(code, error.slug, detail, headers)

    def _send(
        self, code: int, slug: str, detail: str, headers: Headers
    ) -> Iterable[bytes]:
        names = {name.lower() for name, _ in headers}
        if code in {503, 504} and "retry-after" not in names:
            headers = [*headers, ("Retry-After", _RETRY_AFTER)]
        body = error_body(code, slug, detail, self._request_id)
        self.status = code
        self._start(
            status_line(code),
            [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                *headers,
                *self._headers,
            ],
        )
        return [] if self._head else [body]

    @staticmethod
    def _without_body(answer: Iterable[bytes]) -> Iterable[bytes]:
        _close(answer)
        return []


def _identify(environ: WSGIEnvironment) -> str:
    """The request's id; one is made where no filter did."""
    request_id = environ.get(REQUEST_ID)
    if request_id is None:
        request_id = oslo_context.generate_request_id()
        environ[REQUEST_ID] = request_id
        sent = environ.get("HTTP_X_OPENSTACK_REQUEST_ID", "")
        if _ID_FORMAT.fullmatch(sent):
            environ[GLOBAL_REQUEST_ID] = sent
    return str(request_id)


def _unexpected() -> str:
    return "The service failed; its log says more under the request's id."


def _close(answer: Iterable[bytes]) -> None:
    close = getattr(answer, "close", None)
    if close is not None:
        close()


def _ignore(_data: bytes) -> None:
    """What a library writes of an error that is told in our words."""

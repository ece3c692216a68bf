# SPDX-License-Identifier: Apache-2.0
"""cyborg-api's own HTTP server: cheroot, in real threads."""

from __future__ import annotations

import io
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

from cheroot import errors
from cheroot import server as cheroot_server
from cheroot import wsgi
from oslo_config import cfg
from oslo_context import context as oslo_context

from cyborg import service
from cyborg.api import app as api_app
from cyborg.api import envelope
from cyborg.api import heads
from cyborg.api import streams
from cyborg.api import tls

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from _typeshed.wsgi import WSGIApplication
    from _typeshed.wsgi import WSGIEnvironment

LOG = logging.getLogger(__name__)

THREADS = 32
BACKLOG = 128
CLIENT_SECONDS = 10
"""How long a client may let the server wait for its next bytes, and take
for all of a request's head."""
BODY_SECONDS = 30
"""How long a client may take to send all of a body."""
ANSWER_SECONDS = 120
"""How long a client may take to read all of an answer."""
IDLE_CONNECTIONS = 256
"""With how many connections open one may be kept for another request."""
STOP_SECONDS = 5
"""How long requests that run may take when the service stops."""
STAY_MILLISECONDS = 10
"""How long a thread waits for a client's next request when it is free."""
LINGER_SECONDS = 1
MAX_HEADER_BYTES = 64 * 1024
MAX_DISCARDED_BYTES = 16 * 1024 * 1024
"""How much of a refused body is read, so that the client, which may still
be sending, gets to read the answer."""

_MESSAGES = {
    400: "The request is not HTTP as this server knows it.",
    408: "The request did not come in time.",
    413: "The headers are too large.",
    414: "The URI is too long.",
    503: "The server has too much to do.",
}


class ApiService:
    """The API on `[api] host_ip` and `port`, until it is stopped."""

    def __init__(
        self, conf: cfg.ConfigOpts, app: WSGIApplication | None = None
    ) -> None:
        self._conf = conf
        application = api_app.load_app(conf) if app is None else app
        host = conf.api.host_ip.strip("[]")
        self._server = _Server(
            (host, conf.api.port),
            AccessLog(application),
            numthreads=THREADS,
            server_name="cyborg-api",
            request_queue_size=BACKLOG,
            timeout=CLIENT_SECONDS,
            shutdown_timeout=STOP_SECONDS,
            reuse_port=conf.api.api_workers > 1,
        )
        self._server.max_request_header_size = MAX_HEADER_BYTES
        self._server.keep_alive_conn_limit = IDLE_CONNECTIONS
        if conf.api.enable_ssl_api:
            self._server.ssl_adapter = tls.adapter(conf)
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, once it runs."""
        host, port = self._server.bind_addr[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Listen, and answer from now on.

        Raises service.Mistake where the address cannot be listened on.
        """
        try:
            self._server.prepare()
        except OSError as error:
            raise service.Mistake(
                f"[api] host_ip, port: cannot listen: {error}"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve, name="api", daemon=True
        )
        self._thread.start()
        LOG.info("The API listens on %s port %d.", *self.address)

    def stop(self) -> None:
        """Take no more requests; finish those that run."""
        self._server.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)


class AccessLog:
    """One line for each request: no query, no header, no body."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Pass the request on and say how it went."""
        began = time.monotonic()
        answer: list[str] = []
        method = environ["REQUEST_METHOD"]

        def start(
            status: str, headers: list[Any], exc_info: Any = None
        ) -> Any:
            answer[:] = status[:3], dict(headers).get("Content-Length", "-")
            return start_response(status, headers, exc_info)

        result = self._application(environ, start)
        path = environ.get("REQUEST_URI", "").partition("?")[0]
        LOG.info(
            '%s "%s %s" status: %s len: %s time: %.4f %s',
            environ.get("REMOTE_ADDR", "-"),
            ascii(method)[1:-1],
            ascii(path)[1:-1],
            *answer,
            time.monotonic() - began,
            environ.get(envelope.REQUEST_ID, "-"),
        )
        return result


class _Request(cheroot_server.HTTPRequest):
    """Errors of the server itself as JSON, and an orderly end of bodies."""

    header_reader = heads.FieldReader()

    def parse_request(self) -> None:
        """Read the head; the time for the body begins after it."""
        super().parse_request()
        self.conn.allow(BODY_SECONDS)

    def read_request_headers(self) -> bool:
        """Read the fields; HTTP/1.0 knows no chunks."""
        inherited: Any = super()
        if not inherited.read_request_headers():
            return False
        if b"Transfer-Encoding" in self.inheaders and not self.chunked_read:
            self.simple_response(400)
            return False
        return True

    def simple_response(self, status: str | int, _message: str = "") -> None:
        """Refuse a request that never reaches the application."""
        code = int(str(status)[:3])
        request_id = oslo_context.generate_request_id()
        body = envelope.error_body(
            code,
            "invalid" if code < 500 else "unavailable",
            _MESSAGES.get(code, envelope.status_line(code)[4:] + "."),
            request_id,
        )
        self.close_connection = True
        self.conn.allow(CLIENT_SECONDS)
        head = [
            f"{self.server.protocol} {envelope.status_line(code)}",
            f"Content-Length: {len(body)}",
            "Content-Type: application/json",
            f"x-openstack-request-id: {request_id}",
            "Connection: close",
            *(["Retry-After: 1"] if code == 503 else []),
        ]
        text = "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body
        try:
            self.conn.wfile.write(text)
            if code in {413, 414}:
                self._linger()
        except OSError:
            LOG.debug("The client has gone.")

    def _linger(self) -> None:
        """Let a client that is still sending read why it is refused.

        Closing with something unread would reset the connection.
        """
        connection: socket.socket = self.conn.socket
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(LINGER_SECONDS)
        left = MAX_DISCARDED_BYTES
        end = time.monotonic() + CLIENT_SECONDS
        while left > 0 and (part := connection.recv(65536)):
            left -= len(part)
            if time.monotonic() > end:
                break

    def respond(self) -> None:
        """Answer in one piece, head and body."""
        if self.chunked_read:
            chunks = streams.Chunks(self.conn.rfile)
            self.rfile = io.BufferedReader(chunks, streams.BLOCK)
        else:
            length = int(self.inheaders.get(b"Content-Length", 0))
            self.rfile = cheroot_server.KnownLengthRFile(
                self.conn.rfile, length
            )
        self.conn.wfile.hold()
        try:
            self.server.gateway(self).respond()
            self.ensure_headers_sent()
            if self.chunked_write:
                self.conn.wfile.write(b"0\r\n\r\n")
        finally:
            self.conn.wfile.release()

    def send_headers(self) -> None:
        """Leave no part of a body to be taken for the next request."""
        chunked = bool(self.chunked_read)
        unread = chunked or bool(getattr(self.rfile, "remaining", False))
        if (unread and not self._discard()) or chunked:
            self.close_connection = True
        self.conn.allow(ANSWER_SECONDS)
        super().send_headers()

    def _discard(self) -> bool:
        """Read the rest of the body; whether all of it was read."""
        left = MAX_DISCARDED_BYTES
        try:
            while left > 0:
                part = self.rfile.read(min(left, 65536))
                if not part:
                    return True
                left -= len(part)
        except (OSError, ValueError):
            return False
        return False


class _Timed:
    """A socket that is read and written until a moment, however many small
    steps a client takes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.until = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def recv(self, size: int) -> bytes:
        """What came in; TimeoutError when the time is up."""
        self._hurry()
        try:
            return self._connection.recv(size)
        except OSError as error:
            raise _as_cheroot_knows(error) from error

    def send(self, data: memoryview) -> int:
        """Send a part; TimeoutError when the time is up."""
        self._hurry()
        try:
            return self._connection.send(data)
        except OSError as error:
            raise _as_cheroot_knows(error) from error

    def _hurry(self) -> None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise _as_cheroot_knows(TimeoutError())
        self._connection.settimeout(min(left, CLIENT_SECONDS))


def _as_cheroot_knows(error: OSError) -> Exception:
    """The same error in the words that it looks for."""
    if isinstance(error, TimeoutError):
        return TimeoutError("timed out")
    if isinstance(error, ssl.SSLError):
        return errors.FatalSSLAlert(*error.args)
    return error


class _Connection(cheroot_server.HTTPConnection):
    RequestHandlerClass = _Request

    def __init__(
        self, server: Any, connection: socket.socket, _makefile: object
    ) -> None:
        self._timed = _Timed(connection)
        super().__init__(server, connection, self._stream)

    def allow(self, seconds: float) -> None:
        """Give the client so long for what comes next, all of it."""
        self._timed.until = time.monotonic() + seconds

    def communicate(self) -> bool:
        """Answer requests; whether the connection shall be kept.

        A thread stays with a client that goes on at once, unless others
        wait for a thread: to give the connection back to the one thread
        that watches them all costs more than many an answer.
        """
        server = self.server
        while self._answer_one():
            if (
                server.requests.qsize
                or not server.ready
                or not self.rfile.waits(STAY_MILLISECONDS)
            ):
                return True
        return False

    def _answer_one(self) -> bool:
        self.allow(CLIENT_SECONDS)
        inherited: Any = super()
        return bool(inherited.communicate())

    def _stream(
        self, _connection: socket.socket, mode: str, _size: int
    ) -> streams.Reader | streams.Writer:
        if "r" in mode:
            return streams.Reader(self._timed)
        return streams.Writer(self._timed)


class _Gateway(wsgi.Gateway_10):
    """Names the server by its address, for links without a Host header."""

    def get_environ(self) -> Any:
        """The WSGI environment of the request."""
        inherited: Any = super()
        return {
            **inherited.get_environ(),
            "SERVER_NAME": str(self.req.server.bind_addr[0]),
        }


class _Server(wsgi.Server):
    ConnectionClass = _Connection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gateway = _Gateway

    def process_conn(self, conn: _Connection) -> None:
        """Hand a connection to a thread once there is something to read."""
        if conn.last_used is None:
            self.put_conn(conn)
        else:
            super().process_conn(conn)

    def error_log(
        self, msg: str = "", level: int = 20, traceback: bool = False
    ) -> None:
        """cheroot's own complaints, into our log."""
        LOG.log(level, "%s", msg, exc_info=traceback)

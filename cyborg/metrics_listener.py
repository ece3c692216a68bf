# SPDX-License-Identifier: Apache-2.0
"""Who may read `/metrics`, and a port of its own where there is no API."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from collections.abc import Mapping
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from typing import Any
from wsgiref import simple_server

from oslo_config import cfg

from cyborg import metric_files
from cyborg import metrics

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from _typeshed.wsgi import WSGIEnvironment

LOG = logging.getLogger(__name__)

PATH = "/metrics"
CLIENT_SECONDS = 10
"""How long a reader may take for each step."""
READER_SECONDS = 30
"""How long a reader may take in all."""
READERS = 16
"""Who reads at a time, each in a thread, at most."""

_PROXIED = ("HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_REAL_IP", "HTTP_X_FORWARDED")
"""What a proxy adds to a request begins so."""


class Door:
    """Lets through whom `[metrics] allowed_networks` lists.

    A request that came through a proxy comes from the proxy's address, which
    says nothing of who sent it.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._networks = [
            ipaddress.ip_network(each)
            for each in conf.metrics.allowed_networks
        ]

    def is_open(self, environ: Mapping[str, Any]) -> bool:
        """Whether the sender of this request may read metrics."""
        if any(name.startswith(_PROXIED) for name in environ):
            return False
        return self.knows(environ.get("REMOTE_ADDR", ""))

    def knows(self, sender: str) -> bool:
        """Whether this address is listed."""
        try:
            address = ipaddress.ip_address(sender)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in each for each in self._networks)


def answer(start_response: StartResponse) -> list[bytes]:
    """Give the metrics."""
    body = metrics.text()
    start_response(
        "200 OK",
        [
            ("Content-Type", metrics.CONTENT_TYPE),
            ("Content-Length", str(len(body))),
        ],
    )
    return [body]


class MetricsListener:
    """A service: `/metrics` on `[metrics] host_ip` and this port.

    Of several workers one listens, and another when that one has gone.
    """

    def __init__(self, conf: cfg.ConfigOpts, option: str) -> None:
        self._conf = conf
        self._option = option
        self._door = Door(conf)
        self._server: _Server | None = None
        self._thread = threading.Thread(
            target=self._run, name="metrics", daemon=True
        )

    def start(self) -> None:
        """Listen, where a port is configured; whoever has it already costs
        a line in the log."""
        if self._conf.metrics[self._option]:
            self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _run(self) -> None:
        metric_files.wait_for_turn()
        section = self._conf.metrics
        place = (section.host_ip.strip("[]"), section[self._option])
        try:
            server = _Server(place, _context(section), self._door)
        except OSError as error:
            LOG.warning(
                "[metrics] host_ip, %s, ssl_*: no metrics are served on %s "
                "port %d: %s. Choose another port, or 0 for none.",
                self._option,
                *place,
                error,
            )
            return
        server.set_app(self._serve)
        self._server = server
        LOG.info("Metrics are served on %s port %d.", *place)
        server.serve_forever()

    def _serve(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        known = environ["PATH_INFO"] == PATH
        if known and self._door.is_open(environ):
            return answer(start_response)
        start_response("404 Not Found", [("Content-Length", "0")])
        return []


def _context(section: Any) -> ssl.SSLContext | None:
    """TLS by the files of `[metrics]`; raises OSError."""
    if not section.ssl_cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(section.ssl_cert_file, section.ssl_key_file)
    if section.ssl_ca_file:
        context.load_verify_locations(section.ssl_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Handler(simple_server.WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: a scrape every few seconds is no news."""


class _Server(ThreadingMixIn, simple_server.WSGIServer):
    """Hangs up on strangers, and on whoever is one too many or too slow: a
    reader costs a thread, and nobody else's work shall want for one."""

    daemon_threads = True
    request_queue_size = READERS

    def __init__(
        self,
        place: tuple[str, int],
        context: ssl.SSLContext | None,
        door: Door,
    ) -> None:
        self._context = context
        self._door = door
        self._began: dict[Any, float] = {}
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        """As HTTPServer does, without asking a name server who we are."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection; the handshake is made in its own thread."""
        connection, address = super().get_request()
        if self._context is not None:
            connection.settimeout(CLIENT_SECONDS)
            connection = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether this one is answered."""
        return len(self._began) < READERS and self._door.knows(
            client_address[0]
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer, in a thread."""
        self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Hang up."""
        self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second: hang up on those who take too long."""
        super().service_actions()
        late = time.monotonic() - READER_SECONDS
        for request, began in self._began.copy().items():
            if began < late:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away, or does not shake hands."""
        LOG.debug("A request for metrics from %s failed.", client_address)

# SPDX-License-Identifier: Apache-2.0
"""TLS of cyborg-api's own server."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from cheroot.ssl import builtin
from oslo_config import cfg

from cyborg import service


class Adapter(builtin.BuiltinSSLAdapter):
    """Leaves the handshake to the first read, in a thread of its own: a
    client that does not shake hands would else keep all others waiting."""

    def wrap(self, sock: socket.socket) -> tuple[socket.socket, Any]:
        """The socket with TLS, and its part of the WSGI environment."""
        wrapped = self.context.wrap_socket(
            sock, do_handshake_on_connect=False, server_side=True
        )
        return wrapped, {"wsgi.url_scheme": "https", "HTTPS": "on"}


def adapter(conf: cfg.ConfigOpts) -> Adapter:
    """TLS by the files of `[api]`; raises service.Mistake."""
    for option in ("ssl_cert_file", "ssl_key_file"):
        if not conf.api[option]:
            raise service.Mistake(
                f"[api] {option} is needed with enable_ssl_api"
            )
    try:
        made = Adapter(
            conf.api.ssl_cert_file,
            conf.api.ssl_key_file,
            conf.api.ssl_ca_file,
        )
    except OSError as error:
        raise service.Mistake(
            f"[api] ssl_cert_file, ssl_key_file, ssl_ca_file: {error}"
        ) from error
    made.context.minimum_version = ssl.TLSVersion.TLSv1_2
    if conf.api.ssl_ca_file:
        made.context.verify_mode = ssl.CERT_REQUIRED
    return made

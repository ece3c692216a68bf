# SPDX-License-Identifier: Apache-2.0
"""cyborg-api: serves the REST API by itself."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from collections.abc import Sequence

from oslo_config import cfg

from cyborg import service
from cyborg.api.server import ApiService

PROGRAM = "cyborg-api"


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the API until a signal ends it."""
    arguments = sys.argv[1:] if argv is None else argv
    conf = service.configure(arguments, PROGRAM)
    with service.exits_on_mistake(PROGRAM):
        refuse_open_door(conf)
        refuse_taken_port(conf)
    service.run(
        conf,
        lambda: [ApiService(conf)],
        conf.api.api_workers,
    )


def refuse_open_door(conf: cfg.ConfigOpts) -> None:
    """Mistake where everybody on the network would be an administrator."""
    if conf.auth_strategy != "noauth":
        return
    if not (is_loopback(conf.api.host_ip) or conf.api.noauth_anywhere):
        raise service.Mistake(
            f"[DEFAULT] auth_strategy: noauth on {conf.api.host_ip} would "
            "let everybody do everything; set [api] host_ip to a loopback "
            "address, or [api] noauth_anywhere = true if that is meant"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refuse_taken_port(conf: cfg.ConfigOpts) -> None:
    """Mistake where `[api] host_ip` and `port` cannot be listened on."""
    host, port = conf.api.host_ip.strip("[]"), conf.api.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.closing(
            socket.socket(family, kind, protocol)
        ) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        raise service.Mistake(
            f"[api] host_ip, port: cannot listen on {host}:{port}: "
            f"{error.strerror}"
        ) from error


if __name__ == "__main__":
    main()

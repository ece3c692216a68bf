# SPDX-License-Identifier: Apache-2.0
"""Options of the metrics that Prometheus reads."""

from __future__ import annotations

import ipaddress

from oslo_config import cfg
from oslo_config import types

from cyborg.conf import default


class Network(types.ConfigType):
    """An address or a network, such as `192.0.2.0/24` or `::1`."""

    def __init__(self) -> None:
        super().__init__(type_name="network")

    def __call__(self, value: object) -> str:
        """The network as it is usually written, or ValueError."""
        return str(ipaddress.ip_network(str(value).strip(), strict=False))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network)

    __hash__ = object.__hash__

    def _formatter(self, value: str) -> str:
        return value


def options() -> list[cfg.Opt]:
    """The options of `[metrics]`."""
    return [*_listener(), *_certificate()]


def _listener() -> list[cfg.Opt]:
    """Where metrics are served, and to whom."""
    return [
        cfg.ListOpt(
            "allowed_networks",
            default=["127.0.0.0/8", "::1/128"],
            item_type=Network(),
            help="From where `/metrics` may be read, of every service. "
            "Elsewhere, and through a proxy, there is no such path. Empty: "
            "nobody may.",
        ),
        cfg.StrOpt(
            "host_ip",
            default="127.0.0.1",
            help="Address that conductor and agent serve `/metrics` on; "
            "`0.0.0.0` or `::` for all. The API serves it on its own port.",
        ),
        cfg.PortOpt(
            "conductor_port",
            default=0,
            help="TCP port of the conductor's `/metrics`, such as 9666; 0 "
            "serves none.",
        ),
        cfg.PortOpt(
            "agent_port",
            default=0,
            help="TCP port of the agent's `/metrics`, such as 9667; 0 serves "
            "none.",
        ),
        cfg.FloatOpt(
            "database_seconds",
            default=15,
            min=1,
            max=default.MAX_SECONDS,
            help="For how many seconds a conductor gives the numbers that it "
            "counted in the database again, before it counts anew.",
        ),
    ]


def _certificate() -> list[cfg.Opt]:
    """HTTPS for the ports of conductor and agent."""
    return [
        cfg.StrOpt(
            "ssl_cert_file",
            help="PEM file of the certificate (chain); set it to serve the "
            "metrics of conductor and agent by HTTPS.",
        ),
        cfg.StrOpt(
            "ssl_key_file",
            help="PEM file of the private key for `ssl_cert_file`.",
        ),
        cfg.StrOpt(
            "ssl_ca_file",
            help="PEM file of the authorities, one of which must have signed "
            "the certificate of whoever reads; unset: none is asked for.",
        ),
    ]

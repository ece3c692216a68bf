# SPDX-License-Identifier: Apache-2.0
"""Options of the REST API."""

from __future__ import annotations

from oslo_config import cfg


def options() -> list[cfg.Opt]:
    """The options of `[api]`."""
    return [*_server(), *_application()]


def _server() -> list[cfg.Opt]:
    """What `cyborg-api` needs to serve by itself."""
    return [
        cfg.StrOpt(
            "host_ip",
            default="127.0.0.1",
            help="Address that cyborg-api listens on; `0.0.0.0` or `::` for "
            "all. Without effect under uwsgi, mod_wsgi or gunicorn.",
        ),
        cfg.PortOpt(
            "port",
            default=6666,
            help="TCP port that cyborg-api listens on. Without effect under "
            "uwsgi, mod_wsgi or gunicorn.",
        ),
        cfg.IntOpt(
            "api_workers",
            default=1,
            min=1,
            max=256,
            help="How many processes of cyborg-api share the port.",
        ),
        cfg.BoolOpt(
            "enable_ssl_api",
            default=False,
            help="Serve HTTPS from cyborg-api, with `ssl_cert_file` and "
            "`ssl_key_file`.",
        ),
        cfg.StrOpt(
            "ssl_cert_file",
            deprecated_opts=[cfg.DeprecatedOpt("cert_file", group="ssl")],
            help="PEM file of the certificate (chain) for `enable_ssl_api`.",
        ),
        cfg.StrOpt(
            "ssl_key_file",
            deprecated_opts=[cfg.DeprecatedOpt("key_file", group="ssl")],
            help="PEM file of the private key for `enable_ssl_api`.",
        ),
        cfg.StrOpt(
            "ssl_ca_file",
            deprecated_opts=[cfg.DeprecatedOpt("ca_file", group="ssl")],
            help="PEM file of the authorities whose client certificates "
            "`enable_ssl_api` takes; unset: none is asked for.",
        ),
    ]


def _application() -> list[cfg.Opt]:
    """What the application reads under every server."""
    return [
        cfg.StrOpt(
            "public_endpoint",
            help="URL before the paths in links, such as "
            "`https://cloud.example/accelerator`. Unset: taken from the "
            "request.",
        ),
        cfg.StrOpt(
            "api_paste_config",
            default="api-paste.ini",
            help="PasteDeploy file with the pipeline, absolute or found "
            "beside cyborg.conf. A built-in pipeline is used where there is "
            "none.",
        ),
        cfg.BoolOpt(
            "noauth_anywhere",
            default=False,
            help="Let `auth_strategy = noauth` serve on an address that "
            "others can reach. Whoever reaches it may do everything.",
        ),
        cfg.IntOpt(
            "max_accelerators_per_request",
            default=64,
            min=1,
            help="The most accelerators that all groups of one device "
            "profile may ask for.",
        ),
    ]

# SPDX-License-Identifier: Apache-2.0
"""What the application reads of the configuration, once.

Reading an option costs more than answering half a request.
"""

from __future__ import annotations

import dataclasses

from keystonemiddleware import opts as keystone_opts
from oslo_config import cfg
from oslo_middleware import opts as middleware_opts
from oslo_policy import opts as policy_opts

from cyborg import service


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options that each request is judged by."""

    noauth: bool
    noauth_anywhere: bool
    service_roles: frozenset[str]
    public_endpoint: str | None
    proxied: bool
    max_body_size: int
    max_accelerators: int

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> Settings:
        """The settings that `conf` holds; registers what libraries own."""
        register(conf)
        service.validate(conf)
        endpoint = conf.api.public_endpoint
        return cls(
            noauth=conf.auth_strategy == "noauth",
            noauth_anywhere=conf.api.noauth_anywhere,
            service_roles=frozenset(
                conf.keystone_authtoken.service_token_roles
            ),
            public_endpoint=endpoint.rstrip("/") if endpoint else None,
            proxied=conf.oslo_middleware.enable_proxy_headers_parsing,
            max_body_size=_max_body_size(conf),
            max_accelerators=conf.api.max_accelerators_per_request,
        )


def register(conf: cfg.ConfigOpts) -> None:
    """Make `conf` know the options of all libraries around the API, so
    that a bad value shows before a request needs it."""
    for group, options in (
        *keystone_opts.list_auth_token_opts(),
        *middleware_opts.list_opts(),
        *policy_opts.list_opts(),
    ):
        conf.register_opts(options, group=group)


def _max_body_size(conf: cfg.ConfigOpts) -> int:
    size: int | None = conf.oslo_middleware.max_request_body_size
    if size is None or size < 1:
        raise service.Mistake(
            "[oslo_middleware] max_request_body_size: must be 1 or more"
        )
    return size

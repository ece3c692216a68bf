# SPDX-License-Identifier: Apache-2.0
"""How the other services are reached: keystoneauth's options.

Any authentication plugin works: a plugin's own options become known to a
`ConfigOpts` when keystoneauth loads it (`cyborg.clients.session`).
"""

from __future__ import annotations

from collections.abc import Iterator

from keystoneauth1 import loading
from oslo_config import cfg
from oslo_middleware import cors
from oslo_policy import opts as policy_opts

from cyborg import privsep

SERVICE_TYPES = {
    "placement": "placement",
    "nova": "compute",
    "glance": "image",
}

PLUGINS = ("password", "v3password", "v3applicationcredential", "none")

MIDDLEWARE_DEFAULTS: dict[str, dict[str, object]] = {
    "cors": {
        "allow_headers": [
            "X-Auth-Token",
            "X-Identity-Status",
            "X-Roles",
            "X-Service-Catalog",
            "X-User-Id",
            "X-Tenant-Id",
            "X-OpenStack-Request-ID",
            "OpenStack-API-Version",
        ],
        "expose_headers": [
            "X-Auth-Token",
            "X-Subject-Token",
            "X-Service-Token",
            "X-OpenStack-Request-ID",
            "OpenStack-API-Version",
        ],
        "allow_methods": ["GET", "PUT", "POST", "DELETE", "PATCH"],
    },
    "oslo_policy": {"policy_file": "policy.yaml"},
}


def middleware_groups() -> Iterator[tuple[str, list[cfg.Opt]]]:
    """Options of libraries whose defaults we change."""
    yield "cors", cors.CORS_OPTS
    yield "oslo_policy", policy_opts._options  # noqa: SLF001


def groups() -> Iterator[tuple[str, list[cfg.Opt]]]:
    """The options of the sections that describe another service."""
    for group, service_type in SERVICE_TYPES.items():
        adapter = loading.get_adapter_conf_options(include_deprecated=False)
        cfg.set_defaults(adapter, service_type=service_type)
        yield (
            group,
            [*_switch(group), *_interfaces(), *adapter, *_session()],
        )
    yield "service_user", [*_service_user(), *_session()]


def privilege_groups() -> Iterator[tuple[str, list[cfg.Opt]]]:
    """oslo.privsep's options, in the section that our helper reads."""
    yield privsep.SECTION, privsep.options()


def plugin_groups() -> Iterator[tuple[str, list[cfg.Opt]]]:
    """The options of the usual authentication plugins, for the sample."""
    options: dict[str, cfg.Opt] = {}
    for plugin in PLUGINS:
        for option in loading.get_auth_plugin_conf_options(plugin):
            options.setdefault(option.dest, option)
    for group in (*SERVICE_TYPES, "service_user", "keystone_authtoken"):
        yield group, list(options.values())


def _session() -> list[cfg.Opt]:
    """Options of any keystoneauth session and plugin."""
    return [
        *loading.get_session_conf_options(),
        *loading.get_auth_common_conf_options(),
    ]


def _switch(group: str) -> list[cfg.Opt]:
    """Whether there is such a service at all."""
    helps = {
        "placement": "Whether there is a Placement service. Without one "
        "(a laptop, a test) accelerators are not reported to it.",
        "nova": "Whether there is a Nova service. Without one nobody is "
        "told that an accelerator is bound.",
    }
    if group not in helps:
        return []
    return [cfg.BoolOpt("enabled", default=True, help=helps[group])]


def _interfaces() -> list[cfg.Opt]:
    """Older spellings of `valid_interfaces` that deployers still write."""
    return [
        cfg.StrOpt(
            name,
            help="The interface to look for in the catalog, where "
            "`valid_interfaces` is not set.",
            deprecated_for_removal=True,
            deprecated_reason="use valid_interfaces, a list, instead",
        )
        for name in ("interface", "endpoint_type")
    ]


def _service_user() -> list[cfg.Opt]:
    return [
        cfg.BoolOpt(
            "send_service_user_token",
            default=False,
            help="Send a service token of our own beside a user's token "
            "when calling another service on the user's behalf.",
        ),
    ]

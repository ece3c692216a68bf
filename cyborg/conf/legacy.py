# SPDX-License-Identifier: Apache-2.0
"""Options that deployment tools still write and that no longer do anything.

They are plain text whatever they once were, so that no value of theirs,
empty ones included, can stop a service.  They are not registered where the
services look: several sit in sections that belong to a library, and a
library that knows the option itself must not find it taken.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from oslo_config import cfg

_NOTHING = "it has no effect"
_CREDENTIALS = "use [placement], [nova] and [glance] instead"

REPLACEMENTS: dict[str, dict[str, str]] = {
    "api": {"ramdisk_heartbeat_timeout": _NOTHING},
    "conductor": {
        "automated_clean": "use [agent] clean_on_release instead",
    },
    "keystone": {
        "region_name": "use region_name of [placement], [nova] and "
        "[glance] instead",
    },
    "service_catalog": dict.fromkeys(
        (
            "auth_type",
            "auth_url",
            "auth_section",
            "username",
            "password",
            "project_name",
            "project_id",
            "user_domain_id",
            "user_domain_name",
            "project_domain_id",
            "project_domain_name",
            "region_name",
            "cafile",
            "interface",
            "endpoint_type",
            "insecure",
        ),
        _CREDENTIALS,
    ),
    "keystone_authtoken": {
        "auth_uri": "use www_authenticate_uri instead",
        "endpoint_type": "use interface instead",
        "memcache_servers": "use memcached_servers instead",
    },
    "oslo_messaging_rabbit": {
        "heartbeat_in_pthread": _NOTHING,
        "rabbit_quorum_queues": "use rabbit_quorum_queue instead",
    },
}


def groups() -> Iterator[tuple[str, list[cfg.Opt]]]:
    """The options, by section."""
    for group, replacements in REPLACEMENTS.items():
        yield (
            group,
            [
                cfg.StrOpt(
                    name,
                    help="Accepted from older configuration files.",
                    secret=name == "password",
                    deprecated_for_removal=True,
                    deprecated_reason=reason,
                )
                for name, reason in replacements.items()
            ],
        )


def report(conf: cfg.ConfigOpts) -> list[str]:
    """Log one line for each option here that the configuration sets.

    A library that still reads one tells of it by itself, where it is used.
    Reads the files of `conf` (already parsed) once more; returns the names.
    """
    if not _any_set(conf):
        return []
    told = _told_by_libraries()
    known = [
        (group, [option for option in options if option.dest not in told])
        for group, options in groups()
    ]
    reader = _read_again(conf, known)
    return [
        f"[{group}] {option.dest}"
        for group, options in known
        for option in options
        # oslo.config logs the line, with the reason, at the first look.
        if reader[group][option.dest] is not None
    ]


def _any_set(conf: cfg.ConfigOpts) -> bool:
    silent: list[tuple[str, list[cfg.Opt]]] = [
        (group, [cfg.StrOpt(option.dest) for option in options])
        for group, options in groups()
    ]
    reader = _read_again(conf, silent)
    return any(
        reader[group][option.dest] is not None
        for group, options in silent
        for option in options
    )


def _read_again(
    conf: cfg.ConfigOpts, known: list[tuple[str, list[cfg.Opt]]]
) -> cfg.ConfigOpts:
    reader = cfg.ConfigOpts()
    for group, options in known:
        reader.register_opts(options, group=group)
    reader(
        args=[],
        project=conf.project,
        prog=conf.prog,
        default_config_files=list(conf.config_file or []),
        default_config_dirs=list(conf.config_dir or []),
    )
    return reader


def _told_by_libraries() -> set[str]:
    """Older names that keystonemiddleware still gives its options.

    Loading it costs each service 0.2 s and some megabytes, for files that
    nearly nobody has any more.
    """
    middleware_opts = importlib.import_module("keystonemiddleware.opts")
    return {
        older.name
        for _, options in middleware_opts.list_auth_token_opts()
        for option in options
        for older in option.deprecated_opts
    }

# SPDX-License-Identifier: Apache-2.0
"""Every configuration option that Cyborg reads, declared in one place.

A `ConfigOpts` is made where a process begins and handed down; nothing here
holds one.  `list_opts` feeds oslo-config-generator and -validator.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from oslo_concurrency import opts as lock_options
from oslo_config import cfg
from oslo_db import options as db_options

from cyborg.conf import agent
from cyborg.conf import api
from cyborg.conf import conductor
from cyborg.conf import database
from cyborg.conf import default
from cyborg.conf import fake
from cyborg.conf import legacy
from cyborg.conf import messaging
from cyborg.conf import pci
from cyborg.conf import services

Groups = list[tuple[str | None, list[cfg.Opt]]]


def own() -> Iterator[tuple[str | None, list[cfg.Opt]]]:
    """The options that are ours, and keystoneauth's in our sections."""
    yield None, default.options()
    yield "upgrade_levels", default.upgrade_levels()
    yield "api", api.options()
    yield "agent", agent.options()
    yield "conductor", conductor.options()
    yield "database", database.options()
    yield "fake", fake.options()
    yield from pci.groups()
    yield from services.groups()


def register(conf: cfg.ConfigOpts) -> None:
    """Make `conf` know every option that we read; may be called again."""
    for group, options in own():
        conf.register_opts(options, group=group)
    conf.register_opts(db_options.database_opts, group="database")
    # Known from the start, so that a bad value shows before it is needed.
    for group, options in (
        *lock_options.list_opts(),
        *messaging.groups(),
    ):
        conf.register_opts(options, group=group)


def list_opts() -> Groups:
    """For oslo-config-generator: (group, options) of ours.

    Holds, besides what `register` registers, the options of keystoneauth's
    plugins and those that only older releases knew, so that the validator
    has nothing to say about files that deployment tools write.
    """
    return copy.deepcopy(
        [
            *own(),
            *services.plugin_groups(),
            *services.privilege_groups(),
            *legacy.groups(),
        ]
    )


def set_library_defaults() -> None:
    """Our defaults of the libraries' options, in the sample file too."""
    cfg.set_defaults(db_options.database_opts, max_pool_size=16)
    for group, options in services.middleware_groups():
        cfg.set_defaults(options, **services.MIDDLEWARE_DEFAULTS[group])

# SPDX-License-Identifier: Apache-2.0
"""Every configuration option that Cyborg reads, declared in one place.

A `ConfigOpts` is made where a process begins and handed down; nothing here
holds one.  `list_opts` feeds oslo-config-generator and -validator.
"""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

from oslo_concurrency import opts as lock_options
from oslo_config import cfg
from oslo_db import options as db_options
from oslo_reports import opts as report_options

from cyborg.conf import agent
from cyborg.conf import api
from cyborg.conf import conductor
from cyborg.conf import database
from cyborg.conf import default
from cyborg.conf import fake
from cyborg.conf import legacy
from cyborg.conf import messaging
from cyborg.conf import metrics
from cyborg.conf import pci
from cyborg.conf import services

Groups = list[tuple[str | cfg.OptGroup | None, list[cfg.Opt]]]

DRIVER_SECTIONS = frozenset(
    {"amd_gpu", "fake", "gpu_devices", "nic_devices", "nvme", "pci"}
)
DRIVER_OPTIONS = frozenset(
    {
        ("agent", "clean_timeouts"),
        ("agent", "spdk_socket"),
        ("agent", "virtual_functions"),
    }
)
"""What is read by single drivers (or for single devices) alone: a mistake
there stops whoever reads it, by the option's name, and nothing else."""


def own() -> Iterator[tuple[str | None, list[cfg.Opt]]]:
    """The options that are ours, and keystoneauth's in our sections."""
    yield None, default.options()
    yield "upgrade_levels", default.upgrade_levels()
    yield "api", api.options()
    yield "agent", agent.options()
    yield "conductor", conductor.options()
    yield "database", database.options()
    yield "fake", fake.options()
    yield "metrics", metrics.options()
    yield from pci.groups()
    yield from services.groups()


def stops_no_service(group: str, name: str) -> bool:
    """Whether an option is judged by the driver that reads it, not when a
    service starts."""
    return group in DRIVER_SECTIONS or (group, name) in DRIVER_OPTIONS


def why_unusable(option: cfg.Opt, value: object) -> str:
    """What is wrong with a value that oslo.config takes for a number and
    nobody can use; empty where nothing is."""
    if value is None and option.default is not None:
        return "must not be empty"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    return ""


def driver_option(conf: cfg.ConfigOpts, group: str, name: str) -> Any:
    """What a driver's option says.

    Raises ValueError, in words for an operator, where that cannot be used.
    """
    try:
        value = conf[group][name]
    except ValueError as error:
        raise ValueError(short(error)) from error
    except (cfg.NoSuchOptError, cfg.TemplateSubstitutionError) as error:
        raise ValueError(NO_SUBSTITUTE) from error
    option = _driver_options().get((group, name))
    reason = why_unusable(option, value) if option else ""
    if reason:
        raise ValueError(reason)
    return value


@functools.cache
def _driver_options() -> dict[tuple[str, str], cfg.Opt]:
    """By section and name; those of sections that others name are not
    here."""
    return {
        (group, option.dest): option
        for group, options in own()
        for option in options
        if group in DRIVER_SECTIONS or group == "agent"
    }


NO_SUBSTITUTE = (
    "a `$` stands before the name of another option, and there is none of "
    "this name; a plain `$` is written `$$`"
)


def short(error: ValueError) -> str:
    """What is wrong and where, out of oslo.config's longer sentence."""
    text = str(error)
    reason = text.partition(" is not valid: ")[2]
    place = re.search(r"detail='([^']*)'", text)
    if not reason:
        return text
    return f"{reason} (in {place[1]})" if place else reason


def register(conf: cfg.ConfigOpts) -> None:
    """Make `conf` know every option that we read; may be called again."""
    for group, options in own():
        conf.register_opts(options, group=group)
    conf.register_opts(db_options.database_opts, group="database")
    # Known from the start, so that a bad value shows before it is needed.
    for group, options in (
        *lock_options.list_opts(),
        *messaging.groups(),
        *report_options.list_opts(),
    ):
        conf.register_opts(options, group=group)


def list_opts() -> Groups:
    """For oslo-config-generator: (group, options) of ours.

    Holds, besides what `register` registers, the options of keystoneauth's
    plugins, those that only older releases knew, so that the validator has
    nothing to say about files that deployment tools write, and an example of
    each kind of section that another option names.
    """
    return copy.deepcopy(
        [
            *own(),
            *services.plugin_groups(),
            *services.privilege_groups(),
            *legacy.groups(),
            *pci.driver_groups(),
        ]
    )


def set_library_defaults() -> None:
    """Our defaults of the libraries' options, in the sample file too."""
    cfg.set_defaults(db_options.database_opts, max_pool_size=16)
    for group, options in services.middleware_groups():
        cfg.set_defaults(options, **services.MIDDLEWARE_DEFAULTS[group])

# SPDX-License-Identifier: Apache-2.0
"""Options of the agent."""

from __future__ import annotations

import functools
import socket

from oslo_config import cfg

from cyborg.conf import default


@functools.cache
def _full_name() -> str:
    """The host's full name; asked once, since a resolver may be slow."""
    return socket.getfqdn()


def options() -> list[cfg.Opt]:
    """The options of `[agent]`."""
    return [*_reporting(), *_hardware()]


def _reporting() -> list[cfg.Opt]:
    """How the host's accelerators are found and named."""
    return [
        cfg.ListOpt(
            "enabled_drivers",
            default=["fake_driver"],
            help="Names of the drivers to load, as registered under the "
            "entry point `cyborg.accelerator.driver`. Empty: none.",
        ),
        cfg.StrOpt(
            "resource_provider_name",
            default=_full_name(),
            sample_default="<the host's fully qualified name>",
            help="Name of the resource provider that nova-compute made for "
            "this host; the host's accelerators appear below it. Where "
            "there is none of this name, the one called `[DEFAULT] host` is "
            "tried.",
        ),
        cfg.IntOpt(
            "resource_provider_startup_retries",
            default=3,
            min=0,
            help="How often a starting agent looks for the host's resource "
            "provider, with growing pauses, before it says in its log that "
            "it is missing. It goes on looking with each report.",
        ),
    ]


def _hardware() -> list[cfg.Opt]:
    """How devices are read, programmed and cleaned."""
    return [
        cfg.StrOpt(
            "sysfs_root",
            default="/sys",
            help="Directory below which every read of hardware goes.",
        ),
        cfg.FloatOpt(
            "driver_timeout",
            default=30,
            min=0.1,
            max=default.MAX_SECONDS,
            help="Seconds that one driver may take to look for its devices; "
            "after that its devices keep their last state and the other "
            "drivers go on.",
        ),
        cfg.IntOpt(
            "max_image_bytes",
            default=4 * 1024**3,
            min=1,
            help="The largest image (bytes) that is fetched from Glance to "
            "program a device.",
        ),
        cfg.BoolOpt(
            "clean_on_release",
            sample_default="<NVMe devices only>",
            help="Clean a device, where its driver can, before the next "
            "instance gets it: a function-level reset, a sanitize or format "
            "of an NVMe. Not set: NVMe devices are cleaned, all others are "
            "not. Mediated devices and vGPUs are removed in any case.",
        ),
        cfg.IntOpt(
            "clean_timeout",
            default=120,
            min=1,
            max=86_400,
            help="Seconds that cleaning one device may take; after that it "
            "is in error and not offered until an administrator enables it "
            "again. NVMe devices have `[nvme] cleanup_timeout`.",
        ),
        cfg.DictOpt(
            "clean_timeouts",
            default={},
            help="The same for single drivers: `driver:seconds`, separated "
            "by commas.",
        ),
        cfg.ListOpt(
            "virtual_functions",
            default=[],
            help="Physical functions that must have virtual functions, as "
            "`address=count` (`0000:3d:00.0=16`; `max` for all that it can "
            "have). The kernel forgets them when the host boots; the agent "
            "makes them before it reports. Those that are there are never "
            "taken away.",
        ),
        cfg.ListOpt(
            "further_tools",
            default=[],
            help="Bare names of tools that drivers from elsewhere have run "
            "as root by the privileged helper, besides those that ours need. "
            "Read from the configuration file that the helper was started "
            "with.",
        ),
        cfg.StrOpt(
            "spdk_socket",
            # SPDK's own default.
            default="/var/tmp/spdk.sock",  # noqa: S108  # nosec B108
            help="Unix socket of SPDK's JSON-RPC server.",
        ),
    ]

# SPDX-License-Identifier: Apache-2.0
"""What we change in oslo.messaging's options."""

from __future__ import annotations

from collections.abc import Iterator

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import opts

EXCHANGE = "cyborg"


def groups() -> Iterator[tuple[str | None, list[cfg.Opt]]]:
    """oslo.messaging's options, with our exchange as the default one.

    The default is set first: the library must find its options registered
    as it would register them itself.
    """
    oslo_messaging.set_transport_defaults(EXCHANGE)
    for group, options in opts.list_opts():
        yield group, list(options)
    yield from _registered_globally()


def _registered_globally() -> Iterator[tuple[str, list[cfg.Opt]]]:
    """Groups that oslo.messaging gives to the global configuration alone.

    It reads them (metrics, tracing) from the configuration of a transport
    at every call, and fails where they are not there.
    """
    for name, group in cfg.CONF._groups.items():  # noqa: SLF001
        if name.startswith("oslo_messaging_"):
            known = group._opts.values()  # noqa: SLF001
            yield name, [entry["opt"] for entry in known]

# SPDX-License-Identifier: Apache-2.0
"""The API for WSGI servers: `cyborg.wsgi.api:application`.

Also run as a script by mod_wsgi.  The server's own arguments may be in
`sys.argv`: they are read only where a configuration file is named there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oslo_config import cfg

from cyborg import service
from cyborg.api import app
from cyborg.wsgi import chunks

_OPTIONS = ("--config-file", "--config-dir")


def configuration_arguments(argv: Sequence[str]) -> list[str]:
    """The arguments of `argv` that name configuration files."""
    found = []
    rest = iter(argv)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name not in _OPTIONS:
            continue
        if equals:
            found.append(argument)
            continue
        value = next(rest, None)
        if value is not None:
            found += [argument, value]
    return found


def _configuration() -> cfg.ConfigOpts:
    arguments = configuration_arguments(sys.argv[1:])
    if arguments:
        return service.configure(arguments, "cyborg-api")
    return service.configuration()


application = chunks.put_together(app.load_app(_configuration()))

# SPDX-License-Identifier: Apache-2.0
"""`cyborg-manage`: what an operator looks at and repairs by hand.

`hardware` looks at this host, `audit` and `heal` at the whole cloud.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from cyborg import service
from cyborg.cmd import manage_audit
from cyborg.cmd import manage_hardware

PROGRAM = "cyborg-manage"

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    fault = manage_hardware.FAULT
    if not {"audit", "heal"}.isdisjoint(arguments):
        fault = manage_audit.MISTAKE
    try:
        with service.exits_on_mistake(PROGRAM):
            conf = _configure(arguments)
            return _COMMANDS[conf.command.name](conf)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise
        said = error.code.removeprefix(f"{PROGRAM}: ")
        print(f"{PROGRAM}: {said}", file=sys.stderr)
        return fault


def _configure(arguments: Sequence[str]) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf.register_cli_opt(
        cfg.SubCommandOpt("command", title="Commands", handler=_add_commands)
    )
    conf(
        args=list(arguments),
        project=service.PROJECT,
        prog=PROGRAM,
        version=service.version(),
    )
    service.set_up(conf, PROGRAM)
    if not conf.debug:
        # What is asked for comes on stdout; only what is wrong besides.
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("oslo.privsep").setLevel(logging.ERROR)
    return conf


def _add_commands(subparsers: Any) -> None:
    manage_hardware.add_command(subparsers)
    manage_audit.add_commands(subparsers)


_COMMANDS: dict[str, Callable[[cfg.ConfigOpts], int]] = {
    "hardware": manage_hardware.run,
    "audit": manage_audit.audit,
    "heal": manage_audit.heal,
}


if __name__ == "__main__":
    sys.exit(main())

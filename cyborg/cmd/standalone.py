# SPDX-License-Identifier: Apache-2.0
"""cyborg-standalone: the whole service in one process, for a laptop.

API, conductor and agent over an in-process transport and SQLite, without
authentication on loopback.  With the extra `standalone` the real Placement
is served beside them; without it, and without `[placement]` credentials,
there is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path

from oslo_config import cfg

from cyborg import privsep
from cyborg import service
from cyborg.agent.service import AgentService
from cyborg.api import app as api_app
from cyborg.api.middleware.auth_token import AuthTokenMiddleware
from cyborg.api.server import ApiService
from cyborg.cmd import api as api_command
from cyborg.cmd import standalone_placement
from cyborg.conductor.service import ConductorService
from cyborg.db import migration
from cyborg.db.engine import Database
from cyborg.rpc import conductor as rpc_conductor
from cyborg.rpc import transport as rpc_transport

PROGRAM = "cyborg-standalone"

LOG = logging.getLogger(__name__)

OPTIONS = [
    cfg.StrOpt(
        "state-dir",
        metavar="DIRECTORY",
        help="Where the databases are kept; made if it is not there. "
        "Default: [DEFAULT] state_path if that is set, else "
        "cyborg-standalone in $XDG_STATE_HOME or ~/.local/state.",
    ),
    cfg.StrOpt(
        "host-name",
        metavar="NAME",
        help="The name of this host and of its root resource provider. "
        "Default: [DEFAULT] host.",
    ),
    cfg.PortOpt(
        "port", help="The port of the API. Default: [api] port, 6666."
    ),
    cfg.PortOpt(
        "placement-port",
        default=0,
        help="The port of the Placement that is served beside; 0 takes a "
        "free one.",
    ),
]


def main(argv: Sequence[str] | None = None) -> None:
    """Run everything in this process until a signal ends it."""
    with service.exits_on_mistake(PROGRAM):
        conf = configure(sys.argv[1:] if argv is None else argv)
        api_command.refuse_open_door(conf)
        api_command.refuse_taken_port(conf)
        privsep.prepare(conf)
    with service.exits_on_mistake(PROGRAM), _alone(Path(conf.state_path)):
        service.run(conf, [Standalone(conf)])


def configure(argv: Sequence[str]) -> cfg.ConfigOpts:
    """The configuration, with a laptop's values where none are given.

    The files of an installed service (`/etc/cyborg`) are not read: they
    lead to a real cloud.  Raises service.Mistake, or an error of
    oslo.config.
    """
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf.register_cli_opts(OPTIONS)
    conf.set_default("auth_strategy", "noauth")
    conf.set_default("state_path", str(_default_directory()))
    conf.set_default("transport_url", "fake://")
    conf(
        args=list(argv),
        project=service.PROJECT,
        prog=PROGRAM,
        version=service.version(),
        default_config_files=[],
        default_config_dirs=[],
    )
    _apply_command_line(conf)
    service.set_up(conf, PROGRAM)
    _make_directory(Path(conf.state_path))
    service.adopt(conf)
    return conf


def _apply_command_line(conf: cfg.ConfigOpts) -> None:
    """Our own arguments, and the defaults that follow from them."""
    if conf.host_name:
        conf.set_override("host", conf.host_name)
        conf.set_override("resource_provider_name", conf.host_name, "agent")
    if conf.port is not None:
        conf.set_override("port", conf.port, "api")
    directory = Path(conf.state_dir or conf.state_path).expanduser()
    directory = directory.absolute()
    conf.set_override("state_path", str(directory))
    conf.set_default(
        "connection", f"sqlite:///{directory / 'cyborg.sqlite'}", "database"
    )
    conf.set_default("resource_provider_name", conf.host, "agent")
    if not _is_configured(conf, "nova"):
        conf.set_default("enabled", False, "nova")
    if not (
        _is_configured(conf, "placement")
        or standalone_placement.is_installed()
    ):
        conf.set_default("enabled", False, "placement")


def _is_configured(conf: cfg.ConfigOpts, group: str) -> bool:
    """Whether somebody said how to log in to a service."""
    return bool(conf[group].auth_type or conf[group].auth_section)


def _default_directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state) / PROGRAM


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise service.Mistake(
            f"[DEFAULT] state_path, --state-dir: {error}"
        ) from error


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the state directory, so that no second one works on it."""
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise service.Mistake(
                f"another {PROGRAM} uses {directory}; give this one another "
                "--state-dir and --port"
            ) from error
        yield


class Standalone:
    """All services of one process, each started after what it needs."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._running: list[service.Service] = []
        self._database: Database | None = None

    def start(self) -> None:
        """Upgrade the database, then start everything."""
        conf = self._conf
        self._start_placement()
        self._database = database = Database(conf)
        migration.upgrade(database)
        transport = rpc_transport.get_transport(conf)
        conductor = rpc_conductor.ConductorClient(transport, conf)
        self._start(ConductorService(conf, database, transport))
        self._start(
            ApiService(
                conf,
                AuthTokenMiddleware.wrap(
                    api_app.make_app(conf, database, conductor), conf
                ),
            )
        )
        self._start(AgentService(conf, transport))

    def stop(self) -> None:
        """Stop in the reverse order."""
        for each in reversed(self._running):
            each.stop()
        if self._database is not None:
            self._database.dispose()

    def _start(self, each: service.Service) -> None:
        self._running.append(each)
        each.start()

    def _start_placement(self) -> None:
        conf = self._conf
        if not conf.placement.enabled:
            LOG.warning(
                "There is no Placement: nothing can be scheduled. Install "
                "openstack-cyborg[standalone], or configure [placement]."
            )
        elif not _is_configured(conf, "placement"):
            self._start(
                standalone_placement.EmbeddedPlacement(
                    conf, Path(conf.state_path), conf.placement_port
                )
            )


if __name__ == "__main__":
    main()

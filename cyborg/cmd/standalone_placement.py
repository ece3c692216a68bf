# SPDX-License-Identifier: Apache-2.0
"""The real Placement beside a standalone Cyborg, on SQLite and loopback.

For a laptop or a demonstration.  It takes the place of Placement and of what
nova-compute does there: whoever asks is an administrator, and the host's
root provider is made with what a compute host has.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from cheroot import wsgi
from keystoneauth1 import adapter as ks_adapter
from oslo_config import cfg

from cyborg import service
from cyborg.clients import session

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from _typeshed.wsgi import WSGIApplication
    from _typeshed.wsgi import WSGIEnvironment

LOG = logging.getLogger(__name__)

HOST = "127.0.0.1"
TOKEN = "admin"  # noqa: S105  # nosec B105
"""What Placement's noauth2 calls its user."""
STOP_SECONDS = 2
HEADERS = {"OpenStack-API-Version": "placement 1.26"}


def is_installed() -> bool:
    """Whether the extra `standalone` is there."""
    return importlib.util.find_spec("placement") is not None


class EmbeddedPlacement:
    """Placement on a loopback port (0: a free one), as a service of ours.

    Its database is below `directory`.  After `start`, `[placement]` of
    `conf` leads to it and has the root provider of this host.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, directory: Path, port: int
    ) -> None:
        self._conf = conf
        self._directory = directory
        self._port = port
        self._server: wsgi.Server | None = None

    def start(self) -> None:
        """Upgrade its database, serve it, and make the root provider."""
        # One thread: SQLite has one writer, and would refuse a second.
        server = wsgi.Server(
            (HOST, self._port),
            _as_admin(_application(self._directory / "placement.sqlite")),
            numthreads=1,
            shutdown_timeout=STOP_SECONDS,
        )
        try:
            server.prepare()
        except OSError as error:
            raise service.Mistake(
                f"--placement-port: cannot listen on {HOST}:{self._port}: "
                f"{error}"
            ) from error
        threading.Thread(
            target=server.serve, name="placement", daemon=True
        ).start()
        self._server = server
        _keep_from_proxies()
        url = f"http://{HOST}:{server.bind_addr[1]}"
        self._conf.set_override("auth_type", "none", "placement")
        self._conf.set_override("endpoint_override", url, "placement")
        name = self._conf.agent.resource_provider_name
        _make_root(session.adapter(self._conf, "placement"), name)
        LOG.info("Placement listens on %s; this host is %s there.", url, name)

    def stop(self) -> None:
        """Take no more requests."""
        if self._server is not None:
            self._server.stop()


def _keep_from_proxies() -> None:
    """Have loopback asked directly on a machine that goes by a proxy."""
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.getenv(name), HOST)))


def _application(database: Path) -> WSGIApplication:
    """Placement's application, its database at the newest revision."""
    conf = cfg.ConfigOpts()
    importlib.import_module("placement.conf").register_opts(conf)
    for group, name, value in (
        ("placement_database", "connection", f"sqlite:///{database}"),
        ("placement_database", "sync_on_startup", True),
        ("api", "auth_strategy", "noauth2"),
    ):
        conf.set_override(name, value, group)
    conf(
        [],
        project="placement",
        default_config_files=[],
        default_config_dirs=[],
    )
    for noisy in ("placement", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    importlib.import_module("placement.db_api").configure(conf)
    deploy = importlib.import_module("placement.deploy")
    application: WSGIApplication = deploy.loadapp(conf)
    return application


def _as_admin(application: WSGIApplication) -> WSGIApplication:
    """Let everybody do everything, as the API beside it does."""

    def serve(
        environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        environ["HTTP_X_AUTH_TOKEN"] = TOKEN
        return application(environ, start_response)

    return serve


def _make_root(placement: ks_adapter.Adapter, name: str) -> None:
    """Make this host's root provider and inventory, as nova-compute does."""
    body: dict[str, Any] = {"name": name, "uuid": str(uuid.uuid4())}
    answer = placement.post(
        "/resource_providers", json=body, headers=HEADERS, raise_exc=False
    )
    if answer.status_code == 409:  # since an earlier start
        return
    answer.raise_for_status()
    units = {
        "VCPU": os.cpu_count() or 1,
        "MEMORY_MB": _memory_megabytes(),
        "DISK_GB": 100,
    }
    placement.put(
        f"/resource_providers/{body['uuid']}/inventories",
        json={
            "resource_provider_generation": 0,
            "inventories": {
                name: {"total": total, "max_unit": total}
                for name, total in units.items()
            },
        },
        headers=HEADERS,
    )


def _memory_megabytes() -> int:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return max(1, pages * size // 2**20)

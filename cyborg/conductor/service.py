# SPDX-License-Identifier: Apache-2.0
"""The conductor as a service: its RPC server and its background work."""

from __future__ import annotations

import threading

import oslo_messaging
from oslo_config import cfg

from cyborg import metrics
from cyborg.clients import session
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Placement
from cyborg.conductor.gauges import Gauges
from cyborg.conductor.job_kinds import Agents
from cyborg.conductor.manager import ConductorEndpoint
from cyborg.conductor.sync import Tree
from cyborg.conductor.work import Compute
from cyborg.conductor.work import Work
from cyborg.db.engine import Database
from cyborg.rpc import conductor as rpc
from cyborg.rpc import notifications
from cyborg.rpc import transport as rpc_transport
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.listener import Listener

CLOSE_SECONDS = 3.0
"""How long a stop waits for the broker."""

LEAST_DATABASE_SECONDS, MOST_DATABASE_SECONDS = 5, 30
"""How long a database may be silent before it counts as down: as long as a
caller waits for us, within these.  A connection that a dead server or a
router has forgotten would else hold a thread for ever."""


def database_seconds(conf: cfg.ConfigOpts) -> int:
    """The conductor's patience with its database."""
    asked = int(conf.rpc_response_timeout)
    return max(LEAST_DATABASE_SECONDS, min(MOST_DATABASE_SECONDS, asked))


class ConductorService:
    """One conductor; any number of them share a database and a broker.

    What is not given is made as the configuration says, and closed at the
    end.  Raises at once where the configuration cannot lead anywhere.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database | None = None,
        transport: oslo_messaging.RPCTransport | None = None,
        *,
        placement: Tree | None = None,
        nova: Compute | None = None,
        agents: Agents | None = None,
    ) -> None:
        self._conf = conf
        self._own_database = database is None
        self._database = database or Database(conf, database_seconds(conf))
        self._notifications = notifications.sender(conf, "cyborg-conductor")
        if self._notifications is not None:
            self._database.listener = self._notifications.send
        self._own_transport = transport is None
        self._transport = transport or rpc_transport.get_transport(conf)
        if placement is None and conf.placement.enabled:
            placement = Placement(session.adapter(conf, "placement"))
        if nova is None and conf.nova.enabled:
            nova = Nova(session.adapter(conf, "nova"))
        self.work = Work(
            conf,
            self._database,
            agents or AgentClient(self._transport, conf),
            placement,
            nova,
        )
        self.endpoint = ConductorEndpoint(conf, self._database, self.work)
        self._gauges = Gauges(
            self._database,
            conf.conductor.service_down_time,
            conf.metrics.database_seconds,
        )
        self._listener = Listener(
            self._transport,
            oslo_messaging.Target(topic=rpc.TOPIC, server=conf.host),
            self.endpoint,
            "The conductor",
        )
        self._thread = threading.Thread(
            target=self._listener.listen, name="conductor-listen", daemon=True
        )

    def start(self) -> None:
        """Listens and works; does not wait for broker or database."""
        if self._notifications is not None:
            self._notifications.start()
        metrics.add(self._gauges)
        self.work.start()
        self._thread.start()

    def stop(self) -> None:
        """Takes nothing new, lets what runs end, for a bounded time."""
        metrics.remove(self._gauges)
        self._listener.stop()
        closing = threading.Thread(
            target=self._close_server, name="conductor-close", daemon=True
        )
        closing.start()
        closing.join(CLOSE_SECONDS)
        self.work.stop()
        if self._notifications is not None:
            self._notifications.stop(notifications.STOP_SECONDS)
        if self._own_transport:
            self._transport.cleanup()
        if self._own_database:
            self._database.dispose()

    def _close_server(self) -> None:
        """Gives the broker up; may block where it is gone."""
        self._thread.join(CLOSE_SECONDS)
        self._listener.close()

# SPDX-License-Identifier: Apache-2.0
"""The agent as a service: its parts put together, started and stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import oslo_messaging
from oslo_config import cfg

from cyborg import metrics
from cyborg.agent import discovery
from cyborg.agent import gauges
from cyborg.agent import hotplug
from cyborg.agent import isolation
from cyborg.agent import ledger
from cyborg.agent import manager
from cyborg.agent import orders
from cyborg.agent import programming
from cyborg.agent import provider
from cyborg.agent import reporting
from cyborg.agent import restoring
from cyborg.agent import units
from cyborg.clients import glance as image_client
from cyborg.clients import placement as placement_client
from cyborg.clients import session
from cyborg.drivers import base
from cyborg.hardware import pci
from cyborg.hardware.tools import Tools
from cyborg.rpc import agent as rpc_agent
from cyborg.rpc import conductor as rpc_conductor
from cyborg.rpc import transport as rpc_transport
from cyborg.rpc.listener import Listener

CLOSE_SECONDS = 2.0
JOIN_SECONDS = 1.0
"""How long a stop waits for the broker, and for a report under way."""


def driver_host(
    conf: cfg.ConfigOpts, tools: Tools | None = None
) -> base.DriverHost:
    """What the drivers of this host are given."""
    return base.DriverHost(
        name=conf.host,
        sysfs=pci.Sysfs(Path(conf.agent.sysfs_root)),
        conf=conf,
        tools=tools or Tools(),
    )


class AgentService:
    """The agent of the host `[DEFAULT] host`.

    The later arguments are seams: `placement` is used instead of what
    `[placement]` configures, `glance` makes the client of Glance, `drivers`
    finds a driver's class by its name, `monitor` opens the source of
    hot-plug events, `host` is what drivers are given.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        transport: oslo_messaging.RPCTransport | None = None,
        placement: provider.Finder | None = None,
        *,
        glance: Callable[[], programming.Images] | None = None,
        drivers: Callable[[str], isolation.Factory] = isolation.entry_point,
        monitor: Callable[[], hotplug.Monitor] = hotplug.open_monitor,
        host: base.DriverHost | None = None,
    ) -> None:
        self._conf = conf
        self._own_transport = transport is None
        self._transport = transport or rpc_transport.get_transport(conf)
        self._thread = threading.Thread(
            target=self._run, name="agent", daemon=True
        )
        host = host or driver_host(conf)
        self._orders = orders.Orders(self._wake)
        made = ledger.Ledger(conf.state_path, conf.host)
        self._discovery = discovery.Discovery(
            conf.agent.enabled_drivers,
            host,
            conf.agent.driver_timeout,
            drivers,
            restoring.Restorer(
                lambda: restoring.tasks(conf, host.sysfs, made, self._orders)
            ),
        )
        self._reporter = reporting.Reporter(
            conf.host,
            conf.periodic_interval,
            rpc_conductor.ConductorClient(self._transport, conf),
            self._discovery,
        )
        self._gauges = gauges.Gauges(self._reporter)
        self._root = provider.RootProvider(
            provider.names(conf.agent.resource_provider_name, conf.host),
            self._placement_maker(placement),
            self._reporter.wake,
            quick_retries=conf.agent.resource_provider_startup_retries,
            period=conf.periodic_interval,
        )
        self._hotplug = hotplug.HotPlug(self._reporter.wake, monitor)
        self._workspace = programming.Workspace(conf.state_path, conf.host)
        self._programmer = programming.Programmer(
            self._discovery,
            self._orders,
            glance or self._connect_glance,
            self._workspace,
            max_image_bytes=conf.agent.max_image_bytes,
        )
        self._listener = Listener(
            self._transport,
            oslo_messaging.Target(topic=rpc_agent.TOPIC, server=conf.host),
            manager.AgentEndpoint(
                self._programmer,
                units.Units(self._discovery, self._orders, made),
                self._reporter.wake,
            ),
            "The agent",
        )

    def start(self) -> None:
        """Begin to listen and to report; does not wait for the broker."""
        metrics.add(self._gauges)
        self._workspace.clear()
        self._hotplug.start()
        self._root.start()
        self._thread.start()

    def stop(self) -> None:
        """Take nothing new, give what runs a few seconds, end."""
        metrics.remove(self._gauges)
        self._listener.stop()
        self._hotplug.stop()
        self._reporter.stop()
        self._discovery.stop()
        self._root.stop()
        closing = threading.Thread(
            target=self._close, name="agent-close", daemon=True
        )
        closing.start()
        self._orders.stop()
        closing.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    def _wake(self) -> None:
        self._reporter.wake()

    def _close(self) -> None:
        """Give the broker up; may block for ever where it is gone."""
        self._listener.close()
        if self._own_transport:
            self._transport.cleanup()

    def _run(self) -> None:
        """Listen first: whoever learns of this host may call it at once."""
        self._listener.listen()
        self._reporter.run(self._root)

    def _placement_maker(
        self, placement: provider.Finder | None
    ) -> Callable[[], provider.Finder] | None:
        if placement is not None:
            return lambda: placement
        if not self._conf.placement.enabled:
            return None
        return self._connect_placement

    def _connect_placement(self) -> provider.Finder:
        return placement_client.Placement(
            session.adapter(self._conf, "placement")
        )

    def _connect_glance(self) -> programming.Images:
        return image_client.Glance(session.adapter(self._conf, "glance"))

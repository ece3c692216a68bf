# SPDX-License-Identifier: Apache-2.0
"""What a conductor does besides answering: its passes and its threads."""

from __future__ import annotations

import functools
import logging
import os
import time
import uuid
from collections.abc import Iterable
from typing import Protocol

from oslo_config import cfg

from cyborg.conductor import background
from cyborg.conductor import binding
from cyborg.conductor import reports
from cyborg.conductor import requests
from cyborg.conductor.events import Notifier
from cyborg.conductor.events import Teller
from cyborg.conductor.healing import Healer
from cyborg.conductor.healing import Owners
from cyborg.conductor.job_kinds import Agents
from cyborg.conductor.jobs import Answer
from cyborg.conductor.jobs import Runner
from cyborg.conductor.settings import Settings
from cyborg.conductor.sync import Synchronizer
from cyborg.conductor.sync import Tree
from cyborg.db import hosts
from cyborg.db import jobs
from cyborg.db.arq_release import GivenBack
from cyborg.db.engine import Database
from cyborg.db.engine import retried

LOG = logging.getLogger(__name__)

MAX_LEASE = 15.0
"""Seconds after which a silent conductor's jobs are taken over, at most."""
MAX_GRACE = 30.0
STOP_SECONDS = 5.0
"""How long what runs may go on when the service stops."""


def settings(conf: cfg.ConfigOpts) -> Settings:
    """The times that the configuration means."""
    return Settings(
        owner=f"{conf.host[:180]}:{os.getpid()}:{uuid.uuid4()}",
        lease=max(2.0, min(MAX_LEASE, conf.bind_timeout / 4)),
        bind_timeout=conf.bind_timeout,
        grace=max(
            1.0,
            min(
                MAX_GRACE,
                conf.periodic_interval,
                conf.conductor.reconcile_interval,
            ),
        ),
    )


class Compute(Teller, Owners, Protocol):
    """What we need of Nova's client in all."""


class Work:
    """The background of one conductor.

    `placement` and `nova` are None where there is no such service.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        agents: Agents,
        placement: Tree | None,
        nova: Compute | None,
    ) -> None:
        self.settings = settings(conf)
        self._database = database
        self._pool = background.Pool(conf.thread_pool_size, "conductor")
        period = conf.periodic_interval
        reconcile_interval = conf.conductor.reconcile_interval
        self._events = background.Pass("events", self._send_due, period)
        self._syncs = background.Pass(
            "sync", self._sync_due, reconcile_interval
        )
        self._jobs = background.Pass(
            "jobs", self._look_at_jobs, min(period, self.settings.lease)
        )
        self._sweeps = background.Pass(
            "sweep", self._sweep, period, first=period
        )
        self.notifier = Notifier(
            database, nova, self.settings.grace, self._events.wake
        )
        self.sync = Synchronizer(
            database,
            placement,
            reconcile_interval,
            self._pool,
            self._syncs.wake,
        )
        self._healer = Healer(database, nova)
        self.runner = Runner(
            database,
            agents,
            self.settings,
            threads=conf.thread_pool_size,
            ended=self.follow,
            wake=self._jobs.wake,
        )

    def start(self) -> None:
        """Begins the passes: what another left is found at once."""
        for one in (self._jobs, self._events, self._syncs, self._sweeps):
            one.start()

    def stop(self) -> None:
        """Takes nothing new and lets what runs end, for a bounded time."""
        end = time.monotonic() + STOP_SECONDS
        passes = (self._events, self._syncs, self._sweeps, self._jobs)
        for one in passes:
            one.stop(0)
        # Leases are not renewed from here on: what does not end in time
        # another conductor takes over.
        self.runner.stop(STOP_SECONDS / 2)
        self._pool.stop(max(0.1, end - time.monotonic()))
        for one in passes:
            one.stop(max(0.1, end - time.monotonic()))

    def begin(self, outcome: binding.Outcome) -> dict[int, Answer]:
        """Does what a committed bind asks for; the answers of its jobs."""
        begun = {job.id: self.runner.start(job) for job in outcome.jobs}
        if begun:
            self._jobs.wake(self.settings.lease / 3)
        self.follow(outcome.told, outcome.changed_hosts)
        return begun

    def follow(
        self, told: Iterable[jobs.Told], changed_hosts: Iterable[int]
    ) -> None:
        """Lets Nova and Placement know."""
        owed = tuple(told)
        if owed:
            self._pool.submit(self.notifier.later(owed))
        for host_id in changed_hosts:
            self.sync.soon(host_id)

    def take_back(self, given: GivenBack) -> None:
        """Has cleaned what was given back, and removes what is gone."""
        if given.cleaning:
            self.clean_soon()
        self.follow((), given.host_ids)
        for hostname in given.lost_on:
            self._pool.submit(
                functools.partial(self._remove_lost, hostname),
                ("lost", hostname),
            )

    def clean_soon(self) -> None:
        """Looks now for what there is to be cleaned."""
        self._jobs.wake()

    def _remove_lost(self, hostname: str) -> None:
        host_id = reports.remove_lost(
            self._database, hostname, self.settings.grace
        )
        if host_id is not None:
            self.sync.soon(host_id)

    def _send_due(self) -> float | None:
        return self.notifier.send_due()

    def _sync_due(self) -> float | None:
        return self.sync.pass_due()

    def _look_at_jobs(self) -> float | None:
        return self.runner.look()

    def _sweep(self) -> float | None:
        self.follow((), requests.sweep(self._database, self.settings))
        for hostname in _hosts_with_lost(self._database):
            self._remove_lost(hostname)
        self._healer.heal()
        return None


@retried
def _hosts_with_lost(database: Database) -> list[str]:
    with database.reader() as session:
        return hosts.hosts_with_lost(session)

# SPDX-License-Identifier: Apache-2.0
"""What can be asked of a conductor over RPC.

Each method decodes, has the change made in one transaction, and leaves
what follows from it (Nova, Placement, hosts) to the work in the background.
"""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any

import oslo_messaging
from oslo_config import cfg

from cyborg import exception
from cyborg import inventory
from cyborg.conductor import binding
from cyborg.conductor import job_rows
from cyborg.conductor import jobs
from cyborg.conductor import reports
from cyborg.conductor import requests
from cyborg.conductor import sync
from cyborg.conductor.choice import missing_arqs
from cyborg.conductor.work import Work
from cyborg.context import RequestContext
from cyborg.db import device_changes
from cyborg.db import hosts
from cyborg.db import profiles
from cyborg.db.engine import Database
from cyborg.db.engine import retried
from cyborg.rpc import codec
from cyborg.rpc import conductor as rpc

MARGIN = 3.0
"""Seconds beyond a job's deadline that its end may take to be noted."""


class ConductorEndpoint:
    """The server of `rpc.conductor.ConductorClient`."""

    target = oslo_messaging.Target(version=rpc.VERSION)

    def __init__(
        self, conf: cfg.ConfigOpts, database: Database, work: Work
    ) -> None:
        self._conf = conf
        self._database = database
        self._work = work

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def report_host(
        self, _context: RequestContext, report: dict[str, Any]
    ) -> None:
        """Stores what an agent reports and lets Placement follow."""
        stored = reports.store(
            self._database,
            codec.decode(inventory.HostReport, report),
            self._conf.conductor.service_down_time,
            self._work.settings.grace,
        )
        if stored.changed:
            self._work.sync.soon(stored.host_id)

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def heartbeat(
        self, _context: RequestContext, host: str, digest: str
    ) -> bool:
        """Whether the host is known with that report."""
        return _heartbeat(self._database, host, digest)

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def create_device_profile(
        self,
        _context: RequestContext,
        name: str,
        groups: list[dict[str, str]],
        description: str | None = None,
        uuid: str | None = None,
    ) -> str:
        """Stores a profile; its uuid."""
        return profiles.create(
            self._database, name, groups, description, uuid
        ).uuid

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def delete_device_profiles(
        self, _context: RequestContext, keys: list[str]
    ) -> None:
        """Deletes these profiles, all or none."""
        profiles.delete(self._database, keys)

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def create_arqs(
        self,
        context: RequestContext,
        device_profile_name: str,
        group_id: int | None = None,
        image_uuid: str | None = None,
    ) -> list[str]:
        """Makes the ARQs of a profile; their uuids.

        Unavailable, and none is made, where that takes longer than anybody
        waits for it.
        """
        return requests.create(
            self._database,
            device_profile_name,
            request_id=context.request_id,
            group_id=group_id,
            image_uuid=image_uuid,
            project_id=context.project_id,
            limit=self._conf.api.max_accelerators_per_request,
            deadline=time.monotonic() + rpc.answer_seconds(self._conf),
        )

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def bind_arqs(
        self,
        _context: RequestContext,
        bindings: list[dict[str, Any]],
        project_scope: str | None,
    ) -> None:
        """Binds ARQs, or begins to; all or none."""
        self._work.begin(
            binding.bind(
                self._database,
                [codec.decode(rpc.Binding, one) for one in bindings],
                project_scope,
                self._work.settings,
            )
        )

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def unbind_arqs(
        self,
        _context: RequestContext,
        arq_uuids: list[str],
        project_scope: str | None,
    ) -> None:
        """Takes back what ARQs hold."""
        released = requests.unbind(
            self._database,
            arq_uuids,
            project_scope,
            self._work.settings.grace,
        )
        self._work.take_back(released.given_back)

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def delete_arqs(
        self,
        _context: RequestContext,
        arq_uuids: list[str],
        project_scope: str | None,
        may_unbind: bool,
    ) -> None:
        """Deletes ARQs; NotFound afterwards where some were missing."""
        released = requests.delete(
            self._database,
            arq_uuids,
            project_scope,
            may_unbind=may_unbind,
            grace=self._work.settings.grace,
        )
        self._work.take_back(released.given_back)
        if released.missing:
            raise missing_arqs(released.missing)

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def delete_instance_arqs(
        self,
        _context: RequestContext,
        instance_uuid: str,
        project_scope: str | None,
    ) -> None:
        """Deletes the ARQs that an instance has."""
        released = requests.delete_of_instance(
            self._database,
            instance_uuid,
            project_scope,
            self._work.settings.grace,
        )
        self._work.take_back(released.given_back)

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def set_device_status(
        self,
        _context: RequestContext,
        device_uuid: str,
        status: str,
        reason: str | None = None,
    ) -> None:
        """Enables or disables a device; what could not be cleaned of one
        that is enabled is cleaned again."""
        host, changed = device_changes.set_device_status(
            self._database, device_uuid, status, reason
        )
        if status == "enabled":
            self._work.clean_soon()
        self._work.sync.soon(
            host.id,
            sync.Change(device_uuid, host.revision) if changed else None,
        )

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def create_attribute(
        self,
        _context: RequestContext,
        deployable_id: int,
        key: str,
        value: str,
    ) -> str:
        """Adds an attribute of an operator; its uuid."""
        created = device_changes.create_attribute(
            self._database, deployable_id, key, value
        )
        self._work.sync.look_soon()
        return created.uuid

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def delete_attribute(self, _context: RequestContext, uuid: str) -> None:
        """Removes an attribute."""
        device_changes.delete_attribute(self._database, uuid)
        self._work.sync.look_soon()

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def program_deployable(
        self,
        _context: RequestContext,
        deployable_uuid: str,
        image_uuid: str,
    ) -> None:
        """Programs a deployable; returns when that has ended."""
        begun = binding.program(
            self._database, deployable_uuid, image_uuid, self._work.settings
        )
        for job_id, answer in self._work.begin(begun).items():
            self._wait(job_id, answer)

    def _wait(
        self,
        job_id: int,
        answer: jobs.Answer,
    ) -> None:
        """Waits till the job has ended; raises why it failed."""
        try:
            error = answer.result(self._conf.bind_timeout + MARGIN)
        except concurrent.futures.TimeoutError:
            error = exception.Timeout(jobs.TOO_LATE)
        state, reason = job_rows.outcome(self._database, job_id)
        if state != "done":
            # Another conductor may have ended it before the answer came.
            raise error or exception.DeviceFailed(reason or jobs.TOO_LATE)


@retried
def _heartbeat(database: Database, host: str, digest: str) -> bool:
    with database.writer() as session:
        return hosts.heartbeat(session, host, digest)

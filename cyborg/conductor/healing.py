# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests of old releases get the project they belong to.

They were stored without one, so that only an administrator sees them.
`cyborg-dbsync online_data_migrations` fills them all; here a few are filled
in passing, once their instance can be asked for.
"""

from __future__ import annotations

import logging
from typing import Protocol

from cyborg import exception
from cyborg.db import engine
from cyborg.db import projects

LOG = logging.getLogger(__name__)

ASKED_AT_ONCE = 20


class Owners(Protocol):
    """What we need of Nova's client."""

    def project_of(self, instance_uuid: str) -> str | None:
        """The project of an instance; None where there is none."""


class Healer:
    """Asks Nova once for each instance; `nova` is None where there is no
    Nova to ask."""

    def __init__(self, database: engine.Database, nova: Owners | None) -> None:
        self._database = database
        self._nova = nova
        self._asked: set[str] = set()

    def heal(self) -> None:
        """Fills the projects of some requests that have none."""
        if self._nova is None:
            return
        left = [
            instance
            for instance in projects.instances_without_project(self._database)
            if instance not in self._asked
        ]
        for instance in left[:ASKED_AT_ONCE]:
            try:
                project = self._nova.project_of(instance)
            except exception.Unavailable as error:
                LOG.debug("Nova cannot be asked for projects: %s", error)
                return
            self._asked.add(instance)
            if project is not None:
                projects.set_project(self._database, instance, project, None)

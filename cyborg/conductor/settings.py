# SPDX-License-Identifier: Apache-2.0
"""How long a conductor may take, and who it is."""

from __future__ import annotations

import dataclasses

from cyborg.db import jobs


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How long things may take, and who this conductor is."""

    owner: str
    lease: float
    bind_timeout: float
    grace: float
    """When another conductor should do what this one, were it to die now,
    has not done."""

    def new_lease(self) -> jobs.Lease:
        """A lease that begins now."""
        return jobs.Lease(self.owner, self.lease)

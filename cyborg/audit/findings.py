# SPDX-License-Identifier: Apache-2.0
"""What can be found wrong, as values."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any


class Kind(str, enum.Enum):
    """What is wrong; the names that an operator writes and reads."""

    ORPHANED_ARQ = "orphaned-arq"
    UNHELD_HANDLE = "unheld-handle"
    FREE_HANDLE_BOUND = "bound-to-free-handle"
    CLEANED_HANDLE_BOUND = "bound-to-cleaned-handle"
    SHARED_HANDLE = "shared-handle"
    DUPLICATE_HANDLE = "duplicate-handle"
    HANDLE_KEPT = "unbound-arq-with-handle"
    HALF_CLEANED = "free-handle-with-job"
    INCOMPLETE_ARQ = "incomplete-arq"
    PROJECTLESS_ARQ = "projectless-arq"
    STUCK_ARQ = "stuck-arq"
    STUCK_JOB = "stuck-job"
    STUCK_CLEANING = "stuck-cleaning"
    FAILED_CLEANING = "failed-cleaning"
    BUSY_DEPLOYABLE = "busy-deployable"
    DEVICE_STATE = "wrong-device-state"
    MISSING_PROVIDER = "row-without-provider"
    UNLISTED_PROVIDER = "provider-without-row"
    FOREIGN_PROVIDER = "provider-of-unknown-host"
    MISSING_ROOT = "missing-root-provider"
    INVENTORY = "wrong-inventory"
    MISSING_TRAIT = "missing-trait"
    STALE_TRAIT = "stale-trait"
    FOREIGN_TRAIT = "foreign-trait"
    ALLOCATION_WITHOUT_ARQ = "allocation-without-arq"
    ARQ_WITHOUT_ALLOCATION = "arq-without-allocation"
    VANISHED_HOST = "vanished-host"
    UNKNOWN_HOST = "unknown-host"

    __str__ = str.__str__


ON_REQUEST = frozenset(
    {Kind.FOREIGN_PROVIDER, Kind.VANISHED_HOST, Kind.UNKNOWN_HOST}
)
"""Kinds healed only where `--kind` names them: what is removed then cannot
be told from what another cloud, or a host that is away, still needs."""


UNCERTAIN = (
    "no agent has said yet whether its device must be cleaned first: start"
    " the agent of this release on its host"
)
"""Why a unit is not given back."""


class Action(enum.Enum):
    """What heals it, in words for a table."""

    DELETE_ARQ = "delete the request and give back what it holds"
    FAIL_ARQ = "end the bind as failed"
    GIVE_BACK = "give the unit back, through cleaning where its device wants"
    RELEASE_HANDLE = "take the unit from the request and give it back"
    TAKE_HANDLE = "mark the unit as in use"
    KEEP_CLEANED = "mark the unit as in use until it is clean"
    FORGET_JOB = "forget the job that has ended"
    DROP_HANDLE = "remove the copy that nobody uses"
    SET_DEPLOYABLE = "refer to the deployable of its unit"
    FILL_PROJECT = "fill in the project of its instance"
    END_JOB = "end the job as failed"
    CANCEL_JOB = "cancel the job"
    FREE_DEPLOYABLE = "let others have the deployable"
    SHOW_STATE = "clean its units and show how far they are"
    SYNC = "make the host's providers as its rows want them"
    REMOVE_PROVIDERS = "remove the provider, or close it while in use"
    RELEASE_ALLOCATION = "take the provider from the allocation"
    ALLOCATE = "add the provider to the instance's allocation"
    DROP_HOST = "remove the host and its devices"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    `uuid` is of what it is wrong with; `host` is empty where it belongs to
    none.  Where no `action` heals it, `refusal` says why and what to do.
    `facts` are for whoever heals it: the heal holds only while they do.
    """

    kind: Kind
    uuid: str
    host: str
    explanation: str
    action: Action | None = None
    refusal: str = ""
    facts: Any = dataclasses.field(default=None, compare=False)

    @property
    def key(self) -> tuple[Kind, str]:
        """What makes it the same one when it is found again."""
        return self.kind, self.uuid

    @property
    def on_request(self) -> bool:
        """Whether it is healed only where its kind is named."""
        return self.kind in ON_REQUEST

# SPDX-License-Identifier: Apache-2.0
"""What is wrong with accelerator requests.  Pure."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from cyborg import arq
from cyborg.audit.findings import Action
from cyborg.audit.findings import Finding
from cyborg.audit.findings import Kind
from cyborg.audit.state import State
from cyborg.clients.nova_servers import Fate
from cyborg.db import jobs
from cyborg.db.suspects import Request


def check(state: State) -> Iterator[Finding]:
    """Findings of all requests."""
    holders: dict[int, list[Request]] = collections.defaultdict(list)
    for request in state.rows.requests:
        if state.is_gone(request):
            yield _orphaned(request)
            continue
        if request.handle_id is not None:
            holders[request.handle_id].append(request)
        yield from _stuck(state, request)
        yield from _incomplete(request)
        yield from _kept(state, request)
        yield from _projectless(state, request)
    for found in holders.values():
        yield from _held(found)


def _finding(
    kind: Kind,
    request: Request,
    explanation: str,
    action: Action | None = None,
    refusal: str = "",
) -> Finding:
    return Finding(
        kind,
        request.uuid,
        request.hostname or "",
        explanation,
        action,
        refusal,
        request,
    )


def _orphaned(request: Request) -> Finding:
    return _finding(
        Kind.ORPHANED_ARQ,
        request,
        f"is {request.state} for instance {request.instance_uuid}, which"
        " Nova does not have any more",
        Action.DELETE_ARQ,
    )


def _stuck(state: State, request: Request) -> Iterator[Finding]:
    """A state that somebody has to end, and nobody will."""
    if not state.settled(request.changed_at):
        return
    if request.state == arq.State.DELETING:
        yield _finding(
            Kind.STUCK_ARQ,
            request,
            "was being deleted by a service that ended before it was done",
            Action.DELETE_ARQ,
        )
    elif (
        request.state == arq.State.BIND_STARTED
        and request.job_state not in jobs.ACTIVE
    ):
        yield _finding(
            Kind.STUCK_ARQ,
            request,
            "is being bound by no job that has yet to end",
            Action.FAIL_ARQ,
        )


def _incomplete(request: Request) -> Iterator[Finding]:
    if request.state != arq.State.BOUND:
        return
    if request.handle_id is None:
        yield _finding(
            Kind.INCOMPLETE_ARQ,
            request,
            f"is Bound for instance {request.instance_uuid} and has no unit"
            " to attach",
            refusal="no unit can be given to a guest that runs: delete or"
            " rebuild the instance, or delete the request",
        )
    elif request.deployable_id != request.handle_deployable_id:
        yield _finding(
            Kind.INCOMPLETE_ARQ,
            request,
            "does not refer to the deployable of the unit that it holds",
            Action.SET_DEPLOYABLE,
        )


def _kept(state: State, request: Request) -> Iterator[Finding]:
    """A request that holds a unit in a state in which none holds any."""
    if (
        request.handle_id is not None
        and request.state not in {*arq.HOLDING, arq.State.DELETING}
        and state.settled(request.changed_at)
    ):
        yield _finding(
            Kind.HANDLE_KEPT,
            request,
            f"is {request.state} and yet holds unit {request.handle_uuid}",
            Action.RELEASE_HANDLE,
        )


def _projectless(state: State, request: Request) -> Iterator[Finding]:
    if request.project_id is not None:
        return
    explanation = "has no project, so that only an administrator sees it"
    server = state.server(request.instance_uuid)
    if request.instance_uuid is None:
        yield _finding(
            Kind.PROJECTLESS_ARQ,
            request,
            explanation,
            refusal="it has no instance that tells whose it is: delete it if"
            " nobody uses it",
        )
    elif server.project_id is not None:
        yield _finding(
            Kind.PROJECTLESS_ARQ, request, explanation, Action.FILL_PROJECT
        )
    else:
        yield _finding(
            Kind.PROJECTLESS_ARQ,
            request,
            explanation,
            refusal=f"whose instance {request.instance_uuid} is was not"
            f" told: {server.why or 'Nova did not say'}",
        )


def _held(found: list[Request]) -> Iterator[Finding]:
    """What is wrong between a unit and the requests that hold it."""
    holding = [one for one in found if one.state in arq.HOLDING]
    if len(holding) > 1:
        yield _shared(holding)
    elif holding and holding[0].handle_job_id is not None:
        yield _finding(
            Kind.CLEANED_HANDLE_BOUND,
            holding[0],
            f"holds unit {holding[0].handle_uuid}, which is being cleaned or"
            " could not be",
            refusal="it may be cleaned under the guest: move or delete the"
            f" instance {holding[0].instance_uuid}",
        )
    elif holding and not holding[0].handle_in_use:
        yield _finding(
            Kind.FREE_HANDLE_BOUND,
            holding[0],
            f"is bound to unit {holding[0].handle_uuid}, which is marked as"
            " free",
            Action.TAKE_HANDLE,
        )


def _shared(holding: list[Request]) -> Finding:
    first = holding[0]
    names = ", ".join(
        f"{one.uuid} (instance {one.instance_uuid})" for one in holding
    )
    return Finding(
        Kind.SHARED_HANDLE,
        first.handle_uuid or "",
        first.hostname or "",
        f"unit is held by requests {names}",
        refusal="which of the guests really has it, only its host knows:"
        " delete the other instance, then the requests that are left over"
        " can be healed",
    )


def untold(state: State) -> dict[str, int]:
    """Why Nova, which was asked, did not tell of instances that requests
    have, and of how many."""
    found: dict[str, int] = collections.Counter()
    for instance in {one.instance_uuid for one in state.rows.requests}:
        server = state.servers.get(instance or "")
        if server is not None and server.fate is Fate.UNTOLD:
            found[server.why] += 1
    return dict(found)

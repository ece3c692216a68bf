# SPDX-License-Identifier: Apache-2.0
"""What an accelerator request may do, as data.

An accelerator request (ARQ) moves between states only along `TRANSITIONS`;
the database applies a transition as one conditional UPDATE over its sources,
so that no two conductors can take the same step.
"""

from __future__ import annotations

import dataclasses
import enum


class State(str, enum.Enum):
    """The states of an ARQ, by the names that clients and databases hold."""

    INITIAL = "Initial"
    BIND_STARTED = "BindStarted"
    BOUND = "Bound"
    BIND_FAILED = "BindFailed"
    UNBOUND = "Unbound"
    DELETING = "Deleting"

    __str__ = str.__str__


class Event(str, enum.Enum):
    """What can happen to an ARQ."""

    BIND = "bind"
    BIND_AT_ONCE = "bind at once"
    FINISH = "finish"
    FAIL = "fail"
    UNBIND = "unbind"
    DELETE = "delete"

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, slots=True)
class Transition:
    """From any of `sources`, the event leads to `target`."""

    sources: frozenset[State]
    target: State


_FREE = frozenset({State.INITIAL, State.UNBOUND})
_TAKEN = frozenset({State.BIND_STARTED, State.BOUND, State.BIND_FAILED})

TRANSITIONS = {
    Event.BIND: Transition(_FREE, State.BIND_STARTED),
    Event.BIND_AT_ONCE: Transition(_FREE, State.BOUND),
    Event.FINISH: Transition(frozenset({State.BIND_STARTED}), State.BOUND),
    Event.FAIL: Transition(frozenset({State.BIND_STARTED}), State.BIND_FAILED),
    Event.UNBIND: Transition(_TAKEN, State.UNBOUND),
    Event.DELETE: Transition(frozenset(State), State.DELETING),
}
"""Event -> the states it may happen in, and where it leads."""

RESOLVED = frozenset({State.BOUND, State.BIND_FAILED, State.DELETING})
"""States in which Nova need not wait any longer."""

HOLDING = frozenset({State.BIND_STARTED, State.BOUND})
"""States in which an ARQ holds an attach handle."""


def nova_outcome(state: State) -> str | None:
    """The `status` of Nova's `accelerator-request-bound` event.

    None while there is nothing to tell.
    """
    if state is State.BOUND:
        return "completed"
    if state is State.BIND_FAILED:
        return "failed"
    return None

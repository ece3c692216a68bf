# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import arq
from cyborg.arq import Event
from cyborg.arq import State
from cyborg.db import models


def after(events: list[Event]) -> list[State]:
    """The states that an ARQ goes through; a step that is not allowed is
    not taken."""
    states = [State.INITIAL]
    for event in events:
        transition = arq.TRANSITIONS[event]
        if states[-1] in transition.sources:
            states.append(transition.target)
    return states


@given(st.lists(st.sampled_from(Event)))
def test_no_order_of_events_leads_out_of_the_table(
    events: list[Event],
) -> None:
    assert set(after(events)) <= set(State)


@given(st.lists(st.sampled_from(Event)))
def test_only_a_begun_bind_ends_and_only_a_free_request_is_bound(
    events: list[Event],
) -> None:
    states = after(events)
    for before, now in itertools.pairwise(states):
        if now is State.BIND_FAILED:
            assert before is State.BIND_STARTED
        if now is State.BOUND:
            assert before in (
                State.BIND_STARTED,
                State.INITIAL,
                State.UNBOUND,
            )
        if before is State.DELETING:
            assert now is State.DELETING


@given(st.lists(st.sampled_from(Event)))
def test_a_late_result_revives_nothing(events: list[Event]) -> None:
    state = after([*events, Event.FAIL])[-1]
    for late in (Event.FINISH, Event.FAIL):
        assert state not in arq.TRANSITIONS[late].sources or (
            state is State.BIND_STARTED
        )
    unbound = arq.TRANSITIONS[Event.UNBIND].target
    assert unbound not in arq.TRANSITIONS[Event.FINISH].sources


def test_every_state_can_be_deleted_and_every_bind_given_back() -> None:
    assert arq.TRANSITIONS[Event.DELETE].sources == set(State)
    assert arq.TRANSITIONS[Event.UNBIND].sources >= arq.HOLDING


def test_states_are_those_of_the_database() -> None:
    assert {state.value for state in State} == set(models.ARQ_STATES)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (State.BOUND, "completed"),
        (State.BIND_FAILED, "failed"),
        (State.INITIAL, None),
        (State.BIND_STARTED, None),
        (State.UNBOUND, None),
        (State.DELETING, None),
    ],
)
def test_nova_is_told_of_ends_alone(state: State, outcome: str | None) -> None:
    assert arq.nova_outcome(state) == outcome

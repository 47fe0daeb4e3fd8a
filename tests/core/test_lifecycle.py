"""Which state may follow which, and what a failure means for the next attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.lifecycle import DELAYS, GIVE_UP_AFTER, NEXT, STEADY_AFTER, failures_after, may_follow, retry_delay
from llmgw.model.replica import ReplicaState

S = ReplicaState


def test_every_state_has_its_row() -> None:
    assert set(NEXT) == set(S)


@pytest.mark.parametrize("state", list(S))
def test_a_state_may_always_stay(state: ReplicaState) -> None:
    assert may_follow(state, state)


def test_what_is_going_never_comes_back() -> None:
    reached, ahead = set(), [S.DRAINING]
    while ahead:
        state = ahead.pop()
        reached.add(state)
        ahead += [then for then in NEXT[state] if then not in reached]
    assert reached == {S.DRAINING, S.STOPPING, S.STOPPED}


def test_ready_is_only_reached_by_loading() -> None:
    """Ready means that an answer came back, at adoption too."""
    assert {state for state, then in NEXT.items() if S.READY in then} == {S.LOADING}


def test_starting_is_only_reached_through_a_launch() -> None:
    assert {state for state, then in NEXT.items() if S.STARTING in then} == {S.FETCHING}


def test_everything_that_is_no_end_can_be_stopped() -> None:
    for state in set(S) - {S.STOPPED, S.STOPPING, S.UNCLAIMED}:
        assert may_follow(state, S.STOPPING), state


@pytest.mark.parametrize("state", [S.STARTING, S.LOST, S.FAILED, S.PLACED, S.LOADING])
def test_a_living_engine_that_a_look_finds_can_be_adopted(state: ReplicaState) -> None:
    assert may_follow(state, S.LOADING)


def test_delays_grow_and_then_it_is_given_up() -> None:
    delays = [retry_delay(failures) for failures in range(1, GIVE_UP_AFTER + 3)]
    assert delays == [*DELAYS, None, None, None]
    assert sorted(DELAYS) == list(DELAYS)


@given(st.integers(0, 1000), st.none() | st.floats(0, 1e9))
def test_failures_are_counted_in_a_row(previous: int, ready_for: float | None) -> None:
    steady = ready_for is not None and ready_for >= STEADY_AFTER
    assert failures_after(previous, ready_for) == (1 if steady else previous + 1)

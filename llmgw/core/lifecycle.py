"""The life of a replica: which state may follow which, and what a failure means for the next attempt."""

from __future__ import annotations

from llmgw.model.replica import ReplicaState

S = ReplicaState

NEXT: dict[ReplicaState, frozenset[ReplicaState]] = {
    S.PLACED: frozenset({S.FETCHING, S.LOADING, S.FAILED, S.DRAINING, S.STOPPING}),
    S.FETCHING: frozenset({S.STARTING, S.PLACED, S.FAILED, S.DRAINING, S.STOPPING}),
    S.STARTING: frozenset({S.LOADING, S.PLACED, S.FAILED, S.LOST, S.DRAINING, S.STOPPING}),
    S.LOADING: frozenset({S.READY, S.PLACED, S.FAILED, S.LOST, S.DRAINING, S.STOPPING}),
    S.READY: frozenset({S.LOADING, S.FAILED, S.LOST, S.DRAINING, S.STOPPING}),
    S.LOST: frozenset({S.LOADING, S.FAILED, S.PLACED, S.DRAINING, S.STOPPING}),
    S.FAILED: frozenset({S.PLACED, S.FETCHING, S.LOADING, S.DRAINING, S.STOPPING}),
    S.DRAINING: frozenset({S.STOPPING, S.STOPPED}),
    S.STOPPING: frozenset({S.STOPPED}),
    S.STOPPED: frozenset(),
    S.UNCLAIMED: frozenset(),
}

DELAYS = (1.0, 5.0, 15.0, 60.0)
"""Seconds before the next attempt after the first, second, … failure in a row."""

GIVE_UP_AFTER = len(DELAYS) + 1
STEADY_AFTER = 300.0
"""Seconds of being ready after which earlier failures are forgotten."""


def may_follow(now: ReplicaState, then: ReplicaState) -> bool:
    return then is now or then in NEXT[now]


def retry_delay(failures: int) -> float | None:
    """Seconds until a replica that has failed `failures` times in a row is started again; None: it is given up."""
    if failures >= GIVE_UP_AFTER:
        return None
    return DELAYS[max(0, failures - 1)]


def failures_after(previous: int, ready_for: float | None) -> int:
    """Failures in a row, counting this one; `ready_for` is for how many seconds it had been ready, if it was."""
    if ready_for is not None and ready_for >= STEADY_AFTER:
        return 1
    return previous + 1

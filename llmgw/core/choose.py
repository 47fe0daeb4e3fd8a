"""Which replica answers the next request: the one with the least to do right now.

A replica that fails fast looks idle, and would draw every request to itself (thushan/olla#144): recent failures count
as load for a while. One that refused a connection rests for a moment, unless nothing else is left: the checker itself
must never empty the choice (F62).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from llmgw.model.route import Upstream

LOAD_A_FAILURE = 4
"""A failure weighs as much as so many requests in flight …"""
HALF_LIFE = 5.0
"""… and half of it is forgotten after so many seconds."""
MAX_COUNTED = 8
FIRST_REST = 1.0
LONGEST_REST = 16.0

Key = tuple[str, int]
"""Replica and attempt: a new launch begins with a clean record."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a replica did wrong lately."""

    failures: int = 0
    last: float = 0.0
    rests_until: float = 0.0

    def weight(self, now: float) -> int:
        """The load it counts for, in requests."""
        halvings = int(max(0.0, now - self.last) / HALF_LIFE)
        return (LOAD_A_FAILURE * min(self.failures, MAX_COUNTED)) >> min(halvings, 32)


def after_failure(trouble: Trouble | None, now: float, *, rest: bool) -> Trouble:
    """One more failure. With `rest` it is left alone for a moment that doubles each time."""
    before = trouble or Trouble()
    if before.weight(now) == 0:  # long ago: forgiven
        before = Trouble()
    failures = min(before.failures + 1, MAX_COUNTED)
    until = now + min(FIRST_REST * 2 ** (failures - 1), LONGEST_REST) if rest else before.rests_until
    return Trouble(failures, now, until)


def choose(
    upstreams: Sequence[Upstream],
    inflight: Mapping[str, int],
    *,
    tried: Collection[str] = (),
    troubles: Mapping[Key, Trouble] | None = None,
    now: float = 0.0,
    turn: int = 0,
) -> Upstream | None:
    """The least loaded replica that was not tried yet, or None when there is none. Ties take turns by `turn`."""
    best: Upstream | None = None
    best_cost = (True, 0)
    count = len(upstreams)
    for offset in range(count):
        upstream = upstreams[(turn + offset) % count]
        if upstream.replica in tried:
            continue
        cost = (False, inflight.get(upstream.replica, 0))
        if troubles:
            trouble = troubles.get((upstream.replica, upstream.attempt))
            if trouble is not None:
                cost = (trouble.rests_until > now, cost[1] + trouble.weight(now))
        if best is None or cost < best_cost:
            best, best_cost = upstream, cost
    return best

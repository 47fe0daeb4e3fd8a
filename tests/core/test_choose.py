"""The choice of a replica: least loaded, fair among equals, forgiving, and never empty on its own account."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.choose import HALF_LIFE, LONGEST_REST, MAX_COUNTED, Key, Trouble, after_failure, choose
from llmgw.model.route import ProtocolFactory, Upstream
from llmgw.model.secret import Secret


async def never(factory: ProtocolFactory) -> asyncio.Protocol:
    raise AssertionError("a choice opens nothing")


def up(replica: str, attempt: int = 1) -> Upstream:
    return Upstream(replica=replica, node="n", attempt=attempt, model="m", key=Secret(""), connect=never)


NAMES = [f"r{n}" for n in range(6)]
THREE = [up("r0"), up("r1"), up("r2")]
names = st.sets(st.sampled_from(NAMES))
loads = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 50))
troubles = st.dictionaries(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 2)),
    st.builds(Trouble, failures=st.integers(0, 20), last=st.floats(0, 1000), rests_until=st.floats(0, 1000)),
)
moments = st.floats(0, 2000)


@pytest.mark.parametrize(
    ("inflight", "chosen"),
    [
        ({"r0": 2, "r1": 1, "r2": 3}, "r1"),
        ({"r0": 1, "r2": 1}, "r1"),
        ({"r0": 5, "r1": 5}, "r2"),
        ({"r0": 0, "r1": 4, "r2": 4, "gone": 0}, "r0"),
    ],
)
def test_the_least_loaded(inflight: dict[str, int], chosen: str) -> None:
    for turn in range(6):
        found = choose(THREE, inflight, turn=turn)
        assert found is not None
        assert found.replica == chosen


def test_equals_take_turns() -> None:
    counts = Counter(choose(THREE, {}, turn=turn).replica for turn in range(300))  # type: ignore[union-attr]
    assert counts == {"r0": 100, "r1": 100, "r2": 100}


def test_nobody_to_choose() -> None:
    assert choose([], {}) is None
    assert choose(THREE, {}, tried={"r0", "r1", "r2"}) is None


def test_failures_weigh_like_requests_and_fade() -> None:
    bad = {("r0", 1): after_failure(None, 100.0, rest=False)}
    assert bad["r0", 1].weight(100.0) == 4
    assert choose(THREE[:2], {"r1": 3}, troubles=bad, now=100.0).replica == "r1"  # type: ignore[union-attr]
    assert choose(THREE[:2], {"r1": 5}, troubles=bad, now=100.0).replica == "r0"  # type: ignore[union-attr]
    assert bad["r0", 1].weight(100.0 + HALF_LIFE) == 2
    assert bad["r0", 1].weight(100.0 + 3 * HALF_LIFE) == 0


def test_a_new_launch_begins_with_a_clean_record() -> None:
    bad = {("r0", 1): after_failure(None, 100.0, rest=True)}
    assert choose([up("r0", 2), up("r1")], {"r1": 1}, troubles=bad, now=100.0).replica == "r0"  # type: ignore[union-attr]


def test_rests_double_and_are_capped() -> None:
    trouble, rests = None, []
    for _ in range(8):
        trouble = after_failure(trouble, 10.0, rest=True)
        rests.append(trouble.rests_until - 10.0)
    assert rests == [1, 2, 4, 8, 16, 16, 16, 16]


def test_an_old_failure_is_forgiven() -> None:
    old = after_failure(after_failure(None, 0.0, rest=True), 0.0, rest=True)
    again = after_failure(old, 1000.0, rest=True)
    assert (again.failures, again.rests_until) == (1, 1001.0)


def test_one_that_rests_is_passed_over_however_loaded_the_others_are() -> None:
    resting = {("r0", 1): after_failure(None, 100.0, rest=True)}
    assert choose(THREE, {"r1": 90, "r2": 91}, troubles=resting, now=100.5).replica == "r1"  # type: ignore[union-attr]
    assert choose(THREE, {"r1": 90, "r2": 91}, troubles=resting, now=101.5).replica == "r0"  # type: ignore[union-attr]


@given(present=names, inflight=loads, tried=names, troubles=troubles, now=moments, turn=st.integers(0, 10**6))
def test_it_is_empty_only_when_all_were_tried(
    present: set[str], inflight: dict[str, int], tried: set[str], troubles: dict[Key, Trouble], now: float, turn: int
) -> None:
    """F62: troubles and loads order the choice, they never empty it."""
    upstreams = [up(name) for name in sorted(present)]
    found = choose(upstreams, inflight, tried=tried, troubles=troubles, now=now, turn=turn)
    assert (found is None) == (not present - tried)
    assert found is None or (found in upstreams and found.replica not in tried)


@given(present=names.filter(bool), inflight=loads, troubles=troubles, now=moments, turn=st.integers(0, 100))
def test_no_other_would_have_been_better(
    present: set[str], inflight: dict[str, int], troubles: dict[Key, Trouble], now: float, turn: int
) -> None:
    def cost(upstream: Upstream) -> tuple[bool, int]:
        trouble = troubles.get((upstream.replica, upstream.attempt), Trouble())
        return trouble.rests_until > now, inflight.get(upstream.replica, 0) + trouble.weight(now)

    upstreams = [up(name) for name in sorted(present)]
    found = choose(upstreams, inflight, troubles=troubles, now=now, turn=turn)
    assert found is not None
    assert cost(found) == min(map(cost, upstreams))


@given(moves=st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30))
def test_troubles_stay_within_their_bounds(moves: list[tuple[float, bool]]) -> None:
    trouble, now = None, 0.0
    for wait, rest in moves:
        now += wait
        trouble = after_failure(trouble, now, rest=rest)
        assert 1 <= trouble.failures <= MAX_COUNTED
        assert trouble.rests_until <= now + LONGEST_REST
        assert trouble.weight(now) > 0
        assert trouble.weight(now + 7 * HALF_LIFE) == 0
        assert trouble.weight(now - 5) == trouble.weight(now), "a clock that stands still is no reason to forget"


@given(requests=st.integers(1, 400), replicas=st.integers(1, 6))
def test_a_burst_is_spread_evenly(requests: int, replicas: int) -> None:
    upstreams, inflight = [up(name) for name in NAMES[:replicas]], {}
    for turn in range(requests):
        chosen = choose(upstreams, inflight, turn=turn)
        assert chosen is not None
        inflight[chosen.replica] = inflight.get(chosen.replica, 0) + 1
    assert max(inflight.values()) - min(inflight.get(name, 0) for name in NAMES[:replicas]) <= 1

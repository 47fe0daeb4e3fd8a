"""Requests a second out of counters."""

from __future__ import annotations

from llmgw.model.snapshot import Snapshot
from llmgw.tui.rate import Rate


def feed(*pictures: tuple[float, dict[str, int]]) -> list[float | None]:
    rate = Rate()
    return [rate.of(Snapshot(at=at, served=served)) for at, served in pictures]


def test_one_picture_is_no_rate():
    assert feed((0, {"a": 900})) == [None]


def test_differences_over_all_replicas_new_ones_too():
    assert feed((0, {"a": 10}), (2, {"a": 14, "b": 2})) == [None, 3.0]


def test_it_is_taken_over_a_few_seconds():
    assert feed(*((second, {"a": 10 * min(second, 3)}) for second in range(20)))[-1] == 0.0
    assert feed((0, {"a": 0}), (1, {"a": 10}), (1.01, {"a": 10}))[-1] == 10 / 1.01


def test_counters_that_begin_anew_are_not_a_negative_rate():
    assert feed((0, {"a": 1000}), (1, {"a": 5}))[-1] == 5.0


def test_a_replica_that_went_takes_nothing_with_it():
    assert feed((0, {"a": 5, "b": 5}), (1, {"b": 7}))[-1] == 2.0


def test_a_clock_that_went_back_begins_anew():
    assert feed((10, {"a": 1}), (5, {"a": 2}), (6, {"a": 4})) == [None, None, 2.0]

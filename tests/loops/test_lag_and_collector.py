"""Whom the process keeps waiting: measured, and kept short by collecting garbage in steps."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator

import pytest_asyncio

from llmgw.loops.collector import Collector
from llmgw.loops.lag import Lag


async def test_a_blocked_loop_is_seen() -> None:
    lag = Lag()
    lag.start()
    await asyncio.sleep(0.06)
    time.sleep(0.2)  # noqa: ASYNC251  (it is what is measured)
    await asyncio.sleep(0.06)
    assert lag.longest > 0.1
    assert lag.ever >= lag.longest
    assert [labels["over"] for _, _, labels, _ in lag.gauges()] == ["minute", "run"]
    lag.stop()


@pytest_asyncio.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    made.start()
    yield made
    made.stop()


async def test_what_lives_long_is_set_aside_step_by_step() -> None:
    before = gc.get_threshold()
    collector = Collector()
    collector.start()
    try:
        frozen, kept = gc.get_freeze_count(), []
        while gc.get_freeze_count() < frozen + 20_000:
            kept += [[number] for number in range(20_000)]
            assert len(kept) < 10_000_000, "no step was taken"
            await asyncio.sleep(0)
    finally:
        collector.stop()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


async def test_garbage_among_what_was_set_aside_is_found_by_the_look_at_everything(collector: Collector) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    cycle = Cycle()
    alive = weakref.ref(cycle)
    collector._step()
    del cycle
    gc.collect()
    assert alive() is not None
    collector._whole()
    assert alive() is None

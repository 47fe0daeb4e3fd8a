"""How long the event loop kept everybody waiting: what a blocking call anywhere in the process costs every stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

TICK = 0.05
KEPT = 60.0
"""Seconds that the longest delay is remembered."""


class Lag:
    """Measures from `start` to `stop`. `longest` is the longest delay of the last minute, `ever` of all, in seconds."""

    def __init__(self) -> None:
        self.ever = 0.0
        self._late: deque[tuple[float, float]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._next(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def gauges(self) -> Iterator[tuple[str, str, dict[str, str], float]]:
        """For /metrics."""
        text = "The longest that the event loop kept everybody waiting."
        yield "llmgw_event_loop_lag_seconds", text, {"over": "minute"}, round(self.longest, 4)
        yield "llmgw_event_loop_lag_seconds", text, {"over": "run"}, round(self.ever, 4)

    @property
    def longest(self) -> float:
        self._forget(asyncio.get_running_loop().time())
        return self._late[0][1] if self._late else 0.0

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(TICK, self._tick, loop, loop.time() + TICK)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        late = max(0.0, now - due)
        self.ever = max(self.ever, late)
        while self._late and self._late[-1][1] <= late:  # shorter ones before it can never be the longest again
            self._late.pop()
        self._late.append((now, late))
        self._forget(now)
        self._next(loop)

    def _forget(self, now: float) -> None:
        while self._late and self._late[0][0] < now - KEPT:
            self._late.popleft()

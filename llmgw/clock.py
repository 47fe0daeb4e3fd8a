"""Time as a parameter. Durations are monotonic; wall time is for people."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What everything above `core/` asks for the time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never jumps. For durations and deadlines."""

    def wall(self) -> float:
        """Unix seconds. For people, and for what must survive a restart."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class ManualClock:
    """A clock that stands until it is told to move; for tests."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self.now = start

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

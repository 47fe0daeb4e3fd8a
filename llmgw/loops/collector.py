"""Python's garbage collector in small steps: a full collection over the objects of a thousand nodes takes a tenth of a
second, and every stream waits for it.

What lives long is looked at once and then set aside (`gc.freeze`), so that each step sees only what is newer. What
becomes garbage among that, cycles of connections that were lost, is found once a day.
"""

from __future__ import annotations

import asyncio
import gc

STEP = 8
"""Collections of the middle generation, of some 7,000 new objects each, after which a step is due: some 30 ms."""
WHOLE = 24 * 3600.0
"""Seconds between two looks at everything."""
_NEVER = 1 << 30


class Collector:
    """From `start` to `stop`, on the running loop."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._due = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        gc.set_threshold(self._thresholds[0], self._thresholds[1], _NEVER)
        gc.callbacks.append(self._collected)
        self._step()
        self._timer = self._loop.call_later(WHOLE, self._whole)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Called by the collector, in whichever thread it ran."""
        if phase == "stop" and info["generation"] == 1 and not self._due and gc.get_count()[2] >= STEP:
            self._due = True
            self._loop.call_soon_threadsafe(self._step)

    def _step(self) -> None:
        self._due = False
        gc.collect()
        gc.freeze()

    def _whole(self) -> None:
        gc.unfreeze()
        self._step()
        self._timer = self._loop.call_later(WHOLE, self._whole)

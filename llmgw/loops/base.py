"""What every loop is: a turn, a period, a hint; an error makes it back off and is shown, and the others go on."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from llmgw.core.backoff import full_jitter
from llmgw.errors import LlmgwError
from llmgw.model.holder import Hint

log = logging.getLogger("llmgw.loops")

SHORT = 0.005
"""Seconds of a turn after which nobody needs to rest: a few dozen nodes."""
LONGEST_REST = 2.0


class Loop:
    """A turn every `period` seconds, or sooner when hinted at. Subclasses write `turn`."""

    name = "loop"
    period = 5.0
    share = 1.0
    """Part of the time that turns may take. What reads the whole state at every hint must not be at it all the time
    with a thousand nodes: after a long turn the hints wait for a while, and one turn answers them all."""

    def __init__(self) -> None:
        self.hint = Hint()
        self.failures = 0
        self.last_error: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def turn(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"loop {self.name}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.turn()
            except Exception as exc:
                # A loop must outlive whatever one turn meets; what it met is in the log.
                self.failures += 1
                self.last_error = str(exc) or type(exc).__name__
                expected = isinstance(exc, LlmgwError)
                log.error("%s: %s", self.name, self.last_error, exc_info=None if expected else exc)
                await asyncio.sleep(0.2 + full_jitter(self.failures, base=0.5, cap=30.0, unit=random.random()))
            else:
                self.failures = 0
                self.last_error = None
                took = time.monotonic() - began - SHORT
                await asyncio.sleep(min(LONGEST_REST, max(0.0, took) * (1 / self.share - 1)))
                await self.hint.wait(self.period)


def ended(running: dict[str, asyncio.Task[None]], name: str, _: asyncio.Task[None]) -> None:
    """For `add_done_callback`: takes a task out of the ones that run."""
    running.pop(name, None)

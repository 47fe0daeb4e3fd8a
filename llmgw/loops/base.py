"""What every loop is: a turn, a period, a hint; an error makes it back off and is shown, and the others go on."""

from __future__ import annotations

import asyncio
import logging
import random

from llmgw.core.backoff import full_jitter
from llmgw.errors import LlmgwError
from llmgw.model.holder import Hint

log = logging.getLogger("llmgw.loops")


class Loop:
    """A turn every `period` seconds, or sooner when hinted at. Subclasses write `turn`."""

    name = "loop"
    period = 5.0

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
                await self.hint.wait(self.period)


def ended(running: dict[str, asyncio.Task[None]], name: str, _: asyncio.Task[None]) -> None:
    """For `add_done_callback`: takes a task out of the ones that run."""
    running.pop(name, None)

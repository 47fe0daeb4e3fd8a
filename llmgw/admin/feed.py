"""Wakes event streams when there is something new; what it is they read from the store."""

from __future__ import annotations

import asyncio

from llmgw.model.event import Event


class EventFeed:
    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.closed = False
        """Streams end by themselves: the process is about to."""

    def close(self) -> None:
        self.closed = True
        self._news.set()

    def tell(self, events: list[Event]) -> None:
        self._news.set()
        if not self.closed:
            self._news = asyncio.Event()

    async def wait(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            return

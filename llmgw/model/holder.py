"""Holders: how one part is fed by another that it does not know. `server.py` hands them round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Published(Generic[T]):
    """The latest value of something, replaced whole by its one writer and read without waiting by anyone.

    Used on the event loop's own thread only.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[T], None]] = []

    @property
    def value(self) -> T:
        return self._value

    def publish(self, value: T) -> None:
        self._value = value
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self._listeners:
            listener(value)

    def subscribe(self, listener: Callable[[T], None]) -> None:
        self._listeners.append(listener)

    async def changed(self) -> T:
        """Waits for the next publication and returns it."""
        await self._changed.wait()
        return self._value


class Hint:
    """Wakes a loop early. Losing one costs a period, never correctness."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def give(self) -> None:
        self._event.set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits for a hint at most `timeout` seconds, takes it, and says whether there was one."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

"""How long an exchange waits: for the first byte, for the next one, and for a client that does not read.

One timer at a time, armed anew for what is left when it fires: a chunk costs a look at the clock and touches none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Patience:
    __slots__ = ("_expired", "_full_since", "_idle", "_last", "_loop", "_timer", "started")

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: float, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._idle = idle
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None
        self._full_since: float | None = None
        self.started = self._last = loop.time()

    @property
    def client_is_full(self) -> bool:
        """Whether what is written does not leave: it is the client who is slow, not the engine."""
        return self._full_since is not None

    def wait_first(self, seconds: float) -> None:
        """From the first attempt on; further attempts get no more time."""
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._expired)

    def first_byte(self, *, more: bool) -> float:
        """The answer begins: from now on only standing still counts. Returns how long that took."""
        self._last = self._loop.time()
        if more:
            self.stop()
            self._timer = self._loop.call_later(self._idle, self._check)
        return self._last - self.started

    def moved(self) -> None:
        self._last = self._loop.time()

    def client_full(self) -> None:
        self._full_since = self._loop.time()

    def client_ready(self) -> None:
        self._full_since = None
        self._last = self._loop.time()  # the engine was not asked for anything meanwhile

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        since = self._last if self._full_since is None else self._full_since
        due = since + self._idle
        if self._loop.time() < due - 0.001:
            self._timer = self._loop.call_at(due, self._check)
        else:
            self._expired()

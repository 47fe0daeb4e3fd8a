"""Opening channels without leaking them, and how many may be open."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from llmgw.errors import TimedOut

T = TypeVar("T")

START = 4
"""Exec channels a connection starts with. sshd's MaxSessions is 10 by default, but may be 1."""
RECOVER = 60.0
"""Seconds without a refusal after which a learnt limit grows by one again."""


async def open_shielded(opening: Coroutine[Any, Any, T], *, timeout: float, abandon: Callable[[], None]) -> T:
    """Awaits a channel open that itself is never cancelled: asyncssh leaks the channel otherwise (50 of 50).

    When the caller is cancelled, or `timeout` seconds pass (TimedOut), `abandon` is called: it must see to it that the
    channel is aborted, whether it is open already or arrives later.
    """
    task = asyncio.ensure_future(opening)
    try:
        done, _ = await asyncio.wait((task,), timeout=timeout)
    except asyncio.CancelledError:
        _drop(task, abandon)
        raise
    if not done:
        _drop(task, abandon)
        raise TimedOut(f"the node did not open a channel within {timeout:.1f} s.", code="open_timeout")
    return task.result()


def _drop(task: asyncio.Future[Any], abandon: Callable[[], None]) -> None:
    def reap(late: asyncio.Future[Any]) -> None:
        if not late.cancelled():
            late.exception()  # taken, or asyncio complains that nobody did

    abandon()
    task.add_done_callback(reap)


class Slots:
    """Who may have an exec channel now. One slot is kept for urgent calls (a stop must not wait for probes, F21).

    The limit is learnt: a refusal lowers it to what was open then, quiet time raises it again (F22).
    """

    def __init__(self, limit: int = START, *, now: Callable[[], float] | None = None) -> None:
        self.most = limit
        self.limit = limit
        self.used = 0
        self.held = 0
        """Sessions that stay open beside the calls and count in the limit: the relay."""
        self._now = now or asyncio.get_running_loop().time
        self._refused_at = 0.0
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._normal: deque[asyncio.Future[None]] = deque()

    def _free(self, urgent: bool) -> bool:
        room = self.limit - self.held
        reserve = 0 if urgent or room == 1 else 1
        return self.used < room - reserve

    @contextlib.asynccontextmanager
    async def slot(self, *, urgent: bool, timeout: float) -> AsyncIterator[None]:
        """Holds a slot while the block runs. Raises TimedOut (`busy`) when none is free within `timeout` seconds."""
        self._recover()
        waiting = self._urgent if urgent else self._normal
        if waiting or not self._free(urgent):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            try:
                async with asyncio.timeout(timeout):
                    await turn
            except BaseException as exc:
                if turn.done() and not turn.cancelled():
                    self.used -= 1  # it was ours in the very moment that we gave up
                else:
                    with contextlib.suppress(ValueError):
                        waiting.remove(turn)
                self._wake()
                if isinstance(exc, TimeoutError):
                    raise TimedOut(
                        f"no session of the node was free within {timeout:.1f} s ({self.limit} may be open).",
                        code="busy",
                    ) from None
                raise
        else:
            self.used += 1
        try:
            yield
        finally:
            self.used -= 1
            self._wake()

    def hold(self) -> None:
        """A session more is open, for longer than a call."""
        self.held += 1

    def release(self) -> None:
        self.held -= 1
        self._wake()

    def refused(self) -> None:
        """The node would not open one more: what is open beside it is the limit. Called while holding a slot."""
        self.limit = max(1 + self.held, min(self.limit, self.used + self.held - 1))
        self._refused_at = self._now()

    def _recover(self) -> None:
        if self.limit < self.most and self._now() - self._refused_at >= RECOVER:
            self.limit += 1
            self._refused_at = self._now()

    def _wake(self) -> None:
        for waiting, urgent in ((self._urgent, True), (self._normal, False)):
            while waiting and self._free(urgent):
                turn = waiting.popleft()
                if not turn.done():
                    self.used += 1
                    turn.set_result(None)

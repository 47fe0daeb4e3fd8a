"""Keeps the picture fresh: asks for a snapshot each second and right after each event, and survives the other side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel
from textual.message import Message

from llmgw.errors import LlmgwError, Unreachable
from llmgw.model.event import Event
from llmgw.model.requests import EventList, Whoami
from llmgw.model.snapshot import Snapshot
from llmgw.tui.messages import Connected, Happened, Lost, Pictured
from llmgw.tui.rate import Rate

R = TypeVar("R", bound=BaseModel)

PAST = 200
"""So many events from before are shown at the start."""
PATIENCE = 10.0
"""Seconds after which a control plane that accepts and says nothing counts as gone."""


class Client(Protocol):
    """What the dashboard needs of `admin.client.AdminClient`."""

    async def get(self, path: str, cls: type[R], **query: Any) -> R: ...
    async def post(self, path: str, cls: type[R]) -> R: ...
    def events(self, after: int | None = None) -> AsyncIterator[Event]: ...


class Feed:
    def __init__(self, client: Client, post: Callable[[Message], Any], *, every: float = 1.0) -> None:
        self._client = client
        self._post = post
        self._every = every
        self._rate = Rate()
        self._poked = asyncio.Event()
        self._last = 0
        """Id of the newest event that was handed on."""

    def poke(self) -> None:
        """Take a new picture now."""
        self._poked.set()

    async def run(self) -> None:
        """For ever. Whatever breaks is told once, and everything begins again from the first question."""
        while True:
            try:
                await self._begin()
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._picture())
                    both.create_task(self._follow())
            except* (LlmgwError, OSError, TimeoutError, ValueError) as group:
                self._post(Lost(_sentence(group.exceptions[0])))
            await asyncio.sleep(self._every)

    async def _begin(self) -> None:
        """Who answers, and what happened meanwhile."""
        async with asyncio.timeout(PATIENCE):
            me = await self._client.get("/whoami", Whoami)
            found = (await self._client.get("/events", EventList, limit=PAST)).events
        self._post(Connected(me))
        # Numbers that fell: this control plane has another past, and a stream from the old number would stay silent.
        anew = bool(self._last) and (not found or found[-1].id < self._last)
        if anew:
            self._last = 0
        news = tuple(event for event in found if event.id > self._last)
        if news:
            self._last = news[-1].id
        if news or anew:
            self._post(Happened(news, anew=anew))

    async def _picture(self) -> None:
        while True:
            self._poked.clear()
            async with asyncio.timeout(PATIENCE):
                snapshot = await self._client.get("/snapshot", Snapshot)
            self._post(Pictured(snapshot, self._rate.of(snapshot)))
            # However fast events come, there are at most five pictures a second.
            await asyncio.sleep(self._every / 5)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every * 4 / 5):
                    await self._poked.wait()

    async def _follow(self) -> None:
        async for event in self._client.events(after=self._last):
            self._last = max(self._last, event.id)
            self._post(Happened((event,)))
            self.poke()
        raise Unreachable("The control plane ended its stream of events.")


def _sentence(exc: BaseException) -> str:
    if isinstance(exc, BaseExceptionGroup):
        return _sentence(exc.exceptions[0])
    if isinstance(exc, (Unreachable, OSError, TimeoutError)):
        return "The control plane does not answer … trying again"
    if isinstance(exc, LlmgwError):
        return f"The control plane answers with an error … trying again. {exc.message}"
    return "The control plane's answer is not understood … trying again. Is it of another version?"

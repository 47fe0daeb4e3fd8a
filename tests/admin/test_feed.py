"""Event streams end when the process is about to, and nobody has to cut them."""

from __future__ import annotations

import asyncio

from llmgw.admin.feed import EventFeed


async def test_whoever_waits_is_let_go_when_it_closes() -> None:
    feed = EventFeed()
    waiting = asyncio.create_task(feed.wait(60.0))
    await asyncio.sleep(0)
    feed.close()
    await asyncio.wait_for(waiting, 5)
    assert feed.closed
    feed.tell([])
    await asyncio.wait_for(feed.wait(60.0), 5)

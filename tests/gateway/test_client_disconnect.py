"""F56: whoever leaves is noticed, on every route and at every moment, and the engine stops working for them."""

from __future__ import annotations

import asyncio
import time

import pytest

from llmgw.model.catalog import Task
from llmgw.model.route import ProtocolFactory, Upstream
from llmgw.model.secret import Secret

from .conftest import eventually, table, until
from .raw import Raw, ask

ENDLESS = {"max_tokens": 100_000}


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "whole"])
async def test_hundred_clients_that_leave(house, sim, streaming: bool) -> None:
    engine = sim("r1", "--tokens-per-second", "20")
    home = await house(engine.upstream)

    async def come() -> Raw:
        raw = await home.raw()
        raw.send(ask(stream=streaming, **ENDLESS))
        if streaming:
            await raw.answer_head()
        return raw

    clients = await asyncio.gather(*(come() for _ in range(100)))

    async def all_active() -> bool:
        return len((await engine.stats())["active"]) == 100

    await eventually(all_active)
    assert home.traffic.inflight == {"r1": 100}
    left = time.time()
    for raw in clients:
        raw.abort()
    await home.quiet()
    assert home.traffic.inflight == {}

    async def all_aborted() -> list:
        aborted = (await engine.stats())["aborted"]
        return aborted if len(aborted) == 100 else []

    aborted = await eventually(all_aborted)
    assert max(entry["at"] for entry in aborted) - left < 1.0
    (row,) = home.gateway.usage.take()
    assert (row.requests, row.cancelled, row.failed) == (100, 100, 0)
    assert home.failures == []
    assert home.idle == ["r1"]
    assert len(home.gateway.pool) == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_leaving_before_the_first_byte(house, fake, path: str, streaming: bool) -> None:
    async def never(engine, reader, writer, request) -> None:
        await reader.read()  # until the connection ends
        raise ConnectionError

    engine = await fake(never)
    task = Task.EMBED if path == "/v1/embeddings" else Task.CHAT
    home = await house(table=table(engine.upstream, task=task))
    raw = await home.raw()
    raw.send(ask(stream=streaming, input="x", prompt="x"), path)
    await until(lambda: engine.requests)
    raw.abort()
    await until(lambda: engine.open == 0)
    assert home.traffic.inflight == {}
    assert home.failures == []


async def test_a_half_closed_client_counts_as_gone(house, sim) -> None:
    engine = sim("r1", "--tokens-per-second", "20")
    home = await house(engine.upstream)
    raw = await home.raw()
    raw.send(ask(**ENDLESS))
    await until(lambda: home.traffic.inflight)
    raw.writer.write_eof()
    await home.quiet()
    await eventually(lambda: aborts(engine, 1))


async def test_leaving_while_the_connection_opens(house) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def connect(factory: ProtocolFactory) -> asyncio.Protocol:
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()
        raise AssertionError

    home = await house(Upstream(replica="r1", node="n", attempt=1, model="m", key=Secret(""), connect=connect))
    raw = await home.raw()
    raw.send(ask())
    await entered.wait()
    assert home.traffic.inflight == {"r1": 1}
    raw.abort()
    await cancelled.wait()
    await home.quiet()
    assert home.traffic.inflight == {}
    assert home.failures == []


async def test_leaving_the_queue(house, sim) -> None:
    """A request that waited and left wakes nothing and never reaches an engine."""
    home = await house(table=table(hold=True))
    raw = await home.raw()
    raw.send(ask())
    await until(lambda: home.gateway.room.waiting)
    raw.abort()
    await home.quiet()
    assert home.gateway.room.waiting == {}
    engine = sim()
    home.publish(engine.upstream)
    assert (await home.ask(ask())).status == 200
    assert (await engine.stats())["requests"] == 1


async def test_leaving_between_two_attempts(house, fake) -> None:
    async def die(engine, reader, writer, request) -> bool:
        return False

    async def wait(engine, reader, writer, request) -> None:
        await reader.read()
        raise ConnectionError

    first, second = await fake(die, "f1"), await fake(wait, "f2")
    home = await house(first.upstream, second.upstream)
    for _ in range(4):
        before = len(second.requests)
        raw = await home.raw()
        raw.send(ask())
        await until(lambda before=before: len(second.requests) > before)
        raw.abort()
        await home.quiet()
    await until(lambda: second.open == 0)
    assert home.traffic.inflight == {}


async def aborts(engine, count: int) -> bool:
    return len((await engine.stats())["aborted"]) == count

"""F60: a client that reads slowly, or never, holds up its own engine stream for a while and nobody else."""

from __future__ import annotations

import asyncio
import resource

import pytest

from llmgw.model.catalog import Task

from .conftest import House, eventually, table, until
from .engines import Fake, plain
from .raw import Raw, ask

ENDLESS = {"max_tokens": 10_000_000}


async def unread(home: House) -> Raw:
    """A client with a small receive buffer that sends a request and then reads nothing."""
    raw = await home.raw(buffer=512 << 10)
    raw.writer.transport.pause_reading()
    return raw


async def test_a_client_that_reads_nothing_is_cut(house, sim) -> None:
    engine = sim()
    home = await house(engine.upstream, idle=0.3)
    raw = await unread(home)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    raw.send(ask(stream=True, **ENDLESS))
    await until(lambda: home.traffic.inflight)
    await home.quiet()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 32 << 20, "what the engine could send is without end; what we hold is not"

    async def aborted() -> bool:
        return len((await engine.stats())["aborted"]) == 1

    await eventually(aborted)
    (row,) = home.gateway.usage.take()
    assert (row.cancelled, row.failed) == (1, 0)
    assert home.failures == [], "the engine did nothing wrong"


async def test_the_engine_waits_and_goes_on(house, sim) -> None:
    """Nothing is lost or doubled when a client pauses and then reads on."""
    engine = sim()
    home = await house(engine.upstream, idle=30.0)
    raw = await unread(home)
    raw.send(ask(stream=True, max_tokens=200_000))

    async def stands_still() -> bool:
        first = (await engine.stats())["tokens"]
        await asyncio.sleep(0.05)
        return 0 < first == (await engine.stats())["tokens"] < 200_000

    await eventually(stands_still, within=15.0)
    raw.writer.transport.resume_reading()
    answer = await raw.answer()
    assert answer.whole
    assert answer.body.count(b'"content":') == 200_000
    assert answer.body.endswith(b"[DONE]\n\n")
    assert home.failures == []


async def test_others_are_not_held_up(house, sim) -> None:
    home = await house(sim().upstream, idle=5.0)
    slow = await unread(home)
    slow.send(ask(stream=True, **ENDLESS))
    await until(lambda: home.traffic.inflight)
    loop = asyncio.get_running_loop()
    for _ in range(20):
        start = loop.time()
        assert (await home.ask(ask())).status == 200
        assert loop.time() - start < 0.5
    slow.abort()
    await home.quiet()


async def test_a_large_answer_to_a_client_that_reads_nothing(house, fake) -> None:
    """The same without streaming: the engine's connection is not read faster than the client reads."""
    big = plain(b"[" + b"1," * 10_000_000 + b"1]")

    async def large(engine: Fake, reader, writer, request) -> None:
        writer.write(big)
        await writer.drain()

    engine = await fake(large)
    home = await house(table=table(engine.upstream, task=Task.EMBED), idle=0.3)
    raw = await unread(home)
    raw.send(ask(input="x"), "/v1/embeddings")
    await until(lambda: engine.requests)
    await home.quiet()
    await until(lambda: engine.open == 0)


@pytest.mark.parametrize("size", [100_000, 200_000])
async def test_a_whole_answer_left_unread_does_not_hold_the_connection_for_ever(house, fake, size: int) -> None:
    """The exchange is over and its bytes lie in our buffer: an end comes all the same."""
    home = await house((await fake(plain(b"[" + b"1," * (size // 2) + b"1]"))).upstream, idle=0.2)
    raw = await unread(home)
    for _ in range(60):  # more than the kernel takes
        raw.send(ask())
    connections = home.server._server.server_state.connections
    await until(lambda: not connections)


async def test_a_stalled_engine_is_still_found_behind_a_client_that_was_slow_once(house, fake) -> None:
    async def burst(engine: Fake, reader, writer, request) -> None:
        from .engines import STREAM, chunk

        writer.write(STREAM)
        for _ in range(400):
            writer.write(chunk(b"data: " + b"x" * 16_000 + b"\n\n"))
        await writer.drain()

    home = await house((await fake(burst)).upstream, idle=0.4)
    raw = await unread(home)
    raw.send(ask(stream=True))
    await until(lambda: home.gateway.exchanges)
    await asyncio.sleep(0.2)
    raw.writer.transport.resume_reading()
    answer = await raw.answer()
    assert not answer.whole
    assert b"fell silent" in answer.body
    assert len(home.failures) == 1

"""F05: SIGTERM with open streams. No new requests, the old ones finish or are told, and it ends in time."""

from __future__ import annotations

import asyncio

from llmgw.model.route import RouteTable

from .conftest import table, until
from .raw import ask


async def test_streams_finish(house, sim) -> None:
    home = await house(sim("r1", "--tokens-per-second", "100", "--max-tokens", "20").upstream, drain=5.0)
    raws = [await home.raw() for _ in range(20)]
    for raw in raws:
        raw.send(ask(stream=True))
    heads = [await raw.answer_head() for raw in raws]
    assert all(head.status == 200 for head in heads)
    stopping = asyncio.create_task(home.server.stop())
    for raw in raws:
        body = b"".join([piece async for piece in raw.chunks()])
        assert raw.ended
        assert body.endswith(b"[DONE]\n\n")
    async with asyncio.timeout(1):
        await stopping
    assert all([await raw.closed() for raw in raws])


async def test_what_does_not_finish_is_told_and_cut(house, sim) -> None:
    home = await house(sim("r1", "--tokens-per-second", "20").upstream, drain=0.1)
    raws = [await home.raw() for _ in range(20)]
    for raw in raws:
        raw.send(ask(stream=True, max_tokens=10_000))
    heads = [await raw.answer_head() for raw in raws]
    assert all(head.status == 200 for head in heads)
    async with asyncio.timeout(2):
        await home.server.stop()
    for raw in raws:
        body = b"".join([piece async for piece in raw.chunks()])
        assert not raw.ended
        assert b'"code":"shutting_down"' in body
        assert b"[DONE]" not in body
    assert home.failures == [], "the engine did nothing wrong"
    (row,) = home.gateway.usage.take()
    assert (row.requests, row.failed) == (20, 20)


async def test_a_plain_request_that_does_not_finish_gets_a_503(house, sim) -> None:
    home = await house(sim("r1", "--hang").upstream, drain=0.1)
    raw = await home.raw()
    raw.send(ask())
    await until(lambda: home.traffic.inflight)
    await home.server.stop()
    answer = await raw.answer()
    assert (answer.status, answer.error["code"]) == (503, "shutting_down")
    assert home.traffic.inflight == {}


async def test_new_requests_are_refused_meanwhile(house, sim) -> None:
    engine = sim("r1", "--tokens-per-second", "50", "--max-tokens", "20")
    home = await house(engine.upstream, drain=5.0)
    busy, idle = await home.raw(), await home.raw()
    busy.send(ask(stream=True))
    await busy.answer_head()
    assert (await idle.ask(path="/v1/models", method="GET")).status == 200
    stopping = asyncio.create_task(home.server.stop())
    await until(lambda: home.gateway.closing)
    answer = await idle.ask(ask())
    assert (answer.status, answer.error["code"]) == (503, "shutting_down")
    assert answer.headers["retry-after"]
    assert answer.headers["connection"] == "close"
    assert (await (await home.raw()).ask(path="/health", method="GET")).status == 503
    assert b"".join([piece async for piece in busy.chunks()]).endswith(b"[DONE]\n\n")
    await stopping
    assert (await engine.stats())["requests"] == 1


async def test_a_request_whose_body_is_on_its_way_is_refused(house, fake) -> None:
    from .engines import plain

    engine = await fake(plain({}))
    home = await house(engine.upstream, drain=0.1)
    raw = await home.raw()
    raw.writer.write(raw.head("POST", "/v1/chat/completions", len(ask())) + ask()[:10])
    await until(lambda: home.gateway.bodies)
    stopping = asyncio.create_task(home.gateway.shutdown())
    await asyncio.sleep(0)
    raw.writer.write(ask()[10:])
    assert (await raw.answer()).status == 503
    await stopping
    assert engine.requests == []


async def test_those_who_wait_for_a_replica_are_sent_away_at_once(house) -> None:
    home = await house(table=table(hold=True), drain=30.0)
    raw = await home.raw()
    raw.send(ask())
    await until(lambda: home.gateway.room.waiting)
    async with asyncio.timeout(2):
        await home.server.stop()
    answer = await raw.answer()
    assert (answer.status, answer.error["code"]) == (503, "shutting_down")


async def test_a_client_that_reads_nothing_does_not_hold_it_up(house, sim) -> None:
    home = await house(sim().upstream, drain=0.1)
    raw = await home.raw()
    raw.writer.transport.pause_reading()
    raw.send(ask(stream=True, max_tokens=10_000_000))
    await until(lambda: home.traffic.inflight)
    await asyncio.sleep(0.1)
    async with asyncio.timeout(2):
        await home.server.stop()


async def test_stopping_twice(house) -> None:
    home = await house()
    await asyncio.gather(home.server.stop(), home.server.stop())
    await home.server.stop()


async def test_in_a_hurry_everybody_is_told_at_once_and_no_replica_is_blamed(house, sim) -> None:
    engine, hanging = sim("r1", "--tokens-per-second", "20"), sim("r2", "--hang")
    streams = table(engine.upstream).routes
    home = await house(table=RouteTable({**streams, **table(hanging.upstream, model="h").routes}), drain=60.0)
    raws = [await home.raw() for _ in range(5)]
    for raw in raws:
        raw.send(ask(stream=True, max_tokens=10_000))
        await raw.answer_head()
    silent = await home.raw()
    silent.send(ask("h"))
    await until(lambda: len(home.traffic.inflight) == 2)
    stopping = asyncio.create_task(home.server.stop())
    await until(lambda: home.gateway.closing)
    home.gateway.hurry()
    engine.kill()
    hanging.kill()
    async with asyncio.timeout(2):
        await stopping
    for raw in raws:
        body = b"".join([piece async for piece in raw.chunks()])
        assert not raw.ended
        assert b'"code":"shutting_down"' in body
    answer = await silent.answer()
    assert (answer.status, answer.error["code"]) == (503, "shutting_down")
    assert home.failures == []


async def test_a_hurry_without_a_shutdown_lets_nobody_in(house, sim) -> None:
    home = await house(sim().upstream)
    home.gateway.hurry()
    assert (await home.ask(ask())).error["code"] == "shutting_down"

"""F58, F59: an answer that breaks off ends visibly, never with `[DONE]`; before that, with a clean error."""

from __future__ import annotations

import asyncio

import pytest

from llmgw.model.catalog import Task
from llmgw.protocol.sse import Reader

from .conftest import table, until
from .engines import STREAM, chunk, plain
from .raw import Answer, ask


def events(answer: Answer) -> list[bytes]:
    return list(Reader().feed(answer.body))


def check_broken(answer: Answer, code: str) -> None:
    """A stream that died: an error event at the end, no [DONE], and no regular end of the body."""
    assert answer.status == 200
    assert not answer.whole
    assert b"[DONE]" not in answer.body
    last = Answer(0, {}, events(answer)[-1])
    assert last.error["code"] == code
    assert last.error["type"] == "server_error"
    assert set(last.error) == {"message", "type", "param", "code"}


async def test_an_engine_killed_in_the_middle(house, sim) -> None:
    engine = sim("r1", "--die-after-tokens", "5", "--tokens-per-second", "200")
    home = await house(engine.upstream)
    answer = await home.ask(ask(stream=True, max_tokens=50))
    check_broken(answer, "upstream_failed")
    assert 1 <= len(events(answer)) - 1 <= 5
    assert [(replica, attempt) for replica, attempt, _ in home.failures] == [("r1", 1)]
    assert home.traffic.inflight == {}
    (row,) = home.gateway.usage.take()
    assert (row.requests, row.failed, row.cancelled) == (1, 1, 0)


async def test_the_official_client_sees_the_error(house, sim) -> None:
    import openai

    home = await house(sim("r1", "--die-after-tokens", "5", "--tokens-per-second", "200").upstream)
    async with openai.AsyncOpenAI(base_url=home.url, api_key="sk-test", max_retries=0) as api:
        stream = await api.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True, max_tokens=50
        )
        with pytest.raises(openai.APIError, match="in the middle of its answer"):
            async for _ in stream:
                pass


@pytest.mark.parametrize("cut", [b'data: {"half', b"data: {}\n", b"data: {}\n\n", b"\xe2\x82"], ids=repr)
async def test_the_error_event_is_readable_wherever_the_stream_stopped(house, fake, cut: bytes) -> None:
    async def stop(engine, reader, writer, request) -> bool:
        writer.write(STREAM + chunk(cut))
        await writer.drain()
        return False

    home = await house((await fake(stop)).upstream)
    check_broken(await home.ask(ask(stream=True)), "upstream_failed")


async def test_an_engine_that_falls_silent(house, sim) -> None:
    engine = sim("r1", "--hang-after-tokens", "3")
    home = await house(engine.upstream, idle=0.15)
    answer = await home.ask(ask(stream=True))
    check_broken(answer, "upstream_failed")
    assert "fell silent" in answer.body.decode()
    assert len(home.failures) == 1


async def test_a_stream_that_moves_is_never_cut_however_long_it_takes(house, sim) -> None:
    home = await house(sim("r1", "--tokens-per-second", "50", "--max-tokens", "30").upstream, idle=0.15)
    answer = await home.ask(ask(stream=True))  # 0.6 s, four times `idle`
    assert answer.whole
    assert answer.body.endswith(b"[DONE]\n\n")


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_first_byte_may_be_late(house, sim, streaming: bool) -> None:
    home = await house(sim("r1", "--hang").upstream, first_byte=0.1)
    answer = await home.ask(ask(stream=streaming))
    assert (answer.status, answer.error["code"]) == (504, "first_byte_late")
    assert len(home.failures) == 1
    assert home.traffic.inflight == {}


async def test_a_head_alone_is_no_first_byte(house, fake) -> None:
    """Engines send the head of a stream at once and then compute the prompt: that is a 504, not half an answer."""

    async def head_only(engine, reader, writer, request) -> None:
        writer.write(STREAM)

    home = await house((await fake(head_only)).upstream, first_byte=0.1, idle=0.02)
    answer = await home.ask(ask(stream=True))
    assert (answer.status, answer.error["code"]) == (504, "first_byte_late")


HALF_CHUNK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab"


@pytest.mark.parametrize(
    "partial",
    [b"HTTP/1.1 200 OK\r\n", STREAM, plain({"a": 1})[:-3], HALF_CHUNK],
    ids=["half a head", "a head", "half a body", "half a chunk"],
)
async def test_death_before_the_client_has_anything_is_a_clean_502(house, fake, partial: bytes) -> None:
    async def part(engine, reader, writer, request) -> bool:
        writer.write(partial)
        await writer.drain()
        return False

    engines = [await fake(part, f"f{n}") for n in range(2)]
    home = await house(*(engine.upstream for engine in engines))
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"], answer.whole) == (502, "upstream_failed", True)
    assert sum(len(engine.requests) for engine in engines) == 1, "a byte had come: nobody else may be asked"


async def test_silence_in_the_middle_of_a_small_answer_is_a_clean_502(house, fake) -> None:
    async def half(engine, reader, writer, request) -> None:
        writer.write(plain({"a": 1})[:-3])

    home = await house((await fake(half)).upstream, idle=0.1)
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")


async def test_a_large_answer_that_breaks_off_is_not_taken_for_whole(house, fake) -> None:
    whole = plain(b"[" + b"1," * 400_000 + b"1]")

    async def part(engine, reader, writer, request) -> bool:
        writer.write(whole[:-1000])
        await writer.drain()
        return False

    home = await house(table=table((await fake(part)).upstream, task=Task.EMBED))
    answer = await home.ask(ask(input="x"), "/v1/embeddings")
    assert answer.status == 200
    assert not answer.whole
    assert len(answer.body) < int(answer.headers["content-length"])
    assert len(home.failures) == 1


async def test_every_open_stream_of_a_dead_engine_ends(house, sim) -> None:
    engine = sim("r1", "--tokens-per-second", "20")
    home = await house(engine.upstream)
    raws = [await home.raw() for _ in range(20)]
    for raw in raws:
        raw.send(ask(stream=True, max_tokens=1000))
    heads = [await raw.answer_head() for raw in raws]
    assert all(head.status == 200 for head in heads)
    await until(lambda: home.traffic.inflight == {"r1": 20})
    engine.kill()

    async def rest(raw) -> bytes:
        return b"".join([piece async for piece in raw.chunks()])

    for body in await asyncio.gather(*(rest(raw) for raw in raws)):
        assert b'"code":"upstream_failed"' in body
    assert home.traffic.inflight == {}

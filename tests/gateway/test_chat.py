"""The happy paths, with the official client, over a real port and a simulated engine."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from llmgw.model.catalog import Task
from llmgw.model.route import RouteTable

from .conftest import table
from .engines import ENGINE_KEY, plain, upstream
from .raw import ask

MESSAGES = [{"role": "user", "content": "one two three"}]
TEXT = "The quick brown fox"


@pytest.fixture
def client(request: pytest.FixtureRequest):
    return lambda house: openai.AsyncOpenAI(base_url=house.url, api_key="sk-test", max_retries=0)


async def test_chat_completion_and_embedding(house, sim, client) -> None:
    engine = sim("r1", "--max-tokens", "4")
    routes = {**table(engine.upstream).routes, **table(engine.upstream, model="e", task=Task.EMBED).routes}
    async with client(await house(table=RouteTable(routes))) as api:
        chat = await api.chat.completions.create(model="m", messages=MESSAGES)
        assert chat.choices[0].message.content == TEXT
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (3, 4)
        assert chat.system_fingerprint == "sim-r1"
        text = await api.completions.create(model="m", prompt="a b", max_tokens=2)
        assert text.choices[0].text == "The quick"
        vectors = await api.embeddings.create(model="e", input=["a", "b"], encoding_format="float")
        assert [len(row.embedding) for row in vectors.data] == [8, 8]


async def test_streams(house, sim, client) -> None:
    engine = sim("r1", "--max-tokens", "4")
    async with client(await house(engine.upstream)) as api:
        words = []
        async for event in await api.chat.completions.create(model="m", messages=MESSAGES, stream=True):
            words += [choice.delta.content or "" for choice in event.choices]
        assert "".join(words).strip() == TEXT
        text = [e.choices[0].text async for e in await api.completions.create(model="m", prompt="a", stream=True)]
        assert "".join(text).strip() == TEXT


async def test_usage_comes_only_when_it_was_asked_for(house, sim, client) -> None:
    async with client(await house(sim().upstream)) as api:
        create = api.chat.completions.create
        plain_events = [e async for e in await create(model="m", messages=MESSAGES, stream=True)]
        assert all(event.usage is None for event in plain_events)
        asked = {"include_usage": True}
        events = [e async for e in await create(model="m", messages=MESSAGES, stream=True, stream_options=asked)]
        assert events[-1].usage.completion_tokens == 16


async def test_two_hundred_requests_spread_over_three_replicas(house, sim, client) -> None:
    engines = [sim(f"r{n}", "--max-tokens", "3", "--tokens-per-second", "300") for n in range(3)]
    home = await house(*(engine.upstream for engine in engines))
    async with client(home) as api:
        seen: list[str] = []

        async def one(number: int) -> None:
            if number % 2:
                seen.append((await api.chat.completions.create(model="m", messages=MESSAGES)).system_fingerprint)
            else:
                stream = await api.chat.completions.create(model="m", messages=MESSAGES, stream=True)
                fingerprints = [event.system_fingerprint async for event in stream]
                seen.append(fingerprints[0])

        await asyncio.gather(*(one(number) for number in range(200)))
    counts = {name: seen.count(name) for name in set(seen)}
    assert sorted(counts) == ["sim-r0", "sim-r1", "sim-r2"]
    assert max(counts.values()) - min(counts.values()) <= 20
    assert sum(home.traffic.served.values()) == 200
    assert home.failures == []
    assert set(home.idle) == {"r0", "r1", "r2"}


async def test_body_goes_to_the_engine_byte_for_byte(house, fake) -> None:
    engine = await fake(plain({"ok": True}))
    home = await house(engine.upstream)
    body = b' {"messages" : [ {"role":"user", "content":"\xc3\xa4 \\u00e4 1e2"} ],\n"temperature":1.0, "model":"m" }\n'
    assert (await home.ask(body)).json() == {"ok": True}
    assert engine.requests[0].body == body


async def test_an_alias_becomes_the_name_the_engine_knows_and_nothing_else_changes(house, fake) -> None:
    engine = await fake(plain({"ok": True}))
    target = upstream(engine.port, "f1", model="org--file.gguf")
    home = await house(table=table(target, aliases=("Org/Model:7b",)))
    nested = b'"tools":[{"model":"Org/Model:7b","n":1.50}]'
    await home.ask(b'{"model":"Org/Model:7b",' + nested + b"}")
    sent = engine.requests[0].body
    assert nested in sent
    assert json.loads(sent)["model"] == "org--file.gguf"


async def test_what_the_engine_is_told(house, fake) -> None:
    """The client's key, cookies and other headers stay here (F66, F74)."""
    engine = await fake(plain({"ok": True}))
    home = await house(engine.upstream)
    extra = {"cookie": "a=b", "x_forwarded_for": "1.2.3.4", "x_request_id": "mine-1", "host": "evil.example"}
    answer = await home.ask(ask(), **extra)
    request = engine.requests[0]
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert request.headers == {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "authorization": f"Bearer {ENGINE_KEY}",
        "x-request-id": "mine-1",
        "content-length": str(len(ask())),
    }
    assert answer.headers["x-request-id"] == "mine-1"


async def test_connections_are_kept_on_both_sides(house, fake) -> None:
    engine = await fake(plain({"ok": True}))
    home = await house(engine.upstream)
    raw = await home.raw()
    for _ in range(5):
        assert (await raw.ask(ask())).whole
    assert engine.connections == 1


async def test_a_stream_comes_as_it_is_made(house, sim) -> None:
    """No buffering anywhere: the first token is here long before the last one is made."""
    home = await house(sim("r1", "--tokens-per-second", "20", "--max-tokens", "60").upstream)
    raw = await home.raw()
    raw.send(ask(stream=True))
    head = await raw.answer_head()
    assert head.headers["cache-control"] == "no-cache"
    assert head.headers["x-accel-buffering"] == "no"
    async with asyncio.timeout(1.0):  # all of it takes three seconds
        first = await anext(raw.chunks())
    assert b"The" in first


async def test_an_old_client_gets_no_chunks(house, sim) -> None:
    home = await house(sim().upstream)
    raw = await home.raw()
    body = ask(stream=True)
    raw.writer.write(raw.head("POST", "/v1/chat/completions", len(body)).replace(b"HTTP/1.1", b"HTTP/1.0") + body)
    answer = await raw.answer()
    assert "transfer-encoding" not in answer.headers
    assert answer.body.startswith(b"data: {")
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_pipelined_requests_are_answered_in_turn(house, sim) -> None:
    home = await house(sim().upstream)
    raw = await home.raw()
    raw.send(ask(max_tokens=1))
    raw.send(ask(max_tokens=2, stream=True))
    raw.send(path="/v1/models", method="GET")
    raw.send(ask(max_tokens=3))
    words = []
    for _ in range(4):
        answer = await raw.answer()
        assert (answer.status, answer.whole) == (200, True)
        words.append(answer.body)
    assert json.loads(words[0])["choices"][0]["message"]["content"] == "The"
    assert words[1].endswith(b"[DONE]\n\n")
    assert json.loads(words[2])["object"] == "list"
    assert json.loads(words[3])["choices"][0]["message"]["content"] == "The quick brown"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_wants_its_connection_closed(house, sim, streaming: bool) -> None:
    raw = await (await house(sim().upstream)).raw()
    answer = await raw.ask(ask(stream=streaming), connection="close")
    assert answer.whole
    assert answer.headers["connection"] == "close"
    assert await raw.closed()

"""F61: a client that sends slowly gets a deadline for its head, for its body, and for reading the refusal."""

from __future__ import annotations

import asyncio

import pytest

from .conftest import until
from .engines import plain
from .raw import ask


async def test_a_body_that_does_not_come(house, fake) -> None:
    engine = await fake(plain({}))
    home = await house(engine.upstream, body_wait=0.1)
    raw = await home.raw()
    raw.writer.write(raw.head("POST", "/v1/chat/completions", 100) + b'{"model":')
    answer = await raw.answer()
    assert (answer.status, answer.error["code"]) == (408, "body_too_slow")
    assert answer.headers["connection"] == "close"
    assert await raw.closed()
    assert engine.requests == []
    assert home.gateway.bodies == 0


async def test_a_body_that_drips_has_no_more_time_than_one_that_stops(house, fake) -> None:
    home = await house((await fake(plain({}))).upstream, body_wait=0.2)
    raw = await home.raw()
    raw.writer.write(raw.head("POST", "/v1/chat/completions", 10_000))

    async def drip() -> None:
        while True:
            raw.writer.write(b" ")
            await asyncio.sleep(0.02)

    task = asyncio.create_task(drip())
    async with asyncio.timeout(2):
        answer = await raw.answer()
    task.cancel()
    assert answer.status == 408


async def test_a_body_in_many_pieces_is_fine(house, fake) -> None:
    engine = await fake(plain({"ok": True}))
    home = await house(engine.upstream)
    body = ask(pad="x" * 5000)
    raw = await home.raw()
    raw.writer.write(raw.head("POST", "/v1/chat/completions", len(body)))
    for at in range(0, len(body), 500):
        raw.writer.write(body[at : at + 500])
        await raw.writer.drain()
        await asyncio.sleep(0)
    assert (await raw.answer()).json() == {"ok": True}
    assert engine.requests[0].body == body


async def test_a_chunked_body_is_fine(house, fake) -> None:
    engine = await fake(plain({"ok": True}))
    home = await house(engine.upstream)
    body = ask()
    raw = await home.raw()
    raw.writer.write(raw.head("POST", "/v1/chat/completions", None, transfer_encoding="chunked"))
    raw.writer.write(b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (body[:5], len(body) - 5, body[5:]))
    assert (await raw.answer()).json() == {"ok": True}
    assert engine.requests[0].body == body
    assert "transfer-encoding" not in engine.requests[0].headers


async def test_expect_100_continue(house, fake) -> None:
    home = await house((await fake(plain({"ok": True}))).upstream)
    raw = await home.raw()
    raw.writer.write(raw.head("POST", "/v1/chat/completions", len(ask()), expect="100-continue"))
    assert await raw.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.writer.write(ask())
    assert (await raw.answer()).json() == {"ok": True}


async def test_expect_100_continue_is_refused_before_the_body_is_sent(house) -> None:
    home = await house()
    raw = await home.raw(key="sk-wrong")
    raw.writer.write(raw.head("POST", "/v1/chat/completions", 100, expect="100-continue"))
    assert (await raw.answer()).status == 401


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp", b"GET / HTTP/1.1\r\nhost: x\r\n", b"\r\n\r\n"], ids=repr)
async def test_a_head_that_does_not_come(house, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr("llmgw.gateway.guard.HEAD_WAIT", 0.1)
    home = await house()
    raw = await home.raw()
    raw.writer.write(sent)
    assert await raw.closed()


async def test_a_second_head_that_does_not_come(house, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw.gateway.guard.HEAD_WAIT", 0.1)
    home = await house()
    raw = await home.raw()
    assert (await raw.ask(method="GET", path="/v1/models")).status == 200
    raw.writer.write(b"GET /v1/mod")
    assert await raw.closed()


async def test_connections_between_requests_are_kept_but_not_for_ever(house, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw.gateway.serve.KEEP_ALIVE", 0.2)
    monkeypatch.setattr("llmgw.gateway.guard.HEAD_WAIT", 0.05)
    home = await house()
    raw = await home.raw()
    assert (await raw.ask(method="GET", path="/v1/models")).status == 200
    await asyncio.sleep(0.1)
    assert (await raw.ask(method="GET", path="/v1/models")).status == 200
    assert await raw.closed()
    await until(lambda: not home.server._server.server_state.connections)

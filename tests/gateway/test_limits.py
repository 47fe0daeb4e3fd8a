"""F61, F63: sizes and numbers have ends, and each says so before any engine is asked."""

from __future__ import annotations

import asyncio

import pytest

from .conftest import table
from .engines import plain
from .raw import ask


async def test_a_body_that_says_it_is_too_large(house, fake) -> None:
    engine = await fake(plain({}))
    home = await house(engine.upstream, max_body=1000)
    raw = await home.raw()
    raw.writer.write(raw.head("POST", "/v1/chat/completions", 10_000_000_000))
    answer = await raw.answer()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert "1000 bytes" in answer.error["message"]
    assert await raw.closed()
    assert engine.requests == []


async def test_a_chunked_body_is_counted(house, fake) -> None:
    engine = await fake(plain({}))
    home = await house(engine.upstream, max_body=1000)
    raw = await home.raw()
    raw.writer.write(raw.head("POST", "/v1/chat/completions", None, transfer_encoding="chunked"))
    for _ in range(3):
        raw.writer.write(b"190\r\n" + b"x" * 400 + b"\r\n")
    answer = await raw.answer()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert home.gateway.bodies == 0


async def test_the_refusal_reaches_a_client_that_is_still_sending(house) -> None:
    """Closing at once would reset the connection under the answer."""
    home = await house(max_body=1000)
    raw = await home.raw()
    raw.send(b"x" * 8_000_000)
    answer = await raw.answer()
    assert answer.status == 413
    await raw.writer.drain()


async def test_a_body_of_exactly_the_limit(house, fake) -> None:
    body = ask()
    home = await house((await fake(plain({"ok": True}))).upstream, max_body=len(body))
    assert (await home.ask(body)).status == 200
    assert (await home.ask(body + b" ")).status == 413


async def test_a_large_prompt_passes_untouched(house, fake) -> None:
    engine = await fake(plain({"ok": True}))
    home = await house(engine.upstream)
    body = ask(pad="ä" * 2_000_000)
    assert (await home.ask(body)).status == 200
    assert engine.requests[0].body == body


async def test_all_bodies_together_have_a_limit(house) -> None:
    home = await house(max_body=1000)
    home.gateway.max_bodies = 1500
    first, second = await home.raw(), await home.raw()
    half = b"x" * 900
    first.writer.write(first.head("POST", "/v1/chat/completions", 1000) + half)
    await asyncio.sleep(0.02)
    assert home.gateway.bodies == 900
    second.writer.write(second.head("POST", "/v1/chat/completions", 1000) + half)
    answer = await second.answer()
    assert (answer.status, answer.error["code"]) == (503, "busy")
    assert answer.headers["retry-after"]
    first.abort()


@pytest.mark.parametrize(
    "head",
    [
        b"x: " + b"a" * 70_000 + b"\r\n",
        b"x: " + b"a" * 1_000_000,  # and never an end
        b"".join(b"h%d: 1\r\n" % n for n in range(200)),
        b"".join(b"h%d: 1\r\n" % n for n in range(100_000)),
    ],
    ids=["one large", "one endless", "many", "very many"],
)
async def test_heads_have_a_limit(house, head: bytes) -> None:
    home = await house()
    raw = await home.raw()
    raw.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n")
    answer = await raw.answer()
    assert (answer.status, answer.error["code"]) == (431, "head_too_large")
    assert answer.headers["x-request-id"]
    assert await raw.closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS to a plain port
        b"CONNECT evil.example:443 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["tls", "connect", "two framings", "two lengths", "negative length", "bad chunk"],
)
async def test_what_is_not_http(house, sent: bytes) -> None:
    home = await house()
    raw = await home.raw()
    raw.writer.write(sent)
    answer = await raw.answer()
    assert (answer.status, answer.error["code"]) == (400, "bad_http")
    assert await raw.closed()


async def test_garbage_behind_a_request_never_gets_into_its_answer(house, sim) -> None:
    home = await house(sim("r1", "--tokens-per-second", "50").upstream)
    raw = await home.raw()
    raw.send(ask(stream=True))
    await raw.answer_head()
    raw.writer.write(b"\x00\x01garbage\r\n\r\n")
    rest = b"".join([piece async for piece in raw.chunks()])
    assert b"bad_http" not in rest
    assert not raw.ended
    await home.quiet()


async def test_a_full_queue_is_429(house) -> None:
    home = await house(table=table(hold=True, reason="loading on gpu03, 43 %"), queue=3)
    waiting = [await home.raw() for _ in range(3)]
    for raw in waiting:
        raw.send(ask())
    while len(home.gateway.exchanges) < 3:
        await asyncio.sleep(0.005)
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"], answer.error["type"]) == (429, "queue_full", "rate_limit_error")
    assert int(answer.headers["retry-after"]) > 0


async def test_a_thousand_requests_at_once(house, sim) -> None:
    home = await house(sim("r1", "--max-tokens", "2").upstream)

    async def one() -> int:
        raw = await home.raw()
        answer = await raw.ask(ask())
        raw.abort()
        return answer.status

    for _ in range(5):
        assert await asyncio.gather(*(one() for _ in range(200))) == [200] * 200
    assert home.traffic.served == {"r1": 1000}


async def test_too_many_connections(house, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw.gateway.serve._connections", lambda: 3)
    home = await house()
    raws = [await home.raw() for _ in range(2)]
    for raw in raws:
        assert (await raw.ask(b"{}")).status == 400
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"]) == (503, "too_many_connections")


async def test_an_offered_upgrade_is_ignored(house, fake) -> None:
    """Java's HTTP client offers h2c with every first request."""
    home = await house((await fake(plain({"ok": True}))).upstream)
    raw = await home.raw()
    for body in (ask(), ask(pad="x" * 300_000), ask()):
        raw.send(body, connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAMAAABk")
        assert (await raw.answer()).json() == {"ok": True}
    raw.send(method="GET", path="/v1/models", connection="Upgrade", upgrade="websocket")
    assert (await raw.answer()).status == 200

"""F65, F66: an engine may send anything. Bytes are relayed faithfully or a clean 502 is given, and never reused."""

from __future__ import annotations

import asyncio

import pytest

from llmgw.model.catalog import Task

from .conftest import table, until
from .engines import STREAM, chunk, plain, stream
from .raw import ask

OK = plain({"ok": True})


def bare(*lines: bytes) -> bytes:
    return b"\r\n".join([*lines, b"", b""])


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x01\x02\x03 not http at all\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"<html>hello</html>\r\n\r\n",
        b"HTTP/1.1 9999 X\r\n\r\n",
        b"HTTP/1.1 000 X\r\n\r\n",
        bare(b"HTTP/1.1 200 OK", b"content-length: 5", b"transfer-encoding: chunked") + b"hello",
        bare(b"HTTP/1.1 200 OK", b"content-length: 5", b"content-length: 7") + b"hello",
        bare(b"HTTP/1.1 200 OK", b"content-length: -1"),
        bare(b"HTTP/1.1 200 OK", b"content-length: 99999999999999999999999"),
        bare(b"HTTP/1.1 200 OK", b"transfer-encoding: chunked") + b"zz\r\nhello\r\n",
        bare(b"HTTP/1.1 200 OK", b"x: a\x00b", b"content-length: 0"),
        bare(b"HTTP/1.1 200 OK", b" folded: x", b"content-length: 0"),
        bare(b"HTTP/1.1 101 Switching Protocols", b"upgrade: x", b"connection: upgrade"),
        bare(b"HTTP/1.1 200 OK", b"x: " + b"a" * 100_000, b"content-length: 0"),
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 1_000_000,
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"h%d: 1\r\n" % n for n in range(50_000)),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.parametrize("streaming", [True, False])
async def test_what_is_no_http_is_a_clean_502(house, fake, said: bytes, streaming: bool) -> None:
    engine = await fake(said)
    home = await house(engine.upstream)
    for _ in range(2):
        answer = await home.ask(ask(stream=streaming))
        assert (answer.status, answer.error["code"], answer.whole) == (502, "upstream_failed", True)
    assert engine.connections == 2, "a channel that carried it is never used again"
    await until(lambda: engine.open == 0)
    assert len(home.failures) == 2
    assert home.traffic.inflight == {}


@pytest.mark.parametrize(
    "extra",
    [b"MORE", OK, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nfor you!!", b"\r\n\r\nHTTP/1.1 500 X\r\n\r\n"],
    ids=lambda value: repr(value)[:20],
)
async def test_bytes_behind_an_answer_never_reach_the_next_request(house, fake, extra: bytes) -> None:
    """Response smuggling: the answer is used, the connection is not."""
    engine = await fake(plain({"n": 1}) + extra)
    home = await house(engine.upstream)
    for number in range(1, 4):
        assert (await home.ask(ask())).json() == {"n": 1}
        assert engine.connections == number
    assert home.failures == []


async def test_bytes_that_come_later_close_the_idle_connection(house, fake) -> None:
    async def later(engine, reader, writer, request) -> None:
        writer.write(OK)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(plain({"smuggled": True}))

    engine = await fake(later)
    home = await house(engine.upstream)
    assert (await home.ask(ask())).json() == {"ok": True}
    await until(lambda: engine.open == 0)
    assert (await home.ask(ask())).json() == {"ok": True}


async def test_interim_answers_are_skipped(house, fake) -> None:
    engine = await fake(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK)
    home = await house(engine.upstream)
    answer = await home.ask(ask())
    assert answer.json() == {"ok": True}
    assert "link" not in answer.headers


async def test_headers_of_the_engine_stay_behind(house, fake) -> None:
    """F66: an allow-list, so nothing hop-by-hop and nothing that sets anything."""
    bad = ["set-cookie: a=b", "server: evil", "x-frame-options: x", "keep-alive: timeout=5", "location: http://x/"]
    bad += ["access-control-allow-origin: *", "x-request-id: theirs", "date: never", "trailer: x", "alt-svc: h3"]
    answer = await (await house((await fake(plain({"ok": True}, 200, *bad))).upstream)).ask(ask())
    assert set(answer.headers) == {"date", "content-type", "content-length", "x-request-id"}
    assert answer.headers["date"] != "never"
    assert answer.headers["x-request-id"] != "theirs"


@pytest.mark.parametrize("value", ["a" * 300, "tab\there", "caf\xe9"], ids=["long", "tab", "latin"])
async def test_odd_values_of_allowed_headers_are_dropped(house, fake, value: str) -> None:
    answer = await (await house((await fake(plain({}, 429, f"retry-after: {value}"))).upstream)).ask(ask())
    assert answer.status == 429
    assert "retry-after" not in answer.headers


async def test_trailers_are_not_relayed(house, fake) -> None:
    engine = await fake(stream(b"{}", end=False) + b"0\r\nset-cookie: a=b\r\n\r\n")
    home = await house(engine.upstream)
    raw = await home.raw()
    answer = await raw.ask(ask(stream=True))
    assert answer.whole
    assert "set-cookie" not in answer.headers
    assert (await raw.ask(ask(stream=True))).whole, "nothing is left over on the client's side either"


async def test_endless_trailers_end(house, fake) -> None:
    async def drone(engine, reader, writer, request) -> None:
        writer.write(stream(b"{}", end=False) + b"0\r\n")
        while True:
            writer.write(b"x: y\r\n" * 1000)
            await writer.drain()

    home = await house((await fake(drone)).upstream)
    answer = await home.ask(ask(stream=True))
    assert not answer.whole
    assert b"upstream_failed" in answer.body


@pytest.mark.parametrize("status", [301, 302, 304, 204, 205])
async def test_statuses_that_mean_nothing_here(house, fake, status: int) -> None:
    """F74: a redirect is not followed, wherever it points."""
    said = bare(b"HTTP/1.1 %d X" % status, b"location: http://169.254.169.254/", b"content-length: 0")
    answer = await (await house((await fake(said)).upstream)).ask(ask())
    if status in (204, 205):
        assert answer.status in (204, 205, 502)
    else:
        assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert "location" not in answer.headers


@pytest.mark.parametrize("status", [401, 403])
async def test_the_engine_refusing_our_key_is_not_the_clients_fault(house, fake, status: int) -> None:
    home = await house((await fake(plain({"error": {"message": "wrong key"}}, status))).upstream)
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert "own key" in answer.error["message"]
    assert len(home.failures) == 1


@pytest.mark.parametrize("status", [400, 500, 503])
@pytest.mark.parametrize(
    "body",
    [b"", b"<html>Internal Server Error</html>", b'"text"', b"[1]", b"{", b"[" * 100_000],
    ids=lambda b: repr(b)[:12],
)
async def test_errors_without_json(house, fake, status: int, body: bytes) -> None:
    answer = await (await house((await fake(plain(body, status))).upstream)).ask(ask())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert str(status) in answer.error["message"]


async def test_an_error_without_end(house, fake) -> None:
    async def drone(engine, reader, writer, request) -> None:
        writer.write(b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(chunk(b"x" * 10_000))
            await writer.drain()

    engine = await fake(drone)
    home = await house(engine.upstream)
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    await until(lambda: engine.open == 0)


@pytest.mark.parametrize(
    "pieces",
    [
        [b'data: {"a":"\xe2\x82', b'\xac"}\n\n', b"data: [DONE]\n\n"],  # a character in two pieces
        [b"\xff\xfe\x00 not text\n"],
        [b"data: ", b"{}", b"\n", b"\n"],
        [b"data: " + b"x" * 3_000_000 + b"\n\n"],
        [b": comment\r\n\r\nevent: x\r\ndata: 1\r\n\r\n"],
    ],
    ids=["split character", "no text", "split event", "giant line", "other line ends"],
)
async def test_streams_are_relayed_byte_for_byte(house, fake, pieces: list[bytes]) -> None:
    async def speak(engine, reader, writer, request) -> None:
        writer.write(STREAM)
        for piece in pieces:
            writer.write(chunk(piece))
            await writer.drain()
            await asyncio.sleep(0.002)
        writer.write(b"0\r\n\r\n")

    answer = await (await house((await fake(speak)).upstream)).ask(ask(stream=True))
    assert answer.whole
    assert answer.body == b"".join(pieces)


async def test_an_answer_byte_by_byte(house, fake) -> None:
    async def drip(engine, reader, writer, request) -> None:
        for byte in OK:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    assert (await (await house((await fake(drip)).upstream)).ask(ask())).json() == {"ok": True}


async def test_a_large_answer_is_relayed_whole(house, fake) -> None:
    body = b"[" + b"1," * 3_000_000 + b"1]"
    engine = await fake(plain(body))
    home = await house(table=table(engine.upstream, task=Task.EMBED))
    answer = await home.ask(ask(input="x"), "/v1/embeddings")
    assert answer.whole
    assert answer.body == body
    assert answer.headers["content-length"] == str(len(body))
    assert len(home.gateway.pool) == 1


async def test_a_large_answer_of_unknown_length(house, fake) -> None:
    body = b"[" + b"1," * 500_000 + b"1]"
    said = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    engine = await fake(said + chunk(body[:300_000]) + chunk(body[300_000:]) + b"0\r\n\r\n")
    answer = await (await house(table=table(engine.upstream, task=Task.EMBED))).ask(ask(input="x"), "/v1/embeddings")
    assert answer.whole
    assert answer.body == body


async def test_an_answer_before_the_request_was_asked_for(house, fake) -> None:
    """A server that speaks first is not an engine."""
    from .engines import upstream

    async def greet(reader, writer) -> None:
        writer.write(OK)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    home = await house(upstream(server.sockets[0].getsockname()[1], "r1"))
    answer = await home.ask(ask())
    assert answer.status in (200, 502), "a race, but never a hang"
    server.close()

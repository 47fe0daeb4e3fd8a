"""The engine is asked for its count in every stream; a client that did not ask sees the stream it would have seen."""

from __future__ import annotations

import json

import pytest

from llmgw.gateway.withhold import MAX_HELD, Withhold

from .conftest import table
from .engines import STREAM, chunk, plain, stream
from .raw import ask

USAGE = b'{"choices":[],"object":"chat.completion.chunk","usage":{"prompt_tokens":11,"completion_tokens":7}}'
TEXT = b'{"choices":[{"delta":{"content":"a \\"usage\\":{} \\"choices\\":[]"}}],"usage":null}'
WORK = b'{"choices":[],"prompt_filter_results":[],"usage":null}'
FINISH = b'{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":11,"completion_tokens":7}}'


def lines(*events: bytes, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: %b%b" % (event, end) for event in events)


def through(*pieces: bytes) -> tuple[bytes, Withhold]:
    filter_ = Withhold()
    out = [filter_.feed(piece, index == len(pieces) - 1) for index, piece in enumerate(pieces)]
    return b"".join(out), filter_


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
@pytest.mark.parametrize("usage", [USAGE, USAGE.replace(b":", b": ").replace(b",", b", ")], ids=["tight", "spaced"])
def test_wherever_the_reads_end(end: bytes, size: int, usage: bytes) -> None:
    whole = b": ping" + end + lines(WORK, TEXT, FINISH, usage, b"[DONE]", end=end)
    out, filter_ = through(*[whole[at : at + size] for at in range(0, len(whole), size)])
    assert out == b": ping" + end + lines(WORK, TEXT, FINISH, b"[DONE]", end=end)
    assert filter_.usage == (11, 7)


def test_whole_events_are_not_held_back() -> None:
    filter_ = Withhold()
    for piece in (lines(TEXT), lines(WORK, FINISH), b": ping\n\n"):
        assert filter_.feed(piece, False) == piece


@pytest.mark.parametrize("odd", [b"data: x", b'data: {"usage"', b'data: {"choices":[],"usage":7}', b"\xff", b""])
def test_what_is_no_event_passes(odd: bytes) -> None:
    assert through(lines(TEXT), odd)[0] == lines(TEXT) + odd


def test_a_line_without_an_end_is_not_saved_up() -> None:
    filter_ = Withhold()
    assert filter_.feed(b"x" * MAX_HELD, False) == b""
    assert len(filter_.feed(b"y", False)) == MAX_HELD + 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_engine_is_asked_by_a_splice(house, fake, path: str) -> None:
    engine = await fake(stream(TEXT, USAGE, b"[DONE]"))
    home = await house(engine.upstream)
    body = b'{ "stream" : true, "model":"m", "a": {"b": "}"} }\n '
    answer = await home.ask(body, path)
    assert answer.body == lines(TEXT, b"[DONE]")
    sent = engine.requests[0].body
    assert sent == b'{ "stream" : true, "model":"m", "a": {"b": "}"} ,"stream_options":{"include_usage":true}}'
    assert json.loads(sent)["stream_options"] == {"include_usage": True}


async def test_the_alias_is_renamed_and_the_count_still_asked_for(house, fake) -> None:
    engine = await fake(stream(TEXT, USAGE, b"[DONE]"))
    home = await house(table=table(engine.upstream, aliases=("alias",)))
    assert (await home.ask(ask("alias", stream=True))).body == lines(TEXT, b"[DONE]")
    sent = json.loads(engine.requests[0].body)
    assert (sent["model"], sent["stream_options"]) == ("m", {"include_usage": True})


@pytest.mark.parametrize(
    "more", [{}, {"stream": False}, {"stream": None}, {"stream": True, "stream_options": {"include_usage": True}}]
)
async def test_nothing_else_is_touched(house, fake, more: dict[str, object]) -> None:
    engine = await fake(stream(TEXT, USAGE, b"[DONE]") if more.get("stream") else plain({}))
    home = await house(engine.upstream)
    answer = await home.ask(ask(**more))
    assert engine.requests[0].body == ask(**more)
    if more.get("stream"):
        assert answer.body == lines(TEXT, USAGE, b"[DONE]")


async def test_a_stream_of_a_known_length_is_shortened(house, fake) -> None:
    body = lines(TEXT, USAGE, b"[DONE]")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    answer = await (await house((await fake(head + body)).upstream)).ask(ask(stream=True))
    assert (answer.whole, answer.body) == (True, lines(TEXT, b"[DONE]"))


async def test_a_stream_that_breaks_in_a_line_ends_with_a_readable_error(house, fake) -> None:
    async def die(engine, reader, writer, request) -> bool:
        writer.write(STREAM + chunk(lines(TEXT) + b'data: {"choi'))
        await writer.drain()
        return False

    answer = await (await house((await fake(die)).upstream)).ask(ask(stream=True))
    events = [line for line in answer.body.split(b"\n") if line]
    assert events[0] == b"data: " + TEXT
    assert json.loads(events[-1][6:])["error"]["code"] == "upstream_failed"
    assert not answer.whole

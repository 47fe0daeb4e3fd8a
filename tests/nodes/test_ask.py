"""One question to an engine that is anything but an engine: every answer is an answer, an error, or the deadline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from llmgw.errors import BadReply, TimedOut, Unreachable
from llmgw.model.catalog import Task
from llmgw.model.secret import Secret
from llmgw.nodes import ask

KEY = Secret("engine-key")
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Engine:
    """A raw TCP server; `heard` is what it was sent, `left` is set when the other side has gone."""

    def __init__(self) -> None:
        self.talk: Talk = silent
        self.heard: list[bytes] = []
        self.left = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            self.heard.append(head + await reader.readexactly(length))
            await self.talk(reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.left.set()
            writer.close()

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        _, protocol = await asyncio.get_running_loop().create_connection(factory, "127.0.0.1", self.port)
        return protocol


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def says(*pieces: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return talk


def answer(body: Any, status: str = "200 OK") -> bytes:
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(data), data)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


async def asked(engine: Engine, timeout: float = 20.0) -> tuple[int, bytes]:
    return await ask.ask(engine.connect, "GET", "/x", key=KEY, timeout=timeout)


async def test_an_answer_and_what_was_sent_for_it(engine: Engine) -> None:
    engine.talk = says(answer({"a": 1}))
    found = await ask.ask(engine.connect, "POST", "/v1/x", key=KEY, body={"q": "ü"}, timeout=20)
    assert found == (200, b'{"a": 1}')
    head, _, body = engine.heard[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /v1/x HTTP/1.1"
    assert b"authorization: Bearer engine-key" in head
    assert json.loads(body) == {"q": "ü"}


@pytest.mark.parametrize(
    "pieces",
    [
        [bytes([byte]) for byte in answer(b"ok")],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\no\r\n", b"1\r\nk\r\n", b"0\r\n\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", answer(b"ok")],
    ],
    ids=["a byte at a time", "chunked", "continue first"],
)
async def test_answers_in_pieces(engine: Engine, pieces: list[bytes]) -> None:
    engine.talk = says(*pieces)
    assert await asked(engine) == (200, b"ok")


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        (says(b"SSH-2.0-OpenSSH_9.2\r\n"), "no HTTP"),
        (says(b"\x00\x01\x02\x03" * 100), "no HTTP"),
        (says(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"), "closed the connection without an answer"),
        (says(b""), "closed the connection without an answer"),
        (says(b"HTTP/1.1 200 OK\r\n"), "closed the connection without an answer"),
        (says(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"), "no HTTP"),
        (says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"), "no HTTP"),
    ],
)
async def test_what_is_no_answer(engine: Engine, talk: Talk, said: str) -> None:
    engine.talk = talk
    with pytest.raises(BadReply, match=said):
        await asked(engine)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def test_a_body_without_an_end_is_cut_off(engine: Engine) -> None:
    engine.talk = endless
    with pytest.raises(BadReply, match="has no end"):
        await asked(engine)
    await engine.left.wait()


async def test_headers_without_an_end_are_cut_off(engine: Engine) -> None:
    engine.talk = endless_headers
    with pytest.raises(BadReply, match="has no end"):
        await asked(engine)
    await engine.left.wait()


async def test_silence_ends_at_the_deadline_and_the_stream_is_closed(engine: Engine) -> None:
    with pytest.raises(TimedOut, match=r"the engine did not answer /x within 0\.05 s"):
        await asked(engine, 0.05)
    await engine.left.wait()


async def test_a_stream_that_does_not_open_ends_at_the_deadline_too() -> None:
    async def never(factory: Any) -> asyncio.Protocol:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(TimedOut):
        await ask.ask(never, "GET", "/x", key=KEY, timeout=0.01)


async def test_a_closed_port_is_what_the_connection_says_it_is() -> None:
    async def refused(factory: Any) -> asyncio.Protocol:
        raise Unreachable("nothing listens there")

    with pytest.raises(Unreachable, match="nothing listens"):
        await ask.ask(refused, "GET", "/x", key=KEY, timeout=5)


async def test_whoever_asks_may_leave(engine: Engine) -> None:
    asking = asyncio.create_task(asked(engine))
    while not engine.heard:
        await asyncio.sleep(0.001)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await engine.left.wait()


# Proof


@pytest.mark.parametrize(
    ("task", "path", "body"),
    [
        (Task.CHAT, b"/v1/chat/completions", {"choices": [{"message": {}}]}),
        (Task.COMPLETION, b"/v1/completions", {"choices": [{"text": "x"}]}),
        (Task.EMBED, b"/v1/embeddings", {"data": [{"embedding": [0.1]}]}),
        (Task.RERANK, b"/v1/rerank", {"results": [{"index": 0}]}),
    ],
)
async def test_a_real_answer_of_each_task_is_proof(engine: Engine, task: Task, path: bytes, body: Any) -> None:
    engine.talk = says(answer(body))
    await ask.prove(engine.connect, task, "m", KEY, timeout=20)
    assert path in engine.heard[0]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"choices": []}, "200 OK", "answered 200: "),
        ({}, "200 OK", "answered 200: "),
        ([1], "200 OK", "answered 200: "),
        (b"loading", "200 OK", "answered 200: loading"),
        (b"[" * 9999, "200 OK", "answered 200: "),
        ({"choices": [1]}, "503 Busy", "answered 503: "),
        ({"error": "wrong key"}, "401 No", 'answered 401: {"error": "wrong key"}'),
        (b"\xff\xfe" * 500, "500 Oops", "answered 500: \ufffd"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_anything_else_is_no_proof(engine: Engine, body: Any, status: str, said: str) -> None:
    engine.talk = says(answer(body, status))
    with pytest.raises(BadReply) as caught:
        await ask.prove(engine.connect, Task.CHAT, "m", KEY, timeout=20)
    assert said in caught.value.message
    assert len(caught.value.message) < 300
    assert caught.value.data["status"] == int(status[:3])


async def test_health(engine: Engine) -> None:
    engine.talk = says(answer({"status": "ok"}))
    await ask.healthy(engine.connect, KEY, timeout=20)
    engine.talk = says(answer({"error": "loading"}, "503 Loading"))
    with pytest.raises(BadReply, match="/health answered 503"):
        await ask.healthy(engine.connect, KEY, timeout=20)

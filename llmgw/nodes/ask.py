"""One small HTTP question to an engine over a stream, and the two that matter: is it healthy, does it answer.

Not the hot path: a connection a question, closed afterwards.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httptools

from llmgw.engines.base import question
from llmgw.errors import BadReply, LlmgwError, TimedOut
from llmgw.model.catalog import Task
from llmgw.model.route import Connect
from llmgw.model.secret import Secret

MAX_ANSWER = 1 << 20


class _Exchange(asyncio.Protocol):
    """Sends one request, collects one answer."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._body = bytearray()
        self._taken = 0
        self._parser = httptools.HttpResponseParser(self)
        self.transport: Any = None
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._taken += len(data)
        if self._taken > MAX_ANSWER:
            self._fail(BadReply("the engine's answer has no end"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._fail(BadReply(f"the engine answered with something that is no HTTP: {exc}"))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and not self.answer.done():  # 1xx: the answer itself is still to come
            self.answer.set_result((status, bytes(self._body)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(BadReply("the engine closed the connection without an answer"))

    def _fail(self, error: LlmgwError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def ask(
    connect: Connect, method: str, path: str, *, key: Secret, body: Mapping[str, Any] | None = None, timeout: float
) -> tuple[int, bytes]:
    """Status and body. Raises Unreachable for a closed port, BadReply, TimedOut after `timeout` seconds in all."""
    data = json.dumps(body).encode() if body is not None else b""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        f"authorization: Bearer {key.reveal()}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    exchange: _Exchange | None = None
    try:
        async with asyncio.timeout(timeout):
            made = await connect(lambda: _Exchange(head.encode() + data))
            assert isinstance(made, _Exchange)
            exchange = made
            return await exchange.answer
    except TimeoutError:
        raise TimedOut(f"the engine did not answer {path} within {timeout:g} s") from None
    finally:
        if exchange is not None:
            exchange.answer.cancel()
            exchange.transport.abort()


async def prove(connect: Connect, task: Task, model: str, key: Secret, *, timeout: float) -> None:
    """One real answer: a token, a vector, a ranking. Raises when there is none, saying what came instead."""
    asked = question(task, model)
    status, body = await ask(connect, "POST", asked.path, key=key, body=asked.body, timeout=timeout)
    if status == 200:
        try:
            reply = json.loads(body)
            if isinstance(reply, dict) and reply.get(asked.answered_by):
                return
        except (ValueError, RecursionError):
            pass
    raise BadReply(f"{asked.path} answered {status}: {body[:200].decode('utf-8', 'replace')}", status=status)


async def healthy(connect: Connect, key: Secret, *, timeout: float) -> None:
    """`/health` says 200. Raises when it does not."""
    status, body = await ask(connect, "GET", "/health", key=key, timeout=timeout)
    if status != 200:
        raise BadReply(f"/health answered {status}: {body[:200].decode('utf-8', 'replace')}", status=status)

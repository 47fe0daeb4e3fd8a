"""uvicorn's HTTP protocol with what it lacks: limits and deadlines on heads, errors in OpenAI's shape, and endings.

uvicorn reads a head of any size for any time, waits for ever until a client has read what it closes with (F60, F61),
and loses the body of a request that offers an upgrade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from llmgw.gateway import problems
from llmgw.gateway.auth import request_id
from llmgw.gateway.problems import Problem

MAX_HEAD = 64 << 10
MAX_HEADERS = 128
HEAD_WAIT = 30.0
LINGER = 2.0
"""How long a client that is still sending when it is refused may take to read the refusal."""
FLUSH_WAIT = 10.0
"""How long a closing connection may take to deliver what is written."""


class Guard(HttpToolsProtocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.feeding = False
        self.deaf = False
        """Whether it was turned away: what it still sends is thrown away."""
        self._in_head = False
        self._head_size = 0
        self._upgrade = False
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.within(HEAD_WAIT, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.no_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        self._unset_keepalive_if_required()
        self.feeding = True
        self._feed(data)
        self.feeding = False
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                self.turn_away(problems.HEAD_TOO_LARGE)
            elif self._deadline is None:
                self.within(HEAD_WAIT, self.transport.abort)
        elif self.is_idle and self._deadline is None:  # something came, but nothing that begins a request
            self.within(HEAD_WAIT, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        self.close()

    # Reading

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._unreadable()

    def _decline_upgrade(self, rest: bytes) -> None:
        """The parser takes an offered upgrade for accepted and reads no body. Java's client offers h2c with every first
        request: the head is read again without the offer."""
        method, url = self.parser.get_method(), self.url
        kept = [pair for pair in self.headers if pair[0] not in (b"upgrade", b"connection", b"http2-settings")]
        self._upgrade = False
        self.parser = httptools.HttpRequestParser(self)
        head = b"".join(b"%b: %b\r\n" % pair for pair in kept)
        try:
            if method == b"CONNECT":
                raise httptools.HttpParserError
            self.parser.feed_data(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, url, head, rest))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._unreadable()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_size = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_HEAD or len(self.headers) >= MAX_HEADERS:
            self._head_size = MAX_HEAD + 1
            raise ValueError("too many headers")  # comes out of feed_data as a parser error
        name = name.lower()  # from here on as uvicorn does it; a call more for each header is 3 % of a request
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._upgrade = True
        else:
            self.head_is_complete()
            super().on_headers_complete()

    def head_is_complete(self) -> None:
        self._in_head = False
        self._head_size = 0
        self.no_deadline()

    def on_message_complete(self) -> None:
        if not self._upgrade:
            super().on_message_complete()

    def _unreadable(self) -> None:
        if self.may_refuse():
            self.turn_away(problems.HEAD_TOO_LARGE if self._head_size > MAX_HEAD else problems.BAD_HTTP)
        else:  # in the middle of an answer nothing else can be said
            self.transport.abort()

    def may_refuse(self) -> bool:
        """Whether an error can be sent without getting into another answer."""
        return self.is_idle

    # Endings

    def turn_away(self, problem: Problem, name: bytes = b"") -> None:
        """Answers a client that may still be sending. Closing at once would reset the connection under the answer."""
        body = problem.body()
        ending = b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        self.transport.write(STATUS_LINE[problem.status] + problem.headers(name or request_id({})) + ending)
        self.deaf = True
        self._in_head = False
        if self.cycle is not None:
            self.cycle.response_complete = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.within(LINGER, self.transport.abort)

    def close(self) -> None:
        """Closes once what is written is out, and soon in any case."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.within(FLUSH_WAIT, self.transport.abort)

    def within(self, seconds: float, otherwise: Callable[[], Any]) -> None:
        """The connection's one deadline; a new one replaces it."""
        self.no_deadline()
        self._deadline = self.loop.call_later(seconds, self._expired, otherwise)

    def no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    @property
    def has_deadline(self) -> bool:
        return self._deadline is not None

    def _expired(self, otherwise: Callable[[], Any]) -> None:
        self._deadline = None
        otherwise()

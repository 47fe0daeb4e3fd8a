"""The client's connection: uvicorn's own HTTP protocol, with limits, and with a shorter way for the hot routes.

uvicorn parses, keeps connections alive and runs the ASGI application for everything else. A POST to an inference path
gets no ASGI task: its body is collected here and handed to an Exchange, which writes back through the five methods of
`client.Client`. What uvicorn lacks is here too: limits and deadlines on heads and bodies, and an end for clients that
read nothing (F60, F61).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from llmgw.gateway import problems
from llmgw.gateway.auth import Visit, request_id
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.problems import Problem
from llmgw.protocol.openai import INFERENCE

if TYPE_CHECKING:
    from llmgw.gateway.app import Gateway

MAX_HEAD = 64 << 10
MAX_HEADERS = 128
HEAD_WAIT = 30.0
LINGER = 2.0
"""How long a client that is still sending when it is refused may take to read the refusal."""
FLUSH_WAIT = 10.0
"""How long a closing connection may take to deliver what is written."""


class Door(HttpToolsProtocol):
    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.gateway = gateway
        self._in_head = False
        self._head_size = 0
        self._deaf = False
        self._feeding = False
        self._deadline: asyncio.TimerHandle | None = None
        # The hot request that is being read or answered
        self._visit: Visit | None = None
        self._hot: RequestResponseCycle | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._exchange: Exchange | None = None
        self._chunked = True

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._within(HEAD_WAIT, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_deadline()
        self._release_body()
        exchange, self._exchange, self._visit = self._exchange, None, None
        if exchange is not None:
            exchange.client_gone()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._feeding = True
        super().data_received(data)
        self._feeding = False
        if self._visit is not None:
            self._after_feed()
        elif self._in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                self._turn_away(problems.HEAD_TOO_LARGE)
            elif self._deadline is None:
                self._within(HEAD_WAIT, self._give_up)
        elif self._is_idle() and self._deadline is None and self.timeout_keep_alive_task is None:
            self._within(HEAD_WAIT, self._give_up)  # sent something, but nothing that begins a request

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._exchange is not None:
            self._exchange.client_full()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._exchange is not None:
            self._exchange.client_ready()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    # The request as it is read

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")  # becomes a parser error, answered by send_400_response
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_size = 0
        self._no_deadline()
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        scope = cycle.scope
        if scope["path"] not in INFERENCE or scope["method"] != "POST":
            super()._start_asgi_task(cycle, app)
            return
        headers = dict(scope["headers"])
        self._hot = cycle
        self._visit = visit = self.gateway.admit(headers)
        self._parts = []
        if cycle.body:  # it was pipelined behind another request
            self._take(bytes(cycle.body))
        limit = self.gateway.settings.max_body
        length = headers.get(b"content-length")
        if app is not self.app:
            self._refuse_visit(problems.TOO_MANY)
        elif length is not None and int(length) > limit:
            self._refuse_visit(problems.too_large(limit))
        elif cycle.waiting_for_100_continue and visit.problem is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._feeding:
            self.loop.call_soon(self._after_feed)

    def on_body(self, body: bytes) -> None:
        if self._visit is not None and self.cycle is self._hot:
            self._take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._visit is not None and self.cycle is self._hot:
            self.cycle.more_body = False
        else:
            super().on_message_complete()

    def _take(self, body: bytes) -> None:
        assert self._visit is not None
        if self._visit.problem is not None:
            return
        self._size += len(body)
        self.gateway.bodies += len(body)
        limit = self.gateway.settings.max_body
        if self._size > limit:
            self._refuse_visit(problems.too_large(limit))
        elif self.gateway.bodies > self.gateway.max_bodies:
            self._refuse_visit(problems.BUSY)
        else:
            self._parts.append(body)

    def _after_feed(self) -> None:
        """Everything of one read is parsed: answer at once, begin the exchange, or wait for the rest of the body."""
        visit, cycle = self._visit, self._hot
        if visit is None or cycle is None or self._exchange is not None:
            return
        if visit.problem is not None:
            self._answer_problem(visit.problem, visit.request_id)
        elif cycle.more_body:
            if self._deadline is None:
                self._within(self.gateway.settings.body_wait, self._body_too_slow)
        else:
            self._no_deadline()
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            self._begin(visit, cycle.scope["path"], body)

    def _begin(self, visit: Visit, path: str, body: bytes) -> None:
        exchange = self.gateway.open_exchange(self, visit, path, body)
        if isinstance(exchange, Problem):
            self._answer_problem(exchange, visit.request_id)
            return
        self._exchange = exchange
        if self.flow.write_paused:  # it has not read its last answer yet
            exchange.client_full()
        exchange.start()

    def _body_too_slow(self) -> None:
        self._deadline = None
        if self._visit is not None:
            self._answer_problem(problems.too_slow(self.gateway.settings.body_wait), self._visit.request_id)

    def _refuse_visit(self, problem: Problem) -> None:
        assert self._visit is not None
        self._visit = Visit(self._visit.request_id, self._visit.key, problem)
        self._parts = []

    def _answer_problem(self, problem: Problem, name: bytes) -> None:
        assert self._hot is not None
        self.gateway.metrics.answered("", problem.status)
        if self._hot.more_body:
            self._turn_away(problem, name)
        else:
            if self.gateway.closing:
                self._hot.keep_alive = False
            self.whole(problem.status, problem.headers(name), problem.body())

    # What the exchange writes: `client.Client`

    def whole(self, status: int, headers: bytes, body: bytes) -> None:
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._head(status, headers), len(body), body))
        self._finish()

    def begin(self, status: int, headers: bytes, length: int | None, data: bytes, last: bool) -> None:
        assert self._hot is not None
        self._chunked = length is None and self._hot.scope["http_version"] != "1.0"
        if self._chunked:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing = b"content-length: %d\r\n" % length if length is not None else b""
            self._hot.keep_alive = self._hot.keep_alive and length is not None
        self.transport.write(b"%b%b\r\n" % (self._head(status, headers), framing))
        self.write(data, last)

    def write(self, data: bytes, last: bool) -> None:
        if self._chunked:
            out = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            self.transport.write(out + b"0\r\n\r\n" if last else out)
        else:
            self.transport.write(data)
        if last:
            self._finish()

    def cut(self) -> None:
        self._done()
        self._close()

    def abort(self) -> None:
        self.transport.abort()

    def _head(self, status: int, headers: bytes) -> bytes:
        assert self._hot is not None
        self._hot.response_started = True
        close = b"" if self._hot.keep_alive else b"connection: close\r\n"
        return b"%b%b%b%b" % (STATUS_LINE[status], self.gateway.constant_lines(self.server_state), headers, close)

    def _finish(self) -> None:
        cycle = self._hot
        assert cycle is not None
        self._done()
        if not cycle.keep_alive:
            self._close()
        elif self.flow.write_paused:
            self._within(self.gateway.settings.idle, self._unread)
        cycle.on_response()

    def _done(self) -> None:
        self._release_body()
        if self._hot is not None:
            self._hot.response_complete = True
        self._exchange = self._visit = self._hot = None

    # Endings

    def send_400_response(self, msg: str) -> None:
        """What the parser could not read. In the middle of an answer there is nothing left to say."""
        if self._exchange is not None or not (self._is_idle() or self.cycle is self._hot):
            self.transport.abort()
            return
        too_many = self.headers is not None and len(self.headers) >= MAX_HEADERS
        self._turn_away(problems.HEAD_TOO_LARGE if too_many else problems.BAD_HTTP)

    def _turn_away(self, problem: Problem, name: bytes = b"") -> None:
        """Answers a client that may still be sending. Closing at once would reset the connection under the answer."""
        body = problem.body()
        headers = problem.headers(name or request_id({}))
        ending = b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        self.transport.write(STATUS_LINE[problem.status] + headers + ending)
        self._done()
        self._deaf = True
        if self.cycle is not None:
            self.cycle.response_complete = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._within(LINGER, self.transport.abort)

    def _close(self) -> None:
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._within(FLUSH_WAIT, self.transport.abort)

    def _unread(self) -> None:
        self._deadline = None
        if self.flow.write_paused:
            self.transport.abort()

    def _give_up(self) -> None:
        self._deadline = None
        self.transport.abort()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _within(self, seconds: float, call: Any) -> None:
        self._no_deadline()
        self._deadline = self.loop.call_later(seconds, call)

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _release_body(self) -> None:
        self.gateway.bodies -= self._size
        self._size = 0
        self._parts = []

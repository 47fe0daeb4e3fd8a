"""The client's connection, with a shorter way for the hot routes.

uvicorn parses, keeps connections alive and runs the ASGI application for everything else. A POST to an inference path
gets no ASGI task: its body is collected here and handed to an Exchange, which writes back through the five methods of
`client.Client`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from llmgw.gateway import problems
from llmgw.gateway.auth import Visit
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.guard import Guard
from llmgw.gateway.problems import Problem
from llmgw.protocol.openai import INFERENCE

if TYPE_CHECKING:
    from llmgw.gateway.app import Gateway


class Door(Guard):
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
        # The hot request that is being read or answered
        self._hot: RequestResponseCycle | None = None
        self._visit: Visit | None = None
        self._exchange: Exchange | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._chunked = True

    # The connection

    def connection_lost(self, exc: Exception | None) -> None:
        exchange = self._exchange
        self._done()
        if exchange is not None:
            exchange.client_gone()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._visit is not None and not self.deaf:
            self._after_feed()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._exchange is not None:
            self._exchange.client_full()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._exchange is not None:
            self._exchange.client_ready()

    # Reading a hot request

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        scope = cycle.scope
        if scope["path"] not in INFERENCE or scope["method"] != "POST":
            super()._start_asgi_task(cycle, app)
            return
        headers = dict(scope["headers"])
        self._hot = cycle
        self._visit = visit = self.gateway.admit(headers)
        if cycle.body:  # it was pipelined behind another request
            self._take(bytes(cycle.body))
        limit = self.gateway.settings.max_body
        length = headers.get(b"content-length")
        if app is not self.app:
            self._refuse(problems.TOO_MANY)
        elif length is not None and int(length) > limit:
            self._refuse(problems.too_large(limit))
        elif cycle.waiting_for_100_continue and visit.problem is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.feeding:
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
            self._refuse(problems.too_large(limit))
        elif self.gateway.bodies > self.gateway.max_bodies:
            self._refuse(problems.BUSY)
        else:
            self._parts.append(body)

    def _refuse(self, problem: Problem) -> None:
        """Said once the present read is parsed: only then is it known whether the client is still sending."""
        assert self._visit is not None
        self._visit = Visit(self._visit.request_id, self._visit.key, problem)
        self._parts = []

    def _after_feed(self) -> None:
        """Everything of one read is parsed: answer at once, begin the exchange, or wait for the rest of the body."""
        visit, cycle = self._visit, self._hot
        if visit is None or cycle is None or self._exchange is not None:
            return
        if visit.problem is not None:
            self._answer_problem(visit.problem, visit, cycle)
        elif not cycle.more_body:
            self.no_deadline()
            self._begin(visit, cycle)
        elif not self.has_deadline:
            self.within(self.gateway.settings.body_wait, self._body_too_slow)

    def _body_too_slow(self) -> None:
        if self._visit is not None and self._hot is not None:
            self._answer_problem(problems.too_slow(self.gateway.settings.body_wait), self._visit, self._hot)

    def _begin(self, visit: Visit, cycle: RequestResponseCycle) -> None:
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        exchange = self.gateway.open_exchange(self, visit, cycle.scope["path"], body)
        if isinstance(exchange, Problem):
            self._answer_problem(exchange, visit, cycle)
            return
        self._exchange = exchange
        if self.flow.write_paused:  # it has not read its last answer yet
            exchange.client_full()
        exchange.start()

    def _answer_problem(self, problem: Problem, visit: Visit, cycle: RequestResponseCycle) -> None:
        self.gateway.metrics.answered("", problem.status)
        if cycle.more_body:
            self.turn_away(problem, visit.request_id)
            self._done()
        else:
            self.whole(problem.status, problem.headers(visit.request_id), problem.body())

    # What the exchange writes: `client.Client`

    def whole(self, status: int, headers: bytes, body: bytes) -> None:
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._head(status, headers), len(body), body))
        self._finish()

    def begin(self, status: int, headers: bytes, length: int | None, data: bytes, last: bool) -> None:
        assert self._hot is not None
        self._chunked = length is None and self._hot.scope["http_version"] != "1.0"
        if self._chunked:
            framing = b"transfer-encoding: chunked\r\n"
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        else:  # an old client: the end of the connection is the end of the answer
            framing = b""
            self._hot.keep_alive = False
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
        self.close()

    def abort(self) -> None:
        self.transport.abort()

    def _head(self, status: int, headers: bytes) -> bytes:
        assert self._hot is not None
        self._hot.response_started = True
        if self.gateway.closing:
            self._hot.keep_alive = False
        close = b"" if self._hot.keep_alive else b"connection: close\r\n"
        return b"%b%b%b%b" % (STATUS_LINE[status], self.gateway.constant_lines(self.server_state), headers, close)

    def _finish(self) -> None:
        cycle = self._hot
        assert cycle is not None
        self._done()
        if not cycle.keep_alive:
            self.close()
        elif self.flow.write_paused:
            self.within(self.gateway.settings.idle, self._unread)
        cycle.on_response()

    def _unread(self) -> None:
        if self.flow.write_paused:
            self.transport.abort()

    def _done(self) -> None:
        """The request is over, as far as this connection goes."""
        if self._hot is not None:
            self._hot.response_complete = True
        self._hot = self._visit = self._exchange = None
        self.gateway.bodies -= self._size
        self._size = 0
        self._parts = []

    def may_refuse(self) -> bool:
        return self._exchange is None and (self.is_idle or self.cycle is self._hot)

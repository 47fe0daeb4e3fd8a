"""The client's connection, with a shorter way for the hot routes.

uvicorn parses, keeps connections alive and runs the ASGI application for everything else. A POST to an inference path
gets no ASGI task: its body is collected here and handed to an Exchange, which writes back through the five methods of
`client.Client`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from llmgw.gateway import problems
from llmgw.gateway.admission import open_exchange
from llmgw.gateway.auth import Visit
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.gateway import Gateway
from llmgw.gateway.guard import Guard
from llmgw.gateway.problems import Problem
from llmgw.protocol.openai import INFERENCE

log = logging.getLogger("llmgw.gateway")

PATHS = {path.encode(): path for path in INFERENCE}


class _NobodyWaits:
    """Where uvicorn's cycle has an event for its ASGI task."""

    def set(self) -> None:
        pass


class Hot:
    """A hot request as uvicorn's protocol sees it in the place of its own cycle: without scope, event and task."""

    __slots__ = ("disconnected", "keep_alive", "more_body", "old", "path", "response_complete", "visit")
    message_event = _NobodyWaits()

    def __init__(self, visit: Visit, path: str, *, old: bool, keep_alive: bool, more_body: bool = True) -> None:
        self.visit = visit
        self.path = path
        self.old = old  # HTTP/1.0
        self.keep_alive = keep_alive
        self.more_body = more_body
        self.response_complete = False
        self.disconnected = False


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
        self._hot: Hot | None = None  # the hot request that is being read or answered
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
        if self._hot is not None and not self.deaf:
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

    def on_headers_complete(self) -> None:
        path, parser = PATHS.get(self.url), self.parser
        full = self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency
        if path is None or full or not self.is_idle or parser.get_method() != b"POST" or parser.should_upgrade():
            super().on_headers_complete()
            return
        self.head_is_complete()
        old = parser.get_http_version() == "1.0"
        self._open(dict(self.headers), path, old=old, keep_alive=not old and parser.should_keep_alive())

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Hot requests come here too when they waited behind another one, or their URL has a query."""
        scope = cycle.scope
        if scope["path"] not in INFERENCE or scope["method"] != "POST":
            super()._start_asgi_task(cycle, app)
            return
        newest = self.cycle is cycle  # else it is complete, and further ones wait behind it
        old = scope["http_version"] == "1.0"
        hot = self._open(dict(scope["headers"]), scope["path"], old=old, keep_alive=cycle.keep_alive, newest=newest)
        hot.more_body = cycle.more_body
        if cycle.body:
            self._take(hot, bytes(cycle.body))
        if app is not self.app:
            self._refuse(hot, problems.TOO_MANY)
        if not self.feeding:
            self.loop.call_soon(self._after_feed)

    def _open(self, headers: dict[bytes, bytes], path: str, *, old: bool, keep_alive: bool, newest: bool = True) -> Hot:
        visit = self.gateway.admit(headers)
        self._hot = hot = Hot(visit, path, old=old, keep_alive=keep_alive)
        if newest:
            self.cycle = hot  # type: ignore[assignment]
        limit = self.gateway.settings.max_body
        length = headers.get(b"content-length")
        if length is not None and int(length) > limit:
            self._refuse(hot, problems.too_large(limit))
        elif b"expect" in headers and self.expect_100_continue and visit.problem is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return hot

    def on_body(self, body: bytes) -> None:
        hot, newest = self._hot, cast(object, self.cycle)
        if hot is not None and newest is hot:
            self._take(hot, body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        hot, newest = self._hot, cast(object, self.cycle)
        if hot is not None and newest is hot:
            hot.more_body = False
        else:
            super().on_message_complete()

    def _take(self, hot: Hot, body: bytes) -> None:
        if hot.visit.problem is not None:
            return
        self._size += len(body)
        self.gateway.bodies += len(body)
        limit = self.gateway.settings.max_body
        if self._size > limit:
            self._refuse(hot, problems.too_large(limit))
        elif self.gateway.bodies > self.gateway.max_bodies:
            self._refuse(hot, problems.BUSY)
        else:
            self._parts.append(body)

    def _refuse(self, hot: Hot, problem: Problem) -> None:
        """Said once the present read is parsed: only then is it known whether the client is still sending."""
        hot.visit = Visit(hot.visit.request_id, hot.visit.key, problem)
        self._parts = []

    def _after_feed(self) -> None:
        """Everything of one read is parsed: answer at once, begin the exchange, or wait for the rest of the body."""
        hot = self._hot
        if hot is None or self._exchange is not None:
            return
        if hot.visit.problem is not None:
            self._answer_problem(hot, hot.visit.problem)
        elif not hot.more_body:
            self._begin(hot)
        elif not self.has_deadline:
            self.within(self.gateway.settings.body_wait, self._body_too_slow)

    def _body_too_slow(self) -> None:
        if self._hot is not None:
            self._answer_problem(self._hot, problems.too_slow(self.gateway.settings.body_wait))

    def _begin(self, hot: Hot) -> None:
        self.no_deadline()
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        exchange = open_exchange(self.gateway, self, hot.visit, hot.path, body)
        if isinstance(exchange, Problem):
            self._answer_problem(hot, exchange)
            return
        self._exchange = exchange
        if self.flow.write_paused:  # it has not read its last answer yet
            exchange.client_full()
        try:
            exchange.start()
        except Exception:  # a bug of ours shall not cost the client its answer, nor the replica its count
            log.exception("request %s", hot.visit.request_id.decode())
            exchange.refuse(problems.INTERNAL)

    def _answer_problem(self, hot: Hot, problem: Problem) -> None:
        self.gateway.metrics.answered("", problem.status)
        if hot.more_body:
            self.turn_away(problem, hot.visit.request_id)
            self._done()
        else:
            self.whole(problem.status, problem.headers(hot.visit.request_id), problem.body())

    # What the exchange writes: `client.Client`

    def whole(self, status: int, headers: bytes, body: bytes) -> None:
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._head(status, headers), len(body), body))
        self._finish()

    def begin(self, status: int, headers: bytes, length: int | None, data: bytes, last: bool) -> None:
        assert self._hot is not None
        self._chunked = length is None and not self._hot.old
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
        if self.gateway.closing:
            self._hot.keep_alive = False
        close = b"" if self._hot.keep_alive else b"connection: close\r\n"
        return b"%b%b%b%b" % (STATUS_LINE[status], self.gateway.constant_lines(self.server_state), headers, close)

    def _finish(self) -> None:
        hot = self._hot
        assert hot is not None
        self._done()
        if not hot.keep_alive:
            self.close()
        elif self.flow.write_paused:
            self.within(self.gateway.settings.idle, self._unread)
        self.on_response_complete()

    def _unread(self) -> None:
        if self.flow.write_paused:
            self.transport.abort()

    def _done(self) -> None:
        """The request is over, as far as this connection goes."""
        if self._hot is not None:
            self._hot.response_complete = True
        self._hot = self._exchange = None
        self.gateway.bodies -= self._size
        self._size = 0
        self._parts = []

    def may_refuse(self) -> bool:
        return self._exchange is None and (self.is_idle or cast(object, self.cycle) is self._hot)

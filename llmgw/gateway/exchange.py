"""One request to a model, from its whole body to its last byte: which replica, which connection, how it ended.

Callbacks all the way; a task exists only while a connection is opened or a replica is waited for. Every exchange ends
in `_end`, whoever ends it, and that is where a replica's count goes down again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from llmgw.errors import LlmgwError
from llmgw.gateway import problems
from llmgw.gateway.answer import Answer
from llmgw.gateway.auth import Visit
from llmgw.gateway.client import Client
from llmgw.gateway.gateway import Gateway
from llmgw.gateway.metrics import CANCELLED
from llmgw.gateway.patience import Patience
from llmgw.gateway.problems import Problem
from llmgw.gateway.upstream import Connection
from llmgw.gateway.usage import Outcome
from llmgw.model.route import Route, Upstream
from llmgw.protocol.openai import rename

log = logging.getLogger("llmgw.gateway")

MAX_ATTEMPTS = 3
CONNECT_WAIT = 15.0


class Exchange:
    __slots__ = (
        "_answer", "_attempts", "_body", "_connection", "_gateway", "_loop", "_model", "_over", "_path", "_resent",
        "_route", "_task", "_tried", "_upstream", "_visit", "client", "hides_usage", "patience",
    )  # fmt: skip

    def __init__(
        self,
        gateway: Gateway,
        client: Client,
        visit: Visit,
        path: str,
        body: bytes,
        *,
        route: Route,
        model: str,
        hides_usage: bool = False,
    ) -> None:
        self.client = client
        self.hides_usage = hides_usage  # we asked the engine for it, the client did not
        self._gateway = gateway
        self._visit = visit
        self._path = path
        self._body = body
        self._route = route
        self._model = model  # as the client calls it
        self._loop = loop = asyncio.get_running_loop()
        self.patience = Patience(loop, gateway.settings.idle, self._out_of_patience)
        self._upstream: Upstream | None = None  # set exactly while the replica's count includes us
        self._connection: Connection | None = None
        self._answer: Answer | None = None
        self._task: asyncio.Task[None] | None = None
        self._tried: tuple[str, ...] = ()
        self._attempts = 0
        self._resent = False
        self._over = False

    def start(self) -> None:
        self._gateway.exchanges.add(self)
        self._seek()

    @property
    def is_waiting(self) -> bool:
        """Whether no replica has it yet."""
        return self._upstream is None

    # Finding a replica

    def _seek(self) -> None:
        upstream = self._gateway.router.choose(self._route, self._tried)
        if upstream is not None:
            self._try(upstream)
            return
        problem = self._gateway.room.turns_away(self._route)
        if problem is not None:
            self.refuse(problem)
        else:
            self._work(self._wait())

    async def _wait(self) -> None:
        """Holds the request until the table has a replica for it, or says that none will come."""
        found = await self._gateway.room.wait(self._route.model)
        self._task = None
        if isinstance(found, Problem):
            self.refuse(found)
        else:
            self._route = found
            self._seek()

    def _try(self, upstream: Upstream) -> None:
        self._attempts += 1
        self._upstream = upstream
        self._gateway.router.enter(upstream)
        connection = self._gateway.pool.take(upstream)
        if connection is not None:
            self._send(upstream, connection)
        else:
            self._work(self._connect(upstream))

    def _work(self, task: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(self._safely(task))

    async def _safely(self, task: Coroutine[Any, Any, None]) -> None:
        try:
            await task
        except Exception:  # a bug of ours shall not cost the client its answer, nor the replica its count
            log.exception("request %s", self._visit.request_id.decode())
            self._task = None
            self.refuse(problems.INTERNAL)

    async def _connect(self, upstream: Upstream) -> None:
        try:
            async with asyncio.timeout(CONNECT_WAIT):
                connection = await self._gateway.pool.open(upstream)
        except (LlmgwError, OSError) as exc:  # TimeoutError is an OSError
            self._task = None
            detail = problems.words(exc) or "no answer in time"
            self.attempt_failed(upstream, "cannot be reached", sent=False, detail=detail)
        else:
            self._task = None
            self._send(upstream, connection)

    def _send(self, upstream: Upstream, connection: Connection) -> None:
        body = self._body if self._model == upstream.model else rename(self._body, upstream.model)
        head = self._gateway.pool.head(upstream, self._path)
        self._connection = connection
        self._answer = answer = Answer(self, upstream, self._visit.request_id)
        self.patience.wait_first(self._gateway.settings.first_byte)
        connection.send(answer, b"%b%b\r\ncontent-length: %d\r\n\r\n" % (head, self._visit.request_id, len(body)), body)

    # Going elsewhere: only before the first byte of an answer

    def stale(self, upstream: Upstream) -> None:
        """A kept connection ended without an answer: idle too long, most likely, so the same replica is asked on a new
        one. It may also be the request that killed the engine: that benefit of the doubt is given once."""
        if self._resent:
            self.attempt_failed(upstream, "closed the connection", sent=True)
            return
        self._resent = True
        self._connection = None
        self._work(self._connect(upstream))

    def elsewhere(self, upstream: Upstream) -> bool:
        """The engine says that it is not ready (503). True when another replica is asked instead."""
        self._gateway.router.penalise(upstream)
        following = self._next(upstream)
        if following is not None:
            self._move_on(upstream, following)
        return following is not None

    def attempt_failed(self, upstream: Upstream, why: str, *, sent: bool, detail: str = "") -> None:
        """No byte of an answer came. Asks another replica, if one is left.

        A request that was already `sent` may be what killed the engine: it is sent once more, not to all of them.
        """
        self._connection = None
        # A client learns that it cannot be reached, not where it is; the detail is for the log and the loops.
        self._gateway.router.blame(upstream, f"{why}: {detail}" if detail else why, rest=True)
        following = None if sent and self._resent else self._next(upstream)
        self._resent = self._resent or sent
        if following is None:
            self.refuse(problems.upstream_failed(self._route.model, why))
        else:
            self._move_on(upstream, following)

    def _next(self, upstream: Upstream) -> Upstream | None:
        self._tried = (*self._tried, upstream.replica)
        self._route = self._gateway.router.route(self._route.model) or self._route
        return self._gateway.router.choose(self._route, self._tried) if self._attempts < MAX_ATTEMPTS else None

    def _move_on(self, upstream: Upstream, following: Upstream) -> None:
        self._upstream = self._connection = None
        self._gateway.router.leave(upstream, served=False)
        self._gateway.metrics.retries += 1
        self._try(following)

    # What the answer reports

    def began(self, *, more: bool) -> None:
        """The first byte of the body is here; from now on there is no going elsewhere."""
        self._gateway.metrics.began(self._route.model, self.patience.first_byte(more=more))
        if more:
            self._body = b""
            if self.patience.client_is_full and self._connection is not None:
                self._connection.pause()

    def bad_answer(self, upstream: Upstream, why: str) -> None:
        """The engine answered, and it was no answer. Nothing of it has reached the client."""
        self._gateway.router.blame(upstream, why, rest=False)
        self.refuse(problems.upstream_failed(self._route.model, why))

    def broke(self, upstream: Upstream, why: str) -> None:
        """The answer stopped in the middle: the client is told, and never sees a regular end (F58)."""
        self._gateway.router.blame(upstream, why, rest=True)
        self._cut(f"The engine {why} in the middle of its answer.", "upstream_failed")

    def complete(self, upstream: Upstream, status: int) -> None:
        """The whole answer is here, and its connection is back in the pool already."""
        self._connection = None
        if status >= 500:
            self._gateway.router.penalise(upstream)
            self._end(Outcome.FAILED, status)
        else:
            self._gateway.router.forgive(upstream)
            self._end(Outcome.ANSWERED, status)

    # What the client does

    def client_gone(self) -> None:
        self._end(Outcome.CANCELLED, CANCELLED)

    def client_full(self) -> None:
        """The client reads too slowly: the engine's side stops until it has caught up, or runs out of time (F60)."""
        self.patience.client_full()
        if self._connection is not None and self._answer is not None and self._answer.begun:
            self._connection.pause()

    def client_ready(self) -> None:
        self.patience.client_ready()
        if self._connection is not None:
            self._connection.resume()

    # Endings

    def refuse(self, problem: Problem) -> None:
        """Ends it with an error of our own; nothing has been sent to the client yet."""
        if self._over:
            return
        self._end(Outcome.FAILED if problem.status >= 500 else Outcome.ANSWERED, problem.status)
        self.client.whole(problem.status, problem.headers(self._visit.request_id), problem.body())

    def close(self) -> None:
        """The gateway shuts down and waits no longer."""
        if self._answer is not None and self._answer.begun:
            self._cut("The gateway is shutting down.", "shutting_down")
        else:
            self.refuse(problems.CLOSING)

    def _out_of_patience(self) -> None:
        answer, settings = self._answer, self._gateway.settings
        if answer is None or self._connection is None or not answer.spoke:
            if self._connection is not None and answer is not None:
                self._gateway.router.blame(answer.upstream, "did not begin to answer in time", rest=False)
            self.refuse(problems.first_byte_late(self._route.model, settings.first_byte))
        elif self.patience.client_is_full:
            self._end(Outcome.CANCELLED, CANCELLED)
            self.client.abort()
        else:
            answer.lost(f"fell silent for {settings.idle:g} s", spoke=True, stale=False)

    def _cut(self, message: str, code: str) -> None:
        assert self._answer is not None
        event = self._answer.last_words(message, code)
        self._end(Outcome.FAILED, self._answer.status)
        if event:
            self.client.write(event, False)
        self.client.cut()

    def _end(self, outcome: Outcome, status: int) -> None:
        if self._over:
            return
        self._over = True
        gateway, model = self._gateway, self._route.model
        gateway.exchanges.discard(self)
        self.patience.stop()
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.drop()
        tokens = self._answer.tokens() if self._answer is not None else (0, 0)
        gateway.usage.add(self._visit.name, model, tokens, outcome)
        gateway.metrics.used(model, tokens)
        gateway.metrics.answered(model, status)
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            gateway.router.leave(upstream, served=outcome is Outcome.ANSWERED)
        if gateway.closing:
            gateway.one_less()

"""The gateway: what its parts share, and its end. It is fed through holders and asks nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from uvicorn.server import ServerState

from llmgw.clock import Clock
from llmgw.config.settings import GatewaySettings
from llmgw.gateway import pages, problems
from llmgw.gateway.auth import Visit, visit
from llmgw.gateway.client import Client
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.metrics import Gauge, Metrics
from llmgw.gateway.pool import Pool
from llmgw.gateway.problems import Problem
from llmgw.gateway.room import WaitingRoom
from llmgw.gateway.router import Router
from llmgw.gateway.usage import Usage
from llmgw.model.catalog import Task
from llmgw.model.holder import Published
from llmgw.model.key import ApiKey
from llmgw.model.route import KeyTable, Route, RouteTable, Traffic
from llmgw.protocol.openai import EMBEDDINGS, BadBody, count_stream, read_ask

MAX_BODIES = 32
"""So many request bodies of the largest size may be held in memory at the same time."""

WRITING, EMBEDDING = (Task.CHAT, Task.COMPLETION), (Task.EMBED,)
"""Tasks whose engines are started for the one and refuse the other."""


class Gateway:
    def __init__(
        self,
        *,
        routes: Published[RouteTable],
        keys: Published[KeyTable],
        traffic: Traffic,
        settings: GatewaySettings,
        clock: Clock,
        version: str,
    ) -> None:
        self.routes = routes
        self.keys = keys
        self.traffic = traffic
        self.settings = settings
        self.version = version
        self.usage = Usage()
        self.metrics = Metrics()
        self.router = Router(routes, traffic, clock)
        self.pool = Pool(routes)
        self.room = WaitingRoom(routes, settings)
        self.exchanges: set[Exchange] = set()
        self.closing = False
        self.bodies = 0
        """Bytes of request bodies in memory."""
        self.max_bodies = MAX_BODIES * settings.max_body
        self.vitals: Callable[[], Iterable[Gauge]] = lambda: ()
        """What the rest of the process wants to be seen in /metrics."""
        self._done = asyncio.Event()
        self._date: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Everything but a POST to an inference path, which `door` takes a shorter way."""
        if scope["type"] == "http":
            await pages.answer(self, scope, send)

    def admit(self, headers: Mapping[bytes, bytes]) -> Visit:
        """Who comes with these headers, and whether the door is open."""
        visitor = visit(self.keys, headers)
        if self.closing:
            return Visit(visitor.request_id, None, problems.CLOSING)
        return visitor

    def open_exchange(self, client: Client, visitor: Visit, path: str, body: bytes) -> Exchange | Problem:
        """The exchange for a request whose body is complete, or why there is none."""
        if self.closing:  # since it was admitted
            return problems.CLOSING
        try:
            ask = read_ask(body)
        except BadBody as exc:
            return problems.bad_body(exc)
        route = self.router.route(ask.model)
        if route is None:
            return problems.unknown_model(ask.model, self.names(visitor.key))
        if visitor.key is not None and not visitor.key.allows(route.model):
            return problems.not_allowed(visitor.key.name, ask.model)
        embeds = path == EMBEDDINGS
        if route.task in (WRITING if embeds else EMBEDDING):
            return problems.wrong_task(ask.model, route.task, path)
        hide = ask.uncounted and not embeds
        if hide:
            body = count_stream(body)
        return Exchange(self, client, visitor, path, body, route=route, model=ask.model, hides_usage=hide)

    def models(self, key: ApiKey | None) -> Iterable[Route]:
        """Each model that the key may use, once, whatever its aliases."""
        routes = {route.model: route for route in self.routes.value.routes.values()}
        return [route for model, route in sorted(routes.items()) if key is None or key.allows(model)]

    def names(self, key: ApiKey | None) -> Iterable[str]:
        """Every name that the key may use: models and aliases."""
        routes = self.routes.value.routes
        return [name for name, route in routes.items() if key is None or key.allows(route.model)]

    def render_metrics(self) -> str:
        """Prometheus text; the admin API shows it too."""
        return self.metrics.render([*pages.gauges(self), *self.vitals()])

    def constant_lines(self, state: ServerState) -> bytes:
        """The headers uvicorn adds to every answer (the date), rendered once a second."""
        headers = state.default_headers
        if headers is not self._date[0]:
            self._date = (headers, b"".join(b"%b: %b\r\n" % pair for pair in headers))
        return self._date[1]

    async def shutdown(self) -> None:
        """No new requests; those that run may finish within `settings.drain`; then they are told and cut (F05)."""
        self.closing = True
        for exchange in [exchange for exchange in self.exchanges if exchange.is_waiting]:
            exchange.close()
        if self.exchanges:
            try:
                async with asyncio.timeout(self.settings.drain):
                    await self._done.wait()
            except TimeoutError:
                for exchange in list(self.exchanges):
                    exchange.close()
        self.pool.close()

    def hurry(self) -> None:
        """Nobody waits any longer: every open request is told that the gateway shuts down, and cut. No replica is
        blamed, whatever becomes of its connections afterwards. What is written leaves while the server stops."""
        self.closing = True
        for exchange in list(self.exchanges):
            exchange.close()

    def one_less(self) -> None:
        """An exchange ended while the gateway is closing."""
        if not self.exchanges:
            self._done.set()

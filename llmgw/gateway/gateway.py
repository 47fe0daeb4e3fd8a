"""The gateway: what its parts share, and its end. It is fed through holders and asks nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from uvicorn.server import ServerState

from llmgw.clock import Clock
from llmgw.config.settings import GatewaySettings
from llmgw.gateway import problems
from llmgw.gateway.auth import Visit, visit
from llmgw.gateway.metrics import Gauge, Metrics
from llmgw.gateway.pool import Pool
from llmgw.gateway.room import WaitingRoom
from llmgw.gateway.router import Router
from llmgw.gateway.usage import Usage
from llmgw.model.holder import Published
from llmgw.model.key import ApiKey
from llmgw.model.route import KeyTable, Route, RouteTable, Traffic

MAX_BODIES = 32
"""So many request bodies of the largest size may be held in memory at the same time."""


class OpenRequest(Protocol):
    """What the gateway's end needs of an exchange."""

    @property
    def is_waiting(self) -> bool:
        """Whether no replica has it yet."""
        ...

    def close(self) -> None:
        """The gateway shuts down and waits no longer."""


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
        self.exchanges: set[OpenRequest] = set()
        self.closing = False
        self.bodies = 0
        """Bytes of request bodies in memory."""
        self.max_bodies = MAX_BODIES * settings.max_body
        self.vitals: Callable[[], Iterable[Gauge]] = lambda: ()
        """What the rest of the process wants to be seen in /metrics."""
        self._done = asyncio.Event()
        self._date: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")

    def admit(self, headers: Mapping[bytes, bytes]) -> Visit:
        """Who comes with these headers, and whether the door is open."""
        visitor = visit(self.keys, headers)
        if self.closing:
            return Visit(visitor.request_id, None, problems.CLOSING)
        return visitor

    def models(self, key: ApiKey | None) -> Iterable[Route]:
        """Each model that the key may use, once, whatever its aliases."""
        routes = {route.model: route for route in self.routes.value.routes.values()}
        return [route for model, route in sorted(routes.items()) if key is None or key.allows(model)]

    def names(self, key: ApiKey | None) -> Iterable[str]:
        """Every name that the key may use: models and aliases."""
        routes = self.routes.value.routes
        return [name for name, route in routes.items() if key is None or key.allows(route.model)]

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

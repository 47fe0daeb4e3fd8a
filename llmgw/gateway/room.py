"""The waiting room: requests for a model whose replica is known to come are held, few and not for long (F63)."""

from __future__ import annotations

import asyncio

from llmgw.config.settings import GatewaySettings
from llmgw.gateway import problems
from llmgw.gateway.problems import Problem
from llmgw.model.holder import Published
from llmgw.model.route import Route, RouteTable


class WaitingRoom:
    def __init__(self, routes: Published[RouteTable], settings: GatewaySettings) -> None:
        self._routes = routes
        self._settings = settings
        self.waiting: dict[str, int] = {}

    def turns_away(self, route: Route) -> Problem | None:
        """Why a request for a route without a replica may not wait, or None when it may."""
        if not self._is_coming(route):
            return problems.unavailable(route.model, route.reason, coming=False)
        waiting = self.waiting.get(route.model, 0)
        if waiting >= self._settings.queue:
            return problems.queue_full(route.model, waiting)
        return None

    async def wait(self, model: str) -> Route | Problem:
        """Waits for a route with a replica; gives up when none is coming any more or `queue_wait` is over."""
        self.waiting[model] = self.waiting.get(model, 0) + 1
        try:
            async with asyncio.timeout(self._settings.queue_wait):
                while True:
                    route = self._routes.value.routes.get(model)
                    if route is None:
                        return problems.unknown_model(model, self._routes.value.routes)
                    if route.upstreams:
                        return route
                    if not self._is_coming(route):
                        return problems.unavailable(model, route.reason, coming=False)
                    await self._routes.changed()
        except TimeoutError:
            route = self._routes.value.routes.get(model)
            return problems.unavailable(model, route.reason if route is not None else "", coming=True)
        finally:
            self.waiting[model] -= 1
            if not self.waiting[model]:
                del self.waiting[model]

    def _is_coming(self, route: Route) -> bool:
        return route.hold or self._routes.value.adopting

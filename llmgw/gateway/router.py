"""Who answers: the choice of a replica, what each is working on, and what it did wrong lately."""

from __future__ import annotations

import logging
from collections.abc import Collection

from llmgw.clock import Clock
from llmgw.core.choose import Key, Trouble, after_failure, choose
from llmgw.model.holder import Published
from llmgw.model.route import Route, RouteTable, Traffic, Upstream

log = logging.getLogger("llmgw.gateway")


class Router:
    """The one writer of `Traffic`."""

    def __init__(self, routes: Published[RouteTable], traffic: Traffic, clock: Clock) -> None:
        self.routes = routes
        self.traffic = traffic
        self._clock = clock
        self._turn = 0
        self._troubles: dict[Key, Trouble] = {}
        routes.subscribe(self._follow)

    def route(self, name: str) -> Route | None:
        return self.routes.value.routes.get(name)

    def choose(self, route: Route, tried: Collection[str] = ()) -> Upstream | None:
        upstreams = route.upstreams
        if not upstreams:
            return None
        self._turn += 1
        now = self._clock.monotonic() if self._troubles else 0.0
        return choose(upstreams, self.traffic.inflight, tried=tried, troubles=self._troubles, now=now, turn=self._turn)

    def enter(self, upstream: Upstream) -> None:
        """A request goes to this replica; it counts from now until `leave`."""
        inflight = self.traffic.inflight
        inflight[upstream.replica] = inflight.get(upstream.replica, 0) + 1

    def leave(self, upstream: Upstream, *, served: bool) -> None:
        traffic, replica = self.traffic, upstream.replica
        if served:
            traffic.served[replica] = traffic.served.get(replica, 0) + 1
        left = traffic.inflight[replica] - 1
        if left:
            traffic.inflight[replica] = left
        else:
            del traffic.inflight[replica]
            traffic.on_idle(replica)

    def blame(self, upstream: Upstream, why: str, *, rest: bool) -> None:
        """It refused, died or stalled. Never called for what a client did, nor for a 4xx (sgl-project/sglang#25811)."""
        # Said once; a dead engine that is asked a thousand times a second must not fill the log.
        level = logging.DEBUG if (upstream.replica, upstream.attempt) in self._troubles else logging.WARNING
        log.log(level, "replica %s (attempt %d) %s", upstream.replica, upstream.attempt, why)
        self.penalise(upstream, rest=rest)
        self.traffic.on_failure(upstream.replica, upstream.attempt, why)

    def penalise(self, upstream: Upstream, *, rest: bool = False) -> None:
        """It counts as busier for a while."""
        key = (upstream.replica, upstream.attempt)
        self._troubles[key] = after_failure(self._troubles.get(key), self._clock.monotonic(), rest=rest)

    def forgive(self, upstream: Upstream) -> None:
        """It gave a good answer."""
        if self._troubles:
            self._troubles.pop((upstream.replica, upstream.attempt), None)

    def _follow(self, table: RouteTable) -> None:
        if self._troubles:
            live = {(up.replica, up.attempt) for route in table.routes.values() for up in route.upstreams}
            for key in self._troubles.keys() - live:
                del self._troubles[key]

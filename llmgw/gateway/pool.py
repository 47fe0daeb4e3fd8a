"""Connections to engines: opened when needed, kept for the next request, closed when nobody asks for a while."""

from __future__ import annotations

import asyncio

from llmgw.core.choose import Key
from llmgw.gateway.upstream import Connection
from llmgw.model.holder import Published
from llmgw.model.route import RouteTable, Upstream

IDLE = 30.0
SWEEP = 5.0


class Pool:
    """Idle connections of each replica's attempt; the one used last goes out first, so that surplus ones grow old."""

    def __init__(self, routes: Published[RouteTable]) -> None:
        self._idle: dict[Key, list[Connection]] = {}
        self._heads: dict[Key, tuple[Upstream, dict[str, bytes]]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._live: set[Key] = set()
        self._follow(routes.value)
        routes.subscribe(self._follow)

    def take(self, upstream: Upstream) -> Connection | None:
        """An idle connection, if there is one."""
        idle = self._idle.get((upstream.replica, upstream.attempt))
        while idle:
            connection = idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def open(self, upstream: Upstream) -> Connection:
        """A new connection. Raises what `Connect` raises, and OSError."""
        key = (upstream.replica, upstream.attempt)
        connection = await upstream.connect(lambda: Connection(self, key))
        assert isinstance(connection, Connection)
        return connection

    def give(self, connection: Connection) -> None:
        """Takes a connection back, unless its replica has left the table."""
        if self._closed or connection.key not in self._live:
            connection.drop()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(connection.key, []).append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP, self._sweep)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        idle = self._idle.get(connection.key)
        if idle and connection in idle:
            idle.remove(connection)

    def head(self, upstream: Upstream, path: str) -> bytes:
        """The constant beginning of a request, up to the request's own id."""
        key = (upstream.replica, upstream.attempt)
        known = self._heads.get(key)
        if known is None or known[0] is not upstream:
            known = self._heads[key] = (upstream, {})
        head = known[1].get(path)
        if head is None:
            secret = upstream.key.reveal()
            lines = [f"POST {path} HTTP/1.1", f"host: {upstream.host}", "content-type: application/json"]
            if secret:
                lines.append(f"authorization: Bearer {secret}")
            head = known[1][path] = "\r\n".join([*lines, "x-request-id: "]).encode()
        return head

    def close(self) -> None:
        """Closes every idle connection and keeps none from now on."""
        self._closed = True
        self._keep_only(set())
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def __len__(self) -> int:
        return sum(map(len, self._idle.values()))

    def _follow(self, table: RouteTable) -> None:
        self._keep_only({(up.replica, up.attempt) for route in table.routes.values() for up in route.upstreams})

    def _keep_only(self, live: set[Key]) -> None:
        self._live = live
        for key in self._heads.keys() - live:
            del self._heads[key]
        for key in self._idle.keys() - live:
            for connection in self._idle.pop(key):
                connection.drop()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = None
        oldest = loop.time() - IDLE
        for key, idle in list(self._idle.items()):
            old = [connection for connection in idle if connection.idle_since < oldest]
            kept = [connection for connection in idle if connection.idle_since >= oldest]
            if kept:
                self._idle[key] = kept
            else:
                del self._idle[key]
            for connection in old:
                connection.drop()
        if self._idle:
            self._sweeper = loop.call_later(SWEEP, self._sweep)

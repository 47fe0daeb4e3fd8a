"""Whatever happens in whatever order: a replica's count goes up when it is chosen and down when it is done with, every
exchange ends once, and a client gets one ending and nothing behind it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llmgw.clock import ManualClock
from llmgw.config.settings import GatewaySettings
from llmgw.errors import Unreachable
from llmgw.gateway.admission import open_exchange
from llmgw.gateway.auth import Visit
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.gateway import Gateway
from llmgw.model.holder import Published
from llmgw.model.route import KeyTable, ProtocolFactory, Traffic, Upstream
from llmgw.model.secret import Secret

from .conftest import table
from .engines import STREAM, chunk, plain
from .raw import CHAT, ask

SAID = {
    "a head": STREAM,
    "a chunk": chunk(b"data: {}\n\n"),
    "the end of a stream": b"0\r\n\r\n",
    "a whole answer": plain({"ok": True}),
    "loading": plain({"error": {}}, 503),
    "a failure": plain({"error": {}}, 500),
    "a complaint": plain({"error": {}}, 400),
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-",
    "much": b"HTTP/1.1 200 OK\r\ncontent-length: 400000\r\n\r\n" + b"x" * 300_000,
    "nonsense": b"\x00\x01\r\n\r\n",
}


@dataclass
class Line:
    """One connection to an engine, seen from the engine; it is asyncio's transport for the gateway."""

    replica: str
    opened: asyncio.Future[None]
    factory: ProtocolFactory
    protocol: asyncio.Protocol | None = None
    dead: bool = False
    requests: int = 0

    def open(self) -> None:
        self.protocol = self.factory()
        self.protocol.connection_made(self)  # type: ignore[arg-type]
        self.opened.set_result(None)

    def write(self, data: bytes) -> None:
        assert not self.dead
        self.requests += data.count(b"POST ")

    def is_closing(self) -> bool:
        return self.dead

    def abort(self) -> None:
        if not self.dead:
            self.dead = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    close = abort

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


@dataclass
class Watcher:
    """A client that checks that it is spoken to properly."""

    endings: int = 0
    begun: bool = False
    left: bool = False
    exchange: Exchange | None = None
    seen: list[bytes] = field(default_factory=list)

    def _may_speak(self) -> None:
        assert not self.endings, "something came behind the end"
        assert not self.left, "something came after the client had left"

    def whole(self, status: int, headers: bytes, body: bytes) -> None:
        self._may_speak()
        assert not self.begun
        self.endings += 1

    def begin(self, status: int, headers: bytes, length: int | None, data: bytes, last: bool) -> None:
        self._may_speak()
        assert not self.begun
        self.begun = True
        self.endings += last

    def write(self, data: bytes, last: bool) -> None:
        self._may_speak()
        assert self.begun
        self.endings += last

    def cut(self) -> None:
        self._may_speak()
        self.endings += 1

    def abort(self) -> None:
        self.cut()
        assert self.exchange is not None
        asyncio.get_running_loop().call_soon(self.exchange.client_gone)  # as the end of a connection does


class Gate(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.lines: list[Line] = []
        self.clients: list[Watcher] = []
        self.upstreams = {name: self._upstream(name) for name in ("r1", "r2", "r3")}
        self.traffic, self.clock = Traffic(), ManualClock()
        self.idle: list[str] = []
        self.traffic.on_idle = self.idle.append
        self._run(self._build)

    def _run(self, do) -> None:
        async def inside() -> None:
            do()
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(inside())

    def _build(self) -> None:
        self.routes = Published(table(*self.upstreams.values()))
        limits = GatewaySettings(queue=3, queue_wait=1000, first_byte=1000, idle=1000, drain=0)
        self.gateway = Gateway(routes=self.routes, keys=Published(KeyTable(open=True)), traffic=self.traffic,
                               settings=limits, clock=self.clock, version="0")  # fmt: skip

    def _upstream(self, name: str) -> Upstream:
        async def connect(factory: ProtocolFactory) -> asyncio.Protocol:
            line = Line(name, asyncio.get_running_loop().create_future(), factory)
            self.lines.append(line)
            await line.opened
            assert line.protocol is not None
            return line.protocol

        return Upstream(replica=name, node="n", attempt=1, model="m", key=Secret(""), connect=connect)

    @property
    def open_clients(self) -> list[Watcher]:
        return [client for client in self.clients if not client.endings and not client.left]

    @property
    def opening(self) -> list[Line]:
        return [line for line in self.lines if not line.opened.done()]

    @property
    def live(self) -> list[Line]:
        return [line for line in self.lines if line.protocol is not None and not line.dead]

    @rule()
    def a_client_comes(self) -> None:
        def come() -> None:
            watcher = Watcher()
            self.clients.append(watcher)
            exchange = open_exchange(self.gateway, watcher, Visit(b"id"), CHAT, ask())
            assert isinstance(exchange, Exchange)
            watcher.exchange = exchange
            exchange.start()

        self._run(come)

    @precondition(lambda self: self.open_clients)
    @rule(data=st.data())
    def a_client_leaves(self, data) -> None:
        client = data.draw(st.sampled_from(self.open_clients))
        client.left = True
        self._run(client.exchange.client_gone)

    @precondition(lambda self: self.open_clients)
    @rule(data=st.data(), full=st.booleans())
    def a_client_pauses(self, data, full: bool) -> None:
        client = data.draw(st.sampled_from(self.open_clients))
        self._run(client.exchange.client_full if full else client.exchange.client_ready)

    @precondition(lambda self: self.opening)
    @rule(data=st.data(), works=st.booleans())
    def a_connection_opens(self, data, works: bool) -> None:
        line = data.draw(st.sampled_from(self.opening))
        self._run(line.open if works else lambda: line.opened.set_exception(Unreachable("no")))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), what=st.sampled_from(sorted(SAID)))
    def an_engine_speaks(self, data, what: str) -> None:
        line = data.draw(st.sampled_from(self.live))
        self._run(lambda: line.protocol.data_received(SAID[what]))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def an_engine_hangs_up(self, data) -> None:
        self._run(data.draw(st.sampled_from(self.live)).abort)

    @precondition(lambda self: self.open_clients)
    @rule(data=st.data())
    def patience_ends(self, data) -> None:
        client = data.draw(st.sampled_from(self.open_clients))
        if client.exchange._answer is not None:
            self._run(client.exchange._out_of_patience)

    @rule(names=st.sets(st.sampled_from(["r1", "r2", "r3"])), hold=st.booleans())
    def the_table_changes(self, names: set[str], hold: bool) -> None:
        table_now = table(*(self.upstreams[name] for name in sorted(names)), hold=hold)
        self._run(lambda: self.routes.publish(table_now))

    @rule(seconds=st.sampled_from([0.5, 3.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def counts_are_exact(self) -> None:
        working: dict[str, int] = {}
        for exchange in self.gateway.exchanges:
            if exchange._upstream is not None:
                working[exchange._upstream.replica] = working.get(exchange._upstream.replica, 0) + 1
        assert self.traffic.inflight == working

    @invariant()
    def open_exchanges_are_those_whose_clients_wait(self) -> None:
        assert self.gateway.exchanges == {client.exchange for client in self.open_clients}
        assert len(self.gateway.room.waiting) <= 1
        assert sum(self.gateway.room.waiting.values()) <= 3

    @invariant()
    def nobody_works_for_those_who_left(self) -> None:
        """A connection in use belongs to an open exchange; all others are idle in the pool."""
        used = {id(exchange._connection) for exchange in self.gateway.exchanges if exchange._connection is not None}
        idle = {id(c) for connections in self.gateway.pool._idle.values() for c in connections}
        assert not used & idle
        assert {id(line.protocol) for line in self.live} <= used | idle

    def teardown(self) -> None:
        async def finish() -> None:
            await self.gateway.shutdown()
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(finish())
        assert self.traffic.inflight == {}
        assert self.gateway.exchanges == set()
        assert self.gateway.room.waiting == {}
        assert not self.live
        assert not [line for line in self.opening if not line.opened.cancelled()]
        assert sum(row.requests for row in self.gateway.usage.take()) == len(self.clients)
        assert all(client.endings == (not client.left) for client in self.clients)
        assert not asyncio.all_tasks(self.loop)
        self.loop.close()


TestGate = Gate.TestCase
TestGate.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

"""A real gateway on a free port, with whatever engines a test puts behind it; and proof that nothing is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from llmgw.clock import ManualClock
from llmgw.config.settings import GatewaySettings
from llmgw.gateway.gateway import Gateway
from llmgw.gateway.serve import Server, serve
from llmgw.model.holder import Published
from llmgw.model.key import ApiKey, digest
from llmgw.model.route import KeyTable, Route, RouteTable, Traffic, Upstream

from .engines import Fake, Handler, Sim
from .raw import CHAT, Answer, Raw


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """The loop the gateway runs in."""
    return {"uvloop": uvloop.new_event_loop}


def key(secret: str = "sk-test", name: str = "tester", models: tuple[str, ...] = ()) -> ApiKey:
    return ApiKey(name=name, hash=digest(secret), hint=secret[:4], models=models)


@dataclass
class House:
    """The gateway, and everything it is fed with."""

    gateway: Gateway
    server: Server
    routes: Published[RouteTable]
    keys: Published[KeyTable]
    traffic: Traffic
    clock: ManualClock
    failures: list[tuple[str, int, str]] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    raws: list[Raw] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def publish(self, *upstreams: Upstream, **more: Any) -> None:
        self.routes.publish(table(*upstreams, **more))

    async def raw(self, key: str | None = "sk-test", buffer: int = 0) -> Raw:
        raw = await Raw.open(self.port, key=key, buffer=buffer)
        self.raws.append(raw)
        return raw

    async def ask(self, body: bytes = b"", path: str = CHAT, method: str = "POST", **h: str) -> Answer:
        raw = await self.raw()
        answer = await raw.ask(body, path, method, **h)
        raw.abort()
        return answer

    async def quiet(self) -> None:
        """Waits until no exchange is open."""
        await until(lambda: not self.gateway.exchanges)


def table(*upstreams: Upstream, adopting: bool = False, model: str = "m", aliases: tuple[str, ...] = (), **more: Any):
    route = Route(model=model, aliases=aliases, upstreams=upstreams, **more)
    return RouteTable(dict.fromkeys((model, *aliases), route), adopting=adopting)


async def until(condition: Callable[[], Any], within: float = 3.0) -> None:
    """Waits for what other processes or the kernel do; there is no event for it."""
    end = asyncio.get_running_loop().time() + within
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


async def eventually(condition: Callable[[], Any], within: float = 3.0) -> Any:
    """The same for a condition that has to be asked for: its first true result."""
    end = asyncio.get_running_loop().time() + within
    while not (result := await condition()):
        assert asyncio.get_running_loop().time() < end, "it did not happen in time"
        await asyncio.sleep(0.02)
    return result


@pytest.fixture
def sim() -> Iterator[Callable[..., Sim]]:
    """Starts simulated engines: `sim("r1", "--max-tokens", "5")`."""
    started: list[Sim] = []

    def start(replica: str = "r1", *options: str) -> Sim:
        started.append(Sim(replica, *options))
        return started[-1]

    yield start
    for engine in started:
        engine.kill()


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[Callable[..., Any]]:
    """Starts engines that answer with what the test gives them: bytes, or a coroutine function."""
    started: list[Fake] = []

    async def start(handler: Handler | bytes, replica: str = "f1") -> Fake:
        started.append(await Fake(replica, handler).start())
        return started[-1]

    yield start
    for engine in started:
        await engine.stop()


@pytest_asyncio.fixture
async def house(leaks: None) -> AsyncIterator[Callable[..., Any]]:
    """Builds the gateway: `await house(sim.upstream, …, idle=0.2)`; settings by name, a table by `table=`."""
    built: list[House] = []

    async def build(*upstreams: Upstream, table: RouteTable | None = None, keys: Any = None, **settings: Any) -> House:
        routes = Published(table if table is not None else globals()["table"](*upstreams))
        known = keys if keys is not None else [key()]
        key_table = known if isinstance(known, KeyTable) else KeyTable({item.hash: item for item in known})
        traffic, clock = Traffic(), ManualClock()
        gateway = Gateway(
            routes=routes,
            keys=Published(key_table),
            traffic=traffic,
            settings=GatewaySettings(**{"drain": 0.05, **settings}),
            clock=clock,
            version="1.2.3",
        )
        server = await serve(gateway, host="127.0.0.1", port=0)
        made = House(gateway, server, routes, gateway.keys, traffic, clock)
        traffic.on_failure = lambda *args: made.failures.append(args)
        traffic.on_idle = made.idle.append
        built.append(made)
        return made

    yield build
    for made in built:
        for raw in made.raws:
            raw.abort()
        await made.server.stop()
        assert not made.gateway.exchanges
        assert made.traffic.inflight == {}
        assert made.gateway.bodies == 0
        assert made.gateway.room.waiting == {}
        assert len(made.gateway.pool) == 0


@pytest_asyncio.fixture
async def leaks() -> AsyncIterator[None]:
    """No task and no descriptor is left behind by a test."""
    tasks, files = len(asyncio.all_tasks()), open_files()
    yield
    await until(lambda: len(asyncio.all_tasks()) <= tasks and open_files() <= files + 2)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))

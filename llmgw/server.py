"""The wiring: what is built, started in order and stopped in reverse. Nothing is decided here.

The same wiring runs under `llmgw server run` and, without the gateway, inside a command that acts while no server runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from llmgw import __version__
from llmgw.admin import serve as admin_serve
from llmgw.admin.app import app as admin_app
from llmgw.admin.feed import EventFeed
from llmgw.clock import SystemClock
from llmgw.config.files import read_plain
from llmgw.config.home import Home, write_private
from llmgw.config.settings import Settings, parse_listen
from llmgw.gateway.gateway import Gateway
from llmgw.gateway.pages import render_metrics
from llmgw.gateway.serve import Server as GatewayServer
from llmgw.gateway.serve import serve as serve_gateway
from llmgw.loops.act import Act
from llmgw.loops.audit import Audit
from llmgw.loops.base import Loop
from llmgw.loops.collector import Collector
from llmgw.loops.connect import Connect
from llmgw.loops.control import Control
from llmgw.loops.health import Health
from llmgw.loops.install import Install
from llmgw.loops.lag import Lag
from llmgw.loops.observe import Observe
from llmgw.loops.prune import Prune
from llmgw.loops.publish import Publish
from llmgw.loops.reconcile import Reconcile
from llmgw.loops.restart import after_restart
from llmgw.loops.usage import Usage
from llmgw.loops.world import World
from llmgw.mirror.library import Library
from llmgw.model.holder import Published
from llmgw.model.requests import Whoami
from llmgw.model.route import KeyTable, RouteTable, Traffic
from llmgw.model.secret import Secret
from llmgw.nodes.remote import Authority
from llmgw.pki import sshkey
from llmgw.ssh.embedded import EmbeddedServer
from llmgw.ssh.identity import HostKeys, Login
from llmgw.ssh.pool import Pool
from llmgw.store import lease as leases
from llmgw.store.db import Store

log = logging.getLogger("llmgw.server")

PURPOSE = "server run"
COMMAND_WAIT = 60.0
"""Seconds that `server run` waits for a lease that a command holds."""


class ControlPlane:
    """One per process, and one per state: `start` takes the lease first."""

    def __init__(
        self, home: Home, settings: Settings, *, gateway: bool, purpose: str, open_to_all: bool = False
    ) -> None:
        self.home = home
        self.settings = settings
        self._with_gateway = gateway
        self._purpose = purpose
        self._open_to_all = open_to_all
        self._stack = contextlib.AsyncExitStack()
        self.gateway_server: GatewayServer | None = None
        self.admin_port: int | None = None
        self._gateway: Gateway | None = None

    async def start(self, *, wait: float = 0.0) -> None:
        """Raises Refused when the lease or a port is held; whatever was begun is undone then."""
        try:
            await self._start(wait)
        except BaseException:
            await self._stack.aclose()
            raise

    async def settled(self, limit: float) -> None:
        """Returns once every node has been looked at or has failed to connect; at most after `limit` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while True:
                    snapshot = await self.world.snapshot()
                    waiting = [node for node in snapshot.nodes if not (node.quarantined or node.link_error)]
                    if all(node.id in self.world.looked_at for node in waiting):
                        return
                    await self.world.changed.changed()

    def last_words(self) -> str:
        """What a stop waits for."""
        waiting = len(self._gateway.exchanges) if self._gateway is not None else 0
        if not waiting:
            return "Stopping."
        open_ones = "1 request is open" if waiting == 1 else f"{waiting} requests are open"
        limit = f"{self.settings.gateway.drain:g} s"
        return f"Stopping: {open_ones} and may end within {limit}; Ctrl-C again ends them now."

    def hurry(self) -> None:
        """Ends open requests now; their clients are told."""
        if self._gateway is not None:
            self._gateway.hurry()

    async def engines(self) -> int:
        """How many engines of ours run as far as is known."""
        snapshot = await self.world.snapshot()
        return sum(replica.lead.process is not None and not replica.state.over for replica in snapshot.replicas)

    async def stop(self) -> None:
        """No new requests, open ones end, loops stop, links close, the lease goes last. Engines are left alone."""
        await self._stack.aclose()

    async def _start(self, wait: float) -> None:
        home, settings, clock = self.home, self.settings, SystemClock()
        os.umask(0o077)  # SQLite makes its log files by it
        home.ensure()
        lease = await leases.acquire(home.lock, purpose=self._purpose, wait=wait)
        self._stack.callback(lease.release)
        identity = home.identity()
        private_key = sshkey.ensure_key(home.path)
        public_key = sshkey.public_key(home.path)

        store = Store(home.database, clock)
        self._stack.push_async_callback(store.close)
        await store.open()
        term = await store.write(lambda tx: leases.begin_term(tx, identity.controller_id))
        await store.write(after_restart)

        world = World(
            settings=settings,
            clock=clock,
            store=store,
            library=Library(Path(settings.mirror.dir).expanduser() if settings.mirror.dir else home.mirror),
            authority=Authority(identity.cluster_id, identity.controller_id, term),
            traffic=Traffic(),
            routes=Published(RouteTable(adopting=True)),
            keys=Published(KeyTable(open=self._open_to_all)),
        )
        self._stack.push_async_callback(world.library.close)
        await world.recall()
        embedded = EmbeddedServer(public_key, home.embedded_host_key)
        await embedded.start()
        self._stack.push_async_callback(embedded.close)

        gateway = Gateway(
            routes=world.routes,
            keys=world.keys,
            traffic=world.traffic,
            settings=settings.gateway,
            clock=clock,
            version=__version__,
        )
        self._gateway = gateway
        lag = Lag()
        lag.start()
        self._stack.callback(lag.stop)
        gateway.vitals = lag.gauges
        audit = Audit(world)
        connect, act = Connect(world), Act(world)
        observe = Observe(world)
        publish, health = Publish(world, open_to_all=self._open_to_all), Health(world)
        world.republish = publish.turn
        world.visit = observe.visit
        world.traffic.on_failure = health.upstream_failed
        world.pool = Pool(
            login=Login(client_keys=(private_key,), config_files=_ssh_config(settings)),
            handshakes=settings.ssh.handshakes,
            connect_timeout=settings.ssh.connect_timeout,
            keepalive=settings.ssh.keepalive,
            clock=clock,
            on_change=connect.link_changed,
            audit=audit.note,
            local=embedded,
            host_keys=HostKeys(home.known_hosts),
        )
        self._stack.push_async_callback(world.pool.close)

        feed = EventFeed()
        store.on_events(feed.tell)
        self.control = Control(world, self._whoami(identity.cluster_id, public_key))
        # Before the doors open: nobody with a valid key may be turned away for our having just started.
        await publish.turn()
        await self._listen(gateway, feed)
        self.world = world
        self._run(
            world,
            audit,
            Usage(world, gateway.usage.take),
            Prune(world, home.backups),
            publish,
            connect,
            observe,
            Install(world),
            act,
            Reconcile(world, act),
            health,
        )

    def _run(self, world: World, *loops: Loop) -> None:
        for loop in loops:
            world.hints[loop.name] = loop.hint
            loop.start()
            self._stack.push_async_callback(loop.stop)

    async def _listen(self, gateway: Gateway, feed: EventFeed) -> None:
        settings = self.settings
        token = self._token()
        if self._with_gateway:
            host, port = parse_listen(settings.listen)
            self.gateway_server = await serve_gateway(gateway, host=host, port=port, tls=settings.tls)
            self._stack.push_async_callback(self.gateway_server.stop)
            if settings.admin_listen is not None:
                host, port = parse_listen(settings.admin_listen)
                listener = admin_serve.tcp_listener(host, port, "admin_listen")
                self.admin_port = listener.getsockname()[1]
                app = admin_app(self.control, feed, metrics=partial(render_metrics, gateway), token=token)
                served = await admin_serve.serve(app, listener)
                self._stack.push_async_callback(served.stop)
        app = admin_app(self.control, feed, metrics=partial(render_metrics, gateway), token=None)
        served = await admin_serve.serve(app, admin_serve.unix_listener(self.home.socket))
        self._stack.callback(self.home.socket.unlink, missing_ok=True)
        self._stack.push_async_callback(served.stop)
        self._stack.callback(feed.close)

    def _token(self) -> Secret:
        try:
            return Secret(read_plain(self.home.token).decode().strip())
        except FileNotFoundError:
            token = Secret.random("llmgw-admin-")
            write_private(self.home.token, token.reveal() + "\n")
            return token

    def _whoami(self, cluster: str, public_key: str) -> Callable[[int], Whoami]:
        line = sshkey.public_line(self.home.path, cluster)
        controller = self.home.identity().controller_id

        def whoami(term: int) -> Whoami:
            listen = None
            if self.gateway_server is not None:
                listen = f"{self.gateway_server.host}:{self.gateway_server.port}"
            return Whoami(
                version=__version__,
                cluster_id=cluster,
                controller_id=controller,
                term=term,
                public_key=public_key,
                key_line=line,
                listen=listen,
                admin_listen=f"127.0.0.1:{self.admin_port}" if self.admin_port else None,
            )

        return whoami


async def run(
    home: Home,
    settings: Settings,
    ready: Callable[[ControlPlane], Awaitable[None]],
    say: Callable[[str], None],
    *,
    standby: bool = False,
) -> None:
    """Serves until SIGTERM or SIGINT; a second signal ends open requests at once.

    `ready` is called when it serves, `say` with what a person at the terminal should know when it ends. `standby` waits
    for the lease without limit.
    """
    plane = ControlPlane(home, settings, gateway=True, purpose=PURPOSE)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            plane.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    _raise_file_limit()
    patience = math.inf if standby else COMMAND_WAIT if _held_by_command(home) else 0.0
    collector = Collector()
    collector.start()
    await plane.start(wait=patience)
    try:
        await ready(plane)
        await stop.wait()
        say(plane.last_words())
    finally:
        engines = await plane.engines()
        await plane.stop()
        collector.stop()
        say(
            f"Stopped. {engines} engine{'s go' if engines != 1 else ' goes'} on running; the next start adopts them."
            if engines
            else "Stopped."
        )


def _raise_file_limit() -> None:
    """Each client is a descriptor: as many as we may have, not the 1,024 that a shell hands out."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _held_by_command(home: Home) -> bool:
    holder = leases.holder(home.lock)
    return holder is not None and holder.purpose != PURPOSE


def _ssh_config(settings: Settings) -> tuple[Path, ...]:
    return (Path(settings.ssh.config).expanduser(),) if settings.ssh.config else ()

"""Opens the port: uvicorn in the loop that runs already, without its signal handlers, logs of its own or headers."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from llmgw.config.settings import TlsSettings
from llmgw.errors import ConfigError, Refused, Unreachable, UsageError
from llmgw.gateway.door import Door
from llmgw.gateway.gateway import Gateway
from llmgw.gateway.pages import pages
from llmgw.gateway.problems import words

BACKLOG = 2048
KEEP_ALIVE = 75
"""Longer than what clients and balancers keep, so that they close first: no request meets a connection just closed."""
MAX_CONNECTIONS = 20_000
GRACE = 1
"""Seconds for what is written to leave, once every request is over."""


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the program, not to one of its servers."""
        yield

    async def main_loop(self) -> None:
        """Wakes once a second for the date header, not ten times to see whether it shall stop."""
        while not self.stopping.is_set():
            await self.on_tick(0)
            try:
                async with asyncio.timeout(1.0):
                    await self.stopping.wait()
            except TimeoutError:
                continue

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The usual case at once: every connection idle. Otherwise uvicorn's own way, which waits and polls."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for _ in range(3):
            await asyncio.sleep(0)
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)


class Server:
    """An open port. `stop()` ends it in order: the gateway first, then the connections."""

    def __init__(self, gateway: Gateway, server: _Uvicorn, sockets: list[socket.socket]) -> None:
        self.host, self.port = sockets[0].getsockname()[:2]
        self._gateway = gateway
        self._server = server
        self._task = asyncio.create_task(server.serve(sockets=sockets), name="gateway")

    async def started(self) -> None:
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Idempotent. Open requests get `settings.drain`, see Gateway.shutdown."""
        await self._gateway.shutdown()
        self._server.stopping.set()
        await asyncio.wait([self._task])
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()  # a client that does not read must not hold the end up
        self._task.result()


async def serve(gateway: Gateway, *, host: str, port: int, tls: TlsSettings | None = None) -> Server:
    """Listens and answers when it returns. Port 0 takes a free one. Raises Refused when the port cannot be had."""
    files: dict[str, Any] = {}
    if tls is not None:
        files = {"ssl_certfile": tls.cert, "ssl_keyfile": tls.key, "ssl_ca_certs": tls.client_ca}
        files["ssl_cert_reqs"] = ssl.CERT_REQUIRED if tls.client_ca else ssl.CERT_NONE
    config = uvicorn.Config(
        pages(gateway),
        http=partial(Door, gateway),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=_connections(),
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        **files,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as exc:
        message = f"tls: the certificate or key cannot be used: {words(exc)}."
        raise ConfigError(message, fix="Check tls in llmgw.yaml.") from exc
    sockets = await _listen(host, port)
    server = Server(gateway, _Uvicorn(config), sockets)
    await server.started()
    return server


async def _listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address of `host`: `localhost` is two where there is IPv6."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise Unreachable(f"listen: {host} has no address here: {exc.strerror or exc}.", fix="Name another.") from exc
    sockets: list[socket.socket] = []
    for family, _, _, _, address in dict.fromkeys(found):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            wanted = port or (sockets[0].getsockname()[1] if sockets else 0)
            sock.bind((address[0], wanted, *address[2:]))
            sock.setblocking(False)
            sock.listen(BACKLOG)  # two may bind with SO_REUSEADDR, but only one listens: find out now
        except OSError as exc:
            sock.close()
            if sockets and exc.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # no IPv6 here, for example
            for other in sockets:
                other.close()
            raise _refused(host, port, exc) from exc
        sockets.append(sock)
    return sockets


def _refused(host: str, port: int, exc: OSError) -> UsageError | Refused:
    if exc.errno == errno.EADDRINUSE:
        fix = f"See who has it with `ss -ltnp 'sport = :{port}'`, or set another `listen` in llmgw.yaml."
        return Refused(f"Port {port} on {host} is in use.", fix=fix, code="port_in_use")
    if exc.errno == errno.EACCES:
        fix = "Ports below 1024 need root: set `listen` to a higher one."
        return Refused(f"Port {port} on {host} may not be opened by this user.", fix=fix, code="port_forbidden")
    return Refused(
        f"{host}:{port} cannot be listened on: {exc.strerror}.",
        fix="Set `listen` in llmgw.yaml to an address of this machine.",
        code="cannot_listen",
    )


def _connections() -> int:
    """How many clients at most: over TCP each may need a second descriptor towards its engine."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(16, min(MAX_CONNECTIONS, (soft - 64) // 2))

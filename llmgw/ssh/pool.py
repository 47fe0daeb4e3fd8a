"""One connection a node, kept up for ever: each has one task that owns it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmgw.clock import Clock
from llmgw.core.backoff import full_jitter
from llmgw.errors import LinkLost, LlmgwError, TimedOut, Unreachable
from llmgw.model.node import Address
from llmgw.model.route import ProtocolFactory
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.embedded import EmbeddedServer
from llmgw.ssh.identity import HostKeys, Login
from llmgw.ssh.run import CommandRecord
from llmgw.ssh.session import OnEvent

log = logging.getLogger(__name__)

BASE, CAP = 0.5, 60.0
"""Seconds: the back-off after the first failure, and its limit."""
REFUSED_BASE, REFUSED_CAP = 60.0, 600.0
"""The same after a refused login or a changed key: knocking on would get our address locked out (F26, F27)."""
REFUSALS = {"login_refused", "host_key_changed", "host_key_unknown", "bad_key"}
STEADY = 30.0
"""Seconds a connection must have stood before its loss counts as the first failure and not as one more (F19)."""


@dataclass(frozen=True)
class LinkStatus:
    up: bool
    since: float
    """Unix seconds since when the link is what it is."""
    error: LlmgwError | None = None
    """Why it is down; None while it is up, and before the first attempt has ended."""
    failures: int = 0
    """Attempts in a row that failed."""
    host_key_ok: bool = True
    """False when the node shows a key that is not the pinned one: nothing is sent to it."""


class Link:
    """A node's connection, up or down. Calls go through while it is up and fail at once while it is down."""

    def __init__(self, pool: Pool, node: str, address: Address, host_key: str, login: Login) -> None:
        self.node = node
        self.address = address
        self.host_key = host_key
        self.login = login
        self.status = LinkStatus(up=False, since=pool.clock.wall())
        self.connection: Connection | None = None
        """What is up now; replaced at each reconnect, None while down."""
        self._pool = pool
        self._kick = asyncio.Event()
        self._up = asyncio.Event()
        self._owner = asyncio.create_task(self._own(), name=f"link {node}")

    async def run_script(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        deadline: float,
        payload: AsyncIterator[bytes] | None = None,
        payload_size: int = 0,
        on_event: OnEvent | None = None,
        urgent: bool = False,
    ) -> dict[str, Any]:
        """As `Connection.run_script`. Raises Unreachable (`link_down`) at once while the link is down."""
        return await self._connected().run_script(
            name,
            args,
            deadline=deadline,
            payload=payload,
            payload_size=payload_size,
            on_event=on_event,
            urgent=urgent,
        )

    async def open_stream(
        self, port: int, factory: ProtocolFactory, *, host: str = "127.0.0.1", timeout: float = 10.0
    ) -> asyncio.Protocol:
        """As `Connection.open_stream`. Raises Unreachable (`link_down`) at once while the link is down."""
        return await self._connected().open_stream(port, factory, host=host, timeout=timeout)

    @property
    def data_path(self) -> str | None:
        """As `Connection.data_path`; None while the link is down."""
        return self.connection.data_path if self.connection is not None else None

    @property
    def noise(self) -> str:
        """As `Connection.noise`; empty while the link is down."""
        return self.connection.noise if self.connection is not None else ""

    @property
    def session_limit(self) -> int:
        """As `Connection.session_limit`; 0 while the link is down."""
        return self.connection.session_limit if self.connection is not None else 0

    async def wait_up(self, timeout: float | None = None) -> None:
        """Returns when the link is up. Raises TimedOut (`link_down`) with the last reason after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            raise TimedOut(
                f"{self.node} could not be reached in {timeout:g} s{self._because()}", code="link_down"
            ) from None

    def kick(self) -> None:
        """Tries again now, whatever back-off was left. Does nothing while the link is up."""
        self._kick.set()

    async def stop(self) -> None:
        """Ends the owner and the connection. Waiting calls get LinkLost."""
        self._owner.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._owner

    def _connected(self) -> Connection:
        connection = self.connection
        if connection is None or connection.closed:
            raise Unreachable(
                f"the link to {self.node} is down{self._because()}",
                fix="It is opened again by itself.",
                code="link_down",
            )
        return connection

    def _because(self) -> str:
        return f": {self.status.error.message}" if self.status.error is not None else "."

    async def _own(self) -> None:
        failures = 0
        try:
            while True:
                self._kick.clear()
                began = asyncio.get_running_loop().time()
                try:
                    error: LlmgwError = await self._once()
                except LlmgwError as exc:
                    error = exc
                except Exception as exc:
                    log.exception("connecting to %s", self.node)
                    error = LlmgwError(f"connecting to {self.node} failed: {type(exc).__name__}: {exc}.")
                if isinstance(error, LinkLost) and asyncio.get_running_loop().time() - began >= STEADY:
                    failures = 0
                failures += 1
                self._tell(up=False, error=error, failures=failures)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause(error, failures)):
                        await self._kick.wait()
        finally:
            if self.connection is not None:
                self.connection.abort()
                self.connection = None

    async def _once(self) -> LlmgwError:
        """Connects, stays until the connection is lost and returns why. Raises what `connect` raises."""
        pool = self._pool
        address, host_key, login = self.address, self.host_key, self.login
        if address.is_local:
            server = pool.local
            if server is None:
                raise Unreachable(
                    f"{self.node} is this machine, and its embedded SSH server does not run.", code="port_closed"
                )
            address = Address(host="127.0.0.1", port=server.port, user=address.user)
            host_key, login = server.host_key, Login(client_keys=login.client_keys)
        async with pool.handshakes:
            connection = await connect(
                address,
                login=login,
                host_key=host_key,
                connect_timeout=pool.connect_timeout,
                keepalive=pool.keepalive,
                node=self.node,
                audit=pool.audit,
                handshakes=pool.handshakes,
            )
        self.connection = connection
        try:
            self._tell(up=True, error=None, failures=0)
            await connection.wait_closed()
            return connection.lost_error()
        finally:
            self.connection = None
            connection.abort()  # not politely: a dead peer would hold us

    def _pause(self, error: LlmgwError, failures: int) -> float:
        """Seconds until the next attempt: full jitter, and never less than a minute after a refusal."""
        unit = random.random()
        if error.code in REFUSALS:
            return REFUSED_BASE + full_jitter(failures, base=REFUSED_BASE, cap=REFUSED_CAP - REFUSED_BASE, unit=unit)
        return full_jitter(failures, base=BASE, cap=CAP, unit=unit)

    def _tell(self, *, up: bool, error: LlmgwError | None, failures: int) -> None:
        since = self.status.since if self.status.up == up else self._pool.clock.wall()
        trusted = error is None or error.code != "host_key_changed"
        self.status = LinkStatus(up=up, since=since, error=error, failures=failures, host_key_ok=trusted)
        if up:
            self._up.set()
        else:
            self._up.clear()
        try:
            self._pool.on_change(self.node, self.status)
        except Exception:
            log.exception("on_change for %s", self.node)


class Pool:
    """The links of all nodes. Lives on one event loop and must be closed there."""

    def __init__(
        self,
        *,
        login: Login,
        handshakes: int = 30,
        connect_timeout: float = 10.0,
        keepalive: float = 10.0,
        clock: Clock,
        on_change: Callable[[str, LinkStatus], None],
        audit: Callable[[CommandRecord], None] | None = None,
        local: EmbeddedServer | None = None,
        host_keys: HostKeys | None = None,
    ) -> None:
        """`handshakes` may go on at once (sshd's MaxStartups drops more, F25). `on_change` and `audit` are called on
        the loop and must not block. `local` serves nodes whose address is `local`; `host_keys` keeps the pins.
        """
        self.login = login
        self.handshakes = asyncio.Semaphore(handshakes)
        self.connect_timeout = connect_timeout
        self.keepalive = keepalive
        self.clock = clock
        self.on_change = on_change
        self.audit = audit
        self.local = local
        self._host_keys = host_keys
        self._writing = self._unwritten = False
        self._links: dict[str, Link] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, node: str, address: Address, host_key: str, *, login: Login | None = None) -> Link:
        """The link to a node, connected from now on. With another address, key or login than before it begins anew."""
        login = login or self.login
        link = self._links.get(node)
        if link is not None:
            if (link.address, link.host_key, link.login) == (address, host_key, login):
                return link
            task = asyncio.create_task(self._end(link))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if self._host_keys is not None and not address.is_local:
            self._pin(self._host_keys, address, host_key)
        self._links[node] = link = Link(self, node, address, host_key, login)
        return link

    def _pin(self, pins: HostKeys, address: Address, host_key: str) -> None:
        """The file is written once for all the nodes that are added in one go."""
        self._unwritten = pins.hold(address, host_key) or self._unwritten
        if self._unwritten and not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_soon(self._write, pins)

    def _write(self, pins: HostKeys) -> None:
        self._writing = False
        try:
            pins.write()
        except OSError as exc:
            # The key is demanded all the same: it is in the database. It is written with the next one.
            log.error("the pins could not be written: %s", exc)
        else:
            self._unwritten = False

    async def remove(self, node: str, *, keep_pin: bool = False) -> None:
        """Disconnects a node and forgets it, its pin too unless that is kept. Nothing when there is none."""
        link = self._links.pop(node, None)
        if link is not None:
            if self._host_keys is not None and not link.address.is_local and not keep_pin:
                self._host_keys.forget(link.address)
            await link.stop()

    def link(self, node: str) -> Link | None:
        return self._links.get(node)

    async def close(self) -> None:
        """Disconnects everything. The pins stay."""
        links = list(self._links.values())
        self._links.clear()
        await asyncio.gather(*(link.stop() for link in links), *self._ending, return_exceptions=True)

    @staticmethod
    async def _end(link: Link) -> None:
        await link.stop()

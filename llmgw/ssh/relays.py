"""The relay of a connection whose server forwards nothing: begun when it is first needed, shared, begun again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import asyncssh

from llmgw.errors import LlmgwError, NodeError, Refused, TimedOut, Unreachable
from llmgw.model.route import ProtocolFactory
from llmgw.protocol.shell import BOOTSTRAP
from llmgw.ssh.channels import Slots
from llmgw.ssh.relay import Relay
from llmgw.ssh.run import OPEN_TIMEOUT, PATIENCE, CommandRecord, Sessions
from llmgw.ssh.session import Call

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Call)

ALLOW = "Allow it in its sshd_config (AllowTcpForwarding local) and in the key's line in authorized_keys."


class Way(Sessions, Protocol):
    """What a relay needs of the connection it runs on: it counts among the sessions."""

    @property
    def slots(self) -> Slots: ...


class Relays:
    """At most one relay at a time. `again` dials the same node once more, for where it allows a single session.

    `keepalive` in seconds: how often the relay is asked for a sign of life.
    """

    def __init__(
        self,
        way: Way,
        again: Callable[[], Awaitable[Way]],
        keepalive: float,
        audit: Callable[[CommandRecord], None] | None,
    ) -> None:
        self.chosen = False
        """A relay has run: streams go over one for as long as the connection lasts."""
        self.relay: Relay | None = None
        self._way = way
        self._again = again
        self._keepalive = keepalive
        self._audit = audit
        self._starting: asyncio.Task[Relay] | None = None
        self._extra: Way | None = None
        self._fits = False

    async def open(self, port: int, factory: ProtocolFactory, timeout: float) -> asyncio.Protocol:
        """As `Connection.open_stream`. A relay that must be started first does so within the same `timeout`."""
        clock = asyncio.get_running_loop().time
        end = clock() + timeout
        relay = self.relay
        if relay is None or relay.over is not None:
            relay = await self._started(timeout)
        return await relay.open(port, factory, max(0.0, end - clock()))

    def close(self) -> None:
        """The connection is gone."""
        if self._starting is not None:
            self._starting.cancel()
        if self.relay is not None:
            self.relay.end(self._way.lost_error())
        if self._extra is not None:
            self._extra.abort()

    async def _started(self, timeout: float) -> Relay:
        """The relay that all who wait share. Its start goes on when they leave: the next one will want it."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name=f"relay {self._way.name}")
            self._starting.add_done_callback(self._start_done)
        starting = self._starting
        done, _ = await asyncio.wait((starting,), timeout=timeout)
        if not done:
            message = f"the relay on {self._way.name} did not start within {timeout:.1f} s."
            raise TimedOut(message, code="open_timeout")
        if starting.cancelled():
            raise self._way.lost_error()
        return starting.result()

    def _start_done(self, task: asyncio.Task[Relay]) -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is None:
            self.relay = task.result()
            self.chosen = True

    async def _start(self) -> Relay:
        try:
            relay = await self._beside()
            return relay if relay is not None else await self._apart()
        except (NodeError, Refused) as exc:
            raise Refused(
                f"{self._way.name} forbids forwarding, and no relay can run there: {exc.message}",
                fix=f"{exc.fix} Or: {ALLOW}".lstrip() if exc.fix else ALLOW,
                code="forwarding_forbidden",
            ) from None

    async def _beside(self) -> Relay | None:
        """A relay on the connection itself; None where that would leave no session to scripts."""
        way = self._way
        if self._extra is not None or way.slots.limit < 2:
            return None
        relay = await self._on(way)
        if relay is None:
            return None
        try:
            self._fits = self._fits or await self._room_beside()
        finally:
            if not self._fits:
                relay.end(Unreachable(f"the relay on {way.name} was not kept."))
        return relay if self._fits else None

    async def _room_beside(self) -> bool:
        """Whether a node allows one session more can only be found out by opening one."""
        way = self._way
        trial = await self._session(way, "exit", lambda: Call("", None, way.channel_ended))
        if trial is not None:
            trial.abandon()
        return trial is not None

    async def _apart(self) -> Relay:
        """A relay on a connection of its own. It costs a login, and leaves the one session to the scripts."""
        log.info("%s allows one session a connection: its relay gets a connection of its own", self._way.name)
        if self._way.closed:
            raise self._way.lost_error()
        if self._extra is not None:
            self._extra.abort()
        try:
            self._extra = extra = await self._again()
        except Refused as exc:
            raise Refused(
                f"it allows one session a connection, and no second connection: {exc.message}",
                fix="Set MaxSessions to at least 2 there.",
            ) from None
        relay = None
        try:
            relay = await self._on(extra)
        finally:
            if relay is None:
                extra.abort()
        if relay is None:
            raise Refused("it opens no session.", fix="Look at MaxSessions there.")
        return relay

    async def _on(self, way: Way) -> Relay | None:
        """A relay that has said hello; None when the node opens no session for it."""
        relay = await self._session(way, BOOTSTRAP, lambda: self._made(way))
        if relay is None:
            return None
        way.slots.hold()
        relay.gone.add_done_callback(lambda _: way.slots.release())
        try:
            await relay.greet(OPEN_TIMEOUT)
        except BaseException as exc:
            relay.end(exc if isinstance(exc, LlmgwError) else self._way.lost_error())
            if way.closed:
                raise way.lost_error() from None
            raise
        return relay

    async def _session(self, way: Way, command: str, make: Callable[[], C]) -> C | None:
        """One that runs `command`. None when it is refused repeatedly: sshd says that a session has ended a moment
        before it has room for the next."""
        for attempt in range(PATIENCE + 1):
            session = make()
            try:
                await way.open(way.create_session(session, command), session, OPEN_TIMEOUT)
                return session
            except asyncssh.ChannelOpenError:
                await asyncio.sleep(0.02 * 2**attempt)
        return None

    def _made(self, way: Way) -> Relay:
        relay = Relay(self._way.name, self._keepalive, lambda: self._gone(relay, way))
        return relay

    def _gone(self, relay: Relay, way: Way) -> None:
        way.channel_ended()
        if way is not self._way:
            way.abort()
        if self._audit is not None:
            seconds = asyncio.get_running_loop().time() - relay.began
            outcome = relay.over.code if relay.over is not None else "ok"
            self._audit(CommandRecord(self._way.name, "relay", {}, relay.exit_status, outcome, seconds))

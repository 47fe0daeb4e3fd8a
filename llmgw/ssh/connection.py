"""One SSH connection to a node: scripts and streams over it, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, Literal

import asyncssh

from llmgw import assets
from llmgw.errors import LinkLost, LlmgwError, Refused, Unreachable
from llmgw.model.node import Address
from llmgw.model.route import ProtocolFactory
from llmgw.ssh.channels import Slots, open_shielded
from llmgw.ssh.client import Client
from llmgw.ssh.dial import dial
from llmgw.ssh.failures import clean
from llmgw.ssh.identity import AskHostKey, Login, host_key_fingerprint
from llmgw.ssh.relays import ALLOW, Relays
from llmgw.ssh.run import CommandRecord, Runner
from llmgw.ssh.session import Call, OnEvent
from llmgw.ssh.tunnel import PACKET, WINDOW, Stream

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
FORBIDDEN = (asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, asyncssh.OPEN_UNKNOWN_CHANNEL_TYPE)
"""How a server says that it does not forward, or cannot. OpenSSH may also say no more than "open failed"."""


async def connect(
    address: Address,
    *,
    login: Login,
    host_key: str | None,
    ask: AskHostKey | None = None,
    authorities: Collection[str] = (),
    connect_timeout: float = 10.0,
    login_timeout: float = 15.0,
    keepalive: float = 10.0,
    on_close: Callable[[LlmgwError], None] | None = None,
    node: str = "",
    audit: Callable[[CommandRecord], None] | None = None,
    handshakes: asyncio.Semaphore | None = None,
) -> Connection:
    """Connects and logs in. Never prompts, unless `login.prompt` does. Times in seconds; a dead peer is found after
    about four `keepalive`.

    `host_key` is the pinned public key. Without one the server's key is shown to `ask`, before and apart from any
    login; one in a certificate of `authorities` is trusted. `on_close` is called once, with the reason. `node` and
    `audit` are for the records of remote commands. `handshakes` bounds how many are made at once: held by the caller
    now, and by a second connection for a relay later.

    Raises Unreachable (`unknown_host`, `port_closed`, `no_route`, `not_ssh`, `handshake_dropped`), TimedOut
    (`connect_timeout`, `login_timeout`) and Refused (`login_refused`, `host_key_changed`, `host_key_unknown`,
    `bad_key`, `jump_host_key`).
    """
    times: dict[str, Any] = {"connect_timeout": connect_timeout, "login_timeout": login_timeout, "keepalive": keepalive}
    if not host_key:
        host_key = await _confirmed_key(address, login, ask, authorities, times)
    made, client, jump = await dial(address, login=login, host_key=" ".join(host_key.split()[:2]), **times)
    pinned = client.shown

    async def again() -> Connection:
        async with handshakes or contextlib.nullcontext():
            return await connect(
                address,
                login=login,
                host_key=pinned,
                connect_timeout=connect_timeout,
                login_timeout=login_timeout,
                keepalive=keepalive,
                node=node,
                audit=audit,
            )

    return Connection(
        made, client, jump, address, on_close=on_close, node=node, audit=audit, again=again, keepalive=keepalive
    )


async def _confirmed_key(
    address: Address, login: Login, ask: AskHostKey | None, authorities: Collection[str], times: dict[str, Any]
) -> str:
    """The key of a host that nobody has pinned: one an authority vouches for, or one that `ask` confirms."""
    try:
        await dial(address, login=login, host_key=None, authorities=authorities, **times)
    except Refused as unknown:
        if unknown.code == "certificate_untrusted":
            return await _confirmed_key(address, login, ask, (), times)
        shown = str(unknown.data.get("shown_key", ""))
        if unknown.code != "host_key_vouched":
            if unknown.code != "host_key_unknown" or ask is None:
                raise
            if not await ask(str(address), shown, host_key_fingerprint(shown)):
                raise
        return shown
    raise AssertionError("a login without a host key")  # dial cannot return here


class Connection:
    """A connection that is up until `closed`. Made by `connect`."""

    def __init__(
        self,
        made: asyncssh.SSHClientConnection,
        client: Client,
        jump: asyncssh.SSHClientConnection | None,
        address: Address,
        *,
        on_close: Callable[[LlmgwError], None] | None,
        node: str,
        audit: Callable[[CommandRecord], None] | None,
        again: Callable[[], Awaitable[Connection]],
        keepalive: float,
    ) -> None:
        self.address = address
        self.host_key = client.shown or ""
        """What the server showed: `TYPE BASE64`."""
        self.channels = 0
        """SSH channels that are open or being opened. A relay is one, however many streams go over it."""
        self._runner = Runner(self, audit)
        self.relays = Relays(self, again, keepalive, audit)
        self._made = made
        self._client = client
        self._jump = jump
        self._on_close = on_close
        self._node = node
        self._aborted = False
        self._forwards = False
        """A channel to a port of the node was granted: whether or not somebody listened there."""
        self._over = asyncio.Event()
        client.on_lost = self._lost
        if client.lost:
            self._lost()

    @property
    def name(self) -> str:
        """The node's id, or its address where it has none yet; for sentences and records."""
        return self._node or str(self.address)

    @property
    def noise(self) -> str:
        """What the login printed around the last script's answer; at most a few KiB."""
        return self._runner.noise

    @property
    def session_limit(self) -> int:
        """How many sessions may be open side by side, as far as has been learnt."""
        return self._runner.slots.limit

    @property
    def slots(self) -> Slots:
        """The sessions: how many may be open, how many are."""
        return self._runner.slots

    @property
    def data_path(self) -> Literal["direct-tcpip", "relay"] | None:
        """How streams reach the node's engines. None before the first one: a server that forbids forwarding says so
        only when it is asked."""
        return "relay" if self.relays.chosen else "direct-tcpip" if self._forwards else None

    @property
    def closed(self) -> bool:
        return self._aborted or self._client.lost

    def abort(self) -> None:
        """Ends the connection at once. Everything that waits on it gets LinkLost. For a dead peer: no polite close."""
        self._aborted = True
        self._made.abort()

    async def close(self) -> None:
        """Says goodbye and waits for the end, at most two seconds."""
        if not self.closed:
            self._made.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self.wait_closed()
        self.abort()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        await self._over.wait()

    def _lost(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        self.relays.close()
        if self._jump is not None:
            self._jump.abort()
        if self._on_close is not None:
            self._on_close(self.lost_error())

    def lost_error(self) -> LinkLost:
        """Why the connection is gone, for whatever was waiting on it."""
        why = clean(str(self._client.lost_because or "")) or "it was closed"
        return LinkLost(f"the connection to {self.address} was lost: {why}.", fix="It is opened again by itself.")

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
        """Runs `remote_scripts/NAME.py` on the node and returns its `result`. Audited, however it ends.

        `deadline` is in seconds and covers the wait for a free session, the channel and the run; the script gets what
        is left of it, and five seconds more to say that it ran out. `payload_size` bytes of `payload` follow the
        arguments, no faster than the node reads. `urgent` may use the reserved session. Secrets in `args` are sent as
        they are and recorded as `•••`.

        Raises NodeError with the code of the script's `error` frame (`no_python` without an interpreter), BadReply
        (`truncated`, `oversized`, `digest`, `damaged`, `no_answer`; `data["stderr"]`), LinkLost, TimedOut (`deadline`,
        `busy`, `open_timeout`, `stalled`), Refused (`sessions_refused`). What `on_event` raises ends the call.
        """
        return await self.run_program(
            name,
            assets.remote_script(name),
            args,
            deadline=deadline,
            payload=payload,
            payload_size=payload_size,
            on_event=on_event,
            urgent=urgent,
        )

    async def run_program(
        self,
        name: str,
        source: bytes,
        args: Mapping[str, Any],
        *,
        deadline: float,
        payload: AsyncIterator[bytes] | None = None,
        payload_size: int = 0,
        on_event: OnEvent | None = None,
        urgent: bool = False,
    ) -> dict[str, Any]:
        """As `run_script`, with the program's own `source`."""
        return await self._runner.run(
            name,
            source,
            args,
            deadline=deadline,
            payload=payload,
            payload_size=payload_size,
            on_event=on_event,
            urgent=urgent,
        )

    async def open_stream(
        self, port: int, factory: ProtocolFactory, *, host: str = LOOPBACK, timeout: float = 10.0
    ) -> asyncio.Protocol:
        """Opens a TCP stream from the node to `host`:`port` and gives it to a new protocol. Cancelling leaks nothing.

        Where forwarding is forbidden, streams to 127.0.0.1 go over a relay on the node, and look the same.

        Raises Unreachable (`engine_port_closed`: the engine is down, not the node), TimedOut (`open_timeout`), LinkLost
        and Refused (`forwarding_forbidden`: and no relay can run). A relay also fails with BadReply. The protocol's
        exceptions cut its own stream only.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + timeout
        if self.closed:
            raise self.lost_error()
        if not self.relays.chosen or host != LOOPBACK:
            try:
                return await self._open_direct(port, factory, host, timeout)
            except Refused as exc:
                if host != LOOPBACK:
                    raise
                log.info("%s", exc.message)
        return await self.relays.open(port, factory, max(0.0, end - clock()))

    async def _open_direct(self, port: int, factory: ProtocolFactory, host: str, timeout: float) -> asyncio.Protocol:
        stream = Stream(factory, self.channel_ended)
        opening = self._made.create_connection(lambda: stream, host, port, window=WINDOW, max_pktsize=PACKET)
        try:
            await self.open(opening, stream, timeout)
            self._forwards = True
        except asyncssh.ChannelOpenError as exc:
            why = clean(exc.reason)
            if exc.code in FORBIDDEN or why == "open failed":
                raise Refused(
                    f"{self.address} forbids forwarding to {host}:{port}: {why}.",
                    fix=ALLOW,
                    code="forwarding_forbidden",
                ) from None
            self._forwards = True
            raise Unreachable(
                f"nothing answers at {host}:{port} on {self.address}: {why}.", code="engine_port_closed"
            ) from None
        if stream.protocol is None:
            raise Unreachable(f"the stream to {host}:{port} on {self.address} broke at once.", code="stream_broken")
        return stream.protocol

    async def open(self, opening: Coroutine[Any, Any, Any], session: Stream | Call, timeout: float) -> None:
        """Opens a channel; counts it. Raises ChannelOpenError only while the connection lives, else LinkLost."""

        async def counted() -> None:
            try:
                await opening
            except BaseException:
                if session.channel is None:
                    self.channels -= 1  # no session will tell of the end of this one
                raise

        self.channels += 1
        try:
            await open_shielded(counted(), timeout=timeout, abandon=session.abandon)
        except asyncssh.ChannelOpenError:
            await asyncio.sleep(0)  # a dying connection fails its opens just before it says that it is lost
            if self.closed:
                raise self.lost_error() from None
            raise
        except (asyncssh.Error, OSError):
            raise self.lost_error() from None

    def channel_ended(self) -> None:
        self.channels -= 1

    def create_session(self, call: Call, command: str) -> Coroutine[Any, Any, Any]:
        """The opening of a session that runs `command`; for `ssh/run.py`."""
        return self._made.create_session(lambda: call, command, encoding=None, request_pty=False, env={})

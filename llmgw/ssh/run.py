"""Remote scripts over a connection: a free session, the call, its end; and the record of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import asyncssh

from llmgw import assets
from llmgw.errors import BadReply, LinkLost, LlmgwError, Refused, TimedOut
from llmgw.model.secret import MASK, Secret
from llmgw.protocol import frame
from llmgw.protocol.shell import BOOTSTRAP
from llmgw.ssh.channels import Slots
from llmgw.ssh.failures import clean
from llmgw.ssh.session import Call, OnEvent

log = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds after its deadline that a script gets to say so itself."""
OPEN_TIMEOUT = 20.0
STUCK = 3
"""Sessions in a row that were asked for without any answer, after which the connection counts as dead (F23)."""
REFUSALS = 8
"""Refusals in a row, while none of ours is open, after which a node is said to open no sessions at all."""
PATIENCE = 2
"""Refusals beside others of ours that are not yet believed: sshd frees an ended session a moment after it says so."""


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """What ran on a node, for the audit. Made after every remote command, however it ended."""

    node: str
    script: str
    args: dict[str, Any]
    """Without secrets and without what the transport adds."""
    exit_status: int | None
    """None when it is not known: a lost link, a deadline, a channel that we closed. Minus the number of a signal."""
    outcome: str
    """`ok`, or the code of the error."""
    seconds: float


def reveal(value: Any) -> Any:
    """`value` as plain JSON data, secrets included: what is sent to the node."""
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, Mapping):
        return {key: reveal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [reveal(item) for item in value]
    return value


def mask(value: Any, *, key: str = "") -> Any:
    """`value` as it may be shown and stored: no secrets, no environment, long texts cut (F72)."""
    if isinstance(value, Secret):
        return MASK
    if isinstance(value, Mapping):
        if key == "env":
            return dict.fromkeys(value, MASK)
        return {name: mask(item, key=name) for name, item in value.items() if not str(name).startswith("_")}
    if isinstance(value, list | tuple):
        return [mask(item) for item in value[:100]]
    if isinstance(value, str) and len(value) > 500:
        return f"{value[:100]}… ({len(value)} characters)"
    return value


class Sessions(Protocol):
    """What a script needs of its connection."""

    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def lost_error(self) -> LinkLost: ...
    def abort(self) -> None: ...
    def channel_ended(self) -> None: ...
    def create_session(self, call: Call, command: str) -> Coroutine[Any, Any, Any]: ...
    async def open(self, opening: Coroutine[Any, Any, Any], session: Call, timeout: float) -> None: ...


class Runner:
    """Runs the scripts of one connection, as many at once as the node allows."""

    def __init__(self, way: Sessions, audit: Callable[[CommandRecord], None] | None) -> None:
        self.slots = Slots()
        self._way = way
        self._audit = audit
        self._stuck = 0
        self.noise = ""
        """What the login printed around the last answer."""

    async def run(
        self,
        name: str,
        source: bytes,
        args: Mapping[str, Any],
        *,
        deadline: float,
        payload: AsyncIterator[bytes] | None,
        payload_size: int,
        on_event: OnEvent | None,
        urgent: bool,
    ) -> dict[str, Any]:
        """See `Connection.run_script`."""
        clock = asyncio.get_running_loop().time
        started = clock()
        end = started + deadline
        exit_status: int | None = None
        outcome = "cancelled"
        try:
            while True:
                async with self.slots.slot(urgent=urgent, timeout=max(0.0, end - clock())):
                    token = frame.new_token()
                    call = await self._session(token, on_event, end)
                    if call is None:
                        continue  # the learnt limit has dropped: wait for the end of another
                    try:
                        head = _request(name, source, args, token, end - clock(), payload_size)
                        result = await self._finish(call, name, head, payload, payload_size, end + GRACE - clock())
                    finally:
                        exit_status = call.exit_status
                        self.noise = call.noise
                    outcome = "ok"
                    return result
        except LlmgwError as exc:
            outcome = exc.code
            raise
        except Exception as exc:
            outcome = type(exc).__name__
            raise
        finally:
            if self._audit is not None:
                seconds = clock() - started
                record = CommandRecord(self._way.name, name, mask(args), exit_status, outcome, seconds)
                self._audit(record)

    async def _session(self, token: str, on_event: OnEvent | None, end: float) -> Call | None:
        """A session that runs the bootstrap, or None when the node allows no more than are open.

        A refusal never means that the node is down (F22). It is believed when it is repeated; while none of ours is
        open there is nothing to learn from it, so it is tried again for some seconds.
        """
        clock = asyncio.get_running_loop().time
        refusals = 0
        while True:
            call = Call(token, on_event, self._way.channel_ended)
            try:
                await self._open(call, max(0.0, end - clock()))
            except asyncssh.ChannelOpenError as exc:
                refusals += 1
                log.debug("%s opens no further session: %s", self._way.name, clean(exc.reason))
            else:
                return call
            if end <= clock():
                raise TimedOut(f"{self._way.name} opened no session in time: its sessions are all busy.", code="busy")
            alone = self.slots.used + self.slots.held == 1
            if alone and refusals >= REFUSALS:
                raise Refused(
                    f"{self._way.name} opens no session, though none of ours is open.",
                    fix="Look at MaxSessions, ForceCommand and the account's shell there.",
                    code="sessions_refused",
                )
            if not alone and refusals > PATIENCE:
                self.slots.refused()
                return None
            await asyncio.sleep(min(1.0, 0.01 * 2**refusals))

    async def _open(self, call: Call, timeout: float) -> None:
        if self._way.closed:
            raise self._way.lost_error()
        try:
            await self._way.open(self._way.create_session(call, BOOTSTRAP), call, min(timeout, OPEN_TIMEOUT))
        except TimedOut:
            # Streams are not counted: behind one that hangs may be an engine that accepts nothing any more.
            self._stuck += timeout >= 1.0
            if self._stuck >= STUCK:
                self._way.abort()
            raise
        except asyncssh.ChannelOpenError:
            self._stuck = 0
            raise
        self._stuck = 0

    async def _finish(
        self, call: Call, name: str, head: bytes, payload: AsyncIterator[bytes] | None, size: int, left: float
    ) -> dict[str, Any]:
        sending = asyncio.ensure_future(call.send(head, payload, size))
        try:
            async with asyncio.timeout(left):
                # An early error frame ends the sending; a failed sending ends the call.
                await asyncio.wait((sending, call.answer), return_when=asyncio.FIRST_COMPLETED)
                if not call.answer.done():
                    sending.result()
                last = await call.answer
            await call.settle()
        except TimeoutError:
            message = f"{name} on {self._way.name} did not answer within its deadline."
            fix = "The link may be down, or the node overloaded; try again."
            raise TimedOut(message, fix=fix, code="deadline") from None
        except BadReply as exc:
            if exc.code == "truncated" and self._way.closed:
                raise self._way.lost_error() from None
            exc.message = f"{name} on {self._way.name}: {exc.message}"
            raise
        finally:
            sending.cancel()
            sending.add_done_callback(_taken)
            call.answer.add_done_callback(_taken)
            call.abandon()
        if last is None and self._way.closed:
            raise self._way.lost_error()
        return call.result(last, script=name)


def _request(name: str, source: bytes, args: Mapping[str, Any], token: str, left: float, size: int) -> bytes:
    prelude = assets.prelude()
    plain = reveal(args)
    return frame.request(prelude, f"{name}.py", source, plain, token=token, deadline=max(0.5, left), payload=size)


def _taken(future: asyncio.Future[Any]) -> None:
    """Takes an exception that nobody waits for any more, or asyncio would complain."""
    if not future.cancelled():
        future.exception()

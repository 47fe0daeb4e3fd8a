"""The channel of one remote script: its frames as they come, its payload no faster than it is read, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncssh

from llmgw.errors import BadReply, LlmgwError, NodeError, TimedOut
from llmgw.protocol.frame import FrameReader
from llmgw.protocol.shell import NO_PYTHON
from llmgw.ssh.failures import clean

OnEvent = Callable[[dict[str, Any]], None]

STDERR_KEPT = 64 << 10
STALL = 60.0
"""Seconds a node may take no byte of a payload before the call is given up."""
LINGER = 2.0
"""Seconds a script may take to end after its result; then its channel is aborted."""


class Call(asyncssh.SSHClientSession[bytes]):
    """The session of one call. `answer` resolves to the final frame, to None when the channel ended without one, or
    to the error that ended it."""

    def __init__(self, token: str, on_event: OnEvent | None, ended: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._reader = FrameReader(token)
        self._on_event = on_event
        self._ended = ended
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._abandoned = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._stderr = bytearray()
        self.answer: asyncio.Future[dict[str, Any] | None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.exit_status: int | None = None

    # What asyncssh calls. Nothing may be raised here: it would end the node's whole connection.

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self.channel = chan
        if self._abandoned:
            chan.abort()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype is not None:
            self._stderr += data
            if len(self._stderr) > 2 * STDERR_KEPT:
                del self._stderr[:-STDERR_KEPT]
            return
        if self.answer.done():
            return
        try:
            for frame in self._reader.feed(data):
                if (answer := self._take(frame)) is not None:
                    self.answer.set_result(answer)
                    return
        except Exception as exc:
            self._fail(exc)

    def exit_status_received(self, status: int) -> None:
        self.exit_status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self.exit_status = self.channel.get_returncode() if self.channel is not None else -99

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        return True  # our side stays open: its end would tell the script that nobody listens

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        self._writable.set()
        if not self.gone.done():
            self.gone.set_result(None)
        if not self.answer.done():
            try:
                self._reader.close()
            except BadReply as bad:
                self._fail(bad)
            else:
                self.answer.set_result(None)

    # What a call does.

    def abandon(self) -> None:
        """Ends the channel, now or as soon as it arrives."""
        self._abandoned = True
        if self.channel is not None:
            self.channel.abort()

    async def drain(self) -> None:
        """Waits until the node takes more. Raises TimedOut (`stalled`) after STALL seconds without."""
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(STALL):
                    await self._writable.wait()
            except TimeoutError:
                raise TimedOut(f"the node took no data for {STALL:g} s.", code="stalled") from None

    async def send(self, head: bytes, payload: AsyncIterator[bytes] | None, size: int) -> None:
        """Writes the request and then the payload, no faster than the node reads. Stops where the call has ended."""
        channel = self.channel
        assert channel is not None
        sent = 0
        try:
            channel.write(head)
            await self.drain()
            if payload is not None:
                async for piece in payload:
                    if self.answer.done():
                        return
                    sent += len(piece)
                    if sent > size:
                        break
                    channel.write(piece)
                    await self.drain()
        except BrokenPipeError:
            return  # the channel has ended; `answer` says how
        if sent != size and not self.answer.done():
            raise LlmgwError(f"the payload has {sent} bytes where {size} were announced.", code="payload_size")

    async def settle(self) -> None:
        """After the answer: waits for the script's own end, so that its session is free again on the node too."""
        await asyncio.wait((self.gone,), timeout=LINGER)
        self.abandon()

    def result(self, frame: dict[str, Any] | None, *, script: str) -> dict[str, Any]:
        """The result in the final frame; raises what it, or its absence, says."""
        if frame is None:
            raise self.no_answer(script)
        if "result" in frame:
            return dict(frame["result"])
        raise node_error(frame["error"])

    def no_answer(self, script: str) -> LlmgwError:
        stderr = self.stderr
        if self.exit_status == 127 and NO_PYTHON in stderr:
            return NodeError(
                "the node has no python3 of version 3.6 or newer.",
                fix="Install python3 there; nothing else is needed.",
                code="no_python",
            )
        words = clean(stderr[-600:]) or clean(self.noise[-600:])
        return self._with_tail(
            BadReply(
                f"{script} ended without an answer (exit status {self.exit_status})" + (f": {words}" if words else "."),
                fix="Its login may be ending commands: look at the login shell, its start-up files and ForceCommand.",
                code="no_answer",
            )
        )

    @property
    def stderr(self) -> str:
        return self._stderr[-STDERR_KEPT:].decode("utf-8", "replace")

    @property
    def noise(self) -> str:
        """What a login printed around the frames, at most 4 KiB of it."""
        return self._reader.noise.decode("utf-8", "replace")

    def _take(self, frame: dict[str, Any]) -> dict[str, Any] | None:
        """The frame when it is the last one. Raises BadReply for one that is none of ours."""
        if len(frame) == 1:
            event, result, error = frame.get("event"), frame.get("result"), frame.get("error")
            if isinstance(event, dict):
                if self._on_event is not None:
                    self._on_event(event)
                return None
            if isinstance(result, dict) or isinstance(error, dict):
                return frame
        raise BadReply("a frame of the reply is neither event, result nor error.", code="damaged")

    def _fail(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(self._with_tail(exc) if isinstance(exc, BadReply) else exc)
        self.abandon()  # whatever still comes is not wanted: memory stays flat (F50)

    def _with_tail(self, error: BadReply) -> BadReply:
        error.data.setdefault("stderr", self.stderr[-4096:])
        error.data.setdefault("noise", self.noise)
        error.data.setdefault("exit_status", self.exit_status)
        return error


def node_error(error: dict[str, Any]) -> LlmgwError:
    """The error that a script's `error` frame holds. Every word of it is the node's."""

    def text(name: str, otherwise: str) -> str:
        value = error.get(name)
        return clean(value, 2000) if isinstance(value, str) and value else otherwise

    code, message, fix = text("code", "node_error")[:64], text("message", "the script failed"), text("fix", "")
    if code == "deadline":
        # The alarm may have rung after the deed: not known whether it happened, so no NodeError (rule 5).
        return TimedOut(f"{message}.", fix=fix, code="deadline")
    data = {key: value for key, value in error.items() if key not in ("code", "message", "fix")}
    made = NodeError(message, fix=fix, code=code)
    made.data.update(data)
    return made

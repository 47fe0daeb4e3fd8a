"""A relay process on a node: many streams to its engines over the one channel of a remote script."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import asyncssh

from llmgw import assets
from llmgw.errors import BadReply, LinkLost, LlmgwError, TimedOut, Unreachable
from llmgw.model.route import ProtocolFactory
from llmgw.protocol import frame
from llmgw.protocol.relay import CLOSED, CREDIT, DATA, EOF, HEAD, OPEN, OPENED, PING, PONG, WINDOW, Reader
from llmgw.ssh import lean
from llmgw.ssh.failures import clean
from llmgw.ssh.relay_stream import RelayStream
from llmgw.ssh.session import Call, node_error

log = logging.getLogger(__name__)

SILENCE = 4
"""Pings without an answer after which a relay counts as dead: as SSH's own keepalive does."""
NODE_SILENCE = 6
"""The same on the node, so that a relay ends whose control plane has gone without a word."""
LEAVING = 16384
"""Streams we have left and the relay has not confirmed, above which it is broken: their numbers would pile up."""


class Relay(Call):
    """The session of `relay.py`. `over` says why it ended; it is never used again.

    Whatever the node sends costs at most the relay: BadReply, and a new one is started. `keepalive` is in seconds.
    """

    def __init__(self, name: str, keepalive: float, ended: Callable[[], None]) -> None:
        self.token = frame.new_token()
        super().__init__(self.token, None, ended)
        self.name = name
        self.keepalive = keepalive
        self.over: LlmgwError | None = None
        self.ready = True
        loop = asyncio.get_running_loop()
        self.began = loop.time()
        self._loop = loop
        self._hello: dict[str, Any] | None = None
        self._greeted: asyncio.Future[None] = loop.create_future()
        self._receive = self._greet
        self._frames = Reader()
        self._streams: dict[int, RelayStream] = {}
        self._leaving: set[int] = set()
        self._turns: OrderedDict[int, RelayStream] = OrderedDict()
        self._last = 0
        self._heard = True
        self._silent = 0
        self._pings = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def streams(self) -> int:
        """Streams that are open, being opened or being closed."""
        return len(self._streams) + len(self._leaving)

    # Its beginning and its end

    async def greet(self, timeout: float) -> None:
        """Sends the script and waits for its hello, `timeout` seconds. Raises what ended it otherwise."""
        args = {"window": WINDOW, "silence": NODE_SILENCE * self.keepalive}
        # Frames follow the arguments to no end: a payload, which the prelude leaves to the script. No deadline either.
        head = frame.request(
            assets.prelude(),
            "relay.py",
            assets.remote_script("relay"),
            args,
            token=self.token,
            deadline=0,
            payload=1,
        )
        assert self.channel is not None
        with contextlib.suppress(OSError):
            self.channel.write(head)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._greeted)
        except TimeoutError:
            late = TimedOut(f"the relay on {self.name} did not start within {timeout:g} s.", code="open_timeout")
            self.end(late)
            raise late from None

    def end(self, why: LlmgwError) -> None:
        """Ends it and all its streams. Only the first reason counts."""
        if self.over is not None:
            return
        self.over = why
        if self._timer is not None:
            self._timer.cancel()
        streams, self._streams = self._streams, {}
        self._leaving.clear()
        self._turns.clear()
        self._receive = lambda data: None
        self.abandon()
        if not self._greeted.done():
            self._greeted.set_exception(why)
            self._greeted.exception()  # seen: nobody may wait for it any more
        for stream in streams.values():
            stream.cut(why)

    def lost(self) -> LlmgwError:
        """Why it ended by itself."""
        if not self._greeted.done():
            return self.no_answer("relay")
        words = clean(self.stderr[-250:])
        why = f"exit status {self.exit_status}" + (f": {words}" if words else "")
        return LinkLost(f"the relay on {self.name} ended ({why}).", fix="It is started again by itself.")

    # What asyncssh calls. Nothing may be raised here: it would end the node's whole connection.

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        super().connection_made(chan)
        lean.channel(chan, self._arrived)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype is None:
            self._arrived(data)
        elif self.over is None:
            super().data_received(data, datatype)  # stderr, of which the tail is kept

    def _arrived(self, data: bytes) -> None:
        try:
            self._receive(data)
        except LlmgwError as exc:
            exc.message = f"the relay on {self.name}: {exc.message}"
            self.end(self._with_tail(exc) if isinstance(exc, BadReply) else exc)
        except Exception as exc:
            log.exception("the relay on %s", self.name)
            self.end(BadReply(f"the relay on {self.name}: {type(exc).__name__}: {exc}.", code="damaged"))

    def pause_writing(self) -> None:
        self.ready = False

    def resume_writing(self) -> None:
        """One frame a stream in turn, until the channel has enough again."""
        self.ready = True
        while self._turns and self.ready:
            number, stream = self._turns.popitem(last=False)
            if stream.turn():
                self._turns[number] = stream

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(LinkLost(f"the connection to {self.name} was lost.") if exc is not None else self.lost())
        self._ended()
        if not self.gone.done():
            self.gone.set_result(None)

    # Streams

    async def open(self, port: int, factory: ProtocolFactory, timeout: float) -> asyncio.Protocol:
        """As `Connection.open_stream`."""
        if self.over is not None:
            raise self.over
        number = self._last % 0xFFFFFFFF + 1
        while number in self._streams or number in self._leaving:
            number = number % 0xFFFFFFFF + 1
        self._last = number
        stream = self._streams[number] = RelayStream(self, number, factory)
        self.say(OPEN, number, port)
        try:
            async with asyncio.timeout(timeout):
                code = await stream.opened
        except TimeoutError:
            stream.abort()
            message = f"{self.name} did not open a stream to port {port} within {timeout:.1f} s."
            raise TimedOut(message, code="open_timeout") from None
        except asyncio.CancelledError:
            stream.abort()
            raise
        if code:
            raise unopened(self.name, port, code)
        if not stream.made:
            raise Unreachable(f"the stream to port {port} on {self.name} broke at once.", code="stream_broken")
        return stream.protocol

    def say(self, kind: int, number: int, value: int = 0) -> None:
        self._write(HEAD.pack(kind, number, value))

    def carry(self, number: int, data: bytes) -> None:
        self._write(HEAD.pack(DATA, number, len(data)) + data)

    def _write(self, data: bytes) -> None:
        try:
            self.channel.write(data)  # type: ignore[union-attr]
        except OSError:
            return  # it has ended; its streams are told

    def wait_turn(self, stream: RelayStream) -> None:
        self._turns[stream.number] = stream

    def leave(self, stream: RelayStream, kind: int) -> None:
        number = stream.number
        if self._streams.pop(number, None) is None:
            return  # the node had the last word, or the relay is over
        self._turns.pop(number, None)
        self._leaving.add(number)
        self.say(kind, number)
        if len(self._leaving) > LEAVING:
            self._loop.call_soon(self.end, BadReply(f"the relay on {self.name} closes no streams.", code="damaged"))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self.channel is None else self.channel.get_extra_info(name, default)

    # What the node says

    def _greet(self, data: bytes) -> None:
        if self._hello is None:
            self._hello = next(self._reader.feed(data), None)
            if self._hello is None:
                return
            if isinstance(error := self._hello.get("error"), dict):
                raise node_error(error)
            if self._hello != {"event": {"relay": 1}}:
                raise BadReply("the hello is none.", code="damaged")
            data = self._reader.rest()
        if not data:
            return  # the end of the hello's own line is still to come
        if data != b"\n":
            raise BadReply("it speaks before it is asked.", code="damaged")
        self._receive = self._spoken
        self._greeted.set_result(None)
        self._tick()

    def _spoken(self, data: bytes) -> None:
        self._heard = True
        for kind, number, value in self._frames.feed(data):
            stream = self._streams.get(number)
            if stream is None:
                self._stranger(kind, number)
            elif kind == DATA:
                stream.take(value)  # type: ignore[arg-type]
            elif kind == CREDIT:
                stream.add_credit(value)  # type: ignore[arg-type]
            elif kind == OPENED:
                stream.connected()
            elif kind == EOF:
                stream.take_eof()
            elif kind == CLOSED:
                del self._streams[number]
                self._turns.pop(number, None)
                stream.ended(value)  # type: ignore[arg-type]

    def _stranger(self, kind: int, number: int) -> None:
        """For no stream of ours: an answer to a ping, or what was on its way when we left one."""
        if kind == PONG and self._pings:
            self._pings -= 1
        elif number in self._leaving:
            if kind == CLOSED:
                self._leaving.discard(number)
        elif self.over is None:
            raise BadReply(f"it speaks of a stream {number}, which there is not.", code="damaged")

    def _tick(self) -> None:
        """Pings. Anything that comes is as good as an answer."""
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        if self._silent >= SILENCE:
            self.end(LinkLost(f"the relay on {self.name} is silent.", fix="It is started again by itself."))
            return
        self._pings += 1
        self.say(PING, 0)
        self._timer = self._loop.call_later(self.keepalive, self._tick)


def unopened(name: str, port: int, code: int) -> Unreachable:
    """Why the node's own connection to an engine failed."""
    words = os.strerror(code) if code > 0 else "it was closed at once"
    if code == errno.ECONNREFUSED:
        return Unreachable(f"nothing answers at 127.0.0.1:{port} on {name}: {words}.", code="engine_port_closed")
    return Unreachable(f"the stream to port {port} on {name} failed: {words}.", code="stream_broken")

"""A stream over a relay that looks like asyncio's transport and protocol. The hot path: few Python calls a chunk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

from llmgw.errors import BadReply
from llmgw.model.route import ProtocolFactory
from llmgw.protocol.relay import ABORT, CLOSE, CREDIT, EOF, FRAME, WINDOW

log = logging.getLogger(__name__)

HIGH = 64 << 10
"""Bytes in the write buffer above which a protocol is asked to pause: asyncio's own default."""


class Way(Protocol):
    """What a stream needs of its relay."""

    ready: bool
    """The relay's channel takes more."""

    def say(self, kind: int, number: int, value: int = 0) -> None: ...
    def carry(self, number: int, data: bytes) -> None: ...
    def wait_turn(self, stream: RelayStream) -> None:
        """The stream has bytes that the channel does not take yet."""

    def leave(self, stream: RelayStream, kind: int) -> None:
        """Says CLOSE or ABORT to the node. From now on nothing is for this stream any more."""

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


class RelayStream(asyncio.Transport):
    """Both ends of it for us: what the relay feeds, and the transport its protocol writes to.

    Exceptions of the protocol end this stream only. `opened` resolves when the node has answered. What only a broken
    or hostile node does raises BadReply out of the methods that the relay calls.
    """

    __slots__ = (
        "_closing", "_credit", "_ended", "_eof", "_factory", "_held", "_high", "_loop", "_lost", "_low", "_out",
        "_paused", "_protocol", "_reading", "_receive", "_room", "_shut", "_way", "number", "opened",
    )  # fmt: skip

    def __init__(self, way: Way, number: int, factory: ProtocolFactory) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._way = way
        self.number = number
        self.opened: asyncio.Future[int] = self._loop.create_future()
        """The errno of the attempt to connect, 0 when it is connected."""
        self._factory = factory
        self._protocol: asyncio.Protocol | None = None
        self._receive: Callable[[bytes], None] = _discard
        self._room = WINDOW  # what the node may still send
        self._held = bytearray()  # what came while reading was paused: never more than a window
        self._reading = True
        self._eof = False
        self._ended: OSError | bool = False
        self._credit = WINDOW  # what we may still send
        self._out = bytearray()
        self._high, self._low = HIGH, HIGH // 4
        self._paused = self._shut = self._closing = self._lost = False

    # What the relay says

    def connected(self) -> None:
        if self._protocol is not None:
            raise BadReply("the relay opens a stream twice.", code="damaged")
        try:
            self.set_protocol(self._factory())
            self.protocol.connection_made(self)
        except Exception:
            self._broken("connection_made")
        if not self.opened.done():
            self.opened.set_result(0)

    def take(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0 or self._eof or self._protocol is None:
            raise BadReply("the relay sends more than it may.", code="oversized")
        if self._held or not self._reading:
            self._held += data
            return
        try:
            self._receive(data)
        except Exception:
            self._broken("data_received")
            return
        if self._room < WINDOW // 2:
            self._grant()

    def take_eof(self) -> None:
        if self._eof or self._protocol is None:
            raise BadReply("the relay ends a stream twice.", code="damaged")
        self._eof = True
        if not self._held:
            self._tell_eof()

    def add_credit(self, more: int) -> None:
        self._credit += more
        if not more or self._credit > WINDOW:
            raise BadReply("the relay takes more than it was sent.", code="damaged")
        if self._out:
            self._pump()

    def ended(self, code: int) -> None:
        """The engine's end is gone; the relay knows this stream no more."""
        if self._protocol is None:
            if not self.opened.done():
                self.opened.set_result(code or -1)
            return
        self._shut = True
        self._out.clear()
        self._ended = OSError(code, "the engine's connection broke") if code else True
        if not self._held:
            self._lose(self._ended if code else None)  # type: ignore[arg-type]

    def cut(self, why: Exception) -> None:
        """The relay itself is gone."""
        if not self.opened.done():
            self.opened.set_exception(why)
            self.opened.exception()  # seen: whoever opened it may have left
        self._shut = self._closing = True
        self._lose(why)

    def turn(self) -> bool:
        """Sends one frame of what waits. True while there is more that may be sent."""
        size = min(len(self._out), self._credit, FRAME)
        if size:
            piece = bytes(self._out[:size])
            del self._out[:size]
            self._credit -= size
            self._way.carry(self.number, piece)
        if not self._out:
            self._flushed()
        if self._paused and len(self._out) <= self._low and not self._closing:
            self._paused = False
            self._tell("resume_writing")
        return bool(self._out and self._credit)

    # asyncio's transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        size = len(data)
        if self._shut or not size:
            return
        if size <= self._credit and size <= FRAME and not self._out and self._way.ready:
            self._credit -= size
            self._way.carry(self.number, data)  # type: ignore[arg-type]
            return
        self._out += data
        self._pump()
        if len(self._out) > self._high and not self._paused:
            self._paused = True
            self._tell("pause_writing")

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))  # one frame where it fits, not one a piece

    def write_eof(self) -> None:
        if not self._shut:
            self._shut = True
            if not self._out:
                self._flushed()

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._held:
            self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading

    def is_closing(self) -> bool:
        return self._closing or bool(self._ended)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = self._shut = self._reading = True
        self._receive = _discard
        self._deliver()  # nobody reads it, and the engine must not wait for that
        if not self._out:
            self._flushed()

    def abort(self) -> None:
        self._closing = self._shut = True
        self._out.clear()
        self._held.clear()
        self._receive = _discard
        self._way.leave(self, ABORT)
        self._loop.call_soon(self._lose, None)

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"high ({high}) must be at least low ({low}), and that at least 0")
        self._high, self._low = high, low

    @property
    def made(self) -> bool:
        return self._protocol is not None

    @property
    def protocol(self) -> asyncio.Protocol:
        assert self._protocol is not None
        return self._protocol

    def get_protocol(self) -> asyncio.Protocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)
        self._receive = self._protocol.data_received

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._way.get_extra_info(name, default)

    # Inside

    def _deliver(self) -> None:
        """What was held, as far as it is wanted; then what was to be said after it."""
        if not self._held:
            return
        while self._held and (self._reading or self._closing):
            piece = bytes(self._held[:FRAME])
            del self._held[:FRAME]
            try:
                self._receive(piece)
            except Exception:
                self._broken("data_received")
                return
        if self._held or self._lost:
            return
        if self._room < WINDOW // 2 and not self._ended:
            self._grant()
        if self._eof:
            self._tell_eof()
        if self._ended:
            self._lose(self._ended if isinstance(self._ended, OSError) else None)

    def _grant(self) -> None:
        self._way.say(CREDIT, self.number, WINDOW - self._room)
        self._room = WINDOW

    def _tell_eof(self) -> None:
        # asyncio's rule: a protocol that does not ask for the half-open side gets its transport closed.
        if self._closing:
            return
        try:
            stay = bool(self.protocol.eof_received())
        except Exception:
            self._broken("eof_received")
            return
        if not stay:
            self.close()

    def _pump(self) -> None:
        while self._way.ready:
            if not self.turn():
                return
        if self._credit:
            self._way.wait_turn(self)

    def _flushed(self) -> None:
        """Nothing waits to be sent: now what was to follow it."""
        if self._closing:
            self._way.leave(self, CLOSE)
            self._loop.call_soon(self._lose, None)
        elif self._shut and not self._ended:
            self._way.say(EOF, self.number)

    def _tell(self, what: str) -> None:
        try:
            getattr(self.protocol, what)()
        except Exception:
            self._broken(what)

    def _broken(self, where: str) -> None:
        log.exception("%s of %r raised; its stream is cut", where, self._protocol)
        self.abort()

    def _lose(self, exc: Exception | None) -> None:
        """Tells the protocol, once."""
        if self._lost:
            return
        self._lost = True
        self._receive = _discard
        self._held.clear()
        self._out.clear()
        if self._protocol is not None:
            try:
                self._protocol.connection_lost(exc)
            except Exception:
                log.exception("connection_lost of %r raised", self._protocol)


def _discard(data: bytes) -> None:
    return

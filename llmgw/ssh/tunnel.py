"""A direct-tcpip channel that looks like asyncio's transport and protocol. The hot path: few Python calls a chunk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import asyncssh

from llmgw.model.route import ProtocolFactory
from llmgw.ssh import lean

log = logging.getLogger(__name__)

WINDOW = 512 << 10
"""Bytes the node may send ahead of a reader that has paused: what one slow client can make us hold (F60)."""
PACKET = 32 << 10


class Stream(asyncssh.SSHTCPSession[bytes]):
    """The session asyncssh feeds. Exceptions of the protocol end this stream, not the node's whole connection.

    `ended` is called once, when the channel is gone. A stream that was `abandoned` before it opened never makes a
    protocol.
    """

    def __init__(self, factory: ProtocolFactory, ended: Callable[[], None]) -> None:
        self._factory = factory
        self._ended = ended
        self._abandoned = False
        self._told = False
        self.protocol: asyncio.Protocol | None = None
        self.channel: asyncssh.SSHTCPChannel[bytes] | None = None
        self.receive: Callable[[bytes], None] = lambda data: None

    def abandon(self) -> None:
        self._abandoned = True
        if self.channel is not None:
            self.channel.abort()
            self.tell_lost(None)

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        self.channel = chan
        if self._abandoned:
            chan.abort()
            return
        lean.channel(chan, self._arrived)
        try:
            protocol = self._factory()
            self.adopt(protocol)
            protocol.connection_made(Transport(self, chan))
        except Exception:
            self._broken("connection_made")

    def adopt(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        self.receive = protocol.data_received

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._arrived(data)

    def _arrived(self, data: bytes) -> None:
        try:
            self.receive(data)
        except Exception:
            self._broken("data_received")

    def eof_received(self) -> bool:
        # asyncio's rule: a protocol that does not ask for the half-open side gets its transport closed.
        try:
            stay = bool(self.protocol is not None and self.protocol.eof_received())
        except Exception:
            self._broken("eof_received")
            return True
        if not stay and self.channel is not None:
            self.channel.close()
        return True

    def pause_writing(self) -> None:
        if self.protocol is not None:
            try:
                self.protocol.pause_writing()
            except Exception:
                self._broken("pause_writing")

    def resume_writing(self) -> None:
        if self.protocol is not None:
            try:
                self.protocol.resume_writing()
            except Exception:
                self._broken("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        self.tell_lost(exc)

    def tell_lost(self, exc: Exception | None) -> None:
        """Tells the protocol, once: at the latest when the channel is gone, at once after an abort."""
        if not self._told:
            self._told = True
            self.receive = lambda data: None
            if self.protocol is not None:
                try:
                    self.protocol.connection_lost(exc)
                except Exception:
                    log.exception("connection_lost of %r raised", self.protocol)

    def _broken(self, where: str) -> None:
        log.exception("%s of %r raised; its stream is cut", where, self.protocol)
        if self.channel is not None:
            self.channel.abort()
        asyncio.get_running_loop().call_soon(self.tell_lost, None)


class Transport(asyncio.Transport):
    """asyncio's transport over a channel. Writing to a closed one is ignored, as asyncio does."""

    __slots__ = ("_channel", "_reading", "_stream")

    def __init__(self, stream: Stream, channel: asyncssh.SSHTCPChannel[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._channel = channel
        self._reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._channel.write(cast(bytes, data))
        except OSError:
            return

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))  # one packet where it fits, not one a piece

    def pause_reading(self) -> None:
        self._reading = False
        self._channel.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        self._channel.resume_reading()

    def is_reading(self) -> bool:
        return self._reading

    def is_closing(self) -> bool:
        return self._channel.is_closing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._channel.write_eof()

    def close(self) -> None:
        flushed = not self._channel.get_write_buffer_size()
        self._channel.close()
        if flushed:
            self._lost_soon()

    def abort(self) -> None:
        self._channel.abort()
        self._lost_soon()

    def get_write_buffer_size(self) -> int:
        return self._channel.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._channel.set_write_buffer_limits(high, low)

    def get_protocol(self) -> asyncio.Protocol:
        assert self._stream.protocol is not None
        return self._stream.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._stream.adopt(cast(asyncio.Protocol, protocol))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._channel.get_extra_info(name, default)

    def _lost_soon(self) -> None:
        # asyncssh tells only once the node has answered the close; a dead node never does.
        asyncio.get_running_loop().call_soon(self._stream.tell_lost, None)

"""One keep-alive HTTP/1.1 connection to an engine, over TCP or an SSH channel alike.

It parses and nothing more: what an answer means is `answer.py`'s business. What arrived in one read is handed on in one
piece, so that a burst of tokens costs one write. Everything from the engine is hostile: a head has a size limit, and a
connection on which anything was out of order is closed, never used again (F65).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import httptools

from llmgw.core.choose import Key
from llmgw.model.route import StreamTransport

MAX_HEAD = 64 << 10
"""Bytes an engine may send that are no body: a head, trailers, chunk extensions."""

Headers = list[tuple[bytes, bytes]]


class Receiver(Protocol):
    """Who is told what the engine answers."""

    def begin(self, status: int, headers: Headers) -> bool:
        """The head. False: the answer is not wanted; the connection is dropped and says nothing more."""

    def data(self, data: bytes, last: bool) -> None:
        """A piece of the body, never empty unless it is the last. The connection is free before the last one."""

    def lost(self, why: str, *, spoke: bool, stale: bool) -> None:
        """The answer will not be complete. `stale`: an old connection had died unnoticed, nothing was processed."""


class Keeper(Protocol):
    """Where a connection waits for its next request."""

    def give(self, connection: Connection) -> None:
        """Its answer is whole, it is free again."""

    def forget(self, connection: Connection) -> None:
        """It is gone."""


class Connection(asyncio.Protocol):
    __slots__ = (
        "_begun", "_complete", "_dirty", "_head_size", "_headers", "_parser", "_parts", "_paused", "_receiver",
        "_silence", "_spoke", "_status", "_used", "idle_since", "keeper", "key", "transport",
    )  # fmt: skip

    def __init__(self, keeper: Keeper, key: Key) -> None:
        self.keeper = keeper
        self.key = key
        self.transport: StreamTransport | None = None
        self.idle_since = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: Receiver | None = None
        self._used = False
        self._paused = False
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._headers: Headers = []
        self._parts: list[bytes] = []
        self._begun = self._complete = self._dirty = self._spoke = False
        self._silence = self._head_size = 0

    # What the exchange asks for

    def send(self, receiver: Receiver, head: bytes, body: bytes) -> None:
        """Sends one request; `receiver` is told everything that follows."""
        self._receiver = receiver
        if self.transport is None or self.transport.is_closing():
            self._lose("was closed")
        elif len(body) <= 1 << 16:
            self.transport.write(head + body)
        else:  # not worth a copy
            self.transport.write(head)
            self.transport.write(body)

    def drop(self) -> None:
        """Nobody wants the answer any more. An engine stops generating only when its connection ends (F56)."""
        self._receiver = None
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        self.keeper.forget(self)
        self._lose("closed the connection")
        self._parser = None  # type: ignore[assignment]  # it refers back to us

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:  # an engine that speaks unasked, or whose answer nobody wants
            self.drop()
            return
        self._spoke = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._complete:
                self._lose("sent what is not HTTP")
                return
            self._dirty = True
        if self._status and not self._begun:
            self._begun = True
            if not self._receiver.begin(self._status, self._headers):
                self.drop()
                return
        parts = self._parts
        if parts:
            piece = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            self._silence = 0
        else:
            piece = b""
            self._silence += len(data)
            if self._silence > MAX_HEAD and not self._complete:
                self._lose(f"sent more than {MAX_HEAD >> 10} KiB of headers")
                return
        if self._complete:
            self._finish(piece)
        elif piece:
            self._receiver.data(piece, False)

    def _finish(self, piece: bytes) -> None:
        receiver, self._receiver = self._receiver, None
        assert receiver is not None
        if self._dirty:
            self.drop()
        else:
            self._used = True
            self._reset()
            self.resume()
            self.keeper.give(self)
        receiver.data(piece, True)

    def _lose(self, why: str) -> None:
        receiver = self._receiver
        self.drop()
        if receiver is not None:
            receiver.lost(why, spoke=self._spoke, stale=self._used and not self._spoke)

    # What the parser finds

    def on_message_begin(self) -> None:
        if self._complete:
            self._dirty = True  # a second answer to one question

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._begun and not self._status:  # no trailers
            self._headers.append((name, value))
            self._head_size += len(name) + len(value)
            if self._head_size > MAX_HEAD:
                raise ValueError("too many headers")  # comes out of feed_data as a parser error

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 100:
            raise ValueError("no status")
        if status < 200:  # "100 Continue" and its like: not the answer yet
            self._headers = []
        else:
            self._status = status

    def on_body(self, data: bytes) -> None:
        if not self._complete:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._status and not self._complete:
            self._complete = True
            self._dirty = not self._parser.should_keep_alive()

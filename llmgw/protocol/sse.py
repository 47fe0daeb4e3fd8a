"""Server-sent events: taking a stream apart, and the one event that ends a broken one."""

from __future__ import annotations

from collections.abc import Iterator

from llmgw.protocol.openai import error_body

CONTENT_TYPE = b"text/event-stream"
DONE = b"[DONE]"
MAX_EVENT = 8 << 20


def error_event(message: str, code: str, *, clean: bool) -> bytes:
    """The last event of a stream that died. Unless `clean`, what came before may have stopped inside a line."""
    event = b"data: " + error_body(message, "server_error", code) + b"\n\n"
    return event if clean else b"\n\n" + event


class TooLong(ValueError):
    """An event without an end."""


class Reader:
    """Takes the bytes of a stream as they come and gives the `data` of each whole event."""

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._rest = b""
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[bytes]:
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > self._limit:
            raise TooLong(f"an event of more than {self._limit} bytes")
        for event in events:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines)

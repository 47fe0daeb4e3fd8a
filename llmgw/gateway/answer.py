"""What an engine answers, on its way to the client: streamed as it comes, or whole when it is small.

The head waits for the first byte of the body, and an answer that is no stream waits until it is whole (up to 256 KiB):
until then a failure is a clean error and not half an answer.
"""

from __future__ import annotations

import re
from typing import Protocol

from llmgw.gateway.client import Client
from llmgw.gateway.patience import Patience
from llmgw.gateway.upstream import Headers
from llmgw.gateway.withhold import Withhold
from llmgw.model.route import Upstream
from llmgw.protocol.openai import is_json, read_usage
from llmgw.protocol.sse import CONTENT_TYPE, error_event

HOLD = 256 << 10
MAX_ERROR = 1 << 20
USAGE_TAIL = 8 << 10

# What of an engine's headers reaches a client; nothing else does, so no cookie and no hop-by-hop header (F66).
ALLOWED = frozenset({b"content-type", b"content-encoding", b"retry-after"})
_SANE_VALUE = re.compile(rb"[\x20-\x7e]{1,200}")


class Asker(Protocol):
    """Whose answer it is; an exchange. It decides what comes of each thing that an answer may turn out to be."""

    client: Client
    patience: Patience
    hides_usage: bool

    def began(self, *, more: bool) -> None:
        """The first byte of the body is here."""

    def complete(self, upstream: Upstream, status: int) -> None:
        """The last byte is here."""

    def elsewhere(self, upstream: Upstream) -> bool:
        """The engine is not ready. True: another one is asked, this answer is not wanted."""
        ...

    def stale(self, upstream: Upstream) -> None:
        """A kept connection had ended before the request came."""

    def attempt_failed(self, upstream: Upstream, why: str, *, sent: bool) -> None:
        """No byte of an answer came."""

    def bad_answer(self, upstream: Upstream, why: str) -> None:
        """What came is no answer, and the client has seen nothing of it."""

    def broke(self, upstream: Upstream, why: str) -> None:
        """It ended in the middle, and the client has seen its beginning."""


class Answer:
    """Implements `upstream.Receiver` for one exchange."""

    __slots__ = (
        "_asker", "_before", "_events", "_held", "_length", "_lines", "_plain", "_request_id", "_size",
        "_streams", "_tail", "_withhold", "begun", "spoke", "status", "upstream",
    )  # fmt: skip

    def __init__(self, asker: Asker, upstream: Upstream, request_id: bytes) -> None:
        self.upstream = upstream
        self._asker = asker
        self._request_id = request_id
        self.status = 0
        self.begun = False
        """Whether the client has been sent any of it."""
        self.spoke = False
        """Whether any of its body has come."""
        self._streams = False
        self._plain = True
        self._lines = b""
        self._length: int | None = None
        self._held: list[bytes] = []
        self._size = 0
        self._events = 0
        self._before = self._tail = b""
        self._withhold: Withhold | None = None

    def begin(self, status: int, headers: Headers) -> bool:
        self.status = status
        if status == 503 and self._asker.elsewhere(self.upstream):
            return False
        if status in (401, 403):
            self._asker.bad_answer(self.upstream, "does not accept the control plane's own key")
            return False
        if not (200 <= status < 300 or 400 <= status < 600):
            self._asker.bad_answer(self.upstream, f"answered with status {status}, which has no meaning here")
            return False
        lines = [b"x-request-id: %b\r\n" % self._request_id]
        for name, value in headers:
            name = name.lower()
            if name == b"content-length":
                self._length = int(value)
            elif name in ALLOWED and _SANE_VALUE.fullmatch(value):
                lines.append(b"%b: %b\r\n" % (name, value))
                if name == b"content-type":
                    self._streams = value[:17].lower() == CONTENT_TYPE and status < 300
                elif name == b"content-encoding":
                    self._plain = False
        if self._streams:  # so that no proxy on the way saves it up
            lines.append(b"cache-control: no-cache\r\nx-accel-buffering: no\r\n")
            if self._asker.hides_usage and self._plain:
                self._withhold = Withhold()
                self._length = None  # it will be shorter
        self._lines = b"".join(lines)
        return True

    def data(self, data: bytes, last: bool) -> None:
        asker = self._asker
        if not (self.begun or self._streams):
            self._hold(data, last)
            return
        self._note(data)
        if self._withhold is not None:
            data = self._withhold.feed(data, last)
        first, self.begun, self.spoke = not self.begun, True, True
        if first:
            asker.began(more=not last)
        else:
            asker.patience.moved()
        if last:
            asker.complete(self.upstream, self.status)
        if first:
            asker.client.begin(self.status, self._lines, self._length, data, last)
        elif data or last:
            asker.client.write(data, last)

    def lost(self, why: str, *, spoke: bool, stale: bool) -> None:
        if stale:
            self._asker.stale(self.upstream)
        elif self.begun:
            self._asker.broke(self.upstream, why)
        elif spoke:
            self._asker.bad_answer(self.upstream, why)
        else:
            self._asker.attempt_failed(self.upstream, why, sent=True)

    def last_words(self, message: str, code: str) -> bytes:
        """What a broken stream ends with, where it can be said."""
        if not (self._streams and self._plain):
            return b""
        return error_event(message, code, clean=self._tail.endswith(b"\n\n"))

    def tokens(self) -> tuple[int, int]:
        """(prompt, completion): the engine's own count, or the number of streamed events."""
        if not 200 <= self.status < 300:
            return 0, 0
        if self._withhold is not None and self._withhold.usage is not None:
            return self._withhold.usage
        return read_usage((self._before + self._tail)[-USAGE_TAIL:]) or (0, self._events)

    def _note(self, data: bytes) -> None:
        """Remembers the end of what was relayed, where the usage stands, at the price of two references."""
        self._before, self._tail = self._tail, data
        self._events += data.count(b"\n\n")

    def _hold(self, data: bytes, last: bool) -> None:
        asker = self._asker
        if not self.spoke:
            self.spoke = True
            asker.began(more=not last)
        self._held.append(data)
        self._size += len(data)
        failed = self.status >= 400
        if last:
            body = b"".join(self._held)
            if failed and not is_json(body):
                asker.bad_answer(self.upstream, f"answered with status {self.status} and no reason")
                return
            self._tail = body
            asker.complete(self.upstream, self.status)
            asker.client.whole(self.status, self._lines, body)
        elif failed and self._size > MAX_ERROR:
            asker.bad_answer(self.upstream, f"answered with status {self.status} and a reason of more than 1 MiB")
        elif not failed and self._size > HOLD:
            body = b"".join(self._held)
            self._held.clear()
            self.begun = True
            self._tail = body
            asker.client.begin(self.status, self._lines, self._length, body, False)

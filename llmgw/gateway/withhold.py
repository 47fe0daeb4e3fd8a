"""Keeps the usage event from a client that did not ask for it. We asked: an engine counts a stream only when told to.

A line goes on when it is whole, and nobody can use half an event anyway. What costs is one look for a word in each
read; only what has the word is taken apart.
"""

from __future__ import annotations

from llmgw.protocol.openai import is_usage_alone, read_usage

MAX_HELD = 16 << 10
"""A line that is longer without an end is no usage event, and is not saved up."""


class Withhold:
    __slots__ = ("_blank", "_held", "usage")

    def __init__(self) -> None:
        self.usage: tuple[int, int] | None = None
        """What the withheld event said: (prompt, completion)."""
        self._held = b""  # the beginning of a line
        self._blank = False  # whether the empty line that ends the withheld event is still to come

    def feed(self, data: bytes, last: bool) -> bytes:
        """The part of a stream that the client is sent now; perhaps nothing."""
        if self._held:
            data, self._held = self._held + data, b""
        if not (last or data.endswith(b"\n")):
            end = data.rfind(b"\n") + 1
            if len(data) - end <= MAX_HELD:
                data, self._held = data[:end], data[end:]
        if data.find(b'"usage"') < 0 and not self._blank:
            return data
        return b"".join([line for line in data.splitlines(keepends=True) if self._passes(line)])

    def _passes(self, line: bytes) -> bool:
        if self._blank:
            self._blank = False
            if line in (b"\n", b"\r\n"):
                return False
        if b'"usage"' in line and line.startswith(b"data:") and is_usage_alone(line[5:]):
            self.usage = read_usage(line)
            self._blank = True
            return False
        return True

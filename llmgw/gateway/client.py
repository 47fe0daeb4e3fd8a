"""The side of an exchange that faces the client, in five methods: so that the relay knows no server."""

from __future__ import annotations

from typing import Protocol


class Client(Protocol):
    """Writes never wait. When the client reads too slowly the exchange is told, and stops the engine's side."""

    def whole(self, status: int, headers: bytes, body: bytes) -> None:
        """A complete answer. `headers` are finished lines, without length and connection."""

    def begin(self, status: int, headers: bytes, length: int | None, data: bytes, last: bool) -> None:
        """The head and the first piece of an answer of `length` bytes, or of a stream."""

    def write(self, data: bytes, last: bool) -> None:
        """The next piece of what `begin` began."""

    def cut(self) -> None:
        """Ends abnormally once what was written is out: no last chunk, so that nobody takes it for complete."""

    def abort(self) -> None:
        """Ends at once, whatever is still to be written."""

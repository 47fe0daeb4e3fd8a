"""The framed conversation with a remote script: what is sent on stdin, and how frames are found in what comes back.

Anything a login prints before, between or after the frames is noise. A frame is

    #TOKEN LENGTH DIGEST\\n JSON \\n

with a token that is random per call, the length of the JSON in bytes and the first 32 hexadecimal digits of its
SHA-256. `remote_scripts/prelude.py` is the other side.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from llmgw.errors import BadReply

MAX_REPLY = 8 << 20
"""Bytes a whole reply may have, noise included: 8 MiB."""
MAX_NOISE = 4096
MAX_DEPTH = 64
MAX_INTEGER = (1 << 63) - 1
"""What fits into a column of the state, and a whole number for every other reader of JSON but JavaScript."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_LARGE = re.compile(rb"[0-9]{19}|[eE][+]?[0-9]{3}")
"""A number may be too large: looked for first, since a hook for each number would cost more than all the rest."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HEAD = re.compile(rb"#([0-9a-f]{32}) (\d{1,8}) ([0-9a-f]{32})\n")


def new_token() -> str:
    return secrets.token_hex(16)


def block(data: bytes) -> bytes:
    """Length-prefixed: eight decimal digits, then the bytes."""
    return b"%08d" % len(data) + data


def request(
    prelude: bytes, name: str, program: bytes, args: Mapping[str, Any], *, token: str, deadline: float, payload: int = 0
) -> bytes:
    """What is written to the node's stdin ahead of a payload of `payload` bytes."""
    body = {**args, "_token": token, "_deadline": deadline, "_payload": payload}
    text = json.dumps(body, separators=(",", ":")).encode()
    return block(prelude) + block(name.encode()) + block(program) + block(text)


class FrameReader:
    """Finds the frames of one call in a stream of chunks. Memory is bounded by `limit` whatever the node sends.

    Raises BadReply for a reply over the limit, a wrong digest or a frame that is no JSON object.
    """

    def __init__(self, token: str, *, limit: int = MAX_REPLY) -> None:
        self._mark = b"#" + token.encode() + b" "
        self._limit = limit
        self._buffer = bytearray()
        self._seen = 0
        self.noise = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Takes a chunk, yields the frames it completes."""
        self._seen += len(data)
        if self._seen > self._limit:
            raise BadReply(f"the reply is larger than {self._limit >> 20} MiB and was cut off", code="oversized")
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def rest(self) -> bytes:
        """Takes what has come behind the frame that `feed` last yielded: for a conversation that goes on otherwise."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def close(self) -> None:
        """The stream has ended. Raises BadReply when it ended inside a frame."""
        if self._buffer.startswith(self._mark):
            raise BadReply("the reply was cut off in the middle of a frame", code="truncated")
        self._drop(len(self._buffer))

    def _next(self) -> dict[str, Any] | None:
        start = self._buffer.find(self._mark)
        if start < 0:
            # Keep what may be the beginning of a mark; the rest is noise.
            keep = len(self._mark) - 1
            self._drop(max(0, len(self._buffer) - keep))
            return None
        self._drop(start)
        end = self._buffer.find(b"\n", 0, 128)
        if end < 0:
            if len(self._buffer) >= 128:
                raise BadReply("the reply holds a damaged frame header", code="damaged")
            return None
        head = _HEAD.fullmatch(self._buffer, 0, end + 1)
        if head is None:
            raise BadReply("the reply holds a damaged frame header", code="damaged")
        length, digest = int(head[2]), head[3].decode()
        if length > self._limit:
            raise BadReply(f"the reply announces {length} bytes, more than {self._limit >> 20} MiB", code="oversized")
        if len(self._buffer) < end + 1 + length:
            return None
        text = bytes(self._buffer[end + 1 : end + 1 + length])
        del head
        del self._buffer[: end + 1 + length]
        if hashlib.sha256(text).hexdigest()[:32] != digest:
            raise BadReply("a frame of the reply does not match its digest", code="digest")
        return _decode(text)

    def _drop(self, count: int) -> None:
        if count:
            room = MAX_NOISE - len(self.noise)
            if room > 0:
                self.noise += self._buffer[: min(count, room)]
            del self._buffer[:count]


def _decode(text: bytes) -> dict[str, Any]:
    """JSON from a node: an object that can be stored, and told to anybody as JSON again.

    No NaN, nothing infinite, no integer that a column does not hold, no duplicate keys, nothing deeper than MAX_DEPTH.
    Half a surrogate pair, as Python writes a byte of a file name that is no UTF-8, becomes U+FFFD.
    """
    bare = _STRING.sub(b"", text)
    if _depth(bare) > MAX_DEPTH:
        raise BadReply(f"a frame of the reply is nested deeper than {MAX_DEPTH}", code="damaged")
    careful: dict[str, Any] = {"parse_int": _integer, "parse_float": _finite} if _LARGE.search(bare) else {}
    try:
        frame = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_distinct, **careful)
        if _SURROGATE.search(text):
            frame = _whole(frame)
    except (ValueError, RecursionError) as exc:
        raise BadReply(f"a frame of the reply is no JSON: {exc}", code="damaged") from None
    if not isinstance(frame, dict):
        raise BadReply("a frame of the reply is no JSON object", code="damaged")
    return frame


def _depth(bare: bytes) -> int:
    deepest = depth = 0
    for bracket in _BRACKET.finditer(bare):
        if bracket[0] in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > MAX_INTEGER:
        raise ValueError(f"{text[:24]} is too large a number")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:24]} is too large a number")
    return number


def _whole(value: Any) -> Any:
    """The same without lone surrogates, which no UTF-8 can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return _distinct([(_whole(key), _whole(each)) for key, each in value.items()])
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key appears twice")
    return made

"""What a relay on a node and the control plane say to each other, once the relay has said hello in a frame.

Both ways the same: a head of nine bytes, `kind: u8, stream: u32, number: u32`, big endian. Only DATA has a body, of
`number` bytes. For the others `number` is: OPEN the port, CREDIT how many bytes more may be sent, CLOSED an errno or 0,
else 0. `remote_scripts/relay.py` is the other side.
"""

from __future__ import annotations

import struct
from typing import Final

from llmgw.errors import BadReply

WINDOW: Final = 512 << 10
"""Bytes either side may send on a stream ahead of a reader that has paused: as much as a direct channel has (F60)."""
FRAME: Final = 32 << 10
"""Bytes a DATA frame may have. No stream holds up the others for longer than one of these takes."""

DATA: Final = 1
EOF: Final = 2
"""No more data from this side."""
CREDIT: Final = 3
OPEN: Final = 4
"""Connect to a port of the node's 127.0.0.1. Answered with OPENED or CLOSED."""
OPENED: Final = 5
CLOSE: Final = 6
"""Close when all that was sent is with the engine."""
ABORT: Final = 7
"""Close now."""
CLOSED: Final = 8
"""The last word about a stream, always from the node and exactly once, whoever ended it."""
PING: Final = 9
PONG: Final = 10

FROM_NODE: Final = frozenset({DATA, EOF, CREDIT, OPENED, CLOSED, PONG})

HEAD: Final = struct.Struct(">BII")
_SIZE: Final = HEAD.size

Frame = tuple[int, int, int | bytes]
"""Kind, stream and number; for DATA the bytes instead of the number."""


class Reader:
    """Finds the frames in what a node sends, however it is cut. Holds less than one head between two chunks.

    A DATA frame that comes in pieces is handed on in pieces.
    """

    def __init__(self) -> None:
        self._cut = b""
        self._left = 0
        self._stream = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames in a chunk. Raises BadReply (`damaged`, `oversized`) for what no relay sends."""
        found: list[Frame] = []
        at = 0
        if self._left:
            piece = data[: self._left]
            at = len(piece)
            self._left -= at
            found.append((DATA, self._stream, piece))
        elif self._cut:
            data = self._cut + data
            self._cut = b""
        end = len(data)
        while end - at >= _SIZE:
            kind, stream, number = HEAD.unpack_from(data, at)
            at += _SIZE
            if kind == DATA:
                if not 0 < number <= FRAME:
                    raise BadReply(f"the relay announces a frame of {number} bytes.", code="oversized")
                piece = data[at : at + number]
                at += len(piece)
                if len(piece) < number:
                    self._stream, self._left = stream, number - len(piece)
                if piece:
                    found.append((DATA, stream, piece))
            elif kind in FROM_NODE:
                found.append((kind, stream, number))
            else:
                raise BadReply(f"the relay sends a frame of kind {kind}, which there is not.", code="damaged")
        if at < end:
            self._cut = data[at:]
        return found

"""What lies on the disk under the names of the database, told before SQLite is asked.

SQLite acts as it opens: it waits for a FIFO for ever, removes the log beside a database of no pages even when it is to
read only, and passes over a log whose first bytes are damaged, to write over it later. Tried with SQLite 3.40. So that
nothing is destroyed by a look, and nothing is lost in silence at a start, files are judged here first.

The database itself is not opened: closing any descriptor of it would drop the locks that SQLite holds on it.
"""

from __future__ import annotations

import contextlib
import struct
from enum import Enum
from pathlib import Path

from llmgw.config.files import plain, read_start
from llmgw.errors import Refused
from llmgw.store.failures import damaged

# https://www.sqlite.org/fileformat2.html#the_write_ahead_log
_HEADER = 32
_FRAME = 24
_SMALLEST_PAGE = 512
_START = 4096
_MAGIC = 0x377F0682
"""The last bit says in which byte order the sums are made."""
_VERSION = 3007000


class Log(Enum):
    """What there is of a write-ahead log."""

    NONE = "none"
    """Nothing, or nothing in it: not there, empty, zeroes, or too short for one page."""
    SOUND = "sound"
    """Its beginning is one; SQLite reads as much of it as is whole."""
    DAMAGED = "damaged"
    """SQLite would pass over it and write over it."""


def beside(path: Path, end: str) -> Path:
    """`state.db-wal`, `state.db-shm`. A database that is a link has them where it leads."""
    real = path.resolve() if path.is_symlink() else path
    return real.with_name(f"{real.name}-{end}")


def blank(path: Path) -> bool:
    """Whether the database has no page: SQLite takes a file of one byte for one of none."""
    return path.stat().st_size <= 1


def log(path: Path) -> Log:
    """What there is of the log of the database at `path`."""
    file = beside(path, "wal")
    try:
        found = plain(file)
        # It may be begun anew at this very moment.
        states = [_log(read_start(file, _START), found.st_size) for _ in range(2)]
    except FileNotFoundError:
        return Log.NONE
    return next((state for state in states if state is not Log.DAMAGED), Log.DAMAGED)


def kinds(path: Path) -> None:
    """Raises Refused (`no_plain_file`) where the database, its log or its index is something else than a file."""
    for each in (path, beside(path, "wal"), beside(path, "shm")):
        with contextlib.suppress(FileNotFoundError):
            plain(each)


def check(path: Path) -> None:
    """Raises Refused for what SQLite must not be let at: `no_plain_file`, `lost_state` for a log whose database is gone
    or empty, and `damaged_state` for a damaged one. A database that is not there is none of these."""
    kinds(path)
    found = log(path)
    name = beside(path, "wal").name
    if found is not Log.NONE and (not path.exists() or blank(path)):
        what = "is empty" if path.exists() else "is missing"
        raise Refused(
            f"{path} {what}, and its log {name} is there: opening it would remove that.",
            fix=f"Move {name} away and restore a copy from {path.parent / 'backups'}.",
            code="lost_state",
        )
    if found is Log.DAMAGED:
        raise damaged(
            f"its log {name} does not begin as one",
            path,
            f"or move {name} away to go on with what {path.name} holds without it",
        )


def _log(head: bytes, size: int) -> Log:
    if size < _HEADER + _FRAME + _SMALLEST_PAGE or not any(head):
        return Log.NONE
    magic, version, page = struct.unpack(">III", head[:12])
    if magic & ~1 != _MAGIC or version != _VERSION or page & (page - 1) or not _SMALLEST_PAGE <= page <= 65536:
        return Log.DAMAGED
    first = second = 0
    words = struct.unpack(f"{'>' if magic & 1 else '<'}6I", head[:24])
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return Log.SOUND if struct.unpack(">II", head[24:32]) == (first, second) else Log.DAMAGED

"""Reading files whole that may be anything: a FIFO, a directory, a sparse file of sixty gigabytes, a link to nowhere.

Whoever opens a FIFO waits for a writer for ever, in the kernel, where no signal and no deadline reaches Python; whoever
reads a huge file is out of memory before he can look at its size. So nothing of a home is opened before it is known to
be a plain file, and nothing is read beyond what such a file can have.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from llmgw.errors import Refused, UsageError

SMALL = 64 << 10
"""Bytes: keys, tokens, what a lock or an identity says."""
LARGE = 16 << 20
"""Bytes: pins of some ten thousand nodes, a bundle of certificates."""

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_NULL = os.makedev(1, 3)


def plain(path: Path, most: int | None = None) -> os.stat_result:
    """What `path` is, when it is a file that can be read: links are followed, nothing is opened.

    Raises FileNotFoundError where there is nothing of that name, Refused (`no_plain_file`, `too_large`), OSError.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            # No missing file: whoever takes it for one writes a new one over the link.
            raise _no_plain_file(path, "a link that leads nowhere") from None
        raise
    _judge(path, found, most)
    return found


def read_plain(path: Path, most: int = SMALL) -> bytes:
    """The whole of a plain file of at most `most` bytes, without ever waiting for a writer. Raises as `plain`.

    /dev/null is the customary way to say that a file is empty, and is read as one.
    """
    if _is_null(path):
        return b""
    data = _read(path, most, most + 1)
    if len(data) > most:  # it grew
        raise _too_large(path, most)
    return data


def read_start(path: Path, count: int) -> bytes:
    """The first `count` bytes of a plain file of any size. Raises as `plain`."""
    return _read(path, None, count)


def check_text(path: Path, most: int = SMALL) -> None:
    """Raises Refused (`no_text`) for a file that is read as lines and holds none; else as `plain`."""
    try:
        read_plain(path, most).decode()
    except UnicodeDecodeError:
        raise Refused(
            f"{path} cannot be read: it is no text.", fix="Move it away.", code="no_text", path=path
        ) from None


def is_empty(path: Path) -> bool:
    """Whether there is a small plain file of nothing but white space."""
    try:
        return not read_plain(path).strip()
    except (OSError, Refused):
        return False


def read_json(path: Path, most: int = SMALL) -> Any:
    """What a file of JSON says. Raises ValueError for one that says nothing, however that comes; else as `plain`."""
    try:
        return json.loads(read_plain(path, most))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def expanded(name: str) -> Path:
    """`~` and `~user` resolved. Raises UsageError for a user that nobody knows."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{name}: there is no home directory of that user.", fix="Write the whole path, or set HOME."
        ) from None


def size(count: int) -> str:
    """`64 KiB`, `16 MiB`, as limits are told."""
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _read(path: Path, most: int | None, count: int) -> bytes:
    plain(path, most)
    # It may have been replaced since: without O_NONBLOCK a FIFO would be waited for here after all.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        _judge(path, os.fstat(descriptor), most)
        parts = []
        while count > 0 and (part := file.read(count)):
            parts.append(part)
            count -= len(part)
    return b"".join(parts)


def _is_null(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False  # whoever asks next says why
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL


def _judge(path: Path, found: os.stat_result, most: int | None) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise _no_plain_file(path, _KINDS.get(kind, "something else"))
    if most is not None and found.st_size > most:
        raise _too_large(path, most)


def _no_plain_file(path: Path, what: str) -> Refused:
    return Refused(
        f"{path} cannot be read: it is no plain file but {what}.", fix="Move it away.", code="no_plain_file", path=path
    )


def _too_large(path: Path, most: int) -> Refused:
    return Refused(
        f"{path} is larger than {size(most)}: it cannot be what its name says.",
        fix="Move it away.",
        code="too_large",
        path=path,
    )

"""What SQLite said, as an error with its cause and what to do."""

from __future__ import annotations

import os
import shlex
import sqlite3
from pathlib import Path

from llmgw.errors import DiskFull, LlmgwError, Refused

NO_ROOM = 1 << 20
"""Bytes: with less than that free a write that failed failed for it. SQLite calls it an I/O error in some places."""
_FULL, _IOERR, _CANTOPEN, _READONLY, _BUSY = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_BUSY,
)


def translate(exc: sqlite3.DatabaseError | UnicodeDecodeError, path: Path) -> LlmgwError:
    """What SQLite said of the database at `path`, as an error with what to do.

    What it says of a damaged schema quotes that, and may be no text: Python then raises a UnicodeDecodeError instead.
    """
    if isinstance(exc, UnicodeDecodeError):
        return damaged("its schema is no text", path)
    text = str(exc)
    code = getattr(exc, "sqlite_errorcode", 0)
    name = getattr(exc, "sqlite_errorname", "")
    kind = code & 0xFF  # the rest is the finer cause
    if kind == _FULL or (kind in (_IOERR, _CANTOPEN) and _no_room(path)):
        return DiskFull(
            f"{path} could not be written: the disk is full.",
            fix="Free some space there; serving goes on meanwhile, changes are refused.",
        )
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(text, path)
    if kind == _IOERR:
        return LlmgwError(
            f"{path} could not be read or written: {text} ({name}).",
            fix="Look at the disk (`dmesg`), and at quotas.",
            code="store",
        )
    if kind == _CANTOPEN:
        return LlmgwError(f"{path} could not be opened: {_why(path) or text}.", fix=_RIGHTS, code="store")
    if kind == _READONLY:
        return LlmgwError(f"{path} may not be written: {text}.", fix=_RIGHTS, code="store")
    if kind == _BUSY:
        fix = f"`fuser -v {shlex.quote(str(path))}` says which; end it, and try again."
        return LlmgwError(f"{path} is held by another program: {text}.", fix=fix, code="store")
    return LlmgwError(f"{path}: {text}.", code="store")


def damaged(found: str, path: Path, instead: str = "") -> Refused:
    """The database, or its log, is not what it was written as. `found` is what shows it, `instead` what may be done
    other than restoring a copy."""
    backups = path.parent / "backups"
    instead = instead or (
        f"or move {path.name} and {backups.name}/ away and run `llmgw node add` for your nodes again: running engines "
        "are left alone"
    )
    return Refused(
        f"{path} is damaged: {found}.",
        fix=f"Nothing was changed. Restore a copy from {backups} (`llmgw doctor` says how), {instead}.",
        code="damaged_state",
    )


_RIGHTS = "Check the owner and mode of it, of its log (-wal, -shm) and of the directory."


def _no_room(path: Path) -> bool:
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < NO_ROOM or bool(found.f_files and not found.f_favail)


def _why(path: Path) -> str | None:
    """What keeps a file from being opened, where it can be told."""
    if not path.parent.is_dir():
        return f"{path.parent} is no directory"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"{path.parent} may not be written by uid {os.geteuid()}"
    beside = [path, *(path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))]
    closed = [each.name for each in beside if each.exists() and not os.access(each, os.R_OK | os.W_OK)]
    return f"{' and '.join(closed)} may not be read and written by uid {os.geteuid()}" if closed else None

"""The copies of the state: one a day, the last seven."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from llmgw.errors import Refused
from llmgw.store.failures import translate

KEPT = 7


def copy_of_the_day(path: Path, folder: Path, now: float) -> None:
    """Makes it where it is missing, and takes old ones away. Raises Refused and DiskFull.

    By SQLite's own backup: copying the file would lose what is still in its log.
    """
    target = folder / time.strftime("state-%Y-%m-%d.db", time.localtime(now))
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not target.exists():
            _copy(path, target)
        for old in sorted(folder.glob("state-*.db"))[:-KEPT]:
            old.unlink()
    except OSError as exc:
        raise Refused(
            f"No copy of the state can be kept in {folder}: {exc.strerror or exc}.",
            fix="It is tried again every hour.",
            code="no_copy",
        ) from None
    except sqlite3.DatabaseError as exc:
        raise translate(exc, target) from None


def _copy(path: Path, target: Path) -> None:
    part = target.with_suffix(".part")
    part.unlink(missing_ok=True)  # one that was cut is no database, and SQLite would refuse it for ever
    source, copy = sqlite3.connect(path), sqlite3.connect(part)
    try:
        source.backup(copy)
    finally:
        source.close()
        copy.close()
    part.chmod(0o600)
    part.rename(target)

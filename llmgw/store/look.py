"""A look at the database that leaves no trace: not even the files of its log are made, as any other reader makes them.

A log that is there is read with its index as it stands (`readonly_shm`); without a log the file alone is the whole
state, and `immutable` keeps SQLite from making one. Tried with SQLite 3.40: `mode=ro` by itself leaves both behind, and
removes the log of an empty file. What SQLite must not be let at is refused by `disk.check` before.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw.errors import Refused
from llmgw.store import disk, migrate
from llmgw.store.failures import translate

OLDEST_SQLITE = (3, 24, 0)
"""`ON CONFLICT … DO UPDATE` came with it: https://www.sqlite.org/lang_upsert.html#history"""


@dataclass(frozen=True)
class Summary:
    """What is remembered, in numbers. None: this version of the schema does not say."""

    applied: tuple[str, ...]
    """Migrations that were applied, known or not. None: nothing was ever kept in it."""
    unknown: tuple[str, ...]
    """Migrations that this code has never heard of."""
    pending: tuple[str, ...]
    """Migrations that the next start applies."""
    controller: str | None
    """Who held the lease last."""
    nodes: int | None
    quarantined: tuple[str, ...]
    keys: int | None
    """API keys that are not revoked."""
    last_event: float | None
    """Unix seconds."""


def summary(path: Path) -> Summary:
    """Raises FileNotFoundError, Refused as `disk.check` (and `unmerged_log` for a log without its index)."""
    with _untouched(path) as conn:
        applied = {row[0] for row in _ask(conn, "SELECT name FROM _sqlite_migrations WHERE migration_set = 'llmgw'")}
        known = [script.stem for script in migrate.files()]
        return Summary(
            applied=tuple(sorted(applied)),
            unknown=tuple(sorted(applied - set(known))),
            pending=tuple(name for name in known if name not in applied),
            controller=_one(conn, "SELECT controller FROM lease"),
            nodes=_one(conn, "SELECT count(*) FROM nodes"),
            quarantined=tuple(
                row[0] for row in _ask(conn, "SELECT id FROM nodes WHERE quarantined IS NOT NULL ORDER BY id")
            ),
            keys=_one(conn, "SELECT count(*) FROM keys WHERE revoked_at IS NULL"),
            last_event=_one(conn, "SELECT max(at) FROM events"),
        )


def complaint(path: Path) -> str | None:
    """What SQLite's own check says is wrong with the file; None when it is sound. Raises as `summary`.

    A file without a log is read without locks: where it changed meanwhile, what was found may be the change.
    """
    said = None
    for _ in range(3):
        before = _marks(path)
        said = _complaint(path)
        if said is None or before == _marks(path):
            break
    return said


def _marks(path: Path) -> list[tuple[int, int] | None]:
    found = [each.stat() if each.exists() else None for each in (path, disk.beside(path, "wal"))]
    return [(each.st_mtime_ns, each.st_size) if each else None for each in found]


def _complaint(path: Path) -> str | None:
    try:
        with _untouched(path) as conn:
            found = conn.execute("PRAGMA quick_check(3)").fetchall()
            orphans = conn.execute("PRAGMA foreign_key_check").fetchall()
    except Refused as exc:
        if exc.code != "damaged_state":
            raise
        return exc.message.partition(" is damaged: ")[2].rstrip(".")
    said = [str(row[0]) for row in found if row[0] != "ok"]
    if orphans and not said:
        said = [f"{len(orphans)} rows of {orphans[0][0]} refer to nothing"]
    return "; ".join(" ".join(line.split()) for line in said) or None


@contextlib.contextmanager
def _untouched(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.exists():
        raise FileNotFoundError(path)
    disk.check(path)
    how = "mode=ro&immutable=1"
    if disk.log(path) is disk.Log.SOUND:
        how = "mode=ro&readonly_shm=1"
        if not disk.beside(path, "shm").exists():
            name = disk.beside(path, "wal").name
            raise Refused(
                f"{path} has a log ({name}) without its index: it cannot be read without being written.",
                fix="The next start merges the log.",
                code="unmerged_log",
            )
    try:
        conn = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None, timeout=5)
        try:
            yield conn
        finally:
            conn.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as exc:
        raise translate(exc, path) from None


def _ask(conn: sqlite3.Connection, query: str) -> list[Any]:
    """The rows; none where a table or a column is of another version of the schema."""
    try:
        return conn.execute(query).fetchall()
    except sqlite3.OperationalError as exc:
        if "no such" in str(exc):
            return []
        raise


def _one(conn: sqlite3.Connection, query: str) -> Any:
    return next((row[0] for row in _ask(conn, query)), None)

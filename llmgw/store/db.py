"""The database: one thread writes, one reads; nothing else touches SQLite.

sqlite-utils' own `atomic()` begins deferred, where a read followed by a write can fail at once with BUSY_SNAPSHOT
whatever the busy timeout is; so every write here is one `BEGIN IMMEDIATE` on the one writer thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sqlite_utils import Database as Database

from llmgw.clock import Clock
from llmgw.errors import DiskFull, LlmgwError, Refused
from llmgw.model.event import Event
from llmgw.store import migrate

T = TypeVar("T")


@dataclass
class Tx:
    """A write transaction. Events added to it are told to the listeners once it is committed."""

    db: Database
    now: float
    events: list[Event] = field(default_factory=list)


class Store:
    """Opened by whoever holds the lease. `open()` migrates; `close()` waits for writes under way."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self._listeners: list[Callable[[list[Event]], None]] = []
        self._write_db: Database | None = None
        self._read_db: Database | None = None
        self.full: bool = False
        """The last write failed for lack of space: the state is read-only, routing goes on from memory."""

    async def open(self) -> None:
        """Opens and migrates. Raises Refused for a damaged database or one of a newer version, DiskFull."""
        loop = asyncio.get_running_loop()
        self._write_db = await loop.run_in_executor(self._writer, self._open_writer)
        self._read_db = await loop.run_in_executor(self._reader, lambda: open_read_only(self.path))

    def on_events(self, listener: Callable[[list[Event]], None]) -> None:
        """`listener` gets the committed events of each transaction, in order, on the event loop's thread."""
        self._listeners.append(listener)

    async def write(self, work: Callable[[Tx], T]) -> T:
        """Runs `work` in one immediate transaction: all of it is kept or nothing.

        Not cancelled half way: a caller that is cancelled leaves a transaction that still ends by itself.
        Raises DiskFull when there is no space; nothing has happened then.
        """
        loop = asyncio.get_running_loop()
        try:
            result, events = await asyncio.shield(loop.run_in_executor(self._writer, self._transact, work))
        except DiskFull:
            self.full = True
            raise
        self.full = False
        if events:
            for listener in self._listeners:
                listener(events)
        return result

    async def read(self, work: Callable[[Database], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._look, work)

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        for pool, db in ((self._reader, self._read_db), (self._writer, self._write_db)):
            if db is not None:
                await loop.run_in_executor(pool, db.conn.close)
            pool.shutdown(wait=False)

    def _open_writer(self) -> Database:
        try:
            db = connect(self.path)
            found = db.conn.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise _damaged(found, self.path)
            mode = db.conn.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise Refused(f"{self.path} cannot use a write-ahead log here (journal mode {mode}).", code="no_wal")
            db.conn.execute("PRAGMA synchronous=FULL")
            migrate.apply(db)
        except sqlite3.DatabaseError as exc:
            raise translate(exc, self.path) from None
        self.path.chmod(0o600)
        return db

    def _transact(self, work: Callable[[Tx], T]) -> tuple[T, list[Event]]:
        assert self._write_db is not None
        conn = self._write_db.conn
        try:
            conn.execute("BEGIN IMMEDIATE")
            tx = Tx(self._write_db, self._clock.wall())
            try:
                result = work(tx)
                conn.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite has already rolled back.
                if conn.in_transaction:
                    conn.execute("ROLLBACK")
                raise
        except sqlite3.DatabaseError as exc:
            raise translate(exc, self.path) from exc
        return result, tx.events

    def _look(self, work: Callable[[Database], T]) -> T:
        assert self._read_db is not None
        try:
            return work(self._read_db)
        except sqlite3.DatabaseError as exc:
            raise translate(exc, self.path) from exc


def connect(path: Path) -> Database:
    conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    conn.execute("PRAGMA foreign_keys=ON")
    return Database(conn, execute_plugins=False)


def open_read_only(path: Path) -> Database:
    """For commands that only look while somebody else may be writing. Raises FileNotFoundError when there is none."""
    if not path.exists():
        raise FileNotFoundError(path)
    conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=10)
    conn.execute("PRAGMA query_only=ON")
    return Database(conn, execute_plugins=False)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Database]:
    db = open_read_only(path)
    try:
        yield db
    finally:
        db.conn.close()


def translate(exc: sqlite3.DatabaseError, path: Path) -> LlmgwError:
    """What SQLite said, as an error with what to do."""
    text = str(exc)
    if isinstance(exc, sqlite3.OperationalError) and ("full" in text or "disk I/O" in text):
        return DiskFull(
            f"{path} could not be written: the disk is full.",
            fix="Free some space there; serving goes on meanwhile, changes are refused.",
        )
    if "malformed" in text or "not a database" in text or "file is encrypted" in text:
        return _damaged(text, path)
    return LlmgwError(f"{path}: {text}.", code="store")


def _damaged(found: str, path: Path) -> Refused:
    return Refused(
        f"{path} is damaged: {found}.",
        fix=f"Nothing was changed. Restore a copy from {path.parent / 'backups'}, or move the file away and run "
        "`llmgw node add` for your nodes again: running engines are left alone.",
        code="damaged_state",
    )

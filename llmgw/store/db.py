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
from llmgw.store import disk, lost, migrate
from llmgw.store.failures import damaged, translate
from llmgw.store.place import Place

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
        self._place = Place(path)
        self.full: bool = False
        """The last write failed for lack of space: the state is read-only, routing goes on from memory."""

    async def open(self) -> None:
        """Opens and migrates. Raises Refused for a database that is damaged, lost or of a newer version, DiskFull."""
        loop = asyncio.get_running_loop()
        self._write_db = await loop.run_in_executor(self._writer, self._open_writer)
        self._read_db = await loop.run_in_executor(self._reader, self._open_reader)

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
        if self._write_db is not None:
            await loop.run_in_executor(self._writer, self._leave, self._write_db)
        for pool, db in ((self._reader, self._read_db), (self._writer, self._write_db)):
            if db is not None:
                await loop.run_in_executor(pool, db.conn.close)
            pool.shutdown(wait=False)
        self._place.forget()

    def _leave(self, db: Database) -> None:
        """The last chance to keep what was written into a file that has no name any more."""
        with contextlib.suppress(LlmgwError):
            self._place.check(db, self._clock.wall())

    def _open_writer(self) -> Database:
        disk.kinds(self.path)
        judged = self._refuse_lost()
        db = None
        try:
            db = connect(self.path)
            found = db.conn.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise damaged(found, self.path)
            if not judged:
                self._refuse_lost()
            mode = db.conn.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise Refused(f"{self.path} cannot use a write-ahead log here (journal mode {mode}).", code="no_wal")
            db.conn.execute("PRAGMA synchronous=FULL")
            migrate.apply(db)
            self.path.chmod(0o600)
        except BaseException as exc:
            if db is not None:
                db.conn.close()
            if isinstance(exc, (sqlite3.DatabaseError, UnicodeDecodeError)):
                raise translate(exc, self.path) from None
            raise
        self._place.remember()
        return db

    def _open_reader(self) -> Database:
        try:
            db = open_read_only(self.path)
            db.conn.execute("SELECT count(*) FROM sqlite_master").fetchone()  # only a read opens the log, by its name
        except sqlite3.DatabaseError as exc:
            raise translate(exc, self.path) from None
        return db

    def _refuse_lost(self) -> bool:
        """Raises Refused before anything is made in the place of a state that was there. False where that cannot be
        told yet: a log without its index has to be merged first."""
        try:
            loss = lost.found(self.path)
        except LlmgwError as exc:
            if exc.code in ("damaged_state", "lost_state"):
                raise
            disk.check(self.path)
            return False
        if loss is not None:
            raise loss.error()
        return True

    def _transact(self, work: Callable[[Tx], T]) -> tuple[T, list[Event]]:
        assert self._write_db is not None
        conn = self._write_db.conn
        self._place.check(self._write_db, self._clock.wall())
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
    disk.check(path)
    name = f"{path.absolute().as_uri()}?mode=ro"
    conn = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False, timeout=10)
    conn.execute("PRAGMA query_only=ON")
    return Database(conn, execute_plugins=False)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Database]:
    db = open_read_only(path)
    try:
        yield db
    finally:
        db.conn.close()

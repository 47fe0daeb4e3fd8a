"""Whether the files that SQLite has open are still those under their names.

What is removed or replaced under a running server goes on living as long as it is open: every write succeeds, into a
file that nobody finds again once the server ends. So writes are refused then, and what there is is saved as a copy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from pathlib import Path

from sqlite_utils import Database

from llmgw.errors import Refused
from llmgw.store import disk, lost

log = logging.getLogger("llmgw.store")


class Place:
    """The database at `path` and its log, as they were when they were opened. Used by the writer alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: dict[Path, int] = {}
        self._saved: Path | None = None
        self._away = False

    def remember(self) -> None:
        """They were opened just now."""
        for each in (self._path, disk.beside(self._path, "wal")):
            # Such a descriptor is no opened file: closing it drops no lock that SQLite holds.
            with contextlib.suppress(FileNotFoundError):
                self._held[each] = os.open(each, os.O_PATH | os.O_CLOEXEC)

    def forget(self) -> None:
        """They are closed."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def check(self, db: Database, now: float) -> None:
        """Raises Refused (`state_replaced`) where they are not in their place, with a copy made of what `db` has open.

        Put back in its place, the database is written again.
        """
        name = self._wrong()
        if name is None:
            self._away = False
            return
        if not self._away:
            self._away = True
            self._saved = self._save(db, now)
            log.error("%s was removed or replaced; what it held is in %s", name, self._saved)
        saved = f"what it held is in {self._saved}" if self._saved else "what it held could not be saved"
        how = f"run `{lost.restore(self._path, self._saved)}`" if self._saved else "put it back"
        raise Refused(
            f"{self._path.with_name(name)} was removed or replaced while it was in use: changes are refused, {saved}.",
            fix=f"Stop the server, then {how}, and start it again: engines go on running.",
            code="state_replaced",
        )

    def _wrong(self) -> str | None:
        for each, descriptor in self._held.items():
            try:
                there = each.stat()
            except OSError:
                return each.name
            # Asked anew: not every file system keeps the number of a file for ever.
            if not os.path.samestat(there, os.fstat(descriptor)):
                return each.name
        return None

    def _save(self, db: Database, now: float) -> Path | None:
        """A copy beside the daily ones, newer than that of its day by its name."""
        folder = self._path.parent / "backups"
        target = folder / time.strftime("state-%Y-%m-%d.rescued-%H%M%S.db", time.localtime(now))
        part = target.with_suffix(".part")
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            copy = sqlite3.connect(part)
            try:
                db.conn.backup(copy)
            finally:
                copy.close()
            part.chmod(0o600)
            part.rename(target)
        except (OSError, sqlite3.Error) as exc:
            with contextlib.suppress(OSError):
                part.unlink()
            log.error("%s could not be saved as %s: %s", self._path, target, exc)
            return None
        return target

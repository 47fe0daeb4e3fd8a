"""The lease: exactly one process writes the state, opens connections to nodes and raises the term.

A flock on a file beside the database (never on the database itself: closing any descriptor of a file drops the locks
that SQLite holds on it). The kernel lets go when the process dies, however it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from llmgw.config.home import host_name
from llmgw.errors import DiskFull, Refused
from llmgw.store.db import Tx


class Lease:
    """Held from `acquire` until `release` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True)
class Holder:
    """Who holds the lease. Its text is for people: `pid 4711 on gpu01 since 2026-11-30 12:00:00 (server run)`."""

    pid: int | None = None
    host: str = ""
    since: float = 0.0
    purpose: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.pid} on {self.host} since {since} ({self.purpose})"


def holder(path: Path) -> Holder | None:
    """Who holds the lease; None when it is free."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _who(path)
    finally:
        os.close(descriptor)


def recorded(path: Path) -> Holder | None:
    """Whom the file names: the last one who took the lease, whether he still has it or not. None: nobody legible."""
    found = _who(path)
    return found if found.pid is not None else None


async def acquire(path: Path, *, purpose: str, wait: float = 0.0) -> Lease:
    """Takes the lease, waiting at most `wait` seconds. Raises Refused (code `lease_held`) naming who holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno == 28:
            raise DiskFull(f"{path} cannot be created: no space left.", fix="Free some space there.") from None
        raise Refused(f"{path} cannot be opened: {exc.strerror}.", code="lease") from None
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= end:
                os.close(descriptor)
                raise Refused(
                    f"The state in {path.parent} is held by {_who(path)}.",
                    fix="Talk to that one (`llmgw ctl …` does), stop it first, or use another LLMGW_HOME.",
                    code="lease_held",
                ) from None
            await asyncio.sleep(0.1)
    body = {"pid": os.getpid(), "host": host_name(), "since": time.time(), "purpose": purpose}
    os.ftruncate(descriptor, 0)
    with contextlib.suppress(OSError):  # The lock is what counts; on a full disk only the holder's name is lost.
        os.pwrite(descriptor, json.dumps(body).encode(), 0)
    return Lease(descriptor)


def begin_term(tx: Tx, controller: str) -> int:
    """The next term: +1 each time the lease is taken. Returns it."""
    row = next(iter(tx.db.query("SELECT term FROM lease WHERE id = 1")), None)
    return set_term(tx, controller, (row["term"] if row else 0) + 1)


def set_term(tx: Tx, controller: str, term: int) -> int:
    tx.db.table("lease").upsert(
        {
            "id": 1,
            "term": term,
            "controller": controller,
            "pid": os.getpid(),
            "host": host_name(),
            "since": tx.now,
        },
        pk="id",
    )
    return term


def _who(path: Path) -> Holder:
    try:
        body = json.loads(path.read_text())
        return Holder(int(body["pid"]), str(body["host"]), float(body["since"]), str(body["purpose"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Holder()

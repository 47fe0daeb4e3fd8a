"""The lease: exactly one process writes the state, opens connections to nodes and raises the term.

A flock on a file beside the database (never on the database itself: closing any descriptor of a file drops the locks
that SQLite holds on it). The kernel lets go when the process dies, however it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from llmgw.config.files import plain, read_json
from llmgw.config.home import host_name
from llmgw.errors import DiskFull, Refused
from llmgw.store.db import Tx

_HOW = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LAST_PID = (1 << 31) - 1
"""What a pid_t holds."""
_LATEST = float(1 << 35)
"""Unix seconds of the year 3058: localtime(3) knows no end, Python does."""
_LONGEST = 100


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
    """Who holds the lease; None when it is free, or when what bears its name is none."""
    try:
        plain(path)
        descriptor = os.open(path, _HOW)
    except (OSError, Refused):
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
    with contextlib.suppress(FileNotFoundError):
        plain(path)
    try:
        descriptor = os.open(path, _HOW | os.O_CREAT, 0o600)
    except OSError as exc:
        if exc.errno == errno.ENOSPC:
            raise DiskFull(f"{path} cannot be created: no space left.", fix="Free some space there.") from None
        what = "it is a link" if exc.errno == errno.ELOOP else exc.strerror
        raise Refused(f"{path} cannot be opened: {what}.", fix="Check its owner and mode.", code="lease") from None
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
        except OSError as exc:
            os.close(descriptor)
            raise Refused(
                f"{path} cannot be locked: {exc.strerror}.", fix="Set LLMGW_HOME to a local disk.", code="lease"
            ) from None
    body = {"pid": os.getpid(), "host": host_name(), "since": time.time(), "purpose": purpose}
    with contextlib.suppress(OSError):  # The lock is what counts; on a full disk only the holder's name is lost.
        os.ftruncate(descriptor, 0)
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
    """Nobody by name for whatever the file holds instead: it is read by whoever is turned away."""
    try:
        body = read_json(path)
        since = float(body["since"])
        pid = body["pid"]
        if type(pid) is not int or not 0 < pid <= _LAST_PID or not 0 <= since < _LATEST:
            return Holder()
        return Holder(pid, f"{body['host']!s:.{_LONGEST}}", since, f"{body['purpose']!s:.{_LONGEST}}")
    except (OSError, Refused, ValueError, ArithmeticError, LookupError, TypeError):
        return Holder()

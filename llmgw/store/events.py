"""Events and the audit of remote commands: append, read from a point on, prune."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlite_utils import Database

from llmgw.model.event import Audit, Event, Severity
from llmgw.store.db import Tx
from llmgw.store.rows import from_row, to_row

_NO_ID = frozenset({"id"})


def add(
    tx: Tx,
    kind: str,
    message: str,
    *,
    node: str | None = None,
    model: str | None = None,
    replica: str | None = None,
    severity: Severity = Severity.INFO,
    **data: Any,
) -> Event:
    """Records an event in this transaction; it is told to listeners after the commit."""
    event = Event(
        at=tx.now, kind=kind, severity=severity, message=message, node=node, model=model, replica=replica, data=data
    )
    row = to_row(event, exclude=_NO_ID)
    marks = ", ".join("?" for _ in row)
    cursor = tx.db.conn.execute(f"INSERT INTO events ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
    event = event.model_copy(update={"id": cursor.lastrowid})
    tx.events.append(event)
    return event


def after(db: Database, last: int, *, limit: int = 500, node: str | None = None) -> list[Event]:
    """Events with an id above `last`, oldest first."""
    rows = db.query(
        "SELECT * FROM events WHERE id > ? AND (? IS NULL OR node = ?) ORDER BY id LIMIT ?", [last, node, node, limit]
    )
    return [from_row(Event, row) for row in rows]


def last_id(db: Database) -> int:
    """The id of the newest event; 0 before the first."""
    return int(next(iter(db.query("SELECT COALESCE(MAX(id), 0) AS last FROM events")))["last"])


def latest(db: Database, *, limit: int = 100, node: str | None = None, replica: str | None = None) -> list[Event]:
    """The newest `limit` events, oldest first."""
    rows = db.query(
        "SELECT * FROM events WHERE (? IS NULL OR node = ?) AND (? IS NULL OR replica = ?) ORDER BY id DESC LIMIT ?",
        [node, node, replica, replica, limit],
    )
    return [from_row(Event, row) for row in rows][::-1]


def add_audit(tx: Tx, entries: Iterable[Audit]) -> None:
    tx.db.table("audit").insert_all(to_row(entry, exclude=_NO_ID) for entry in entries)


def audit(db: Database, *, limit: int = 100, node: str | None = None) -> list[Audit]:
    rows = db.query("SELECT * FROM audit WHERE (? IS NULL OR node = ?) ORDER BY id DESC LIMIT ?", [node, node, limit])
    return [from_row(Audit, row) for row in rows][::-1]


def prune(tx: Tx, *, older_than: float, keep: int) -> int:
    """Drops events and audit rows from before `older_than` (Unix seconds) and beyond the newest `keep` of each."""
    gone = 0
    for table in ("events", "audit"):
        cursor = tx.db.conn.execute(
            f"DELETE FROM {table} WHERE at < ? OR id <= (SELECT MAX(id) FROM {table}) - ?", [older_than, keep]
        )
        gone += cursor.rowcount
    return gone

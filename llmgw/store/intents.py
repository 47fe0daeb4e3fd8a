"""Intents: what we are about to do to a node, committed before it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlite_utils import Database

from llmgw.store.db import Tx


@dataclass(frozen=True)
class Intent:
    id: int
    kind: str
    """`start` or `stop`."""
    node: str
    replica: str | None
    rank: int | None
    attempt: int | None
    term: int
    created_at: float


def begin(
    tx: Tx, kind: str, node: str, *, term: int, replica: str | None = None, rank: int = 0, attempt: int | None = None
) -> int:
    row = (kind, node, replica, rank, attempt, term, tx.now)
    cursor = tx.db.conn.execute(
        "INSERT INTO intents (kind, node, replica, rank, attempt, term, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)", row
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def close(tx: Tx, intent: int, outcome: str) -> None:
    tx.db.conn.execute(
        "UPDATE intents SET closed_at = ?, outcome = ? WHERE id = ? AND closed_at IS NULL", [tx.now, outcome, intent]
    )


def close_for(tx: Tx, replica: str, outcome: str) -> None:
    """Closes what is open about a replica: looking has answered it."""
    tx.db.conn.execute(
        "UPDATE intents SET closed_at = ?, outcome = ? WHERE replica = ? AND closed_at IS NULL",
        [tx.now, outcome, replica],
    )


def open_ones(db: Database, node: str | None = None) -> list[Intent]:
    rows: Any = db.query(
        "SELECT id, kind, node, replica, rank, attempt, term, created_at FROM intents "
        "WHERE closed_at IS NULL AND (? IS NULL OR node = ?) ORDER BY id",
        [node, node],
    )
    return [Intent(**row) for row in rows]


def prune(tx: Tx, older_than: float) -> None:
    tx.db.conn.execute("DELETE FROM intents WHERE closed_at < ?", [older_than])

"""API keys by hash, and what each has used."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from sqlite_utils import Database

from llmgw.model.key import ApiKey
from llmgw.model.usage import UsageRow
from llmgw.store.db import Tx
from llmgw.store.rows import from_row, to_row


def every(db: Database, *, revoked: bool = False) -> list[ApiKey]:
    rows = db.query("SELECT * FROM keys WHERE ? OR revoked_at IS NULL ORDER BY created_at, name", [revoked])
    return [from_row(ApiKey, row) for row in rows]


def get(db: Database, name: str) -> ApiKey | None:
    for row in db.query("SELECT * FROM keys WHERE name = ?", [name]):
        return from_row(ApiKey, row)
    return None


def put(tx: Tx, key: ApiKey) -> None:
    tx.db.table("keys").upsert(to_row(key), pk="name")


def add_usage(tx: Tx, rows: Iterable[UsageRow]) -> None:
    day = time.strftime("%Y-%m-%d", time.gmtime(tx.now))
    for row in rows:
        tx.db.conn.execute(
            "INSERT INTO usage (key, model, day, requests, prompt_tokens, completion_tokens, cancelled, failed) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key, model, day) DO UPDATE SET "
            "requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
            "completion_tokens = completion_tokens + excluded.completion_tokens, "
            "cancelled = cancelled + excluded.cancelled, failed = failed + excluded.failed",
            (
                row.key,
                row.model,
                day,
                row.requests,
                row.prompt_tokens,
                row.completion_tokens,
                row.cancelled,
                row.failed,
            ),
        )


def usage(db: Database) -> list[dict[str, Any]]:
    return list(db.query("SELECT * FROM usage ORDER BY day, key, model"))

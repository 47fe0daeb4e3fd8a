"""Replicas and their shards: what was decided, and what was last seen of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlite_utils import Database

from llmgw.model.replica import Process, Replica, Shard
from llmgw.store.db import Tx
from llmgw.store.rows import from_row, to_row

_SHARDS = frozenset({"shards"})


def every(db: Database) -> list[Replica]:
    shards: dict[str, list[Shard]] = defaultdict(list)
    for row in db.query("SELECT * FROM shards ORDER BY replica, rank"):
        shards[row["replica"]].append(_shard(row))
    rows = db.query("SELECT * FROM replicas ORDER BY created_at, id")
    return [from_row(Replica, row, shards=tuple(shards[row["id"]])) for row in rows]


def get(db: Database, replica: str) -> Replica | None:
    for row in db.query("SELECT * FROM replicas WHERE id = ?", [replica]):
        rows = db.query("SELECT * FROM shards WHERE replica = ? ORDER BY rank", [replica])
        return from_row(Replica, row, shards=tuple(_shard(shard) for shard in rows))
    return None


def put(tx: Tx, replica: Replica) -> None:
    tx.db.table("replicas").upsert(to_row(replica, exclude=_SHARDS), pk="id")
    for shard in replica.shards:
        process = shard.process
        tx.db.table("shards").upsert(
            {
                "replica": replica.id,
                "rank": shard.rank,
                "node": shard.node,
                "attempt": shard.attempt,
                "port": shard.port,
                "pid": process.pid if process else None,
                "start_ticks": process.start_ticks if process else None,
                "boot_id": process.boot_id if process else None,
            },
            pk=("replica", "rank"),
        )


def change(tx: Tx, replica: str, **fields: Any) -> Replica | None:
    """Changes some fields of a replica as it is now; a change of state sets `state_since`. None when it is gone."""
    now = get(tx.db, replica)
    if now is None:
        return None
    if "state" in fields and fields["state"] is not now.state:
        fields.setdefault("state_since", tx.now)
        fields.setdefault("progress", None)
    changed = now.model_copy(update=fields)
    if changed != now:
        put(tx, changed)
    return changed


def remove(tx: Tx, replica: str) -> None:
    tx.db.conn.execute("DELETE FROM replicas WHERE id = ?", [replica])


def _shard(row: dict[str, Any]) -> Shard:
    process = None
    if row["pid"] is not None:
        process = Process(boot_id=row["boot_id"], pid=row["pid"], start_ticks=row["start_ticks"])
    return Shard(node=row["node"], rank=row["rank"], attempt=row["attempt"], port=row["port"], process=process)

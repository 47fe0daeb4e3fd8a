"""Nodes, their latest probe, and the engines on them."""

from __future__ import annotations

import json
from typing import Any

from sqlite_utils import Database

from llmgw.model.engine import NodeEngine
from llmgw.model.node import Node
from llmgw.store.db import Tx
from llmgw.store.rows import records, to_row, upsert


def every(db: Database) -> list[Node]:
    return records(Node, db, "SELECT * FROM nodes ORDER BY id")


def get(db: Database, node: str) -> Node | None:
    return next(iter(records(Node, db, "SELECT * FROM nodes WHERE id = ?", node)), None)


def alike(db: Database, machine_id: str) -> list[tuple[str, str | None]]:
    """(id, boot id) of the nodes that have this machine id: one machine twice, or clones of one image."""
    sql = "SELECT id, boot_id FROM nodes WHERE machine_id = ? ORDER BY id"
    return [(row["id"], row["boot_id"]) for row in db.query(sql, [machine_id])]


def put(tx: Tx, node: Node) -> None:
    upsert(tx, "nodes", to_row(node), "id")


def change(tx: Tx, node: str, **fields: Any) -> Node | None:
    """Changes some fields of a node as it is now. None when it is not there any more."""
    now = get(tx.db, node)
    if now is None:
        return None
    changed = now.model_copy(update=fields)
    if changed != now:
        put(tx, Node.model_validate(changed.model_dump()))
    return changed


def remove(tx: Tx, node: str) -> None:
    tx.db.conn.execute("DELETE FROM replicas WHERE id IN (SELECT replica FROM shards WHERE node = ?)", [node])
    tx.db.conn.execute("DELETE FROM intents WHERE node = ?", [node])
    tx.db.conn.execute("DELETE FROM nodes WHERE id = ?", [node])


def put_probe(tx: Tx, node: str, document: dict[str, Any]) -> dict[str, Any] | None:
    """Keeps `document` as the node's latest and returns the one before it."""
    before = probe(tx.db, node)
    upsert(
        tx,
        "probes",
        {
            "node": node,
            "at": tx.now,
            "latest": json.dumps(document, separators=(",", ":")),
            "previous": json.dumps(before, separators=(",", ":")) if before is not None else None,
        },
        "node",
    )
    return before


def probe(db: Database, node: str) -> dict[str, Any] | None:
    for row in db.query("SELECT latest FROM probes WHERE node = ?", [node]):
        found: dict[str, Any] = json.loads(row["latest"])
        return found
    return None


def probes(db: Database) -> dict[str, dict[str, Any]]:
    return {row["node"]: json.loads(row["latest"]) for row in db.query("SELECT node, latest FROM probes")}


def engines(db: Database, node: str | None = None) -> list[NodeEngine]:
    if node is None:
        return records(NodeEngine, db, "SELECT * FROM node_engines ORDER BY node, engine")
    return [one for one in engines(db) if one.node == node]


def put_engine(tx: Tx, engine: NodeEngine) -> None:
    upsert(tx, "node_engines", to_row(engine), "node", "engine", "version")


def remove_engine(tx: Tx, engine: NodeEngine) -> None:
    tx.db.conn.execute(
        "DELETE FROM node_engines WHERE node = ? AND engine = ? AND version = ?",
        [engine.node, engine.engine, engine.version],
    )

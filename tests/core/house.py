"""A state in memory and the real functions that change it: what the loops write down, without the loops."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import pytest

from llmgw.loops import act
from llmgw.model.action import Action
from llmgw.model.catalog import Model
from llmgw.model.node import Node
from llmgw.model.replica import Replica
from llmgw.model.snapshot import Snapshot
from llmgw.store import migrate, models, nodes, replicas
from llmgw.store.db import Database, Tx

TABLES = ("shards", "replicas", "node_engines", "probes", "nodes", "models", "intents", "events")


class House:
    """The store's own code over a database in memory; one transaction a call."""

    def __init__(self) -> None:
        conn = sqlite3.connect(":memory:", isolation_level=None)
        conn.execute("PRAGMA foreign_keys=ON")
        conn.execute("PRAGMA synchronous=OFF")
        self.db = Database(conn, execute_plugins=False)
        migrate.apply(self.db)

    def fill(self, some_nodes: Iterable[Node], some_models: Iterable[Model], some_replicas: Iterable[Replica]) -> None:
        for table in TABLES:
            self.db.conn.execute(f"DELETE FROM {table}")
        tx = Tx(self.db, 0.0)
        for node in some_nodes:
            nodes.put(tx, node)
        for model in some_models:
            models.put(tx, model)
        for replica in some_replicas:
            replicas.put(tx, replica)

    def carry_out(self, actions: Sequence[Action], now: float) -> None:
        """As `act` writes decisions down."""
        self.db.conn.execute("BEGIN IMMEDIATE")
        act._record(Tx(self.db, now), actions)
        self.db.conn.execute("COMMIT")

    def again(self, before: Snapshot) -> Snapshot:
        """The same moment with what is stored now."""
        return before.model_copy(
            update={"nodes": tuple(nodes.every(self.db)), "replicas": tuple(replicas.every(self.db))}
        )


def count_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of new replicas that are the same in every run: a seed is worth nothing otherwise."""
    numbers = iter(range(1 << 24))
    monkeypatch.setattr(act.secrets, "token_hex", lambda size: f"{next(numbers):06x}")

"""The catalog as it is stored."""

from __future__ import annotations

from sqlite_utils import Database

from llmgw.model.catalog import Model
from llmgw.store.db import Tx


def every(db: Database) -> list[Model]:
    return [Model.model_validate_json(row["entry"]) for row in db.query("SELECT entry FROM models ORDER BY name")]


def created(db: Database) -> dict[str, float]:
    return {row["name"]: row["created_at"] for row in db.query("SELECT name, created_at FROM models")}


def get(db: Database, name: str) -> Model | None:
    """By canonical name or alias."""
    for model in every(db):
        if name in model.names:
            return model
    return None


def put(tx: Tx, model: Model) -> None:
    known = created(tx.db)
    tx.db.table("models").upsert(
        {
            "name": model.name,
            "entry": model.model_dump_json(),
            "created_at": known.get(model.name, tx.now),
            "updated_at": tx.now,
        },
        pk="name",
    )


def remove(tx: Tx, name: str) -> None:
    tx.db.conn.execute("DELETE FROM models WHERE name = ?", [name])

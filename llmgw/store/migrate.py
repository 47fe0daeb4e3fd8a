"""Applies `state/migrations/*.sql` in order, each in one transaction. Called with the lease held."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from sqlite_utils import Database, Migrations

from llmgw import assets
from llmgw.errors import Refused

SET = "llmgw"


def files() -> list[Path]:
    return sorted((assets.folder("state") / "migrations").glob("[0-9]*.sql"))


def apply(db: Database, scripts: list[Path] | None = None) -> None:
    """Raises Refused when the database knows migrations that this version does not: nothing is written then."""
    scripts = files() if scripts is None else scripts
    migrations = Migrations(SET)
    known = set()
    for script in scripts:
        known.add(script.stem)
        migrations(name=script.stem)(_runner(script.read_text()))
    unknown = [done.name for done in migrations.applied(db) if done.name not in known]
    if unknown:
        raise Refused(
            f"The state was written by a newer version of llmgw (it has {', '.join(unknown)}).",
            fix="Install that version or a later one; nothing was changed.",
            code="newer_state",
        )
    if migrations.pending(db):
        migrations.apply(db)


def schema_sql(db: Database) -> str:
    """What the migrations add up to: the text of `state/schema.sql`, every table of ours with its indexes."""
    rows = db.query("SELECT tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY tbl_name, type DESC, name")
    ours = [row["sql"] for row in rows if not row["tbl_name"].startswith(("sqlite_", "_sqlite_"))]
    return "\n\n".join(f"{sql};" for sql in ours) + "\n"


def _runner(sql: str) -> Callable[[Database], None]:
    def run(db: Database) -> None:
        # Statement by statement: executescript() would commit the transaction that wraps the migration.
        for statement in _statements(sql):
            db.conn.execute(statement)

    return run


def _statements(sql: str) -> list[str]:
    found, pending = [], ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending)
            pending = ""
    return found

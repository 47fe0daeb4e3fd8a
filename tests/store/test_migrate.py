"""The schema: from nothing, never edited, never half applied, never by an older program."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from llmgw import assets
from llmgw.clock import ManualClock
from llmgw.errors import Refused
from llmgw.store import migrate
from llmgw.store.db import Database, Store, connect

RELEASED = {"0001_initial": "926ee43281f6f72c"}
"""Released migrations by the first digits of their sha256. One that is here is never edited: a new one follows it."""


def dump(path: Path) -> list[str]:
    conn = sqlite3.connect(path)
    try:
        return list(conn.iterdump())
    finally:
        conn.close()


def memory() -> Database:
    return Database(sqlite3.connect(":memory:", isolation_level=None), execute_plugins=False)


def scripts(folder: Path, **texts: str) -> list[Path]:
    made = []
    for name, text in texts.items():
        made.append(folder / f"{name}.sql")
        made[-1].write_text(text)
    return made


def test_they_apply_from_nothing_and_applying_them_again_changes_nothing() -> None:
    db = memory()
    migrate.apply(db)
    before = migrate.schema_sql(db)
    migrate.apply(db)
    assert migrate.schema_sql(db) == before


def test_schema_sql_is_what_they_add_up_to() -> None:
    db = memory()
    migrate.apply(db)
    generated = (assets.folder("state") / "schema.sql").read_text()
    assert generated == migrate.schema_sql(db), "state/schema.sql is generated from the migrations: make docs"


def test_migrations_are_numbered_without_a_gap() -> None:
    numbers = [int(file.name[:4]) for file in migrate.files()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_released_migrations_are_never_edited() -> None:
    found = {file.stem: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in migrate.files()}
    assert {name: found.get(name) for name in RELEASED} == RELEASED


async def test_a_state_of_a_newer_version_is_refused_and_left_as_it_is(path: Path) -> None:
    """F09."""
    store = Store(path, ManualClock())
    await store.open()
    await store.close()
    conn = sqlite3.connect(path)
    conn.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('llmgw', '0099_later', 'then')"
    )
    conn.commit()
    conn.close()
    before = dump(path)
    later = Store(path, ManualClock())
    with pytest.raises(Refused) as caught:
        await later.open()
    await later.close()
    assert caught.value.code == "newer_state"
    assert "0099_later" in caught.value.message
    assert dump(path) == before


def test_an_older_version_does_not_apply_what_it_still_lacks_to_a_newer_state(tmp_path: Path) -> None:
    db = memory()
    first = scripts(tmp_path, **{"0001_a": "CREATE TABLE a (x);"})
    migrate.apply(db, first)
    migrate.apply(db, [*first, *scripts(tmp_path, **{"0003_c": "CREATE TABLE c (x);"})])
    with pytest.raises(Refused):
        migrate.apply(db, [*first, *scripts(tmp_path, **{"0002_b": "CREATE TABLE b (x);"})])
    assert "CREATE TABLE b" not in migrate.schema_sql(db)


def test_one_that_fails_half_way_is_rolled_back_and_the_old_version_goes_on(path: Path, tmp_path: Path) -> None:
    """F10."""
    first = scripts(tmp_path, **{"0001_a": "CREATE TABLE a (x);\nINSERT INTO a VALUES (1);"})
    db = connect(path)
    migrate.apply(db, first)
    before = dump(path)
    text = "CREATE TABLE b (y);\nALTER TABLE a ADD COLUMN z;\nINSERT INTO a VALUES (2, 3);\nINSERT INTO no VALUES (1);"
    broken = scripts(tmp_path, **{"0002_b": text})
    with pytest.raises(sqlite3.OperationalError, match="no such table: no"):
        migrate.apply(db, [*first, *broken])
    assert not db.conn.in_transaction
    db.conn.close()
    assert dump(path) == before
    again = connect(path)
    migrate.apply(again, first)
    assert next(iter(again.query("SELECT * FROM a"))) == {"x": 1}
    again.conn.close()


def test_those_before_the_failing_one_stay_applied(path: Path, tmp_path: Path) -> None:
    db = connect(path)
    with pytest.raises(sqlite3.OperationalError):
        migrate.apply(db, scripts(tmp_path, **{"0001_a": "CREATE TABLE a (x);", "0002_b": "nonsense;"}))
    migrate.apply(db, scripts(tmp_path, **{"0001_a": "CREATE TABLE a (x);", "0002_b": "CREATE TABLE b (x);"}))
    assert [table.name for table in db.tables if len(table.name) == 1] == ["a", "b"]
    db.conn.close()


def test_a_statement_may_hold_semicolons_and_span_lines() -> None:
    text = """
CREATE TABLE a (x TEXT DEFAULT ';');
CREATE TRIGGER t AFTER INSERT ON a BEGIN
    UPDATE a SET x = 'b;c';
    DELETE FROM a WHERE x = '';
END;
-- the end; really
"""
    db = memory()
    for statement in migrate._statements(text):
        db.conn.execute(statement)
    db.conn.execute("INSERT INTO a VALUES ('')")
    assert next(iter(db.query("SELECT x FROM a"))) == {"x": "b;c"}

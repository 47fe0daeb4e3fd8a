"""The daily copy of the state: whole, private, seven of them, and a sentence where it cannot be made."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from llmgw.errors import Refused
from llmgw.store.copies import KEPT, copy_of_the_day

DAY = 86400.0
NOW = 1_800_000_000.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t (n)")
        db.execute("INSERT INTO t VALUES (1)")
    db.close()
    return path


def test_one_a_day_and_the_last_of_them(state: Path) -> None:
    folder = state.parent / "backups"
    for day in range(KEPT + 3):
        copy_of_the_day(state, folder, NOW + day * DAY)
        copy_of_the_day(state, folder, NOW + day * DAY)
    found = sorted(folder.iterdir())
    assert len(found) == KEPT
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert sqlite3.connect(found[-1]).execute("SELECT n FROM t").fetchall() == [(1,)]


def test_a_folder_that_is_none_is_told(state: Path) -> None:
    (state.parent / "backups").write_text("in the way")
    with pytest.raises(Refused, match="No copy of the state can be kept") as caught:
        copy_of_the_day(state, state.parent / "backups", NOW)
    assert caught.value.code == "no_copy"


def test_what_a_copy_that_was_cut_left_is_no_hindrance(state: Path) -> None:
    folder = state.parent / "backups"
    copy_of_the_day(state, folder, NOW)
    (whole,) = folder.iterdir()
    whole.with_suffix(".part").write_bytes(whole.read_bytes()[:1000])
    whole.unlink()
    copy_of_the_day(state, folder, NOW)
    assert sqlite3.connect(whole).execute("SELECT n FROM t").fetchall() == [(1,)]

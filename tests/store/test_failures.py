"""What SQLite said, with its cause: a disk is called full only when it is."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from llmgw.errors import DiskFull, LlmgwError, Refused
from llmgw.store import failures
from llmgw.store.failures import translate


def of(code: int, name: str, text: str = "disk I/O error") -> sqlite3.OperationalError:
    exc = sqlite3.OperationalError(text)
    exc.sqlite_errorcode, exc.sqlite_errorname = code, name
    return exc


def test_an_io_error_on_a_disk_with_room_is_one(path: Path) -> None:
    error = translate(of(sqlite3.SQLITE_IOERR_READ, "SQLITE_IOERR_READ"), path)
    assert error.message == f"{path} could not be read or written: disk I/O error (SQLITE_IOERR_READ)."
    assert not isinstance(error, DiskFull)
    assert "dmesg" in error.fix


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (sqlite3.SQLITE_IOERR_SHMSIZE, "SQLITE_IOERR_SHMSIZE"),
        (sqlite3.SQLITE_IOERR_WRITE, "SQLITE_IOERR_WRITE"),
        (sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"),
    ],
)
def test_an_io_error_on_a_full_disk_is_that(path: Path, monkeypatch: pytest.MonkeyPatch, code: int, name: str) -> None:
    monkeypatch.setattr(failures, "NO_ROOM", 1 << 62)
    assert isinstance(translate(of(code, name), path), DiskFull)


def test_full_is_full(path: Path) -> None:
    assert isinstance(translate(of(sqlite3.SQLITE_FULL, "SQLITE_FULL"), path), DiskFull)


def test_what_cannot_be_opened_says_why(path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(path / "below" / "state.db")
    error = translate(caught.value, path / "below" / "state.db")
    assert f"{path}/below is no directory" in error.message


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming somebody else needs root")
def test_a_file_of_somebody_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.touch()
    monkeypatch.setattr(failures.os, "access", lambda each, mode: each != path)
    error = translate(of(sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN", "unable to open database file"), path)
    assert "state.db may not be read and written by uid 0" in error.message


def test_damage_locks_and_the_rest(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        sqlite3.connect(path).execute("SELECT * FROM sqlite_master")
    damaged = translate(caught.value, path)
    assert isinstance(damaged, Refused)
    assert damaged.code == "damaged_state"
    busy = translate(of(sqlite3.SQLITE_BUSY, "SQLITE_BUSY", "database is locked"), path)
    assert "is held by another program" in busy.message
    assert f"fuser -v {path}" in busy.fix
    rest = translate(sqlite3.ProgrammingError("something"), path)
    assert type(rest) is LlmgwError
    assert rest.message == f"{path}: something."

"""The database: damaged, of another version, cut off from its log; and who holds the lease."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmgw import __version__
from llmgw.config.home import Home, host_name
from llmgw.host import doctor, facts, processes
from llmgw.host.checks import Here, Server
from llmgw.store import look as looking
from llmgw.store.db import open_read_only
from tests.host.conftest import Look, codes, said, tree


def edit(path: Path, *statements: str) -> None:
    conn = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        conn.execute(statement)
    conn.close()


def killed_while_writing(path: Path) -> None:
    """A process that dies as a machine does when its power goes: its log is left behind."""
    child = os.fork()
    if child == 0:
        conn = sqlite3.connect(path, isolation_level=None)
        conn.execute("INSERT INTO events (at, kind, severity, message, data) VALUES (1, 'k', 'info', 'late', '{}')")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_file_that_is_no_database(home: Home, look: Look):
    home.database.write_bytes(b"this is no database" * 1000)
    before = tree(home.path)
    report = look()
    assert "is damaged: file is not a database" in said(report, "state_damaged")
    assert not report.ok
    assert tree(home.path) == before


def test_damaged_pages_are_found_and_the_fix_mends_them(home: Home, look: Look):
    with home.database.open("r+b") as file:
        for page in range(2, 12):
            file.seek(page * 4096)
            file.write(os.urandom(4096))
    text = said(look(), "state_damaged")
    assert "state-2026-01-01.db" in text
    subprocess.run(["sh", "-c", text.split("`")[1]], check=True)
    report = look()
    assert "state_damaged" not in codes(report)
    assert report.ok


def test_a_database_cut_short(home: Home, look: Look):
    os.truncate(home.database, 40_000)
    assert "is damaged" in said(look(), "state_damaged")


def test_a_damaged_copy_is_not_recommended(home: Home, look: Look):
    home.database.write_bytes(b"x" * 10_000)
    copy = home.backups / "state-2026-01-01.db"
    copy.write_bytes(b"y" * 10_000)
    report = look()
    assert "There is no sound copy" in said(report, "state_damaged")
    assert f"rm {copy}" in said(report, "backup_damaged")


def test_an_empty_file(home: Home, look: Look):
    """SQLite takes it for a database without tables, and the next start would make them."""
    os.truncate(home.database, 0)
    report = look()
    text = said(report, "state_lost")
    assert "state.db is empty, but state-2026-01-01.db is a copy of what it held" in text
    assert not codes(report) & {"state_damaged", "state_older", "not_checked"}
    subprocess.run(["sh", "-ec", text.split("`")[1]], check=True)
    assert look().ok


def test_a_first_start_that_was_killed_is_no_loss(home: Home, look: Look):
    """An empty file beside an identity, before anything was kept: no token, no copy."""
    os.truncate(home.database, 0)
    home.token.unlink()
    shutil.rmtree(home.backups)
    report = look()
    assert "0001_initial" in said(report, "state_older")
    assert not codes(report) & {"state_damaged", "state_lost", "state_missing"}


def test_rows_that_refer_to_nothing(home: Home, look: Look):
    edit(home.database, "DELETE FROM nodes", "INSERT INTO probes VALUES ('gone', 1, '{}', NULL)")
    assert "refer to nothing" in said(look(), "state_damaged")


def test_a_newer_and_an_older_state(home: Home, look: Look):
    edit(
        home.database,
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('llmgw', '9999_future', 'x')",
        "DELETE FROM _sqlite_migrations WHERE name = '0002_adding_by'",
        "ALTER TABLE nodes DROP COLUMN quarantined",
    )
    report = look()
    assert "9999_future, which this version does not know" in said(report, "state_newer")
    assert "lacks 0002_adding_by" in said(report, "state_older")


def test_a_log_that_was_left_is_read_and_left(home: Home, look: Look):
    killed_while_writing(home.database)
    assert (home.path / "state.db-wal").stat().st_size
    before = tree(home.path)
    report = look()
    assert "state_damaged" not in codes(report)
    assert looking.summary(home.database).nodes == 1
    assert tree(home.path) == before
    with open_read_only(home.database).conn as conn:
        assert conn.execute("SELECT count(*) FROM events WHERE message = 'late'").fetchone() == (1,)


def test_a_log_without_its_index_is_not_judged(home: Home, look: Look):
    killed_while_writing(home.database)
    (home.path / "state.db-shm").unlink()
    before = tree(home.path)
    report = look()
    assert any("state_damaged" in one.message for one in report.problems if one.code == "not_checked")
    assert tree(home.path) == before


def test_it_is_looked_at_while_it_is_written(home: Home, look: Look):
    conn = sqlite3.connect(home.database, isolation_level=None)
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("DELETE FROM events")
    report = look()
    conn.execute("ROLLBACK")
    conn.close()
    assert codes(report, "error") == set()


def test_a_state_that_is_gone(home: Home, look: Look):
    home.database.unlink()
    text = said(look(), "state_lost")
    assert "state.db is missing, but state-2026-01-01.db is a copy of what it held" in text
    assert "With the server stopped, run `rm -f" in text
    assert "state_missing" not in codes(look())
    (home.backups / "state-2026-01-01.db").unlink()
    assert "there is no copy" in said(look(), "state_missing")
    assert "state_lost" not in codes(look())


def test_a_clock_that_was_set_back(home: Home, look: Look):
    edit(home.database, f"UPDATE events SET at = {time.time() + 7200}")
    assert "h 59 min ahead of the clock" in said(look(), "clock_behind_state")


def test_an_old_copy(home: Home, look: Look):
    week = time.time() - 7 * 86400
    os.utime(home.backups / "state-2026-01-01.db", (week, week))
    assert "7 d old; no server runs" in said(look(), "backup_old")


def test_a_large_log(home: Home, look: Look):
    killed_while_writing(home.database)
    os.truncate(home.path / "state.db-wal", 65 << 20)
    assert "has 65 MiB" in said(look(), "state_log_large")


def test_a_quarantined_node_is_known_without_a_server(home: Home, look: Look):
    edit(home.database, "UPDATE nodes SET quarantined = 'its host key changed'")
    assert "1 node quarantined: gpu01" in said(look(), "nodes_quarantined")


def test_a_log_that_is_none(home: Home, look: Look):
    killed_while_writing(home.database)
    (home.path / "state.db-wal").write_bytes(os.urandom(50_000))
    text = said(look(), "state_damaged")
    assert "its log state.db-wal does not begin as one" in text
    without, with_copy = text.split("`")[1::2]
    assert "state-2026-01-01.db" in with_copy
    subprocess.run(["sh", "-ec", without], check=True)
    assert look().ok
    assert (home.path / "state.db-wal.lost").exists()


def test_copies_that_cannot_be_made(home: Home, look: Look):
    shutil.rmtree(home.backups)
    home.backups.touch()
    text = said(look(), "backups_unusable")
    subprocess.run(["sh", "-ec", text.partition(" → ")[2]], check=True)
    assert "backups_unusable" not in codes(look())


def test_a_copy_that_was_saved_when_the_state_was_replaced(home: Home, look: Look):
    saved = home.backups / "state-2026-01-01.rescued-120000.db"
    shutil.copy(home.database, saved)
    assert "backup_newer" not in codes(look())
    edit(saved, f"UPDATE events SET at = {time.time()}")
    edit(home.database, "UPDATE events SET at = 5")
    text = said(look(), "backup_newer")
    subprocess.run(["sh", "-ec", text.split("`")[1]], check=True)
    assert "backup_newer" not in codes(look())


def test_a_server_whose_state_was_replaced(home: Home, look: Look, monkeypatch: pytest.MonkeyPatch):
    """It has open what it opened, whatever bears the name now."""
    answers = Server({"version": __version__}, 0.001, {})
    real = facts.look

    def as_if_it_served(*args: object) -> Here:
        here = real(*args)  # type: ignore[arg-type]
        here.server, here.held, here.held_by = answers, True, pid
        return here

    monkeypatch.setattr(doctor, "look", as_if_it_served)
    with another_process_holds(home, home.database) as pid:
        assert "state_replaced" not in codes(look())
        shutil.copy(home.database, home.path / "other")
        (home.path / "other").rename(home.database)
        text = said(look(), "state_replaced")
        assert f"the server (pid {pid}) has another file open" in text
        assert f"`kill {pid}`" in text
        home.database.unlink()
        report = look()
    assert "state_replaced" in codes(report)
    assert not codes(report) & {"state_missing", "state_lost"}, "to restore a copy now would be a second replacement"


# ---- the lease ----


@contextmanager
def another_process_holds(home: Home, path: Path | None = None) -> Iterator[int]:
    code = "import fcntl,sys;f=open(sys.argv[1],'r+');fcntl.flock(f,2);print('held',flush=True);sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path or home.lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    try:
        yield child.pid
    finally:
        child.communicate()


def names(home: Home, pid: int, purpose: str = "server run", host: str | None = None) -> None:
    body = {"pid": pid, "host": host or host_name(), "since": time.time() - 60, "purpose": purpose}
    home.lock.write_text(json.dumps(body))


def test_a_command_holds_it(home: Home, look: Look):
    with another_process_holds(home) as pid:
        names(home, pid, "node remove")
        report = look()
    assert f"held by pid {pid}" in said(report, "lease_held")
    assert not codes(report) & {"server_down", "server_silent", "lease_unclear"}


def test_a_server_holds_it_and_has_no_socket(home: Home, look: Look, monkeypatch):
    with another_process_holds(home) as pid:
        names(home, pid)
        assert "server_silent" not in codes(look())  # young: it is starting
        monkeypatch.setattr(processes, "started", lambda _: time.time() - 100)
        text = said(look(), "server_silent")
    assert "admin.sock is not there" in text
    assert f"kill {pid}" in text


def test_the_lock_names_a_dead_process_and_another_holds_it(home: Home, look: Look):
    names(home, 999_999_999)
    with another_process_holds(home) as pid:
        text = said(look(), "lease_unclear")
    assert f"locked by pid {pid}" in text
    assert "999999999" in text


def test_a_dead_process_left_its_socket(home: Home, look: Look):
    names(home, 999_999_999)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home.socket))
    report = look()
    assert "that process is gone, and left admin.sock behind" in said(report, "lease_left")
    assert report.ok


def test_it_was_taken_on_another_machine(home: Home, look: Look):
    names(home, 1, host="other")
    assert "on other since" in said(look(), "lease_elsewhere")


def test_the_lease_is_never_taken(home: Home, look: Look):
    """Not for an instant: a server that starts at that instant would be turned away."""
    with home.lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert processes.lock_holder(home.lock) == (True, os.getpid())
    assert processes.lock_holder(home.lock) == (False, None)
    opened = []
    sys.addaudithook(lambda event, args: opened.append(args) if event == "fcntl.flock" else None)
    look()
    assert opened == []

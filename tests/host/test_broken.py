"""Homes broken in every way that was thought of: nothing is written, nothing hangs, and what a start is refused for is
an error here."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.config.home import Home
from llmgw.config.load import load_settings
from llmgw.errors import ConfigError, LlmgwError
from llmgw.host.doctor import examine
from llmgw.server import ControlPlane
from tests.host.conftest import codes, tree
from tests.host.test_state import killed_while_writing

Break = Callable[[Home], None]


def log_of(home: Home) -> Path:
    return home.path / "state.db-wal"


def fifo(name: str) -> Break:
    def make(home: Home) -> None:
        (home.path / name).unlink(missing_ok=True)
        os.mkfifo(home.path / name)

    return make


def directory(name: str) -> Break:
    def make(home: Home) -> None:
        (home.path / name).unlink(missing_ok=True)
        (home.path / name).mkdir()

    return make


def nowhere(name: str) -> Break:
    def make(home: Home) -> None:
        (home.path / name).unlink(missing_ok=True)
        (home.path / name).symlink_to("nowhere")

    return make


def sparse(name: str) -> Break:
    def make(home: Home) -> None:
        path = home.path / name
        path.touch(mode=0o600)
        os.truncate(path, 60 << 30)

    return make


def says(name: str, text: str | bytes) -> Break:
    def make(home: Home) -> None:
        (home.path / name).write_bytes(text.encode() if isinstance(text, str) else text)

    return make


def killed(home: Home) -> None:
    killed_while_writing(home.database)


def all_in_the_log(home: Home) -> None:
    """As a server leaves it that is killed on its first day: one page, and a log of all the rest."""
    tables = [row[0] for row in _rows(home, "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    names = _rows(home, "SELECT * FROM _sqlite_migrations")
    home.database.unlink()
    child = os.fork()
    if child == 0:
        conn = sqlite3.connect(home.database, isolation_level=None)
        conn.execute("PRAGMA journal_mode=WAL")
        for sql in tables:
            if "sqlite_sequence" not in sql:
                conn.execute(sql)
        conn.executemany(f"INSERT INTO _sqlite_migrations VALUES ({', '.join('?' * len(names[0]))})", names)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert home.database.stat().st_size == 4096


def _rows(home: Home, query: str) -> list[tuple[object, ...]]:
    conn = sqlite3.connect(home.database)
    try:
        return conn.execute(query).fetchall()
    finally:
        conn.close()


def then(*steps: Break) -> Break:
    def make(home: Home) -> None:
        for step in steps:
            step(home)

    return make


def emptied(home: Home) -> None:
    os.truncate(home.database, 0)


def without(*names: str) -> Break:
    def make(home: Home) -> None:
        for name in names:
            (home.path / name).unlink()

    return make


def noise_in_the_log(home: Home) -> None:
    log_of(home).write_bytes(os.urandom(log_of(home).stat().st_size))


def no_copies(home: Home) -> None:
    shutil.rmtree(home.backups)


BROKEN: dict[str, tuple[Break, str | None]] = {
    # A start goes on, and so does the look.
    "sound": (lambda home: None, None),
    "killed": (killed, None),
    "killed on its first day": (all_in_the_log, None),
    "log empty": (then(killed, says("state.db-wal", b"")), None),
    "log of zeroes": (then(killed, says("state.db-wal", bytes(50_000))), None),
    "log of one byte": (then(killed, says("state.db-wal", b"x")), None),
    "index is noise": (then(killed, says("state.db-shm", os.urandom(32768))), None),
    "lock says too much": (says("state.lock", "[" * 60_000), None),
    "lock says a pid without end": (says("state.lock", '{"pid":1e400,"host":"h","since":1e300,"purpose":"p"}'), None),
    "backups is a file": (then(no_copies, says("backups", "")), None),
    "a copy is a FIFO": (then(no_copies, lambda home: home.backups.mkdir(), fifo("backups/state-2026-01-01.db")), None),
    # The state was there and is not.
    "emptied": (emptied, "state_lost"),
    "one byte": (says("state.db", b"x"), "state_lost"),
    "emptied beside its log": (then(killed, emptied), "state_lost"),
    "emptied beside its log, no copy": (then(killed, emptied, no_copies), "state_lost"),
    "emptied, no copy": (then(emptied, no_copies), "state_lost"),
    "removed": (without("state.db"), "state_lost"),
    "removed beside its log": (then(killed, without("state.db")), "state_lost"),
    "its first day's log removed": (then(all_in_the_log, without("state.db-wal")), "state_lost"),
    "its first day's log emptied": (then(all_in_the_log, says("state.db-wal", b"")), "state_lost"),
    "its first day's log of zeroes": (then(all_in_the_log, says("state.db-wal", bytes(50_000))), "state_lost"),
    # Damage.
    "log is noise": (then(killed, noise_in_the_log), "state_damaged"),
    "its first day's log is noise": (then(all_in_the_log, noise_in_the_log), "state_damaged"),
    "log is noise, database emptied": (then(killed, noise_in_the_log, emptied), "state_lost"),
    "log is noise, no index": (then(killed, noise_in_the_log, without("state.db-shm")), "state_damaged"),
    "log is noise, no database": (then(killed, noise_in_the_log, without("state.db")), "state_lost"),
    "database is noise": (says("state.db", os.urandom(50_000)), "state_damaged"),
    "database cut": (lambda home: os.truncate(home.database, 40_000), "state_damaged"),
    "database cut to a page": (lambda home: os.truncate(home.database, 4096), "state_damaged"),
    "database of a hundred bytes": (lambda home: os.truncate(home.database, 100), "state_damaged"),
    "database in zeroes": (says("state.db", bytes(50_000)), "state_damaged"),
    "identity says too much": (says("identity.json", "[" * 60_000), "identity_damaged"),
    **{
        f"{name} is no text": (says(name, b"\xff\xfe\x00" * 100), "files_unusable")
        for name in ("admin.token", "known_hosts", "id_ed25519.pub")
    },
    "token is empty": (says("admin.token", b" \n"), "files_unusable"),
    "host key is noise": (says("embedded_host_key", os.urandom(400)), "embedded_key_unusable"),
    "host key is empty": (says("embedded_host_key", b""), "embedded_key_unusable"),
    "key is noise": (says("id_ed25519", os.urandom(400)), "key_unusable"),
    # No files.
    **{
        f"{name} is {what}": (make(name), "files_unusable")
        for what, make in (("a FIFO", fifo), ("a directory", directory), ("a link to nowhere", nowhere))
        for name in (
            "state.db",
            "state.db-wal",
            "state.db-shm",
            "state.lock",
            "identity.json",
            "admin.token",
            "known_hosts",
            "id_ed25519",
            "id_ed25519.pub",
            "embedded_host_key",
        )
    },
    "admin.sock is a directory": (directory("admin.sock"), "files_unusable"),
    **{
        f"{name} of 60 GB": (sparse(name), "files_unusable")
        for name in ("state.lock", "identity.json", "admin.token", "known_hosts", "id_ed25519", "id_ed25519.pub")
    },
    # The configuration.
    "no such date": (says("llmgw.yaml", "probe_interval: 9999-99-99"), "config_wrong"),
    "a number of 6000 digits": (says("llmgw.yaml", "probe_interval: " + "9" * 6000), "config_wrong"),
    "an alias within itself": (says("llmgw.yaml", "engines: &a {sim: *a}"), "config_wrong"),
    "configuration of 60 GB": (sparse("llmgw.yaml"), "config_wrong"),
    "configuration is a FIFO": (fifo("llmgw.yaml"), "config_wrong"),
    "configuration is a directory": (directory("llmgw.yaml"), "config_wrong"),
    "configuration is a link to nowhere": (nowhere("llmgw.yaml"), "config_wrong"),
    "nobody's home": (says("llmgw.yaml", "mirror: {dir: ~nosuchuser/x}"), "config_wrong"),
}


def refused(home: Home) -> LlmgwError | None:
    """Why a start is: the real one, without the endpoint."""

    async def start() -> None:
        plane = ControlPlane(home, load_settings(home), gateway=False, purpose="a test")
        await plane.start()
        await plane.stop()

    before = os.umask(0o022)  # a start sets its own
    try:
        asyncio.run(start())
    except LlmgwError as exc:
        return exc
    finally:
        os.umask(before)
    return None


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_start_is_refused_for_is_an_error_and_nothing_is_written(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.delenv("LLMGW_CONFIG", raising=False)
    make, code = BROKEN[name]
    make(home)
    before = tree(home.path)
    report = examine(home, {"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert tree(home.path) == before
    assert codes(report, "error") == ({code} if code else set()), report.problems
    unseen = [one.message for one in report.problems if one.code == "not_checked"]
    assert not [message for message in unseen if "no answer" in message], "nothing hangs"
    assert not unseen or name == "killed" or code, unseen
    error = refused(home)
    assert report.ok is (error is None), error
    assert error is None or error.fix or isinstance(error, ConfigError), error
    assert error is None or str(home.path) in str(error), error


@pytest.mark.parametrize("target", ["home", "nowhere"])
def test_a_home_that_is_a_link_to_itself_or_to_nowhere(tmp_path: Path, target: str):
    (tmp_path / "home").symlink_to(target)
    before = tree(tmp_path)
    report = examine(Home(tmp_path / "home"), {"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert codes(report, "error") == {"home_unusable"}
    assert not codes(report) & {"home_missing", "home_uncreatable"}
    assert len([one for one in report.problems if one.code == "not_checked"]) <= 1
    assert refused(Home(tmp_path / "home"))
    assert tree(tmp_path) == before


def test_a_name_that_is_no_text(used: Path, tmp_path: Path):
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/h\xff\xfe me"))
    shutil.copytree(used, place)
    before = tree(place)
    report = examine(Home(place), {"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert codes(report, "error") == set()
    assert tree(place) == before


def test_a_server_that_answers_nonsense(home: Home, tmp_path: Path):
    """Whatever it says, the report is made."""
    from threading import Thread

    body = b'{"version":[1],"listen":{},"nodes":[{"problems":[5]},{"link":"down","link_error":{}}],"replicas":[7]}'
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home.socket))
        listener.listen()

        def answer() -> None:
            try:
                while True:
                    conn, _ = listener.accept()
                    with conn:
                        while conn.recv(65536):
                            conn.sendall(head + body)
            except OSError:
                return

        Thread(target=answer, daemon=True).start()
        report = examine(home, {"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
        listener.shutdown(socket.SHUT_RDWR)
    assert report.running.startswith("llmgw [1]")
    assert any("nodes_with_errors" in one.message for one in report.problems if one.code == "not_checked")

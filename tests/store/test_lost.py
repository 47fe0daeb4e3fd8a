"""A state that was there and is not: said, never replaced in silence. A first start: silent."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.clock import ManualClock
from llmgw.errors import Refused
from llmgw.store import disk, events, look, lost
from llmgw.store.db import Store, open_read_only

from .conftest import integrity, run

FILL = """
import asyncio, os, signal, sys
from pathlib import Path
from llmgw.clock import SystemClock
from llmgw.store import events
from llmgw.store.db import Store

async def main():
    store = Store(Path(sys.argv[1]), SystemClock())
    await store.open()
    await store.write(lambda tx: [events.add(tx, "k", "kept" + "x" * 500) for _ in range(50)])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed server leaves: a database of one page, and all it was told in the log."""
    place = tmp_path_factory.mktemp("killed")
    done = subprocess.run([sys.executable, "-c", FILL, str(place / "state.db")])
    assert done.returncode == -signal.SIGKILL
    assert (place / "state.db").stat().st_size == 4096
    assert (place / "state.db-wal").stat().st_size > 100_000
    return place


@pytest.fixture
def path(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "home")) / "state.db"


def wal(path: Path) -> Path:
    return path.with_name("state.db-wal")


def with_copy(path: Path) -> Path:
    """A sound copy of what is there, as the server makes one a day."""
    copy = path.parent / "backups" / "state-2026-01-01.db"
    copy.parent.mkdir()
    source, target = open_read_only(path).conn, sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    return copy


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(each.relative_to(folder)): (each.stat().st_mtime_ns, each.read_bytes())
        for each in folder.rglob("*")
        if each.is_file()
    }


async def refused(path: Path, code: str = "lost_state") -> Refused:
    """A start that is refused and leaves every byte where it is."""
    before = everything(path.parent)
    store = Store(path, ManualClock())
    with pytest.raises(Refused) as caught:
        await store.open()
    await store.close()
    assert caught.value.code == code
    assert str(path) in caught.value.message
    assert caught.value.exit_status == 4
    assert everything(path.parent) == before
    return caught.value


def commands(fix: str) -> list[str]:
    """Those that restore, and those that begin anew."""
    return [words for words in fix.split("`")[1::2] if not words.startswith("llmgw")]


async def count(path: Path) -> int:
    store = Store(path, ManualClock())
    await store.open()
    found = await store.read(lambda db: len(events.after(db, 0, limit=1000)))
    await store.close()
    assert integrity(path) == "ok"
    return found


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def one_byte(path: Path) -> None:
    """SQLite takes that for an empty file, too."""
    os.truncate(path, 1)


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("lose", [emptied, one_byte, removed])
async def test_a_log_without_its_database_is_never_thrown_away(path: Path, lose) -> None:  # type: ignore[no-untyped-def]
    """SQLite removes it, even when it is opened to be read only."""
    lose(path)
    error = await refused(path)
    assert "its log state.db-wal is there" in error.message
    assert "There is no sound copy" in error.fix
    before = everything(path.parent)
    for attempt in (lambda: look.summary(path), lambda: look.complaint(path), lambda: open_read_only(path)):
        with pytest.raises((Refused, FileNotFoundError)):
            attempt()
    assert everything(path.parent) == before
    run(commands(error.fix)[0])
    assert await count(path) == 0
    assert wal(path).with_name("state.db-wal.lost").stat().st_size > 100_000


@pytest.mark.parametrize("lose", [emptied, one_byte, removed])
@pytest.mark.parametrize("log", ["with its log", "log gone", "log empty", "log of zeroes", "index gone too"])
async def test_with_a_copy_both_ways_are_named_and_work(path: Path, lose, log: str) -> None:  # type: ignore[no-untyped-def]
    copy = with_copy(path)
    lose(path)
    match log:
        case "log gone":
            wal(path).unlink()
        case "log empty":
            os.truncate(wal(path), 0)
        case "log of zeroes":
            wal(path).write_bytes(b"\0" * 100_000)
        case "index gone too":
            path.with_name("state.db-shm").unlink()
    error = await refused(path)
    assert str(copy) in error.fix
    back, anew = commands(error.fix)
    here = shutil.copytree(path.parent, path.parent.with_name("other"))
    run(back)
    assert await count(path) == 50
    shutil.rmtree(path.parent)
    here.rename(path.parent)
    run(anew)
    assert await count(path) == 0
    assert (path.parent / "backups.old" / copy.name).exists()


async def test_a_database_of_one_page_whose_log_is_gone(path: Path) -> None:
    with_copy(path)
    wal(path).unlink()
    error = await refused(path)
    assert "has none of its tables, but state-2026-01-01.db is a copy of what it held" in error.message
    run(commands(error.fix)[0])
    assert await count(path) == 50


async def test_a_log_that_was_cut_before_its_first_transaction_ends(path: Path) -> None:
    with_copy(path)
    os.truncate(wal(path), 40_000)
    await refused(path)


async def test_a_log_without_its_index_is_merged_first(path: Path) -> None:
    with_copy(path)
    path.with_name("state.db-shm").unlink()
    assert await count(path) == 50


async def test_a_cut_log_without_its_index(path: Path) -> None:
    """It can be told only once the log is merged: SQLite keeps of it what is whole."""
    with_copy(path)
    path.with_name("state.db-shm").unlink()
    os.truncate(wal(path), 5000)
    store = Store(path, ManualClock())
    with pytest.raises(Refused, match="has none of its tables"):
        await store.open()
    await store.close()


async def test_a_damaged_copy_is_not_recommended(path: Path) -> None:
    copy = with_copy(path)
    older = copy.with_name("state-2025-12-31.db")
    shutil.copy(copy, older)
    copy.write_bytes(b"x" * 10_000)
    removed(path)
    wal(path).unlink()
    assert str(older) in (await refused(path)).fix
    older.write_bytes(b"")
    assert "There is no sound copy" in (await refused(path)).fix


async def test_an_empty_file_where_a_server_has_served_before(path: Path) -> None:
    wal(path).unlink()
    emptied(path)
    (path.parent / "admin.token").write_text("llmgw-admin-0123456789\n")
    error = await refused(path)
    assert "admin.token was made when there was a state" in error.message
    run(commands(error.fix)[0])
    assert await count(path) == 0


@pytest.mark.parametrize("left", ["", "empty", "page", "log begun", "migrating"])
async def test_a_first_start_is_silent_also_after_one_that_was_killed(path: Path, left: str) -> None:
    """The files that survive a state prove nothing: identity, key and pins may have been put there for this start."""
    for name in ("identity.json", "id_ed25519", "known_hosts", "llmgw.yaml"):
        (path.parent / name).write_text("x")
    (path.parent / "backups").mkdir()
    match left:
        case "":
            (path.parent / "admin.token").write_text("put there by an operator\n")
            path.unlink()
            wal(path).unlink()
        case "empty":
            emptied(path)
            wal(path).unlink()
        case "page":
            wal(path).unlink()
        case "log begun":
            os.truncate(wal(path), 32)
        case _:
            os.truncate(wal(path), 5000)
    assert lost.found(path) is None
    assert await count(path) == 0


async def test_a_state_that_is_there_is_not_lost_however_little_it_holds(path: Path) -> None:
    with_copy(path)
    store = Store(path, ManualClock())
    await store.open()
    await store.write(lambda tx: tx.db.execute("DELETE FROM events"))
    await store.close()
    assert await count(path) == 0


@pytest.mark.parametrize("how", ["noise", "header", "sum", "version"])
async def test_a_log_that_does_not_begin_as_one(path: Path, how: str) -> None:
    """SQLite passes over it, and over all that is in it."""
    data = bytearray(wal(path).read_bytes())
    match how:
        case "noise":
            data[:] = os.urandom(len(data))
        case "header":
            data[:32] = b"\0" * 32
        case "sum":
            data[25] ^= 1
        case _:
            data[7] ^= 1
    wal(path).write_bytes(data)
    assert disk.log(path) is disk.Log.DAMAGED
    error = await refused(path, "damaged_state")
    assert "its log state.db-wal does not begin as one" in error.message
    before = everything(path.parent)
    for attempt in (look.summary, open_read_only):
        with pytest.raises(Refused, match="does not begin as one"):
            attempt(path)
    assert look.complaint(path) == "its log state.db-wal does not begin as one"
    assert everything(path.parent) == before


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
@pytest.mark.parametrize("kind", ["FIFO", "directory", "link that leads nowhere"])
async def test_what_is_no_file_is_not_opened(path: Path, end: str, kind: str) -> None:
    each = path.with_name(f"state.db{end}")
    each.unlink()
    match kind:
        case "FIFO":
            os.mkfifo(each)
        case "directory":
            each.mkdir()
        case _:
            each.symlink_to("nowhere")
    before = sorted(os.listdir(path.parent))
    store = Store(path, ManualClock())
    with pytest.raises(Refused, match=f"{each} cannot be read: it is no plain file but a {kind}"):
        await store.open()
    await store.close()
    for attempt in (look.summary, look.complaint, lost.found):
        with pytest.raises((Refused, FileNotFoundError)):
            attempt(path)
    assert sorted(os.listdir(path.parent)) == before


async def test_a_database_that_is_a_link_has_its_log_where_it_leads(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    path.parent.rename(elsewhere)
    path.parent.mkdir()
    path.symlink_to(elsewhere / "state.db")
    assert disk.log(path) is disk.Log.SOUND
    assert look.summary(path).last_event is not None
    assert await count(path) == 50


async def test_names_that_mean_something_in_an_address(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=rw#%41" / "state.db"
    path.parent.mkdir()
    assert await count(path) == 0
    assert sorted(os.listdir(tmp_path)) == [path.parent.name]

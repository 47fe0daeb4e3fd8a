"""One writer: all of a transaction or nothing, told once it is kept; damage is named, never repaired in silence."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmgw.clock import ManualClock
from llmgw.errors import LlmgwError, Refused
from llmgw.model.event import Event
from llmgw.store import events
from llmgw.store.db import Store, Tx, open_read_only, reading

from .conftest import integrity


def count(db: object) -> int:
    return int(db.execute("SELECT COUNT(*) FROM events").fetchone()[0])  # type: ignore[attr-defined]


async def test_what_is_written_is_read_and_only_its_owner_may_open_the_file(store: Store, path: Path) -> None:
    made = await store.write(lambda tx: events.add(tx, "k", "hello"))
    assert await store.read(lambda db: events.after(db, 0)) == [made]
    assert path.stat().st_mode & 0o777 == 0o600
    pragmas = {
        name: store._write_db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    }  # type: ignore[union-attr]
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}


async def test_a_failing_transaction_leaves_nothing_and_tells_nobody(store: Store) -> None:
    told: list[list[Event]] = []
    store.on_events(told.append)

    def work(tx: Tx) -> None:
        events.add(tx, "k", "never")
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        await store.write(work)
    assert await store.read(count) == 0
    await store.write(lambda tx: events.add(tx, "k", "after"))
    assert [[event.message for event in batch] for batch in told] == [["after"]]


async def test_listeners_get_each_transactions_events_in_order_and_never_an_empty_list(store: Store) -> None:
    told: list[list[Event]] = []
    store.on_events(told.append)
    here = threading.get_ident()
    where: list[int] = []
    store.on_events(lambda _: where.append(threading.get_ident()))
    await asyncio.gather(
        *(store.write(lambda tx, n=n: [events.add(tx, "k", f"{n}.{part}") for part in "ab"]) for n in range(20))
    )
    await store.write(lambda tx: None)
    assert [event.id for batch in told for event in batch] == list(range(1, 41))
    assert all(len(batch) == 2 for batch in told)
    assert set(where) == {here}, "on the event loop's own thread"


async def test_a_writer_that_is_cancelled_still_ends_its_transaction(store: Store) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(tx: Tx) -> None:
        events.add(tx, "k", "first")
        begun.set()
        assert go_on.wait(10)
        events.add(tx, "k", "second")

    writer = asyncio.create_task(store.write(work))
    await asyncio.to_thread(begun.wait, 10)
    writer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writer
    go_on.set()
    assert await store.write(lambda tx: count(tx.db)) == 2


async def test_a_reader_sees_no_half_transaction_and_the_writer_does_not_wait_for_it(store: Store) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(db: object) -> tuple[int, int]:
        db.execute("BEGIN")  # type: ignore[attr-defined]
        before = count(db)
        inside.set()
        assert go_on.wait(10)
        after = count(db)
        db.execute("COMMIT")  # type: ignore[attr-defined]
        return before, after

    reader = asyncio.create_task(store.read(slow))
    await asyncio.to_thread(inside.wait, 10)
    await store.write(lambda tx: events.add(tx, "k", "meanwhile"))
    go_on.set()
    assert await reader == (0, 0)
    assert await store.read(count) == 1


async def test_reading_cannot_write(store: Store, path: Path) -> None:
    with pytest.raises(LlmgwError, match="readonly"):
        await store.read(lambda db: db.execute("DELETE FROM events"))
    with reading(path) as db, pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.execute("DELETE FROM events")


def test_reading_what_is_not_there_makes_nothing(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_read_only(path)
    assert not path.exists()


async def test_a_nonsense_statement_is_an_error_with_the_path(store: Store, path: Path) -> None:
    with pytest.raises(LlmgwError, match="no such table") as caught:
        await store.write(lambda tx: tx.db.execute("SELECT * FROM nowhere"))
    assert str(path) in caught.value.message
    await store.write(lambda tx: events.add(tx, "k", "goes on"))


async def filled(path: Path) -> None:
    store = Store(path, ManualClock())
    await store.open()
    await store.write(lambda tx: [events.add(tx, "k", "x" * 1000) for _ in range(200)])
    await store.close()


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2 - 100]


def overwritten(data: bytes) -> bytes:
    return data[:4096] + b"\xff" * 4096 + data[8192:]


def overwritten_at_the_end(data: bytes) -> bytes:
    """Among the events, which nothing reads at a start."""
    return data[:-12288] + b"\xff" * 4096 + data[-8192:]


def something_else(data: bytes) -> bytes:
    return b"this is a letter, not a database\n" * 300


def header_gone(data: bytes) -> bytes:
    return b"\0" * 100 + data[100:]


def schema_no_text(data: bytes) -> bytes:
    """SQLite quotes it in its complaint."""
    return data.replace(b"CREATE TABLE nodes", b"CREATE TABLX \xb8\xff\xb7\xb8\xff", 1)


@pytest.mark.parametrize(
    "damage", [truncated, overwritten, overwritten_at_the_end, something_else, header_gone, schema_no_text]
)
async def test_a_damaged_database_is_refused_by_name_and_left_as_it_is(path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    """F08."""
    await filled(path)
    for leftover in path.parent.glob("state.db-*"):
        leftover.unlink()
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    store = Store(path, ManualClock())
    with pytest.raises(Refused) as caught:
        await store.open()
    await store.close()
    assert caught.value.code == "damaged_state"
    assert str(path) in caught.value.message
    assert str(path.parent / "backups") in caught.value.fix
    assert path.read_bytes() == damaged
    assert caught.value.exit_status == 4


async def test_a_directory_in_its_place_is_an_error_with_the_path(path: Path) -> None:
    path.mkdir()
    store = Store(path, ManualClock())
    with pytest.raises(LlmgwError, match=str(path)):
        await store.open()
    await store.close()


KILLED = """
import asyncio, os, sys
from pathlib import Path
from llmgw.clock import SystemClock
from llmgw.store import events
from llmgw.store.db import Store

async def main():
    store = Store(Path(sys.argv[1]), SystemClock())
    await store.open()
    await store.write(lambda tx: events.add(tx, "k", "kept"))
    def work(tx):
        for number in range(2000):
            events.add(tx, "k", "lost" + "x" * 500)
        print("now", flush=True)
        sys.stdin.read()
    await store.write(work)

asyncio.run(main())
"""


async def test_kill_9_inside_a_transaction_keeps_what_was_committed_and_nothing_else(path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: ASYNC220
        assert child.stdout is not None
        assert child.stdout.readline() == "now\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
    store = Store(path, ManualClock())
    await store.open()
    found = await store.read(lambda db: events.after(db, 0))
    assert [event.message for event in found] == ["kept"]
    await store.write(lambda tx: events.add(tx, "k", "at once"))
    await store.close()
    assert integrity(path) == "ok"

"""The state removed or replaced under a running server: no write is acknowledged that nobody finds again."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.clock import ManualClock
from llmgw.errors import Refused
from llmgw.store import events, lost
from llmgw.store.db import Store

from .conftest import run


def removed(path: Path) -> None:
    path.unlink()


def replaced_by_a_copy(path: Path) -> None:
    shutil.copy(path, path.with_name("c"))
    path.rename(path.with_name("x"))
    path.with_name("c").rename(path)


def replaced_by_nothing(path: Path) -> None:
    path.rename(path.with_name("x"))
    path.touch()


def log_removed(path: Path) -> None:
    path.with_name("state.db-wal").unlink()


def all_removed(path: Path) -> None:
    for each in path.parent.glob("state.db*"):
        each.unlink()


def messages(path: Path) -> list[str]:
    with sqlite3.connect(path) as conn:
        return [row[0] for row in conn.execute("SELECT message FROM events ORDER BY id")]


@pytest.mark.parametrize("lose", [removed, replaced_by_a_copy, replaced_by_nothing, log_removed, all_removed])
async def test_writes_are_refused_and_what_was_kept_is_saved(path: Path, lose: Callable[[Path], None]) -> None:
    store = Store(path, ManualClock())
    await store.open()
    await store.write(lambda tx: events.add(tx, "k", "kept"))
    lose(path)
    await store.read(lambda db: events.after(db, 0))  # routing goes on
    for _ in range(3):
        with pytest.raises(Refused, match="was removed or replaced while it was in use") as caught:
            await store.write(lambda tx: events.add(tx, "k", "never"))
        assert caught.value.code == "state_replaced"
    (saved,) = (path.parent / "backups").iterdir()
    assert saved.stat().st_mode & 0o777 == 0o600
    assert str(saved) in caught.value.message
    assert messages(saved) == ["kept"]
    await store.close()
    run(caught.value.fix.split("`")[1])
    assert messages(path) == ["kept"]


async def test_put_back_it_is_written_again(path: Path) -> None:
    store = Store(path, ManualClock())
    await store.open()
    path.rename(path.with_name("x"))
    with pytest.raises(Refused):
        await store.write(lambda tx: events.add(tx, "k", "never"))
    path.with_name("x").rename(path)
    await store.write(lambda tx: events.add(tx, "k", "kept"))
    await store.close()
    assert messages(path) == ["kept"]


async def test_a_server_that_never_noticed_saves_it_as_it_ends(path: Path) -> None:
    store = Store(path, ManualClock())
    await store.open()
    await store.write(lambda tx: events.add(tx, "k", "kept"))
    all_removed(path)
    await store.close()
    (saved,) = (path.parent / "backups").iterdir()
    assert messages(saved) == ["kept"]
    loss = lost.found(path)
    assert loss is not None
    assert loss.copy == saved, "and the next start refuses, and names it"


async def test_the_saved_one_is_the_newest_copy_of_its_day(store: Store, path: Path) -> None:
    (path.parent / "backups").mkdir()
    today = time.strftime("%Y-%m-%d", time.localtime(ManualClock().wall()))
    for day in ("2000-01-01", today):
        (path.parent / "backups" / f"state-{day}.db").write_text("a copy")
    path.unlink()
    with pytest.raises(Refused):
        await store.write(lambda tx: None)
    assert lost.copies(path)[-1].name.startswith(f"state-{today}.rescued-")


async def test_where_it_cannot_be_saved_that_is_said(store: Store, path: Path) -> None:
    (path.parent / "backups").write_text("no directory")
    path.unlink()
    with pytest.raises(Refused, match="what it held could not be saved"):
        await store.write(lambda tx: None)
    assert sorted(os.listdir(path.parent)) == ["backups", "state.db-shm", "state.db-wal"]


async def test_nothing_is_left_open(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        store = Store(path, ManualClock())
        await store.open()
        await store.close()
    assert len(os.listdir("/proc/self/fd")) == before

"""Exactly one holds the state; the second is told who; the kernel lets go of what a dead process held (F11)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.config.home import host_name
from llmgw.errors import Refused
from llmgw.store import lease
from llmgw.store.db import Store

HOLD = """
import asyncio, sys
from pathlib import Path
from llmgw.store import lease

async def main():
    held = await lease.acquire(Path(sys.argv[1]), purpose="server run")
    print("held", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "state.lock"


@pytest.fixture
def other(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds it."""
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child
        child.kill()


async def test_a_second_one_is_told_who_holds_it(lock: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(Refused) as caught:
        await lease.acquire(lock, purpose="node add")
    who = rf"pid {other.pid} on {re.escape(host_name())} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d \(server run\)"
    assert re.search(who, caught.value.message)
    assert str(lock.parent) in caught.value.message
    assert caught.value.code == "lease_held"
    assert caught.value.exit_status == 4
    assert re.fullmatch(who, str(lease.holder(lock)))


async def test_kill_9_frees_it(lock: Path, other: subprocess.Popen[str]) -> None:
    os.kill(other.pid, signal.SIGKILL)
    other.wait(10)
    assert lease.holder(lock) is None
    held = await lease.acquire(lock, purpose="server run")
    assert lease.holder(lock) is not None
    held.release()
    assert lease.holder(lock) is None


async def test_it_waits_as_long_as_it_is_told_to(lock: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(Refused):
        await lease.acquire(lock, purpose="x", wait=0.01)
    assert other.stdin is not None
    other.stdin.close()  # its command ends
    (await lease.acquire(lock, purpose="x", wait=30.0)).release()


async def test_a_second_one_in_the_same_process_is_refused_too(lock: Path) -> None:
    held = await lease.acquire(lock, purpose="first")
    with pytest.raises(Refused, match="first"):
        await lease.acquire(lock, purpose="second")
    held.release()
    held.release()


NONSENSE = (
    b"",
    b"\xff\xfe",
    b"[]",
    b'{"pid": 1}',
    b'{"pid":1,"host":"h","since":"x","purpose":"p"}',
    b"[" * 60_000,
    b"5" * 5000,
    b'{"pid":1e400,"host":"h","since":1,"purpose":"p"}',
    b'{"pid":true,"host":"h","since":1,"purpose":"p"}',
    b'{"pid":-1,"host":"h","since":1,"purpose":"p"}',
    b'{"pid":1,"host":"h","since":1e300,"purpose":"p"}',
    b'{"pid":1,"host":"h","since":NaN,"purpose":"p"}',
    b'{"pid":1,"host":"h","since":-1e300,"purpose":"p"}',
    b" " * (1 << 20),
)


async def test_a_lock_file_full_of_nonsense_still_holds(lock: Path) -> None:
    held = await lease.acquire(lock, purpose="first")
    for nonsense in NONSENSE:
        lock.write_bytes(nonsense)
        assert str(lease.holder(lock)) == "another process"
    held.release()


def test_what_a_lock_file_says_is_cut_to_a_length_for_people(lock: Path) -> None:
    lock.write_text('{"pid":1,"host":"' + "h" * 5000 + '","since":1e10,"purpose":"' + "p" * 5000 + '"}')
    assert len(str(lease.recorded(lock))) < 300


@pytest.mark.parametrize("kind", ["FIFO", "directory", "link"])
async def test_what_is_no_file_is_no_lease(lock: Path, kind: str) -> None:
    match kind:
        case "FIFO":
            os.mkfifo(lock)
        case "directory":
            lock.mkdir()
        case _:
            lock.with_name("real").touch()
            lock.symlink_to("real")
    with pytest.raises(Refused, match=str(lock)) as caught:
        await lease.acquire(lock, purpose="x")
    assert caught.value.fix
    assert f"is a {kind}" in caught.value.message or f"but a {kind}" in caught.value.message
    assert lease.holder(lock) is None


def test_nobody_holds_what_is_not_there(lock: Path) -> None:
    assert lease.holder(lock) is None
    assert not lock.exists()


async def test_a_planted_link_is_not_followed(lock: Path, tmp_path: Path) -> None:
    """F70."""
    target = tmp_path / "precious"
    target.write_text("precious")
    lock.symlink_to(target)
    with pytest.raises(Refused, match=str(lock)):
        await lease.acquire(lock, purpose="x")
    assert target.read_text() == "precious"


async def test_the_term_rises_by_one_each_time(store: Store) -> None:
    terms = [await store.write(lambda tx: lease.begin_term(tx, "me")) for _ in range(3)]
    assert terms == [1, 2, 3]
    assert await store.write(lambda tx: lease.set_term(tx, "me", 41)) == 41
    assert await store.write(lambda tx: lease.begin_term(tx, "me")) == 42
    rows = await store.read(lambda db: list(db.query("SELECT id, controller, pid, host FROM lease")))
    assert rows == [{"id": 1, "controller": "me", "pid": os.getpid(), "host": host_name()}]

"""A full disk (F07): nothing half written, an error that says so, and recovery without anybody's help."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.clock import ManualClock
from llmgw.config.home import write_private
from llmgw.errors import DiskFull
from llmgw.store import events, lease
from llmgw.store.db import Store

from .conftest import integrity

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Takes all the space but `leave` bytes."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        stat = os.statvfs(folder)
        file.write(b"\0" * max(0, stat.f_bavail * stat.f_frsize - leave))
    return ballast


@pytest.mark.parametrize("room", range(0, 80, 8))
async def test_opening_where_there_is_no_room(disk: Path, room: int) -> None:
    """Wherever in the making of the state the disk is full: an error, and a good state once there is space."""
    ballast = fill(disk, room << 10)
    path = disk / "state.db"
    store = Store(path, ManualClock())
    with pytest.raises(DiskFull) as caught:
        await store.open()
    await store.close()
    assert str(path) in caught.value.message
    assert caught.value.http_status == 507
    ballast.unlink()
    again = Store(path, ManualClock())
    await again.open()
    await again.write(lambda tx: events.add(tx, "k", "works"))
    await again.close()
    assert integrity(path) == "ok"


async def test_every_write_is_whole_or_refused_and_it_recovers_alone(disk: Path) -> None:
    store = Store(disk / "state.db", ManualClock())
    await store.open()
    kept = 0
    for leave in range(0, 64 << 10, 4 << 10):
        ballast = fill(disk, leave)
        refused = False
        for _ in range(100):
            try:
                await store.write(lambda tx: [events.add(tx, "k", "x" * 700) for _ in range(5)])
            except DiskFull:
                refused = True
                break
            kept += 5
        assert refused
        assert store.full
        assert len(await store.read(lambda db: events.after(db, 0, limit=10**6))) == kept, "all five or none"
        ballast.unlink()
        await store.write(lambda tx: events.prune(tx, older_than=0, keep=0))
        assert not store.full, "it recovers when there is space again"
        kept = 0
    await store.close()
    assert integrity(disk / "state.db") == "ok"


async def test_the_lease_and_small_files_say_that_the_disk_is_full(disk: Path) -> None:
    fill(disk, 0)
    with pytest.raises(DiskFull, match=r"admin\.token"):
        write_private(disk / "admin.token", "secret" * 1000)
    assert not (disk / "admin.token").exists()
    assert [entry.name for entry in disk.iterdir()] == ["ballast"]
    held = await lease.acquire(disk / "state.lock", purpose="test")
    held.release()

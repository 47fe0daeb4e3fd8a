"""A real store in a directory of its own."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from llmgw.clock import ManualClock
from llmgw.store.db import Store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest_asyncio.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    opened = Store(path, clock)
    await opened.open()
    yield opened
    await opened.close()


def integrity(path: Path) -> str:
    conn = sqlite3.connect(path)
    try:
        return str(conn.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        conn.close()


def run(command: str) -> None:
    """What an error tells to do, done."""
    subprocess.run(["sh", "-ec", command], check=True)

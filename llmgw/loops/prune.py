"""Housekeeping: usage is flushed every second; events, audit and intents are cut by age and size; backups daily."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from llmgw.loops.base import Loop
from llmgw.loops.world import World
from llmgw.model import event as model
from llmgw.model.usage import UsageRow
from llmgw.ssh.run import CommandRecord
from llmgw.store import events, intents, keys
from llmgw.store.db import Tx

KEEP_DAYS = 30
KEEP_ROWS = 100_000
BACKUPS = 7
HOURLY = 3600.0
AUDIT_BUFFER = 10_000
MAX_DETAIL = 2000


class Usage(Loop):
    """Exact over SIGTERM; a kill -9 loses at most the last second."""

    name = "usage"
    period = 1.0

    def __init__(self, world: World, take: Callable[[], Sequence[UsageRow]]) -> None:
        super().__init__()
        self._world = world
        self._take = take

    async def turn(self) -> None:
        if rows := self._take():
            await self._world.store.write(lambda tx: keys.add_usage(tx, rows))

    async def stop(self) -> None:
        await super().stop()
        await self.turn()


class Audit(Loop):
    """Writes remote commands down, a second's worth in one transaction."""

    name = "audit"
    period = 1.0

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._records: deque[model.Audit] = deque(maxlen=AUDIT_BUFFER)

    def note(self, record: CommandRecord) -> None:
        action = record.args.get("action")
        entry = model.Audit(
            at=self._world.clock.wall(),
            node=record.node,
            command=f"{record.script}.py" + (f" {action}" if action else ""),
            detail=json.dumps(record.args, default=str)[:MAX_DETAIL],
            exit_status=record.exit_status,
            outcome=record.outcome,
            seconds=round(record.seconds, 4),
        )
        self._records.append(entry)

    async def turn(self) -> None:
        taken = [self._records.popleft() for _ in range(len(self._records))]
        if taken:
            await self._world.store.write(lambda tx: events.add_audit(tx, taken))

    async def stop(self) -> None:
        await super().stop()
        await self.turn()


class Prune(Loop):
    name = "prune"
    period = HOURLY

    def __init__(self, world: World, backups: Path) -> None:
        super().__init__()
        self._world = world
        self._backups = backups

    async def turn(self) -> None:
        await self._world.store.write(_prune)
        await asyncio.to_thread(_backup, self._world.store.path, self._backups)


def _prune(tx: Tx) -> None:
    before = tx.now - KEEP_DAYS * 86400
    events.prune(tx, older_than=before, keep=KEEP_ROWS)
    intents.prune(tx, before)


def _backup(database: Path, folder: Path) -> None:
    """One a day, by SQLite's own backup: copying the file would lose what is still in its log."""
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / time.strftime("state-%Y-%m-%d.db")
    if not target.exists():
        part = target.with_suffix(".part")
        source, copy = sqlite3.connect(database), sqlite3.connect(part)
        try:
            source.backup(copy)
        finally:
            source.close()
            copy.close()
        part.chmod(0o600)
        part.rename(target)
    for old in sorted(folder.glob("state-*.db"))[:-BACKUPS]:
        old.unlink()

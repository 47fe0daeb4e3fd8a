"""Housekeeping: events, audit and intents are cut by age and size, and a copy of the state is made every day."""

from __future__ import annotations

import asyncio
from pathlib import Path

from llmgw.loops.base import Loop
from llmgw.loops.world import World
from llmgw.store import events, intents
from llmgw.store.copies import copy_of_the_day
from llmgw.store.db import Tx

KEEP_DAYS = 30
KEEP_ROWS = 100_000
HOURLY = 3600.0


class Prune(Loop):
    name = "prune"
    period = HOURLY

    def __init__(self, world: World, backups: Path) -> None:
        super().__init__()
        self._world = world
        self._backups = backups

    async def turn(self) -> None:
        world = self._world
        await world.store.write(_prune)
        await asyncio.to_thread(copy_of_the_day, world.store.path, self._backups, world.clock.wall())


def _prune(tx: Tx) -> None:
    before = tx.now - KEEP_DAYS * 86400
    events.prune(tx, older_than=before, keep=KEEP_ROWS)
    intents.prune(tx, before)

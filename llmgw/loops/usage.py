"""What each key has used, written down every second."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmgw.loops.base import Loop
from llmgw.loops.world import World
from llmgw.model.usage import UsageRow
from llmgw.store import keys


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

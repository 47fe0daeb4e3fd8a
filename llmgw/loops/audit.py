"""Every command that was run on a node, written down without its secrets."""

from __future__ import annotations

import json
from collections import deque

from llmgw.loops.base import Loop
from llmgw.loops.world import World
from llmgw.model import event as model
from llmgw.ssh.run import CommandRecord
from llmgw.store import events

AUDIT_BUFFER = 10_000
MAX_DETAIL = 2000


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

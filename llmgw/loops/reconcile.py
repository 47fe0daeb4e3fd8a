"""Compares wishes with what is there and hands the decisions to `act`."""

from __future__ import annotations

from llmgw.core.reconcile import reconcile
from llmgw.loops.act import Act
from llmgw.loops.base import Loop
from llmgw.loops.world import World


class Reconcile(Loop):
    name = "reconcile"
    period = 2.0
    share = 0.02

    def __init__(self, world: World, act: Act) -> None:
        super().__init__()
        self._world = world
        self._act = act

    async def turn(self) -> None:
        world = self._world
        snapshot = await world.snapshot()
        for model in snapshot.models:
            self._act.want_weights(model.source)
        decision = reconcile(snapshot, snapshot.at)
        status = {status.model: status for status in decision.status}
        if status != world.status:
            world.status = status
            world.touch()
        if decision.actions:
            await self._act.carry_out(decision.actions)
            # What was done changes what there is to decide.
            self.hint.give()

"""The end of a node: drained, purged, forgotten. One long request, told by events on the way."""

from __future__ import annotations

import asyncio
import contextlib

from llmgw.errors import Refused, TimedOut
from llmgw.loops.members import forget
from llmgw.loops.world import World
from llmgw.model.node import Node
from llmgw.model.replica import ReplicaState
from llmgw.model.requests import Removal
from llmgw.nodes.remove import leave

STUCK_AFTER = 5.0
"""Seconds for which a replica must have had nowhere to go before the removal is given up."""


class Nowhere(Refused):
    code = "nowhere"


async def emptied(world: World, name: str, *, force: bool, timeout: float) -> None:
    """Waits until nothing of ours runs on a node. Raises Nowhere when its replicas have nowhere to go, TimedOut."""
    end = world.clock.monotonic() + timeout
    stuck_since: float | None = None
    while True:
        snapshot = await world.snapshot()
        there = [one for one in snapshot.replicas_on(name) if one.state is not ReplicaState.STOPPED]
        if not there:
            return
        now = world.clock.monotonic()
        models = {replica.model for replica in there}
        stuck = [one for one in snapshot.status if one.nowhere]
        mine = [one for one in stuck if one.model in models]
        stuck_since = (stuck_since or now) if mine and not force else None
        if stuck_since is not None and now - stuck_since > STUCK_AFTER:
            raise Nowhere(
                f"{name} was not removed: {mine[0].model} has nowhere else to go ({mine[0].reason}).",
                fix="Add a node that fits, or add --force to stop its replicas without a replacement.",
            )
        if now > end:
            raise TimedOut(f"{name} still holds {', '.join(one.id for one in there)} after {timeout:g} s.")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await world.changed.changed()


async def depart(world: World, node: Node, *, purge: bool, public_key: str) -> Removal:
    """Purges an emptied node if asked to, and forgets it."""
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    # A look would write our term there again, after purge has taken it away.
    world.leaving.add(node.id)
    try:
        await world.nobody_at_work(node.id)
        if purge:
            blob = public_key.split()[1]
            removed, left = await leave(world.link(node.id), node, world.authority, key=blob)
        await world.store.write(lambda tx: forget(tx, node.id))
    finally:
        world.leaving.discard(node.id)
    for memory in (world.probes, world.unclaimed):
        memory.pop(node.id, None)
    world.touch()
    world.hint("connect", "reconcile")
    stays = f"left, as it is not empty or others use it: {', '.join(left)}" if left else "left: nothing"
    how = f"; deleted there: {len(removed)} paths, {stays}" if purge else ""
    return Removal(message=f"{node.id} is removed{how}.", removed=removed, left=left)

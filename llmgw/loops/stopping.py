"""The story of a stop: no new requests, the open ones end, intent, TERM and KILL, confirmed gone."""

from __future__ import annotations

import asyncio

from llmgw.errors import UNCERTAIN
from llmgw.loops.changes import S, move
from llmgw.loops.crash import crash_point
from llmgw.loops.world import World
from llmgw.store import intents, replicas
from llmgw.store.db import Tx

DRAIN_LIMIT = 300.0
"""Seconds that open requests of a replica may still take before it is stopped under them."""
GRACE = 10.0


async def stop(world: World, replica_id: str) -> None:
    """Ends a replica that is `draining` or `stopping`. Cut anywhere, the next turn takes it up again."""
    snapshot = await world.snapshot()
    replica = next((found for found in snapshot.replicas if found.id == replica_id), None)
    if replica is None or not replica.state.going:
        return
    # Out of the route table first: no request may come after the last one was waited for.
    await world.republish()
    if replica.state is S.DRAINING:
        await _quiet(world, replica_id)
    await world.store.write(lambda tx: _intend(tx, replica_id, world.authority.term))
    world.touch()
    crash_point("stop.intended")
    killed = False
    for shard in replica.shards:
        node = snapshot.node_by_id.get(shard.node)
        if node is None:
            continue
        try:
            reply = await world.remote(node).stop_engine(replica=replica_id, rank=shard.rank, grace=GRACE)
        except UNCERTAIN:
            world.look(node.id)
            raise
        killed = killed or reply.killed
    crash_point("stop.stopped")
    how = "it had to be killed" if killed else "ended"

    def done(tx: Tx) -> None:
        move(tx, replica_id, S.STOPPED, f"{replica.reason}; {how}" if replica.reason else how)
        intents.close_for(tx, replica_id, "stopped")  # earlier tries of the same stop too

    await world.store.write(done)


async def _quiet(world: World, replica_id: str) -> None:
    """Waits until the replica has no open request."""
    end = world.clock.monotonic() + DRAIN_LIMIT
    while world.traffic.inflight.get(replica_id, 0) and world.clock.monotonic() < end:
        await asyncio.sleep(0.05)


def _intend(tx: Tx, replica_id: str, term: int) -> None:
    now = replicas.get(tx.db, replica_id)
    if now is None:
        return
    move(tx, replica_id, S.STOPPING, now.reason)
    node, attempt = now.lead.node, now.lead.attempt
    intents.begin(tx, "stop", node, term=term, replica=replica_id, rank=0, attempt=attempt)

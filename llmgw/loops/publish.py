"""Publishes the route table and the keys: what the gateway is fed. Follows every change."""

from __future__ import annotations

import asyncio

from llmgw.loops.base import Loop
from llmgw.loops.changes import S
from llmgw.loops.world import World
from llmgw.model.catalog import Model
from llmgw.model.route import KeyTable, Route, RouteTable, Upstream
from llmgw.model.snapshot import Snapshot
from llmgw.store import keys, models

ADOPTION_PATIENCE = 15.0
"""Seconds after the start for which requests are held for a node that does not come back."""


class Publish(Loop):
    name = "publish"
    period = 5.0
    share = 0.05

    def __init__(self, world: World, *, open_to_all: bool = False) -> None:
        super().__init__()
        self._world = world
        self._began = world.clock.monotonic()
        self._open = open_to_all
        self._lock = asyncio.Lock()
        world.changed.subscribe(lambda _: self.hint.give())

    async def turn(self) -> None:
        """Called by others too, who wait for it: one at a time, so that no older table is published over a newer."""
        async with self._lock:
            await self._publish()

    async def _publish(self) -> None:
        world = self._world
        snapshot = await world.snapshot()
        created = await world.store.read(models.created)
        routes: dict[str, Route] = {}
        for model in snapshot.models:
            route = self._route(model, snapshot, int(created.get(model.name, 0)))
            routes.update(dict.fromkeys(model.names, route))
        world.routes.publish(RouteTable(routes=routes, adopting=self._adopting(snapshot)))
        known = await world.store.read(keys.every)
        world.keys.publish(KeyTable(keys={key.hash: key for key in known}, open=self._open))

    def _route(self, model: Model, snapshot: Snapshot, created: int) -> Route:
        upstreams = []
        coming = False
        for replica in snapshot.replicas_of(model.name):
            node = snapshot.node_by_id.get(replica.lead.node)
            key = self._world.engine_keys.get(replica.id)
            up = node is not None and node.reachable
            if replica.wanted and replica.state is S.READY and up and key is not None:
                upstreams.append(
                    Upstream(
                        replica=replica.id,
                        node=replica.lead.node,
                        attempt=replica.lead.attempt,
                        model=model.name,
                        key=key,
                        connect=self._world.connect(replica.lead),
                    )
                )
            coming = coming or (replica.wanted and (replica.state.coming or replica.state is S.READY))
        status = self._world.status.get(model.name)
        reason = f"{model.name} is {status.state}: {status.reason}" if status and status.reason else ""
        return Route(
            model=model.name,
            task=model.task,
            aliases=model.aliases,
            upstreams=tuple(upstreams),
            reason=reason,
            hold=coming and not upstreams,
            context_length=model.context_length,
            max_output=model.max_output,
            created=created,
        )

    def _adopting(self, snapshot: Snapshot) -> bool:
        if self._world.clock.monotonic() - self._began > ADOPTION_PATIENCE:
            return False
        with_replicas = {
            node for replica in snapshot.replicas if replica.wanted and not replica.state.over for node in replica.nodes
        }
        return bool(with_replicas - self._world.looked_at)

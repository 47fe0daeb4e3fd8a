"""Carries out what was decided. The only loop that starts and stops engines, one story a replica."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any

from llmgw.errors import LlmgwError
from llmgw.loops import starting, stopping
from llmgw.loops.base import Loop, log
from llmgw.loops.changes import S, move, retire
from llmgw.loops.world import World
from llmgw.model.action import Action, Forget, Launch, MarkDrained, Place, Retire
from llmgw.model.node import DrainState, LinkState
from llmgw.model.replica import Replica, Shard
from llmgw.model.weights import FetchState
from llmgw.store import events, nodes, replicas
from llmgw.store.db import Tx

REFETCH_AFTER = 60.0


class Act(Loop):
    name = "act"
    period = 2.0

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._fetches: dict[str, asyncio.Task[Any]] = {}
        self._fetch_after: dict[str, float] = {}

    async def turn(self) -> None:
        """Goes on with every launch and stop that has no story: after a restart, after a link came back."""
        snapshot = await self._world.snapshot()
        for replica in snapshot.replicas:
            node = snapshot.node_by_id.get(replica.lead.node)
            reachable = node is not None and node.link is LinkState.UP and node.id in self._world.looked_at
            if replica.state.going and reachable:
                self._spawn(replica.id, stopping.stop(self._world, replica.id))
            elif replica.state is S.FETCHING and reachable:
                self._spawn(replica.id, starting.launch(self._world, replica.id))

    async def stop(self) -> None:
        await super().stop()
        tasks = [*self._world.busy.values(), *self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def carry_out(self, actions: Sequence[Action]) -> None:
        """Writes the decisions down, then begins the stories they ask for."""
        await self._world.store.write(lambda tx: _record(tx, actions))
        self._world.touch()
        for action in actions:
            if isinstance(action, Launch):
                self._spawn(action.replica, starting.launch(self._world, action.replica))
            elif isinstance(action, Forget):
                self._world.engine_keys.pop(action.replica, None)
                self._world.progress.pop(action.replica, None)
        self.hint.give()

    def want_weights(self, source: str) -> None:
        """Has a source fetched into the mirror in the background; after a failure again in a minute."""
        now = self._world.clock.monotonic()
        state = self._world.library.look(source).state
        if source in self._fetches or state is FetchState.PRESENT or now < self._fetch_after.get(source, 0.0):
            return
        task = asyncio.create_task(self._fetch(source), name=f"weights {source}")
        self._fetches[source] = task
        task.add_done_callback(lambda _: self._fetches.pop(source, None))

    async def _fetch(self, source: str) -> None:
        world = self._world
        try:
            await world.library.get(source)
        except LlmgwError as exc:
            self._fetch_after[source] = world.clock.monotonic() + REFETCH_AFTER
            log.warning("weights %s: %s", source, exc)
            why = str(exc)
            await world.store.write(lambda tx: events.add(tx, "weights.failed", f"{source}: {why}"))
        world.touch()
        world.hint("reconcile")

    def _spawn(self, replica: str, story: Coroutine[Any, Any, None]) -> None:
        """One story a replica at a time; a second is not begun."""
        world = self._world
        if replica in world.busy:
            story.close()
            return

        async def tell() -> None:
            try:
                await story
            except LlmgwError as exc:
                log.warning("%s: %s", replica, exc)
            except Exception:
                log.exception("%s", replica)

        def ended(_: asyncio.Task[None]) -> None:
            world.busy.pop(replica, None)
            world.progress.pop(replica, None)
            world.touch()
            world.hint("reconcile", "health")

        task = asyncio.create_task(tell(), name=f"story of {replica}")
        world.busy[replica] = task
        task.add_done_callback(ended)


def _record(tx: Tx, actions: Sequence[Action]) -> None:
    for action in actions:
        if isinstance(action, Place):
            _place(tx, action)
        elif isinstance(action, Launch):
            move(tx, action.replica, S.FETCHING, action.reason)
        elif isinstance(action, Retire):
            retire(tx, action.replica, action.reason)
        elif isinstance(action, Forget):
            replicas.remove(tx, action.replica)
        elif isinstance(action, MarkDrained):
            nodes.change(tx, action.node, drain=DrainState.DRAINED)
            events.add(tx, "drain", f"{action.node} is drained: {action.reason}", node=action.node, state="drained")


def _place(tx: Tx, action: Place) -> None:
    replica = Replica(
        id=f"{action.model}-{secrets.token_hex(3)}",
        model=action.model,
        revision=action.revision,
        profile=action.profile,
        engine=action.engine,
        engine_version=action.engine_version,
        reason=action.reason,
        shards=tuple(Shard(node=node, rank=rank) for rank, node in enumerate(action.nodes)),
        memory_bytes=action.memory_bytes,
        created_at=tx.now,
        state_since=tx.now,
    )
    replicas.put(tx, replica)
    events.add(
        tx,
        "replica.state",
        f"{replica.id} placed on {', '.join(action.nodes)}: {action.reason}",
        node=replica.lead.node,
        model=replica.model,
        replica=replica.id,
        state="placed",
    )

"""Ready means an answer came back: at load, at adoption, after ejection. Afterwards real traffic and /health count."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from llmgw.core.lifecycle import STEADY_AFTER
from llmgw.errors import LlmgwError
from llmgw.loops.base import Loop, log
from llmgw.loops.changes import S, fail, move
from llmgw.loops.world import World
from llmgw.model.event import Severity
from llmgw.model.node import LinkState
from llmgw.model.replica import Replica
from llmgw.model.snapshot import Snapshot
from llmgw.nodes import ask
from llmgw.store import replicas
from llmgw.store.db import Tx

CHECK_EVERY = 10.0
CHECK_TIMEOUT = 5.0
PROOF_TIMEOUT = 120.0
"""A first answer may be slow: the engine warms up, the machine is busy."""
STRIKES = 3
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
TELL_EVERY = 5.0
SILENT_LIMIT = 1800.0
"""Seconds that an engine may load without one answer until it is started anew: big models on slow disks take long."""
HUNG_AFTER = 60.0
"""Seconds that a replica which had been ready may stay silent, its process alive, until it is started anew."""


class Health(Loop):
    name = "health"
    period = 1.0
    share = 0.02

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._proofs: dict[str, asyncio.Task[None]] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._looks: set[asyncio.Task[None]] = set()
        self._due: dict[str, float] = {}
        self._strikes: dict[str, int] = {}

    async def turn(self) -> None:
        world, now = self._world, self._world.clock.monotonic()
        snapshot = await world.snapshot()
        for replica in snapshot.replicas:
            node = snapshot.node_by_id.get(replica.lead.node)
            if node is None or node.link is not LinkState.UP or not replica.wanted:
                continue
            if replica.state is S.LOADING and replica.id in world.engine_keys:
                self._once(self._proofs, replica.id, self._prove(replica, snapshot))
            elif replica.state is S.READY and now >= self._due.get(replica.id, 0.0):
                self._due[replica.id] = now + CHECK_EVERY
                self._once(self._checks, replica.id, self._check(replica))
        alive = {replica.id for replica in snapshot.replicas}
        for memory in (self._due, self._strikes):
            for gone in set(memory) - alive:
                memory.pop(gone)

    def upstream_failed(self, replica: str, attempt: int, why: str) -> None:
        """The gateway's hint: something is wrong with a replica. A hint is no proof: it makes us look."""
        self._due[replica] = 0.0
        self._world.hint("health")
        task = asyncio.create_task(self._look_at(replica))
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def stop(self) -> None:
        await super().stop()
        tasks = [*self._proofs.values(), *self._checks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_at(self, replica: str) -> None:
        found = await self._world.store.read(lambda db: replicas.get(db, replica))
        if found is not None:
            self._world.look(found.lead.node)

    def _once(self, tasks: dict[str, asyncio.Task[None]], replica: str, work: Coroutine[Any, Any, None]) -> None:
        if replica in tasks:
            work.close()
            return
        task = asyncio.create_task(work, name=f"health of {replica}")
        tasks[replica] = task
        task.add_done_callback(lambda _: tasks.pop(replica, None))

    async def _prove(self, replica: Replica, snapshot: Snapshot) -> None:
        """Asks for one real answer until it comes. Its process is looked at in between: a dead one ends the wait."""
        world = self._world
        model = snapshot.model_by_name.get(replica.model)
        if model is None:
            return
        connect, key = world.connect(replica.lead), world.engine_keys[replica.id]
        began = looked = told = world.clock.monotonic()
        pause = FIRST_PAUSE
        while True:
            try:
                await ask.prove(connect, model.task, model.name, key, timeout=PROOF_TIMEOUT)
                break
            except LlmgwError as exc:
                refusal = exc
                log.debug("%s does not answer yet: %s", replica.id, exc)
            now = world.clock.monotonic()
            if refusal.code == "forwarding_forbidden" or now - began > SILENT_LIMIT:
                why = f"it has not answered for {now - began:.0f} s: {refusal}"
                await world.store.write(partial(fail, replica=replica.id, cause=why))
                world.hint("reconcile")
                return
            if now - told > TELL_EVERY:
                told = now
                why = f"no answer for {now - began:.0f} s: {refusal}"
                await world.store.write(partial(replicas.change, replica=replica.id, reason=why))
                world.touch()
            if now - looked > 1.0:
                looked = now
                world.look(replica.lead.node)
            still = await world.store.read(lambda db: replicas.get(db, replica.id))
            if still is None or still.state is not S.LOADING or still.lead != replica.lead:
                return
            if replica.ready_at is not None and now - began > HUNG_AFTER:
                await world.store.write(lambda tx: fail(tx, replica.id, "it runs and does not answer"))
                world.hint("reconcile")
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
        self._strikes.pop(replica.id, None)
        self._due[replica.id] = world.clock.monotonic() + CHECK_EVERY
        await world.store.write(lambda tx: _ready(tx, replica))
        world.touch()
        world.hint("reconcile")

    async def _check(self, replica: Replica) -> None:
        world = self._world
        key = world.engine_keys.get(replica.id)
        if key is None:
            return
        try:
            await ask.healthy(world.connect(replica.lead), key, timeout=CHECK_TIMEOUT)
        except LlmgwError as exc:
            why = str(exc)
            strikes = self._strikes[replica.id] = self._strikes.get(replica.id, 0) + 1
            self._due[replica.id] = world.clock.monotonic() + 1.0
            world.look(replica.lead.node)
            if strikes >= STRIKES:
                await world.store.write(lambda tx: _eject(tx, replica.id, why))
                world.touch()
            return
        self._strikes.pop(replica.id, None)
        if replica.failures and replica.ready_at and world.clock.wall() - replica.ready_at > STEADY_AFTER:
            await world.store.write(lambda tx: replicas.change(tx, replica.id, failures=0))


def _ready(tx: Tx, replica: Replica) -> None:
    now = replicas.get(tx.db, replica.id)
    # The answer came from this very attempt, or it says nothing about the one that runs by now.
    if now is not None and now.lead == replica.lead:
        took = tx.now - now.state_since
        move(tx, replica.id, S.READY, f"answered after {took:.1f} s", ready_at=tx.now, next_try_at=None)


def _eject(tx: Tx, replica: str, why: str) -> None:
    move(tx, replica, S.LOADING, f"stopped answering: {why}", severity=Severity.WARNING)

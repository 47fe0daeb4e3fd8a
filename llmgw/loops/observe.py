"""Looks at nodes: a probe at connect, every ten minutes and on demand; the engines also on a hint and every minute.

What a look finds is compared with what is recorded (`core.adopt`); nothing is concluded about a node not looked at.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from llmgw.core import adopt
from llmgw.core.differences import differences
from llmgw.core.findings import judge
from llmgw.errors import LlmgwError
from llmgw.loops.base import Loop, ended, log
from llmgw.loops.changes import S, fail, move
from llmgw.loops.world import World
from llmgw.model.event import Severity
from llmgw.model.listing import Listing
from llmgw.model.node import Node, Problem
from llmgw.model.probe import Probe
from llmgw.model.surroundings import Surroundings, skew
from llmgw.store import events, intents, nodes, replicas
from llmgw.store.db import Database, Tx

LIST_EVERY = 60.0
AT_ONCE = 20
REFUSALS = ("superseded", "foreign_controller", "unsafe_root")
"""Codes by which a node says that it does not obey: no link is lost, no look will be better, and nothing can be placed
there. It is a problem of the node until it answers again."""
Marks = dict[str, tuple[object, ...]]


class Observe(Loop):
    name = "observe"
    period = 1.0
    share = 0.02

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._probe_due: dict[str, float] = {}
        self._list_due: dict[str, float] = {}
        self._told: dict[str, str] = {}
        """What was last said of a failed look, by node."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def turn(self) -> None:
        world, now = self._world, self._world.clock.monotonic()
        for node in await world.store.read(nodes.every):
            if not node.reachable or node.id in world.leaving:
                continue
            if node.id in self._running:
                continue
            probe = node.id in world.probe_now or now >= self._probe_due.get(node.id, 0.0)
            look = probe or node.id in world.look_now or now >= self._list_due.get(node.id, 0.0)
            if not look:
                continue
            world.probe_now.discard(node.id)
            world.look_now.discard(node.id)
            task = asyncio.create_task(self._visit(node, probe=probe), name=f"look at {node.id}")
            self._running[node.id] = task
            world.working(node.id, task)
            task.add_done_callback(partial(ended, self._running, node.id))

    async def visit(self, name: str) -> None:
        """A full look now, for somebody who waits for it. Raises what went wrong."""
        if (running := self._running.get(name)) is not None:
            await asyncio.wait([running])
        node = await self._world.store.read(lambda db: nodes.get(db, name))
        if node is not None:
            async with self._limit:
                await self._look(node, probe=True)

    async def stop(self) -> None:
        await super().stop()
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _visit(self, node: Node, *, probe: bool) -> None:
        world = self._world
        async with self._limit:
            now = world.clock.monotonic()
            self._list_due[node.id] = now + LIST_EVERY
            try:
                await self._look(node, probe=probe)
            except LlmgwError as exc:
                log.warning("%s could not be looked at: %s", node.id, exc)
                await self._failed(node.id, exc, exc.code, probe)
            except Exception as exc:  # a bug of ours: as rare a try, and as visible, as what a node does wrong
                log.exception("%s could not be looked at", node.id)
                why = f"the control plane failed at what it says ({type(exc).__name__}); its log says more"
                await self._failed(node.id, LlmgwError(why), "bug", probe)
        world.touch()

    async def _failed(self, node: str, exc: LlmgwError, code: str, probe: bool) -> None:
        """Unknown is not a fact: it is looked at again soon, and the failure is shown."""
        world, now, why = self._world, self._world.clock.monotonic(), str(exc)
        self._list_due[node] = now + 5.0
        if probe:
            self._probe_due[node] = now + 15.0
        if code not in ("link_down", "link_lost") and self._told.get(node) != why:
            self._told[node] = why  # said once, however often it is met again
            await world.store.write(lambda tx: _look_failed(tx, node, exc, code))

    async def _look(self, node: Node, *, probe: bool) -> None:
        """What runs comes first: requests may be waiting for it, while a probe can take its time."""
        world = self._world
        asked = await world.store.read(marks)
        busy = set(world.busy)
        listing = await world.remote(node).list_engines()
        world.taking_over.discard(node.id)
        self._told.pop(node.id, None)
        await self._listed(node, listing, busy, asked)
        if probe:
            await self._probe(node)
            jitter = random.uniform(0.9, 1.1)
            self._probe_due[node.id] = world.clock.monotonic() + world.settings.probe_interval * jitter

    async def _probe(self, node: Node) -> None:
        world, ports = self._world, self._world.settings.engine_ports
        sent = world.clock.wall()
        probe, document = await world.remote(node).probe(ports=ports)
        off = skew(probe.at, sent, world.clock.wall())
        relayed = world.link(node.id).data_path == "relay"
        await world.store.write(lambda tx: _probed(tx, node.id, probe, document, off, relayed, ports))
        world.probes[node.id] = probe
        world.hint("install", "reconcile")

    async def _listed(self, node: Node, listing: Listing, busy: set[str], asked: Marks) -> None:
        world = self._world
        known, old_news = await world.store.write(
            lambda tx: _apply(tx, node.id, listing, busy | set(world.busy), asked)
        )
        for entry in listing.replicas:
            for secret in entry.key_env.values():
                if entry.alive and entry.replica not in busy | old_news:
                    world.engine_keys[entry.replica] = secret
        if old_news:
            world.look(node.id)
        cluster = world.authority.cluster_id
        world.unclaimed[node.id] = tuple(adopt.unclaimed(node.id, listing, known, cluster))
        world.looked_at.add(node.id)
        world.touch()
        world.hint("health", "reconcile", "act")


def _look_failed(tx: Tx, node: str, exc: LlmgwError, code: str) -> None:
    message = f"{node} could not be looked at: {exc}"
    events.add(tx, "node.look", message, node=node, severity=Severity.WARNING, code=code)
    now = nodes.get(tx.db, node)
    if now is not None and code in REFUSALS:
        refusal = Problem(code=code, severity="error", message=exc.message, fix=exc.fix)
        nodes.change(tx, node, problems=(refusal, *_obeying(now.problems)))


def _obeying(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Without the refusals of a node."""
    return tuple(one for one in problems if one.code not in REFUSALS)


def _probed(
    tx: Tx, node: str, probe: Probe, document: dict[str, object], off: float, relayed: bool, ports: tuple[int, int]
) -> None:
    before = nodes.put_probe(tx, node, document)
    now = nodes.get(tx.db, node)
    if now is None:
        return
    if before is not None:
        for difference in differences(before, document):
            events.add(tx, "node.changed", f"{node}: {difference}", node=node, severity=Severity.WARNING)
    if now.machine_id and probe.machine_id and now.machine_id != probe.machine_id:
        why = f"its machine id was {now.machine_id} and is now {probe.machine_id}"
        nodes.change(tx, node, quarantined=why)
        events.add(tx, "node.quarantined", f"{node} is quarantined: {why}", node=node, severity=Severity.ERROR)
    alike = nodes.alike(tx.db, probe.machine_id) if probe.machine_id else []
    others = [(other, boot) for other, boot in alike if other != node]
    outside = Surroundings(
        clock_skew=off,
        forwarding=False if relayed else None,
        same_machine_id=tuple(other for other, boot in others if boot != probe.boot_id),
        same_machine=tuple(other for other, boot in others if boot == probe.boot_id),
        own_key=now.options.own_key,
        fabrics=now.options.fabrics,
    )
    nodes.change(
        tx,
        node,
        machine_id=now.machine_id or probe.machine_id,
        boot_id=probe.boot_id,
        root=probe.root.path,
        python=probe.python.executable,
        problems=tuple(judge(probe, outside=outside, node_id=node, ports=ports, accepted=now.options.despite)),
        probed_at=tx.now,
        seen_at=tx.now,
    )


def marks(db: Database) -> Marks:
    """What is recorded of each replica: compared with the same later, it tells what has changed in between."""
    return {replica.id: (replica.state, replica.state_since, replica.shards) for replica in replicas.every(db)}


def _apply(tx: Tx, node: str, listing: Listing, busy: set[str], asked: Marks) -> tuple[set[str], set[str]]:
    """Writes down what a look means for each replica.

    Returns every replica that this state knows, and those here about which the look says nothing any more: they have
    changed since it was asked for, and no old fact may overwrite a newer one (F55).
    """
    known = replicas.every(tx.db)
    now = marks(tx.db)
    old_news = {
        one.id for one in known if node in one.nodes and one.id not in busy and now[one.id] != asked.get(one.id)
    }
    for verdict in adopt.judge(node, listing, [one for one in known if one.id not in busy | old_news]):
        if isinstance(verdict, adopt.Alive):
            _alive(tx, verdict)
        elif isinstance(verdict, adopt.Dead):
            fail(tx, verdict.replica, verdict.cause, log_tail=verdict.log_tail, attempt=verdict.attempt)
        elif isinstance(verdict, adopt.NeverStarted):
            intents.close_for(tx, verdict.replica, "never started")
            move(tx, verdict.replica, S.PLACED, "its launch did not happen")
        # One that is to go and runs no more is left to the story of its stop, which takes its folder away too.
    there = nodes.get(tx.db, node)
    if there is not None:
        nodes.change(tx, node, seen_at=tx.now, problems=_obeying(there.problems))
    return {replica.id for replica in known}, old_news


def _alive(tx: Tx, verdict: adopt.Alive) -> None:
    now = replicas.get(tx.db, verdict.replica)
    if now is None:
        return
    shards = tuple(verdict.shard if shard.rank == verdict.shard.rank else shard for shard in now.shards)
    replicas.change(tx, now.id, shards=shards)
    if now.state.going:
        return
    intents.close_for(tx, now.id, "running")
    adopted = now.state in (S.LOST, S.STARTING, S.FAILED, S.PLACED)
    if adopted or now.lead.process != shards[0].process:
        # Ready means an answer came back: at adoption too. That it had answered before is kept.
        process = shards[0].process
        assert process is not None
        since = now.ready_at if now.lead.process == process else None
        moved = move(tx, now.id, S.LOADING, f"adopted pid {process.pid}, port {shards[0].port}", ready_at=since)
        if moved is not None:
            events.add(
                tx,
                "replica.adopted",
                f"{now.id} adopted: pid {process.pid} on {verdict.shard.node} had gone on running",
                node=verdict.shard.node,
                model=now.model,
                replica=now.id,
                pid=process.pid,
            )

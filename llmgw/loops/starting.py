"""The story of a launch: weights, intent, effect, record. It may be cut anywhere; a look at the node tells where."""

from __future__ import annotations

from llmgw.core.fit import installed_engine
from llmgw.errors import UNCERTAIN, LlmgwError
from llmgw.loops.changes import S, fail, move
from llmgw.loops.crash import crash_point
from llmgw.loops.world import World
from llmgw.model.replica import Process, Replica, Shard
from llmgw.model.secret import Secret
from llmgw.nodes import launch as node_launch
from llmgw.nodes.replies import Started
from llmgw.store import intents, replicas
from llmgw.store.db import Tx


async def launch(world: World, replica_id: str) -> None:
    """Brings a replica from `fetching` to `loading`. Whether it answers is for the health loop to find out."""
    snapshot = await world.snapshot()
    replica = next((found for found in snapshot.replicas if found.id == replica_id), None)
    if replica is None or replica.state is not S.FETCHING:
        return
    model = snapshot.model_by_name.get(replica.model)
    node = snapshot.node_by_id.get(replica.lead.node)
    probe = world.probes.get(replica.lead.node)
    if model is None or node is None or probe is None:
        await _back(world, replica_id, "what it needs is not known yet")
        return
    remote = world.remote(node)
    try:
        weights = await world.library.get(model.source)

        def progress(share: float) -> None:
            world.progress[replica_id] = share
            world.touch()

        path = await node_launch.bring_weights(remote, weights, progress)
        installed = installed_engine(replica.engine, node.id, snapshot)
        if isinstance(installed, str):
            raise LlmgwError(installed, code="no_engine")
        command = node_launch.command_for(model, replica, installed, node, probe, path)
        if replica.lead.attempt:
            # An earlier attempt may have left something behind, a worker or a hung server; it goes first.
            await remote.stop_engine(replica=replica_id, rank=0, attempt=None, remove=False)
    except UNCERTAIN as exc:
        await _back(world, replica_id, str(exc))
        return
    except LlmgwError as exc:
        why = str(exc)
        await world.store.write(lambda tx: fail(tx, replica_id, why))
        return

    key = Secret.random()
    begun = await world.store.write(lambda tx: _intend(tx, replica_id, world.authority.term))
    if begun is None:
        return
    replica, shard, intent = begun
    crash_point("launch.intended")
    try:
        started = await node_launch.start(
            remote,
            model,
            replica,
            shard,
            command,
            cluster=world.authority.cluster_id,
            key=key,
            ports=world.settings.engine_ports,
        )
    except UNCERTAIN:
        # Whether it runs is not known. Nothing is repeated: a look answers.
        world.look(node.id)
        raise
    except LlmgwError as exc:
        why = str(exc)
        await world.store.write(lambda tx: fail(tx, replica_id, why))
        return
    crash_point("launch.started")
    if started.already:
        world.look(node.id)  # It runs with a key that an earlier call gave it.
    else:
        world.engine_keys[replica_id] = key
    await world.store.write(lambda tx: _started(tx, replica_id, shard, started, intent))
    crash_point("launch.recorded")


def _intend(tx: Tx, replica_id: str, term: int) -> tuple[Replica, Shard, int] | None:
    """Commits what is about to be done: state, attempt and intent in one transaction, before the node is touched."""
    now = replicas.get(tx.db, replica_id)
    if now is None or now.state is not S.FETCHING:
        return None
    shard = now.lead.model_copy(update={"attempt": now.lead.attempt + 1, "process": None, "port": None})
    moved = move(tx, replica_id, S.STARTING, f"attempt {shard.attempt}", shards=(shard, *now.shards[1:]))
    if moved is None:
        return None
    intent = intents.begin(tx, "start", shard.node, term=term, replica=replica_id, rank=0, attempt=shard.attempt)
    return moved, shard, intent


def _started(tx: Tx, replica_id: str, shard: Shard, started: Started, intent: int) -> None:
    process = Process(boot_id=started.boot_id, pid=started.pid, start_ticks=started.start_ticks)
    done = shard.model_copy(update={"process": process, "port": started.port, "attempt": started.attempt})
    now = replicas.get(tx.db, replica_id)
    if now is not None:
        shards = (done, *now.shards[1:])
        replicas.change(tx, replica_id, shards=shards)
        move(tx, replica_id, S.LOADING, f"pid {started.pid}, port {started.port}")
    intents.close(tx, intent, "already" if started.already else "started")


async def _back(world: World, replica_id: str, why: str) -> None:
    """Nothing was started: it waits where it was placed, for a moment at least."""

    def work(tx: Tx) -> None:
        move(tx, replica_id, S.PLACED, why, next_try_at=tx.now + 2.0)

    await world.store.write(work)

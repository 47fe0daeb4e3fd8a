"""Every node converges on the configured engines by itself: the first version of each that runs there."""

from __future__ import annotations

import asyncio
from functools import partial

from llmgw.engines.base import Build, Unsupported
from llmgw.engines.registry import engines
from llmgw.errors import LlmgwError
from llmgw.loops.base import Loop, ended, log
from llmgw.loops.world import World
from llmgw.model.engine import InstallState, NodeEngine
from llmgw.model.event import Severity
from llmgw.model.node import LinkState, Node, NodeState
from llmgw.nodes.provision import choose_build, provision, recheck
from llmgw.store import events, nodes
from llmgw.store.db import Tx

RECHECK_EVERY = 600.0
AT_ONCE = 8


class Install(Loop):
    name = "install"
    period = 5.0
    share = 0.02

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._running: dict[str, asyncio.Task[None]] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def turn(self) -> None:
        for node in await self._world.store.read(nodes.every):
            ready = node.reachable and node.id in self._world.probes
            if ready and node.id not in self._running and node.id not in self._world.leaving:
                task = asyncio.create_task(self._converge(node), name=f"engines of {node.id}")
                self._running[node.id] = task
                self._world.working(node.id, task)
                task.add_done_callback(partial(ended, self._running, node.id))

    async def stop(self) -> None:
        await super().stop()
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _converge(self, node: Node) -> None:
        async with self._limit:
            try:
                for name in engines():
                    await self._engine(node, name)
            except LlmgwError as exc:
                log.warning("%s: engines: %s", node.id, exc)
                return
        await self._joined(node.id)

    async def _engine(self, node: Node, name: str) -> None:
        """The first version that runs; what is configured no more is not offered any more."""
        world = self._world
        known = {
            entry.version: entry
            for entry in await world.store.read(lambda db: nodes.engines(db, node.id))
            if entry.engine == name
        }
        versions = list(world.settings.engines.wanted().get(name, ()))
        if named := node.options.engines.get(name):
            versions.insert(0, named)
        for version, entry in known.items():
            if version not in versions:
                await world.store.write(partial(_drop, entry))
        for version in versions:
            entry = known.get(version) or NodeEngine(node=node.id, engine=name, version=version)
            if await self._version(node, entry):
                break

    async def _version(self, node: Node, entry: NodeEngine) -> bool:
        """Whether this version is (now) installed."""
        world, now = self._world, self._world.clock.wall()
        build = choose_build(entry.engine, entry.version, node, world.probes[node.id])
        if isinstance(build, Unsupported):
            await self._keep(
                entry.model_copy(update={"state": InstallState.UNSUPPORTED, "detail": build.reason}), entry
            )
            return False
        if entry.state is InstallState.INSTALLED:
            if entry.checked_at is not None and now - entry.checked_at < RECHECK_EVERY and not _moved(entry, build):
                return True
            checked = await recheck(world.remote(node), entry, build, now=world.clock.wall)
            await self._keep(checked, entry)
            return checked.state is InstallState.INSTALLED
        if entry.state is InstallState.FAILED and entry.next_try_at is not None and now < entry.next_try_at:
            return False

        current = entry

        async def report(state: InstallState, detail: str) -> None:
            nonlocal current
            following = current.model_copy(update={"state": state, "detail": detail})
            await self._keep(following, current)
            current = following

        done = await provision(
            world.remote(node), entry, build, fetch=world.library.get, report=report, now=world.clock.wall
        )
        await self._keep(done, current)
        return done.state is InstallState.INSTALLED

    async def _keep(self, entry: NodeEngine, before: NodeEngine) -> None:
        if entry == before:
            return
        await self._world.store.write(lambda tx: _record(tx, entry, before))
        self._world.touch()
        self._world.hint("reconcile")

    async def _joined(self, node: str) -> None:
        """A node is ready once it has been looked at, probed, and its engines are settled."""
        if node not in self._world.looked_at:
            return
        await self._world.store.write(lambda tx: _join(tx, node))
        self._world.touch()
        self._world.hint("reconcile")


def _drop(entry: NodeEngine, tx: Tx) -> None:
    nodes.remove_engine(tx, entry)


def _moved(entry: NodeEngine, build: Build) -> bool:
    """A resident script of a new version of llmgw lies in a directory of its own."""
    return build.directory is not None and not (entry.path or "").endswith(f"/{build.directory}")


def _record(tx: Tx, entry: NodeEngine, before: NodeEngine) -> None:
    if nodes.get(tx.db, entry.node) is None:
        return
    nodes.put_engine(tx, entry)
    if (entry.state, entry.detail) != (before.state, before.detail):
        detail = f": {entry.detail}" if entry.detail else ""
        severity = Severity.ERROR if entry.state is InstallState.FAILED else Severity.INFO
        events.add(
            tx,
            "engine.install",
            f"{entry.node}: {entry.engine} {entry.version} {entry.state}{detail}",
            node=entry.node,
            severity=severity,
            engine=entry.engine,
            version=entry.version,
            state=str(entry.state),
            detail=entry.detail,
        )


def _join(tx: Tx, node: str) -> None:
    now = nodes.get(tx.db, node)
    if now is None or now.state is NodeState.READY or now.link is not LinkState.UP:
        return
    nodes.change(tx, node, state=NodeState.READY, adding_by=None)
    events.add(tx, "node.ready", f"{node} is ready", node=node)

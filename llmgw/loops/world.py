"""What the loops share: the doors to the store, the nodes and the mirror, and what is only kept in memory.

In memory is what a look at the nodes brings back: probes, engine keys, unclaimed engines, what is being worked on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from llmgw.clock import Clock
from llmgw.config.settings import Settings
from llmgw.errors import Unreachable
from llmgw.mirror.library import Library
from llmgw.model.catalog import Model
from llmgw.model.engine import NodeEngine
from llmgw.model.holder import Hint, Published
from llmgw.model.node import Node
from llmgw.model.probe import Probe
from llmgw.model.replica import Replica, Shard
from llmgw.model.route import Connect, KeyTable, ProtocolFactory, RouteTable, Traffic
from llmgw.model.secret import Secret
from llmgw.model.snapshot import ModelStatus, Snapshot, Unclaimed
from llmgw.nodes.remote import Authority, Remote
from llmgw.ssh.identity import Login
from llmgw.ssh.pool import Link, Pool
from llmgw.store import models, nodes, replicas
from llmgw.store.db import Database, Store


@dataclass
class World:
    settings: Settings
    clock: Clock
    store: Store
    library: Library
    authority: Authority
    traffic: Traffic
    routes: Published[RouteTable]
    keys: Published[KeyTable]
    pool: Pool = field(init=False)

    probes: dict[str, Probe] = field(default_factory=dict)
    engine_keys: dict[str, Secret] = field(default_factory=dict)
    """Each replica's own key: made at launch, brought back by a look at the node; never in the database."""
    unclaimed: dict[str, tuple[Unclaimed, ...]] = field(default_factory=dict)
    status: dict[str, ModelStatus] = field(default_factory=dict)
    looked_at: set[str] = field(default_factory=set)
    """Nodes that have been looked at since their link came up."""
    busy: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Replicas that a story is working on: what a look says about them meanwhile is old news."""
    progress: dict[str, float] = field(default_factory=dict)
    changed: Published[int] = field(default_factory=lambda: Published(0))
    """Counts changes; the faces and the route table follow it."""
    hints: dict[str, Hint] = field(default_factory=dict)
    """By loop."""
    at_work: dict[str, set[asyncio.Task[None]]] = field(default_factory=dict)
    """Looks and installations under way, by node."""
    leaving: set[str] = field(default_factory=set)
    """Nodes that are being purged: nobody looks at them any more."""
    taking_over: set[str] = field(default_factory=set)
    """Nodes that obeyed another control plane and shall obey this one: until the first look has told them."""
    look_now: set[str] = field(default_factory=set)
    probe_now: set[str] = field(default_factory=set)

    visit: Callable[[str], Awaitable[None]] = field(init=False)
    """A full look at a node now; raises what went wrong."""
    republish: Callable[[], Awaitable[None]] = field(init=False)
    """Publishes the route table now; returns when the gateway has it."""

    def hint(self, *loops: str) -> None:
        for name in loops:
            if name in self.hints:
                self.hints[name].give()

    def touch(self) -> None:
        """Something that the faces or the routes show has changed."""
        self.changed.publish(self.changed.value + 1)

    def look(self, node: str, *, probe: bool = False) -> None:
        """Asks for a look at a node at once."""
        self.look_now.add(node)
        if probe:
            self.probe_now.add(node)
        self.hint("observe")

    def working(self, node: str, task: asyncio.Task[None]) -> None:
        """Notes a task that talks to a node, so that whoever purges it can wait for the last one."""
        tasks = self.at_work.setdefault(node, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def nobody_at_work(self, node: str) -> None:
        if tasks := self.at_work.get(node):
            await asyncio.wait(list(tasks))

    def link(self, node: str) -> Link:
        """Raises Unreachable when the node is not one of ours (any more)."""
        link = self.pool.link(node)
        if link is None:
            raise Unreachable(f"There is no connection to {node}.", code="link_down")
        return link

    def login(self, node: Node) -> Login:
        """How we log in to a node: with our own key, or with this user's where none of ours was left there."""
        own = self.pool.login
        if node.options.own_key or node.address.is_local:
            return own
        keys = node.options.identities or self.settings.ssh.identities
        files = tuple(Path(name).expanduser() for name in keys)
        return Login(client_keys=files, agent=True, config_files=own.config_files)

    def remote(self, node: Node) -> Remote:
        return Remote(self.link(node.id), node, self.authority, take_over=node.id in self.taking_over)

    def connect(self, shard: Shard) -> Connect:
        """Opens streams to a shard's HTTP port through its node's connection, whichever that is by then."""
        return functools.partial(self._open, shard.node, shard.port or 0)

    async def _open(self, node: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        return await self.link(node).open_stream(port, factory)

    async def recall(self) -> None:
        """The probes of before, so that placement knows the nodes before they are looked at again."""
        for name, document in (await self.store.read(nodes.probes)).items():
            with contextlib.suppress(ValidationError):
                self.probes[name] = Probe.model_validate(document)

    async def snapshot(self) -> Snapshot:
        """The whole truth as of now."""
        found_nodes, found_models, found_replicas, engines = await self.store.read(_everything)
        return Snapshot(
            at=self.clock.wall(),
            term=self.authority.term,
            nodes=tuple(found_nodes),
            models=tuple(found_models),
            replicas=tuple(self._with_progress(replica) for replica in found_replicas),
            engines=tuple(engines),
            probes=dict(self.probes),
            weights={model.source: self.library.look(model.source) for model in found_models},
            engine_order=self.settings.engines.wanted(),
            unclaimed=tuple(one for found in self.unclaimed.values() for one in found),
            inflight=dict(self.traffic.inflight),
            served=dict(self.traffic.served),
            status=tuple(self.status[model.name] for model in found_models if model.name in self.status),
        )

    def _with_progress(self, replica: Replica) -> Replica:
        done = self.progress.get(replica.id)
        return replica if done is None else replica.model_copy(update={"progress": done})


def _everything(db: Database) -> tuple[list[Node], list[Model], list[Replica], list[NodeEngine]]:
    return nodes.every(db), models.every(db), replicas.every(db), nodes.engines(db)

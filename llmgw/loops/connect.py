"""Keeps one connection a node: opens what is missing, drops what was removed, and tells what a link's change means."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from llmgw.errors import LlmgwError
from llmgw.loops.base import Loop
from llmgw.loops.changes import S, move
from llmgw.loops.world import World
from llmgw.model.event import Severity
from llmgw.model.node import LinkState
from llmgw.ssh.pool import LinkStatus
from llmgw.store import events, nodes, replicas
from llmgw.store.db import Tx

AT_ONCE = 50
"""Links that are made before others get a turn."""


class Connect(Loop):
    name = "connect"
    period = 10.0
    share = 0.02

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._changes: asyncio.Queue[tuple[str, LinkStatus]] = asyncio.Queue()
        self._known: set[str] = set()

    def link_changed(self, node: str, status: LinkStatus) -> None:
        """The pool's callback; what it means is written down by the next turn, in order."""
        self._changes.put_nowait((node, status))
        self.hint.give()

    async def turn(self) -> None:
        while not self._changes.empty():
            changed, status = self._changes.get_nowait()
            await self._record(changed, status)
        everyone = {node.id: node for node in await self._world.store.read(nodes.every)}
        wanted = {name: node for name, node in everyone.items() if not node.quarantined}
        for number, (name, node) in enumerate(wanted.items()):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)  # a thousand nodes must not keep the streams of one waiting
            try:
                self._world.pool.add(name, node.address, node.host_key, login=self._world.login(node))
            except LlmgwError as exc:
                # One record that cannot be used must not keep the others from being connected.
                why = str(exc)
                if node.link_error != why:
                    await self._world.store.write(partial(nodes.change, node=name, link_error=why))
                continue
            self._known.add(name)
        for name in self._known - set(wanted):
            # What a quarantined node has to show stays known: whoever adds it again must not meet a stranger.
            await self._world.pool.remove(name, keep_pin=name in everyone)
            self._known.discard(name)
            self._world.looked_at.discard(name)

    async def _record(self, node: str, status: LinkStatus) -> None:
        world = self._world
        if not status.up:
            world.looked_at.discard(node)
        await world.store.write(lambda tx: _up(tx, node) if status.up else _down(tx, node, status))
        if status.up:
            world.look(node, probe=True)
        world.touch()
        world.hint("reconcile", "install", "health", "act")


def _up(tx: Tx, node: str) -> None:
    before = nodes.get(tx.db, node)
    if before is None:
        return
    nodes.change(tx, node, link=LinkState.UP, link_since=tx.now, link_error=None, seen_at=tx.now)
    if before.link is not LinkState.UP:
        events.add(tx, "node.link", f"{node} is connected", node=node, link="up")


def _down(tx: Tx, node: str, status: LinkStatus) -> None:
    """A lost link never ends an engine: its replicas are lost to us, not to themselves."""
    before = nodes.get(tx.db, node)
    if before is None:
        return
    why = str(status.error) if status.error else "the connection was lost"
    fields: dict[str, Any] = {"link": LinkState.DOWN, "link_error": why}
    if before.link is LinkState.UP or before.link_since is None:
        fields["link_since"] = tx.now
        events.add(tx, "node.link", f"{node} is out of reach: {why}", node=node, severity=Severity.WARNING, link="down")
    if status.error is not None and status.error.code == "host_key_changed":
        fields["quarantined"] = why
        events.add(tx, "node.quarantined", f"{node} is quarantined: {why}", node=node, severity=Severity.ERROR)
    nodes.change(tx, node, **fields)
    for replica in replicas.every(tx.db):
        if node in replica.nodes and replica.state in (S.LOADING, S.READY, S.STARTING):
            move(tx, replica.id, S.LOST, f"the link to {node} is down", severity=Severity.WARNING)

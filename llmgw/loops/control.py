"""What a person can ask for: each verb writes a wish down and wakes the loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmgw.config.home import host_name
from llmgw.errors import UNCERTAIN, LlmgwError, Refused, TimedOut
from llmgw.loops.catalog import check_entry, create_key, not_found, put_model, revoke
from llmgw.loops.departure import depart, emptied
from llmgw.loops.members import give_up, id_from, join
from llmgw.loops.world import World
from llmgw.model import key as keys_model
from llmgw.model.catalog import Model
from llmgw.model.event import Audit, Event
from llmgw.model.node import DrainState, LinkState, Node
from llmgw.model.requests import (
    Checked,
    Join,
    Joined,
    KeyList,
    Logs,
    MadeKey,
    NewKey,
    NodeDetail,
    Removal,
    Said,
    Whoami,
)
from llmgw.model.snapshot import Snapshot
from llmgw.nodes.examine import Machine, examine
from llmgw.ssh.effective import effective
from llmgw.ssh.identity import host_key_fingerprint, parse_public_key
from llmgw.store import events, keys, models, nodes, replicas
from llmgw.store import lease as leases
from llmgw.store.db import Tx


class Control:
    def __init__(self, world: World, whoami: Callable[[int], Whoami]) -> None:
        self._world = world
        self._whoami = whoami

    async def whoami(self) -> Whoami:
        return self._whoami(self._world.authority.term)

    async def snapshot(self) -> Snapshot:
        return await self._world.snapshot()

    # Nodes

    async def join(self, wish: Join) -> Joined:
        """Takes a node in whose first contact has been made. Raises Refused for the same machine under two names."""
        name = wish.name or id_from(wish.hostname or host_name())
        if not wish.address.is_local:
            parse_public_key(wish.host_key)  # what cannot be a pin must not become one
        if wish.take_over:
            await self._outbid(wish.owner_term or 0)
        joined = await self._world.store.write(lambda tx: join(tx, name, wish))
        name = joined.node.id
        self._world.probe_now.add(name)
        if wish.take_over:
            self._world.taking_over.add(name)
        self._world.touch()
        self._world.hint("connect", "observe", "install")
        link = self._world.pool.link(name)
        if link is not None:
            link.kick()
        return joined

    async def node(self, name: str) -> NodeDetail:
        node = await self._node(name)
        engines_there = await self._world.store.read(lambda db: nodes.engines(db, node.id))
        document = await self._world.store.read(lambda db: nodes.probe(db, node.id))
        link = self._world.pool.link(node.id)
        return NodeDetail(
            node=node,
            engines=tuple(engines_there),
            probe=document,
            ssh=tuple(await effective(node, self._world.login(node))),
            data_path=link.data_path if link is not None else None,
        )

    async def check(self, name: str) -> Checked:
        """Everything that can be found out about a node without a byte written there. Raises as `probe` does."""
        node = await self._up(name, "checked")
        everyone = await self._world.store.read(nodes.every)
        found = await examine(
            self._world.link(name),
            node.options,
            where=name,
            node_id=name,
            ports=self._world.settings.engine_ports,
            machines=[
                Machine(one.id, one.machine_id, one.boot_id) for one in everyone if one.machine_id and one.id != name
            ],
        )
        return Checked(node=name, problems=found.problems)

    async def probe(self, name: str) -> NodeDetail:
        """A look at a node now. Raises what went wrong with it: Refused while the link is down, BadReply, TimedOut."""
        await self._up(name, "probed")
        try:
            await self._world.visit(name)
        except UNCERTAIN as exc:
            raise type(exc)(f"{name} could not be probed: {exc.message}", fix=exc.fix, code=exc.code) from None
        self._world.touch()
        return await self.node(name)

    async def _up(self, name: str, what: str) -> Node:
        node = await self._node(name)
        if node.quarantined:
            trust = f"llmgw node add {node.address.typed} --trust-key "
            told = trust in node.quarantined or node.address.is_local
            raise Refused(
                f"{name} cannot be {what}: it is quarantined. {node.quarantined}",
                fix="" if told else f"To trust it again: {trust}{host_key_fingerprint(node.host_key)}",
                code="quarantined",
            )
        if node.link is not LinkState.UP:
            refused = "refused the login" in (node.link_error or "")  # by itself that does not change
            raise Refused(
                f"{name} cannot be {what}: it is out of reach ({node.link_error or 'not connected yet'}).",
                fix=f"Put the key there again: llmgw node add {node.address.typed}"
                if refused
                else "It is connected again by itself.",
                code="link_down",
            )
        return node

    async def cordon(self, name: str) -> Said:
        node = await self._node(name)
        if node.cordoned:
            return Said(message=f"{name} is cordoned already.", changed=False)
        await self._wish(name, "cordon", f"{name} is cordoned: it takes no new replicas", cordoned=True)
        return Said(message=f"{name} is cordoned: it takes no new replicas; what runs there goes on.")

    async def uncordon(self, name: str) -> Said:
        node = await self._node(name)
        if node.drain is not DrainState.NONE:
            raise Refused(
                f"{name} is {node.drain}: without its cordon it would take no replicas either.",
                fix=f"`llmgw ctl undrain {name}` ends that.",
                code="draining",
            )
        if not node.cordoned:
            return Said(message=f"{name} is not cordoned.", changed=False)
        await self._wish(name, "cordon", f"{name} takes new replicas again", cordoned=False)
        return Said(message=f"{name} takes new replicas again.")

    async def drain(self, name: str) -> Said:
        node = await self._node(name)
        if node.drain is not DrainState.NONE:
            return Said(message=f"{name} is {node.drain} already.", changed=False)
        await self._wish(
            name,
            "drain",
            f"{name} is being drained: replacements come up before its replicas stop",
            drain=DrainState.DRAINING,
            cordoned_before_drain=node.cordoned,
            cordoned=True,
        )
        return Said(message=f"{name} is being drained.")

    async def undrain(self, name: str) -> Said:
        node = await self._node(name)
        if node.drain is DrainState.NONE:
            return Said(message=f"{name} is not being drained.", changed=False)
        cordoned = node.cordoned_before_drain
        await self._wish(
            name,
            "drain",
            f"the drain of {name} was given up" + ("; it was cordoned before and stays so" if cordoned else ""),
            drain=DrainState.NONE,
            cordoned=cordoned,
            cordoned_before_drain=False,
        )
        return Said(message=f"{name} takes new replicas again." if not cordoned else f"{name} stays cordoned.")

    async def remove(self, name: str, *, purge: bool, force: bool, timeout: float = 900.0) -> Removal:
        """Takes a node out of the cluster: drained first unless forced; with `purge` nothing of ours stays on it."""
        node = await self._node(name)
        reachable = node.reachable
        if not reachable and (purge or not force):
            why = "quarantined" if node.quarantined else node.link_error or "not connected"
            raise Refused(
                f"{name} is out of reach ({why}): nothing can be stopped there.",
                fix="With --force and without --purge it is forgotten; its engines, if any, go on running unclaimed.",
                code="link_down",
            )
        if force:
            await self._world.store.write(lambda tx: give_up(tx, name, reachable))
        elif node.drain is DrainState.NONE:
            await self.drain(name)
        self._world.hint("reconcile", "act")
        try:
            if reachable:
                await emptied(self._world, name, force=force, timeout=timeout)
            me = await self.whoami()
            return await depart(self._world, node, purge=purge, public_key=me.public_key)
        except TimedOut:
            raise  # it goes on being drained: removed once more, it is soon empty
        except LlmgwError:
            if node.drain is DrainState.NONE:
                await self.undrain(name)  # a removal that came to nothing takes nothing out of service
            raise

    # Models

    async def add_model(self, model: Model) -> Said:
        """Raises UsageError for an entry that cannot work, Refused when a name of it is taken."""
        check_entry(model)
        changed = await self._world.store.write(lambda tx: put_model(tx, model))
        self._world.touch()
        self._world.hint("reconcile")
        words = {"new": "is in the catalog", "changed": "has changed", "same": "is in the catalog already, the same"}
        return Said(message=f"{model.name} {words[changed]}.", changed=changed != "same")

    async def remove_model(self, name: str) -> Said:
        model = await self._model(name)

        def work(tx: Tx) -> None:
            models.remove(tx, model.name)
            events.add(tx, "model.removed", f"{model.name} is out of the catalog", model=model.name)

        await self._world.store.write(work)
        self._world.touch()
        self._world.hint("reconcile")
        return Said(message=f"{model.name} is out of the catalog; its replicas are being stopped.")

    # Keys

    async def create_key(self, wish: NewKey) -> MadeKey:
        names = [await self._model(model) for model in wish.models]
        secret = keys_model.new_key()
        made = await self._world.store.write(
            lambda tx: create_key(tx, wish.name, tuple(model.name for model in names), secret)
        )
        await self._world.republish()
        return MadeKey(key=made, secret=secret.reveal())

    async def revoke_key(self, name: str) -> Said:
        """Effective at the next request."""
        changed = await self._world.store.write(lambda tx: revoke(tx, name))
        await self._world.republish()
        return Said(message=f"{name} is revoked." if changed else f"{name} was revoked before.", changed=changed)

    async def keys(self) -> KeyList:
        found = await self._world.store.read(lambda db: keys.every(db, revoked=True))
        used = await self._world.store.read(keys.usage)
        return KeyList(keys=tuple(found), usage=tuple(used))

    # Replicas and what happened

    async def logs(self, replica: str, *, lines: int = 200) -> Logs:
        found = await self._world.store.read(lambda db: replicas.get(db, replica))
        if found is None:
            known = [one.id for one in await self._world.store.read(replicas.every)]
            raise not_found("replica", replica, known)
        node = await self._node(found.lead.node)
        text = await self._world.remote(node).logs(replica=replica, lines=lines)
        return Logs(replica=replica, lines=tuple(text))

    async def events(self, *, after: int | None, limit: int, node: str | None) -> list[Event]:
        if after is None:
            return await self._world.store.read(lambda db: events.latest(db, limit=limit, node=node))
        return await self._world.store.read(lambda db: events.after(db, after, limit=limit, node=node))

    async def audit(self, *, limit: int, node: str | None) -> list[Audit]:
        return await self._world.store.read(lambda db: events.audit(db, limit=limit, node=node))

    # Inside

    async def _outbid(self, term: int) -> None:
        """A term above the highest that the node has seen: it obeys no lower one."""
        world = self._world
        if term < world.authority.term:
            return
        controller = world.authority.controller_id
        raised = await world.store.write(lambda tx: leases.set_term(tx, controller, term + 1))
        world.authority = replace(world.authority, term=raised)

    async def _node(self, name: str) -> Node:
        node = await self._world.store.read(lambda db: nodes.get(db, name))
        if node is None:
            raise not_found("node", name, [one.id for one in await self._world.store.read(nodes.every)])
        return node

    async def _model(self, name: str) -> Model:
        model = await self._world.store.read(lambda db: models.get(db, name))
        if model is None:
            known = [alias for one in await self._world.store.read(models.every) for alias in one.names]
            raise not_found("model", name, known)
        return model

    async def _wish(self, node: str, kind: str, message: str, **fields: Any) -> None:
        def work(tx: Tx) -> None:
            nodes.change(tx, node, **fields)
            events.add(tx, kind, message, node=node)

        await self._world.store.write(work)
        self._world.touch()
        self._world.hint("reconcile")

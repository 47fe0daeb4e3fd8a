"""What a person can ask for: each verb writes a wish down and wakes the loops."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Iterable
from typing import Any

from llmgw.config.home import host_name
from llmgw.engines.registry import engines
from llmgw.errors import NotFound, Refused, TimedOut, Unknown, UsageError
from llmgw.loops.changes import retire
from llmgw.loops.world import World
from llmgw.mirror import sources
from llmgw.model import key as keys_model
from llmgw.model.base import NAME_RULE, is_name
from llmgw.model.catalog import Model
from llmgw.model.event import Audit, Event, Severity
from llmgw.model.key import ApiKey
from llmgw.model.node import DrainState, LinkState, Node, NodeState
from llmgw.model.replica import ReplicaState
from llmgw.model.requests import Join, Joined, KeyList, Logs, MadeKey, NewKey, NodeDetail, Removal, Said, Whoami
from llmgw.model.secret import Secret
from llmgw.model.snapshot import Snapshot
from llmgw.nodes.remove import leave
from llmgw.store import events, keys, models, nodes, replicas
from llmgw.store.db import Tx

STUCK_AFTER = 5.0


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
        name = wish.name or _id_from(wish.hostname or host_name())
        joined = await self._world.store.write(lambda tx: _join(tx, name, wish))
        self._world.probe_now.add(name)
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
        return NodeDetail(node=node, engines=tuple(engines_there), probe=document)

    async def probe(self, name: str) -> NodeDetail:
        """A look at a node now. Raises what went wrong with it: Refused while the link is down, BadReply, TimedOut."""
        node = await self._node(name)
        if node.link is not LinkState.UP:
            raise Refused(
                f"{name} cannot be probed: it is out of reach ({node.link_error or 'not connected yet'}).",
                fix="It is connected again by itself.",
                code="link_down",
            )
        try:
            await self._world.visit(name)
        except Unknown as exc:
            raise type(exc)(f"{name} could not be probed: {exc.message}", fix=exc.fix, code=exc.code) from None
        self._world.touch()
        return await self.node(name)

    async def cordon(self, name: str) -> Said:
        node = await self._node(name)
        if node.cordoned:
            return Said(message=f"{name} is cordoned already.", changed=False)
        await self._wish(name, "cordon", f"{name} is cordoned: it takes no new replicas", cordoned=True)
        return Said(message=f"{name} is cordoned: it takes no new replicas; what runs there goes on.")

    async def uncordon(self, name: str) -> Said:
        node = await self._node(name)
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
            f"the drain of {name} has ended" + ("; it was cordoned before and stays so" if cordoned else ""),
            drain=DrainState.NONE,
            cordoned=cordoned,
            cordoned_before_drain=False,
        )
        return Said(message=f"{name} takes new replicas again." if not cordoned else f"{name} stays cordoned.")

    async def remove(self, name: str, *, purge: bool, force: bool, timeout: float = 900.0) -> Removal:
        """Takes a node out of the cluster: drained first unless forced; with `purge` nothing of ours stays on it."""
        node = await self._node(name)
        if node.link is not LinkState.UP and not force:
            raise Refused(
                f"{name} is out of reach ({node.link_error or 'not connected'}); what runs there cannot be stopped.",
                fix="Add --force to forget it all the same: its engines, if any, go on running unclaimed.",
                code="link_down",
            )
        if force:
            await self._world.store.write(lambda tx: _give_up(tx, name, node.link is LinkState.UP))
        elif node.drain is DrainState.NONE:
            await self.drain(name)
        self._world.hint("reconcile", "act")
        if node.link is LinkState.UP:
            await self._emptied(name, force=force, timeout=timeout)
        removed: tuple[str, ...] = ()
        left: tuple[str, ...] = ()
        if purge:
            if node.link is not LinkState.UP:
                raise Refused(f"{name} is out of reach: nothing can be purged there.", fix="Leave --purge away.")
            blob = (await self.whoami()).public_key.split()[1]
            removed, left = await leave(self._world.link(name), node, self._world.authority, key=blob)
        await self._world.store.write(lambda tx: _forget(tx, name))
        self._world.probes.pop(name, None)
        self._world.unclaimed.pop(name, None)
        self._world.touch()
        self._world.hint("connect")
        how = f"; {len(removed)} paths were deleted there, {len(left)} are left" if purge else ""
        return Removal(message=f"{name} is removed{how}.", removed=removed, left=left)

    # Models

    async def add_model(self, model: Model) -> Said:
        """Raises UsageError for an entry that cannot work, Refused when a name of it is taken."""
        check_entry(model)
        changed = await self._world.store.write(lambda tx: _put_model(tx, model))
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
            lambda tx: _create_key(tx, wish.name, tuple(model.name for model in names), secret)
        )
        await self._world.republish()
        return MadeKey(key=made, secret=secret.reveal())

    async def revoke_key(self, name: str) -> Said:
        """Effective at the next request."""
        changed = await self._world.store.write(lambda tx: _revoke(tx, name))
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

    async def _emptied(self, name: str, *, force: bool, timeout: float) -> None:
        """Waits until nothing of ours runs on a node. Raises Refused when its replicas have nowhere to go, TimedOut."""
        end = self._world.clock.monotonic() + timeout
        stuck_since: float | None = None
        while True:
            snapshot = await self._world.snapshot()
            there = [one for one in snapshot.replicas_on(name) if one.state is not ReplicaState.STOPPED]
            if not there:
                return
            now = self._world.clock.monotonic()
            stuck = [one for one in snapshot.status if "finds no node" in one.reason or one.state == "unplaceable"]
            mine = [one for one in stuck if one.model in {replica.model for replica in there}]
            stuck_since = (stuck_since or now) if mine and not force else None
            if stuck_since is not None and now - stuck_since > STUCK_AFTER:
                await self.undrain(name)
                raise Refused(
                    f"{name} was not removed: {mine[0].model} has nowhere else to go ({mine[0].reason}).",
                    fix="Add a node that fits, or add --force to stop its replicas without a replacement.",
                    code="nowhere",
                )
            if now > end:
                raise TimedOut(f"{name} still holds {', '.join(one.id for one in there)} after {timeout:g} s.")
            try:
                async with asyncio.timeout(0.5):
                    await self._world.changed.changed()
            except TimeoutError:
                continue


def check_entry(model: Model) -> None:
    """What no node could make work is refused before it is in the catalog."""
    sources.parse(model.source)
    for profile in model.profiles:
        engine = engines().get(profile.engine)
        if engine is None:
            raise UsageError(
                f"{model.name}: profile {profile.name}: there is no engine {profile.engine!r}.",
                fix=f"Known: {', '.join(sorted(engines()))}.",
            )
        if model.task not in engine.tasks:
            able = ", ".join(sorted(engine.tasks))
            raise UsageError(f"{model.name}: {profile.engine} does not do {model.task}.", fix=f"It does {able}.")
        if profile.nodes > 1:
            raise UsageError(
                f"{model.name}: profile {profile.name}: {profile.engine} runs on one node, not on {profile.nodes}."
            )
        if (reason := engine.check_entry(model, profile)) is not None:
            raise UsageError(f"{model.name}: profile {profile.name}: {reason}.")


def not_found(kind: str, name: str, known: Iterable[str]) -> NotFound:
    """With the nearest names."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)[:5]
    hint = f"Did you mean {', '.join(near)}?" if near else f"There is no {kind} yet."
    return NotFound(f"There is no {kind} {name!r}.", fix=hint)


def _id_from(hostname: str) -> str:
    name = hostname.lower()
    if not is_name(name):
        raise UsageError(
            f"The hostname {hostname!r} does not fit the rule for names ({NAME_RULE}).", fix="Give one with --name."
        )
    return name


def _join(tx: Tx, name: str, wish: Join) -> Joined:
    everyone = nodes.every(tx.db)
    last = tx.db.execute("SELECT COALESCE(MAX(id), 0) FROM events").fetchone()[0]
    same = next((node for node in everyone if _same_machine(node, wish)), None)
    if same is not None and wish.name is not None and same.id != wish.name:
        raise Refused(
            f"{wish.address} is the same machine as {same.id} (same host key, machine id and boot id).",
            fix=f"Remove {same.id} first to give it another name.",
            code="same_machine",
        )
    known = nodes.get(tx.db, same.id if same is not None else name)
    if known is None:
        node = Node(
            id=name,
            address=wish.address,
            host_key=wish.host_key,
            options=wish.options,
            labels=wish.labels,
            machine_id=wish.machine_id,
            created=wish.created,
            added_at=tx.now,
        )
        nodes.put(tx, node)
        events.add(tx, "node.add", f"{name} ({wish.address}) is being added", node=name)
        return Joined(node=node, known=False, after_event=last)
    if same is None and (known.address != wish.address or known.host_key != wish.host_key):
        raise Refused(
            f"There is a node {name} already, at {known.address}; {wish.address} is another machine.",
            fix="Give this one another name with --name.",
            code="name_taken",
        )
    again = {
        "address": wish.address,
        "host_key": wish.host_key,
        "labels": {**known.labels, **wish.labels},
        "options": known.options if wish.options == type(wish.options)() else wish.options,
        "state": NodeState.ADDING,
        "quarantined": None,
        "created": tuple(dict.fromkeys((*known.created, *wish.created))),
    }
    node = nodes.change(tx, known.id, **again) or known
    events.add(tx, "node.add", f"{known.id} is checked again", node=known.id)
    return Joined(node=node, known=True, after_event=last)


def _same_machine(node: Node, wish: Join) -> bool:
    if node.address.is_local or wish.address.is_local:
        return node.address.is_local and wish.address.is_local
    facts = (node.host_key, node.machine_id, node.boot_id)
    return None not in facts and facts == (wish.host_key, wish.machine_id, wish.boot_id)


def _give_up(tx: Tx, node: str, reachable: bool) -> None:
    nodes.change(tx, node, cordoned=True, drain=DrainState.DRAINING)
    for replica in replicas.every(tx.db):
        if node in replica.nodes:
            if reachable:
                retire(tx, replica.id, f"{node} is being removed")
            else:
                replicas.remove(tx, replica.id)


def _forget(tx: Tx, name: str) -> None:
    nodes.remove(tx, name)
    events.add(tx, "node.remove", f"{name} is removed", node=name)


def _put_model(tx: Tx, model: Model) -> str:
    for other in models.every(tx.db):
        if other.name == model.name:
            continue
        for name in set(model.names) & set(other.names):
            raise Refused(f"{name!r} is a name of {other.name} already.", fix="Choose another.", code="name_taken")
    before = models.get(tx.db, model.name)
    if before == model:
        return "same"
    models.put(tx, model)
    changed = "changed" if before is not None else "new"
    words = "has changed" if before is not None else "is in the catalog"
    events.add(tx, "model.added", f"{model.name} {words}", model=model.name)
    return changed


def _create_key(tx: Tx, name: str, allowed: tuple[str, ...], secret: Secret) -> ApiKey:
    if keys.get(tx.db, name) is not None:
        raise Refused(f"There is a key {name} already.", fix="Revoke it, or choose another name.", code="name_taken")
    text = secret.reveal()
    made = ApiKey(name=name, hash=keys_model.digest(text), hint=text[:14] + "…", models=allowed, created_at=tx.now)
    keys.put(tx, made)
    events.add(tx, "key.created", f"API key {name} was created")
    return made


def _revoke(tx: Tx, name: str) -> bool:
    found = keys.get(tx.db, name)
    if found is None:
        raise not_found("key", name, [one.name for one in keys.every(tx.db, revoked=True)])
    if found.revoked_at is not None:
        return False
    keys.put(tx, found.model_copy(update={"revoked_at": tx.now}))
    events.add(tx, "key.revoked", f"API key {name} was revoked", severity=Severity.WARNING)
    return True

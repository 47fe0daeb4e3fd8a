"""How a machine becomes a node of this state and stops being one: the transactions of `node add` and `remove`."""

from __future__ import annotations

from llmgw.errors import Refused, UsageError
from llmgw.loops.changes import retire
from llmgw.model.base import NAME_RULE, is_name
from llmgw.model.node import DrainState, Node, NodeOptions, NodeState
from llmgw.model.requests import Join, Joined
from llmgw.ssh.identity import host_key_fingerprint
from llmgw.store import events, nodes, replicas
from llmgw.store.db import Tx


def id_from(hostname: str) -> str:
    name = hostname.lower()
    if not is_name(name):
        raise UsageError(
            f"The hostname {hostname!r} does not fit the rule for names ({NAME_RULE}).", fix="Give one with --name."
        )
    return name


def join(tx: Tx, name: str, wish: Join) -> Joined:
    everyone = nodes.every(tx.db)
    last = events.last_id(tx.db)
    here = next((node for node in everyone if _same_place(node, wish)), None)
    if here is not None and here.host_key != wish.host_key and not wish.trust_key:
        old, new = host_key_fingerprint(here.host_key), host_key_fingerprint(wish.host_key)
        raise Refused(
            f"{wish.address} is {here.id}, whose host key was {old} and is now {new}.",
            fix=f"If you know why it changed: llmgw node add {wish.address.typed} --trust-key {new}",
            code="host_key_changed",
        )
    same = next((node for node in everyone if _same_machine(node, wish)), here)
    if same is not None and same.address.user != wish.address.user:
        raise Refused(
            f"{wish.address} is {same.id}, which is reached as {same.address.user} and has its files in that account.",
            fix=f"To move it: llmgw node remove {same.id} --purge, and then add it as {wish.address.user}.",
            code="account_changed",
        )
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
            boot_id=wish.boot_id,
            created=wish.created,
            adding_by=wish.by,
            added_at=tx.now,
        )
        nodes.put(tx, node)
        events.add(tx, "node.add", f"{name} ({wish.address}) is being added", node=name)
        _tell(tx, name, wish)
        return Joined(node=node, known=False, after_event=last)
    if same is None:
        raise Refused(
            f"There is a node {name} already, at {known.address}, and {wish.address} calls itself so too.",
            fix="Give this one another name with --name.",
            code="name_taken",
        )
    again = {
        "address": wish.address,
        "host_key": wish.host_key,
        "labels": {**known.labels, **wish.labels},
        "options": merged(known, wish.options),
        "state": NodeState.ADDING,
        "quarantined": None,
        "machine_id": wish.machine_id if wish.trust_key else known.machine_id,
        "adding_by": wish.by,
        "created": tuple(dict.fromkeys((*known.created, *wish.created))),
    }
    other = known.adding_by if known.state is NodeState.ADDING and known.adding_by != wish.by else None
    if other is not None:
        again["adding_by"] = other  # the first one wins; this one only waits for it
    node = nodes.change(tx, known.id, **again) or known
    for engine in nodes.engines(tx.db, known.id):
        nodes.put_engine(tx, engine.model_copy(update={"checked_at": None, "next_try_at": None}))
    if wish.trust_key and known.host_key != wish.host_key:
        what = f"{known.id} is trusted again with the host key {host_key_fingerprint(wish.host_key)}"
        events.add(tx, "node.trust", what, node=known.id)
    events.add(tx, "node.add", f"{known.id} is checked again", node=known.id)
    _tell(tx, known.id, wish)
    moved = known.address if known.address != wish.address else None
    if moved is not None:
        events.add(
            tx,
            "node.add",
            f"{known.id} was reached at {moved.typed}, from now on at {wish.address.typed}",
            node=known.id,
        )
    return Joined(node=node, known=True, after_event=last, adding_by=other, moved_from=moved)


def _tell(tx: Tx, node: str, wish: Join) -> None:
    """First contact as events: it was made before there was a node to tell of."""
    for step in wish.story:
        events.add(tx, "node.step", f"{step.step}: {step.message}", node=node, step=step.step)


def merged(known: Node, given: NodeOptions) -> NodeOptions:
    """What was said before, and over it what is said now. Raises Refused for another root: the old one would stay."""
    said = {name: value for name, value in given if value != getattr(NodeOptions(), name)}
    root = said.get("root")
    if root is not None and root not in (known.options.root, known.root):
        raise Refused(
            f"{known.id} keeps its files in {known.root or known.options.root}; that cannot be moved to {root}.",
            fix=f"`llmgw node remove {known.id} --purge`, then add it again with --root.",
            code="root_changed",
        )
    said.pop("root", None)
    said |= {"own_key": given.own_key, "identities": given.identities}  # how this very add left things
    if "engines" in said:
        said["engines"] = {**known.options.engines, **given.engines}
    return known.options.model_copy(update=said)


def _same_place(node: Node, wish: Join) -> bool:
    """One address, under one name of the OpenSSH configuration: behind two jump hosts may be two machines of one."""
    ours, theirs = node.address, wish.address
    place = (theirs.host, theirs.port, theirs.config_host)
    return not (ours.is_local or theirs.is_local) and (ours.host, ours.port, ours.config_host) == place


def _same_machine(node: Node, wish: Join) -> bool:
    if node.address.is_local or wish.address.is_local:
        return node.address.is_local and wish.address.is_local
    facts = (node.host_key, node.machine_id, node.boot_id)
    return None not in facts and facts == (wish.host_key, wish.machine_id, wish.boot_id)


def give_up(tx: Tx, node: str, reachable: bool) -> None:
    now = nodes.get(tx.db, node)
    before = now is not None and (now.cordoned_before_drain if now.drain is not DrainState.NONE else now.cordoned)
    nodes.change(tx, node, cordoned=True, cordoned_before_drain=before, drain=DrainState.DRAINING)
    for replica in replicas.every(tx.db):
        if node in replica.nodes:
            if reachable:
                retire(tx, replica.id, f"{node} is being removed")
            else:
                replicas.remove(tx, replica.id)


def forget(tx: Tx, name: str) -> None:
    nodes.remove(tx, name)
    events.add(tx, "node.remove", f"{name} is removed", node=name)

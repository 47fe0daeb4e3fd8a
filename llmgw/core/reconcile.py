"""Wishes against what is there: a snapshot and the time in, actions with their reasons out.

What nobody wants any more and is stopped is forgotten; what has no model any more is retired. Every other replica of a
model is in exactly one bucket:

    going     on its way out already
    leaving   wanted gone from where it is (draining node, outdated revision) once a replacement is ready
    absent    lost for too long, or given up on its node: does not count, something else takes its place
    staying   counts towards what is wanted
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from llmgw.core.place import Nowhere, place
from llmgw.model.action import Action, Forget, Launch, MarkDrained, Place, Retire
from llmgw.model.catalog import Model
from llmgw.model.node import DrainState, LinkState, Node
from llmgw.model.replica import Replica, ReplicaState, Shard
from llmgw.model.snapshot import ModelStatus, Snapshot
from llmgw.model.weights import FetchState

UNSTARTED_PATIENCE = 30.0
"""Seconds that a replica which was never started waits for its node to come back before it goes elsewhere."""
_RUNNING = (ReplicaState.STARTING, ReplicaState.LOADING, ReplicaState.READY)


@dataclass
class Decision:
    actions: list[Action] = field(default_factory=list)
    status: list[ModelStatus] = field(default_factory=list)


@dataclass
class _Buckets:
    staying: list[Replica] = field(default_factory=list)
    leaving: list[tuple[Replica, str]] = field(default_factory=list)
    absent: list[tuple[Replica, str]] = field(default_factory=list)
    going: list[Replica] = field(default_factory=list)


def reconcile(snapshot: Snapshot, now: float) -> Decision:
    """What to do now. Run again on its own result it decides nothing more."""
    decision = Decision()
    for replica in snapshot.replicas:
        if not replica.wanted and replica.state is ReplicaState.STOPPED:
            decision.actions.append(Forget(replica=replica.id, reason="nothing of it is left on its node"))
        elif replica.wanted and replica.model not in snapshot.model_by_name:
            reason = f"{replica.model} is not in the catalog any more"
            decision.actions.append(Retire(replica=replica.id, reason=reason))
    for model in snapshot.models:
        snapshot = _model(model, snapshot, now, decision)
    decision.actions += _drained(snapshot)
    return decision


def _model(model: Model, snapshot: Snapshot, now: float, decision: Decision) -> Snapshot:
    """Decides about one model; returns the snapshot with its new replicas in it, so that the next model sees them."""
    want = model.scaling.min
    buckets = _sort(model, snapshot, now)
    pending = _weights_pending(model, snapshot)
    actions: list[Action] = []
    actions += _retire_unplaced(buckets, snapshot, now)
    actions += _start_due(buckets, snapshot, now)
    missing = want - len(buckets.staying)
    serving = [replica for replica, _ in buckets.leaving if replica.state is ReplicaState.READY]
    if serving:
        # One at a time: the node that takes over is not flooded, and what still serves goes on serving.
        coming = sum(replica.state is not ReplicaState.READY for replica in buckets.staying)
        missing = min(missing, 1 - coming)
    nowhere = ""
    avoid = {node for replica, _ in buckets.absent if replica.state is ReplicaState.FAILED for node in replica.nodes}
    for _ in range(0 if pending else max(0, missing)):
        found = place(model, snapshot, avoid=avoid)
        if isinstance(found, Nowhere):
            nowhere = found.reason
            break
        action = Place(
            model=model.name,
            revision=model.revision(found.fit.engine_version),
            profile=found.fit.profile,
            engine=found.fit.engine,
            engine_version=found.fit.engine_version,
            nodes=(found.fit.node,),
            memory_bytes=found.fit.memory_bytes,
            reason=f"{len(buckets.staying)} of {want} replicas are there; {found.reason}",
        )
        actions.append(action)
        placed = _imagined(action, now, len(actions))
        buckets.staying.append(placed)
        snapshot = snapshot.model_copy(update={"replicas": (*snapshot.replicas, placed)})
    actions += _retire_leaving(buckets, want)
    actions += _retire_surplus(buckets, want)
    decision.actions += actions
    decision.status.append(_status(model, buckets, want, pending, nowhere))
    return snapshot


@dataclass(frozen=True)
class _Pending:
    """The weights are not here yet: nothing is placed by a size that is not known."""

    reason: str
    failed: bool = False


def _weights_pending(model: Model, snapshot: Snapshot) -> _Pending | None:
    weights = snapshot.weights.get(model.source)
    if weights is None or weights.state is FetchState.ABSENT:
        return _Pending("fetching its weights")
    if weights.state is FetchState.FAILED:
        return _Pending(f"its weights cannot be had: {weights.error}", failed=True)
    if weights.state is FetchState.FETCHING:
        share = f" {weights.progress:.0%} of {weights.size >> 20} MB" if weights.progress and weights.size else ""
        return _Pending(f"fetching its weights{share}")
    return None


def _sort(model: Model, snapshot: Snapshot, now: float) -> _Buckets:
    buckets = _Buckets()
    profiles = {profile.name for profile in model.profiles}
    for replica in snapshot.replicas_of(model.name):
        if not replica.wanted or replica.state.going or replica.state is ReplicaState.STOPPED:
            buckets.going.append(replica)
            continue
        absence = _absence(replica, model, snapshot, now)
        departure = _departure(replica, model, profiles, snapshot)
        if departure and (not absence or replica.state is ReplicaState.FAILED):
            # A changed entry gives what was given up another chance, and a drain waits for nothing that failed.
            buckets.leaving.append((replica, departure))
        elif absence:
            buckets.absent.append((replica, absence))
        else:
            buckets.staying.append(replica)
    return buckets


def _absence(replica: Replica, model: Model, snapshot: Snapshot, now: float) -> str | None:
    if replica.state is ReplicaState.LOST and now - replica.state_since >= model.lost_after:
        return f"lost for more than {model.lost_after:.0f} s"
    if replica.state is ReplicaState.FAILED and replica.next_try_at is None:
        return f"given up: {replica.reason}"
    node = snapshot.node_by_id.get(replica.lead.node)
    reachable = node is not None and node.reachable
    if replica.state is ReplicaState.FAILED and not reachable and now - replica.state_since >= model.lost_after:
        return "failed on a node that cannot be reached"
    if replica.state in _RUNNING and node is not None and node.quarantined:
        return f"{node.id} is quarantined: {node.quarantined}"
    if replica.state in _RUNNING and node is not None and node.link is LinkState.DOWN:
        # Its last change was written down after the link's loss was: what counts is that it is out of reach.
        away = now - max(replica.state_since, node.link_since or 0.0)
        return f"out of reach for more than {model.lost_after:.0f} s" if away >= model.lost_after else None
    return None


def _departure(replica: Replica, model: Model, profiles: set[str], snapshot: Snapshot) -> str | None:
    for name in replica.nodes:
        node = snapshot.node_by_id.get(name)
        if node is not None and node.drain is not DrainState.NONE:
            return f"{name} is being drained"
    if replica.profile not in profiles:
        return f"profile {replica.profile} is not in the catalog entry any more"
    if replica.revision != model.revision(replica.engine_version):
        return "the catalog entry has changed"
    return None


def _retire_unplaced(buckets: _Buckets, snapshot: Snapshot, now: float) -> list[Action]:
    """What waits to be started on a node that went away is placed elsewhere: nothing runs of it.

    Should an earlier attempt have left something behind there, it is stopped when the node is back.
    """
    actions: list[Action] = []
    for replica in list(buckets.staying):
        node = snapshot.node_by_id.get(replica.lead.node)
        if replica.state is ReplicaState.PLACED and _away(node, now):
            reason = f"{replica.lead.node} cannot be reached; nothing of it ran there"
            actions.append(Retire(replica=replica.id, reason=reason))
            buckets.staying.remove(replica)
            buckets.going.append(replica)
    return actions


def _away(node: Node | None, now: float) -> bool:
    if node is None or node.quarantined:
        return True
    return node.link is LinkState.DOWN and node.link_since is not None and now - node.link_since > UNSTARTED_PATIENCE


def _start_due(buckets: _Buckets, snapshot: Snapshot, now: float) -> list[Action]:
    actions: list[Action] = []
    for replica in buckets.staying:
        node = snapshot.node_by_id.get(replica.lead.node)
        if node is None or not node.reachable:
            continue
        if replica.next_try_at is not None and now < replica.next_try_at:
            continue
        if replica.state is ReplicaState.PLACED:
            actions.append(Launch(replica=replica.id, reason=f"placed on {node.id}"))
        elif replica.state is ReplicaState.FAILED:
            reason = f"attempt {replica.lead.attempt} failed: {replica.reason}"
            actions.append(Launch(replica=replica.id, reason=reason))
    return actions


def _retire_leaving(buckets: _Buckets, want: int) -> list[Action]:
    """Those that have never served go at once; of those that do, one at a time and only while enough others serve."""
    actions: list[Action] = []
    ready = sum(replica.state is ReplicaState.READY for replica in buckets.staying)
    serving = sum(replica.state is ReplicaState.READY for replica, _ in buckets.leaving)
    one_going = any(replica.state is ReplicaState.DRAINING for replica in buckets.going)
    for replica, reason in buckets.leaving:
        if replica.state is ReplicaState.LOST:
            continue  # Out of reach: it is stopped when the link is back.
        if replica.state is ReplicaState.LOADING and replica.ready_at is not None:
            continue  # It served until we lost sight of it: whether it still does is being asked, and soon known.
        if replica.state is not ReplicaState.READY:
            actions.append(Retire(replica=replica.id, reason=reason))
        elif not one_going and ready + serving - 1 >= want:
            others = "another is" if ready == 1 else f"{ready} others are"
            actions.append(Retire(replica=replica.id, reason=f"{reason}; {others} ready"))
            serving -= 1
            one_going = True
    return actions


def _retire_surplus(buckets: _Buckets, want: int) -> list[Action]:
    """Too many: the ones that are furthest from serving go first, then the youngest."""
    surplus = len(buckets.staying) - want
    order = sorted(buckets.staying, key=lambda replica: (_usefulness(replica), -replica.created_at))
    actions: list[Action] = []
    for replica in order[: max(0, surplus)]:
        actions.append(Retire(replica=replica.id, reason=f"{len(buckets.staying)} replicas, {want} wanted"))
        buckets.staying.remove(replica)
    # What was given up or lost and has been replaced is not tried again; a lost one is stopped when it is back.
    if sum(replica.state is ReplicaState.READY for replica in buckets.staying) >= want:
        for replica, reason in buckets.absent:
            if replica.state is ReplicaState.FAILED:
                actions.append(Retire(replica=replica.id, reason=f"{reason}; it has been replaced"))
    return actions


def _usefulness(replica: Replica) -> int:
    order = [
        ReplicaState.FAILED,
        ReplicaState.LOST,
        ReplicaState.PLACED,
        ReplicaState.FETCHING,
        ReplicaState.STARTING,
        ReplicaState.LOADING,
        ReplicaState.READY,
    ]
    return order.index(replica.state) if replica.state in order else 0


def _drained(snapshot: Snapshot) -> list[Action]:
    """A drain is done when no replica has anything left on the node: not sooner, and never while it is out of reach."""
    held: dict[str, int] = defaultdict(int)
    for replica in snapshot.replicas:
        for node in replica.nodes:
            held[node] += replica.state is not ReplicaState.STOPPED
    return [
        MarkDrained(node=node.id, reason="nothing of ours runs on it any more")
        for node in snapshot.nodes
        if node.drain is DrainState.DRAINING and not held[node.id]
    ]


def _status(model: Model, buckets: _Buckets, want: int, pending: _Pending | None, nowhere: str) -> ModelStatus:
    everyone = [*buckets.staying, *(replica for replica, _ in buckets.leaving)]
    ready = sum(replica.state is ReplicaState.READY for replica in everyone)
    state, reason = "ready", ""
    if want == 0 and not everyone:
        state = "stopped"
    elif ready < want:
        waiting = next((replica for replica in everyone if replica.state is not ReplicaState.READY), None)
        if waiting is not None:
            state = "degraded" if ready else "loading"
            name = "a replica" if waiting.id.startswith("~") else waiting.id
            reason = f"{name} is {waiting.state} on {waiting.lead.node}"
            reason += f" ({waiting.reason})" if waiting.reason else ""
            if waiting.state is ReplicaState.FAILED and not ready:
                state = "degraded"
        elif pending is not None:
            state = "degraded" if ready else "unplaceable" if pending.failed else "loading"
            reason = pending.reason
        elif nowhere:
            state, reason = ("degraded" if ready else "unplaceable"), nowhere
        elif buckets.absent:
            replica, why = buckets.absent[0]
            state, reason = ("degraded" if ready else "unplaceable"), f"{replica.lead.node}: {why}"
    elif nowhere:
        reason = f"a replacement finds no node ({nowhere})"
    return ModelStatus(model=model.name, state=state, reason=reason, ready=ready, wanted=want, nowhere=bool(nowhere))


def _imagined(action: Place, now: float, index: int) -> Replica:
    """The replica that a Place will make, for the decisions that follow it."""
    return Replica(
        id=f"~{action.model}-{index}",
        model=action.model,
        revision=action.revision,
        profile=action.profile,
        engine=action.engine,
        engine_version=action.engine_version,
        memory_bytes=action.memory_bytes,
        shards=tuple(Shard(node=node, rank=rank) for rank, node in enumerate(action.nodes)),
        created_at=now,
        state_since=now,
    )

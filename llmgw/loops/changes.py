"""The few ways in which a replica's state changes, each with its event. Every loop changes replicas through these."""

from __future__ import annotations

from typing import Any

from llmgw.core import lifecycle
from llmgw.model.event import Severity
from llmgw.model.replica import Replica, ReplicaState, Shard
from llmgw.store import events, intents, replicas
from llmgw.store.db import Tx

S = ReplicaState


def move(
    tx: Tx, replica: str, state: ReplicaState, reason: str, *, severity: Severity = Severity.INFO, **fields: Any
) -> Replica | None:
    """To another state, if that may follow the present one; None when it may not or the replica is gone."""
    now = replicas.get(tx.db, replica)
    if now is None or not lifecycle.may_follow(now.state, state):
        return None
    changed = replicas.change(tx, replica, state=state, reason=reason, **fields)
    if now.state is not state:
        events.add(
            tx,
            "replica.state",
            f"{replica} {state}{': ' + reason if reason else ''}",
            node=now.lead.node,
            model=now.model,
            replica=replica,
            severity=severity,
            state=str(state),
            was=str(now.state),
            attempt=now.lead.attempt,
        )
    return changed


def fail(
    tx: Tx, replica: str, cause: str, *, log_tail: tuple[str, ...] = (), attempt: int | None = None
) -> Replica | None:
    """A failed attempt: the cause is kept, and when it is tried again.

    `attempt` is the one that the node knows of, which is later than ours where our state is a restored backup.
    """
    now = replicas.get(tx.db, replica)
    if now is None or not lifecycle.may_follow(now.state, S.FAILED):
        return None
    ready_for = tx.now - now.ready_at if now.ready_at is not None else None
    failures = lifecycle.failures_after(now.failures, ready_for)
    delay = lifecycle.retry_delay(failures)
    intents.close_for(tx, replica, "failed")
    changed = replicas.change(
        tx,
        replica,
        state=S.FAILED,
        reason=cause,
        failures=failures,
        shards=_at_attempt(now, attempt),
        ready_at=None,
        next_try_at=tx.now + delay if delay is not None else None,
    )
    then = f"it is started again in {delay:g} s" if delay is not None else "it is given up on this node"
    events.add(
        tx,
        "replica.failed",
        f"{replica} failed (attempt {now.lead.attempt}): {cause}; {then}",
        node=now.lead.node,
        model=now.model,
        replica=replica,
        severity=Severity.ERROR,
        attempt=now.lead.attempt,
        cause=cause,
        log=list(log_tail[-20:]),
    )
    return changed


def _at_attempt(replica: Replica, attempt: int | None) -> tuple[Shard, ...]:
    if attempt is None or attempt <= replica.lead.attempt:
        return replica.shards
    return (replica.lead.model_copy(update={"attempt": attempt}), *replica.shards[1:])


def retire(tx: Tx, replica: str, reason: str) -> Replica | None:
    """Out of routing at once; what it is doing may end. Whoever acts stops it then."""
    now = replicas.get(tx.db, replica)
    if now is None or now.state.going or now.state is S.STOPPED:
        return now
    replicas.change(tx, replica, wanted=False, next_try_at=None)
    if now.lead.attempt == 0 and now.state in (S.PLACED, S.FETCHING):
        move(tx, replica, S.STOPPING, reason)
        return move(tx, replica, S.STOPPED, f"{reason}; it was never started")
    return move(tx, replica, S.DRAINING if now.state is S.READY else S.STOPPING, reason)

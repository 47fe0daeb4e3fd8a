"""A replica: one running instance of a model. A shard: its part on one node (rank 0, 1, …)."""

from __future__ import annotations

from enum import StrEnum

from llmgw.model.base import Record


class ReplicaState(StrEnum):
    PLACED = "placed"
    FETCHING = "fetching"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    UNCLAIMED = "unclaimed"

    @property
    def coming(self) -> bool:
        """On its way to ready."""
        return self in (ReplicaState.PLACED, ReplicaState.FETCHING, ReplicaState.STARTING, ReplicaState.LOADING)

    @property
    def going(self) -> bool:
        return self in (ReplicaState.DRAINING, ReplicaState.STOPPING)

    @property
    def over(self) -> bool:
        """Nothing of it runs any more, and nothing will unless it is tried again."""
        return self in (ReplicaState.STOPPED, ReplicaState.FAILED)


class Process(Record):
    """Identity of a process: alive only when all three still match. A pid alone says nothing."""

    boot_id: str
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat, clock ticks after boot (proc(5))."""


class Shard(Record):
    node: str
    rank: int = 0
    attempt: int = 0
    """Which launch of this shard; 0 before the first."""
    process: Process | None = None
    port: int | None = None


class Replica(Record):
    id: str
    model: str
    revision: str
    profile: str
    engine: str
    engine_version: str
    state: ReplicaState = ReplicaState.PLACED
    reason: str = ""
    """Why it is in this state; for `failed` the cause in the node's own words."""
    progress: float | None = None
    """0 to 1 while fetching or loading, where it is known."""
    wanted: bool = True
    """False once reconcile decided that it shall go: it is drained, stopped and then forgotten."""
    shards: tuple[Shard, ...] = ()
    memory_bytes: int = 0
    """What placement counted for it on each of its nodes."""
    created_at: float = 0.0
    state_since: float = 0.0
    ready_at: float | None = None
    """When this very process first answered; kept while it is out of sight and asked anew. None: it never has."""
    failures: int = 0
    """Failed attempts in a row; a stretch of being ready sets it back to 0."""
    next_try_at: float | None = None
    """Unix seconds before which it is not started again; None when nothing holds it."""

    @property
    def lead(self) -> Shard:
        """Rank 0: the shard that answers HTTP."""
        return self.shards[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(shard.node for shard in self.shards)
